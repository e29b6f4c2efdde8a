use std::time::{Duration, SystemTime};

use super::*;

mod cluster;
mod in_force;
mod join;
mod renew;
mod start;
mod tokens;
mod world;
