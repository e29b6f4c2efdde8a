use std::time::{Duration, SystemTime};

use super::*;

mod cluster;
mod followed;
mod forward;
mod in_force;
mod issue;
mod join;
mod questions;
mod records;
mod registering;
mod renew;
mod start;
mod tokens;
mod world;
