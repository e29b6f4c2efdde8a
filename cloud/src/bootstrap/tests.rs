use std::time::{Duration, SystemTime};

use super::*;

mod cluster;
mod forward;
mod in_force;
mod join;
mod questions;
mod registering;
mod renew;
mod start;
mod tokens;
mod world;
