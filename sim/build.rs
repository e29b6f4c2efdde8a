//! Builds the library that every simulated process loads (native/machine.c).

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "native/machine.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CC");
    let folder = env::var_os("OUT_DIR").expect("cargo names the folder");
    let library = PathBuf::from(folder).join("machine.so");
    println!("cargo::rustc-env=TOMBOLO_SIM_MACHINE={}", library.display());
    // What it replaces is that of Linux. Elsewhere no simulation runs, and the rest of this crate is of use.
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c17", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(SOURCE);
    let status = command.status().expect("a C compiler is installed (CONTRIBUTING.md)");
    assert!(status.success(), "{command:?} ended with {status}");
}
