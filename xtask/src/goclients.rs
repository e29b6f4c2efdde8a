//! The program of `tests/clients`: informers of client-go.

use std::path::PathBuf;

use anyhow::Result;

use crate::{gobuild, run};

/// Variable that tells the tests the program's path.
pub(crate) const VARIABLE: &str = "TOMBOLO_GO_CLIENTS";

/// Builds the program. Go's own cache has the modules after the first time, so a second build takes a second.
pub(crate) fn ensure() -> Result<PathBuf> {
    let program = gobuild::cache_folder("clients")?.join("informers");
    let mut command = gobuild::go(&run::root().join("tests/clients"));
    run::check(command.args(["build", "-trimpath", "-o"]).arg(&program).arg("."))?;
    Ok(program)
}
