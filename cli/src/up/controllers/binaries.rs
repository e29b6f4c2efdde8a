//! Finds the components' binaries.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use tombolo_apiserver::version;

/// Folder of the envtest convention.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Programs of `--controllers`.
pub(in crate::up) struct Binaries {
    /// kube-controller-manager.
    pub(super) controller_manager: PathBuf,
    /// kube-scheduler.
    pub(super) scheduler: PathBuf,
}

/// Where to search.
struct Places {
    /// Value of `KUBEBUILDER_ASSETS`.
    assets: Option<OsString>,
    /// Value of `PATH`.
    path: Option<OsString>,
    /// Folder in which `cargo xtask components` stores its builds.
    cache: Option<PathBuf>,
}

impl Binaries {
    /// Searches `KUBEBUILDER_ASSETS`, `PATH` and the builds of `cargo xtask components`.
    ///
    /// # Errors
    /// When a binary is in none of them; the text lists the searched places and what to do.
    pub(in crate::up) fn find() -> Result<Self> {
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
            .map(|base| base.join("tombolo/components"));
        Places { assets: env::var_os(ASSETS_VARIABLE), path: env::var_os("PATH"), cache }.binaries()
    }
}

impl Places {
    fn binaries(&self) -> Result<Binaries> {
        let folders = self.folders();
        let find = |name: &str| {
            let found = folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
            found.with_context(|| self.missing(name))
        };
        Ok(Binaries {
            controller_manager: find("kube-controller-manager")?,
            scheduler: find("kube-scheduler")?,
        })
    }

    fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = self.assets.iter().map(PathBuf::from).collect();
        folders.extend(self.path.iter().flat_map(env::split_paths));
        folders.extend(self.cache.iter().flat_map(|cache| newest_first(cache)));
        folders
    }

    fn missing(&self, name: &str) -> String {
        let assets = match &self.assets {
            Some(folder) => format!("{ASSETS_VARIABLE} ({})", folder.display()),
            None => format!("{ASSETS_VARIABLE} (not set)"),
        };
        let cache = self.cache.as_ref().map(|cache| format!(" nor below {}", cache.display()));
        let (major, minor) = version::numbers();
        format!(
            "--controllers needs {name}, which is neither in {assets} nor in PATH{}: build it with \
             `cargo xtask components`, or put the binaries of Kubernetes {major}.{minor} into PATH",
            cache.unwrap_or_default()
        )
    }
}

/// The builds in the cache: each has its own folder, named after the sources it was built from.
fn newest_first(cache: &Path) -> Vec<PathBuf> {
    let mut builds: Vec<(SystemTime, PathBuf)> = fs::read_dir(cache)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        // Skip builds in progress.
        .filter(|folder| folder.extension().is_none())
        .filter_map(|folder| Some((fs::metadata(&folder).ok()?.modified().ok()?, folder)))
        .collect();
    builds.sort_by(|left, right| right.cmp(left));
    builds.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::Places;

    fn put(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
    }

    #[test]
    fn each_binary_is_taken_from_the_first_folder_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let (assets, path, cache) =
            (folder.path().join("assets"), folder.path().join("bin"), folder.path().join("cache"));
        put(&cache.join("0123"), &["kube-controller-manager", "kube-scheduler"]);
        put(&cache.join("4567.partial"), &["kube-scheduler"]);
        let mut places =
            Places { assets: Some(assets.clone().into()), path: Some(path.clone().into()), cache: None };
        let error = places.binaries().err().unwrap().to_string();
        assert!(
            error.contains("kube-controller-manager") && error.contains("cargo xtask components"),
            "{error}"
        );
        assert!(error.contains(assets.to_str().unwrap()), "{error}");

        places.cache = Some(cache.clone());
        assert_eq!(places.binaries().unwrap().scheduler, cache.join("0123/kube-scheduler"));
        put(&path, &["kube-scheduler"]);
        assert_eq!(places.binaries().unwrap().scheduler, path.join("kube-scheduler"));
        put(&assets, &["kube-scheduler"]);
        let found = places.binaries().unwrap();
        assert_eq!(found.scheduler, assets.join("kube-scheduler"));
        assert_eq!(found.controller_manager, cache.join("0123/kube-controller-manager"));
    }
}
