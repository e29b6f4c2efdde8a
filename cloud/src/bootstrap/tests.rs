use std::time::{Duration, SystemTime};

use super::*;

mod cluster;
mod followed;
mod forward;
mod in_force;
mod issue;
mod join;
mod pace;
mod questions;
mod records;
mod registering;
mod renew;
mod share;
mod start;
mod tokens;
mod world;
