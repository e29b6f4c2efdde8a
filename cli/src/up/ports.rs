//! Ports and format of a data folder: later starts reuse the ports of the first, so kubeconfigs stay valid.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tombolo_apiserver::{UP_FILE, is_data_dir};

/// Version of the data folder layout that this program writes.
const FORMAT: u32 = 2;

/// The oldest layout that is upgraded. In it the kubeconfig is a copy of the API server's; now it is a link. A program
/// that copies would overwrite the file through the link, so it must refuse the newer layout.
const OLDEST_FORMAT: u32 = 1;

/// Ports of the listeners, kept in the data folder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ports {
    format: u32,
    ports: BTreeMap<String, u16>,
    #[serde(skip)]
    file: PathBuf,
}

impl Ports {
    /// Reads the ports of a data folder; creates the folder if it is missing.
    ///
    /// # Errors
    /// When the folder has another format, belongs to another program, or cannot be used.
    pub(super) fn open(data_dir: &Path) -> Result<Self> {
        if is_data_dir(data_dir) {
            bail!(
                "{} is the data folder of `tombolo apiserver`: run that command, or use another --data-dir",
                data_dir.display()
            );
        }
        fs::create_dir_all(data_dir).with_context(|| format!("cannot create {}", data_dir.display()))?;
        let file = data_dir.join(UP_FILE);
        if !file.exists() {
            return Ok(Self { format: FORMAT, ports: BTreeMap::new(), file });
        }
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut read: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: delete it to choose new ports", file.display()))?;
        if !(OLDEST_FORMAT..=FORMAT).contains(&read.format) {
            bail!(
                "{} was made by another version (format {}, this program reads up to {FORMAT}): use another --data-dir",
                data_dir.display(),
                read.format
            );
        }
        (read.format, read.file) = (FORMAT, file);
        Ok(read)
    }

    /// The loopback address to bind for a listener: with its previous port, or with any.
    #[must_use]
    pub(super) fn address(&self, listener: &str) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.get(listener).copied().unwrap_or(0)).into()
    }

    /// Saves the port that a listener was bound to.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn keep(&mut self, listener: &str, bound: SocketAddr) -> Result<()> {
        self.ports.insert(listener.to_owned(), bound.port());
        let half_written = self.file.with_extension("tmp");
        fs::write(&half_written, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&half_written, &self.file))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn ports_are_kept_and_other_formats_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut ports = Ports::open(folder.path()).unwrap();
        assert_eq!(ports.address("hub").port(), 0);
        ports.keep("hub", ([127, 0, 0, 1], 4242).into()).unwrap();
        assert_eq!(Ports::open(folder.path()).unwrap().address("hub").port(), 4242);

        std::fs::write(folder.path().join("up.json"), r#"{"format": 9, "ports": {}}"#).unwrap();
        let error = Ports::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another version (format 9"), "{error}");

        // A folder with a copied kubeconfig is upgraded; programs that copy refuse it from then on.
        std::fs::write(folder.path().join("up.json"), r#"{"format": 1, "ports": {"hub": 4243}}"#).unwrap();
        let mut ports = Ports::open(folder.path()).unwrap();
        assert_eq!(ports.address("hub").port(), 4243);
        ports.keep("kubernetes", ([127, 0, 0, 1], 4244).into()).unwrap();
        let text = std::fs::read(folder.path().join("up.json")).unwrap();
        let kept: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&kept["format"], &kept["ports"]["hub"]), (&2.into(), &4243.into()));

        let of_cloudcore = tempfile::tempdir().unwrap();
        std::fs::write(of_cloudcore.path().join("format"), "tombolo-embedded/1\n").unwrap();
        let error = Ports::open(of_cloudcore.path()).unwrap_err().to_string();
        assert!(error.contains("`tombolo apiserver`"), "{error}");
    }
}
