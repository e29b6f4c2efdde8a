//! Compiles `protocol/*.proto` with protox, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=protocol");
    let files = protox::compile(["tombolo.proto"], ["protocol"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
