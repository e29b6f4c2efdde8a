//! Programs that are built from published Go modules and kept in the user's cache folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Version that the binaries report: kubectl and kube-controller-manager compare it with the server's.
pub(crate) const KUBERNETES_VERSION: &str = include_str!("../../apiserver/KUBERNETES_VERSION").trim_ascii();

/// The Go command in a module's folder. Builds take minutes, so they run at low priority.
pub(crate) fn go(modules: &Path) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "10", "go"]).current_dir(modules).env("CGO_ENABLED", "0");
    command
}

/// The folder of downloaded modules; none without Go.
pub(crate) fn module_cache() -> Option<PathBuf> {
    let answer = Command::new("go").args(["env", "GOMODCACHE"]).output().ok()?;
    let path = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    (answer.status.success() && !path.is_empty()).then(|| path.into())
}

/// Lets a build fill a folder, completely or not at all.
pub(crate) fn into_folder(folder: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let started = Instant::now();
    let half_made = folder.with_extension("partial");
    fs::create_dir_all(&half_made).with_context(|| format!("create {}", half_made.display()))?;
    build(&half_made)?;
    // Renamed when complete, so that an interrupted build is never mistaken for a complete one.
    fs::rename(&half_made, folder).with_context(|| format!("name the result {}", folder.display()))?;
    eprintln!("built in {} s, kept in {}", started.elapsed().as_secs(), folder.display());
    Ok(())
}

pub(crate) fn link_flags() -> String {
    let mut parts = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let base = "k8s.io/component-base/version";
    [
        "-s -w".to_owned(),
        format!("-X {base}.gitVersion={KUBERNETES_VERSION}"),
        format!("-X {base}.gitMajor={major}"),
        format!("-X {base}.gitMinor={minor}"),
        format!("-X {base}.gitCommit=unknown"),
        format!("-X {base}.buildDate=1970-01-01T00:00:00Z"),
        format!("-X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"),
    ]
    .join(" ")
}

/// The folder for one kind of build. Each build in it is named by its [`key`].
pub(crate) fn cache_folder(sort: &str) -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set: no folder to keep the programs in")?;
    let folder = base.join("tombolo").join(sort);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// What a build depends on: the versions of all modules and the flags.
pub(crate) fn key(modules: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        let path = modules.join(file);
        hash.update(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
    }
    hash.update(link_flags());
    Ok(hex::encode(hash.finalize())[..16].to_owned())
}
