//! How `edgecore` is linked where its size counts.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // Profile `device`, for the target whose linker is LLD without further settings: functions that are compiled to the same
    // instructions are there once. Nothing of Rust's may depend on the address of a function.
    let small = is("OPT_LEVEL", "s") || is("OPT_LEVEL", "z");
    if small && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bin=edgecore=-Wl,--icf=all");
    }
}
