//! `cloudcore`: the cloud's side of Tombolo as a program.

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
