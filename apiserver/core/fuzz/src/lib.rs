//! Bodies of the fuzz targets.

pub mod bodies;
