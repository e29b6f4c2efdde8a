//! The agent of one edge node.

use std::process::ExitCode;

fn main() -> ExitCode {
    tombolo_edge::cli::main()
}
