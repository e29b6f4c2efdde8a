//! `cloudcore`: the program of Tombolo's cloud side.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match tombolo_cloud::cli::run(tombolo_cloud::cli::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloudcore: {}", tombolo_runtime::sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
