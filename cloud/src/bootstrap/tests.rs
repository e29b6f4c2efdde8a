use std::time::{Duration, SystemTime};

use super::*;

mod cluster;
mod join;
mod renew;
mod start;
mod world;
