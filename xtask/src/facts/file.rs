//! The files that hold the facts: writes them, or compares them with new facts.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use similar::utils::diff_slices;
use similar::{Algorithm, ChangeTag};

/// Maximum number of differing lines that are printed for one file.
const SHOWN_MAX: usize = 40;

/// A file and what it must contain. A path that ends with `.gz` is compressed.
pub(super) struct FactsFile {
    path: PathBuf,
    text: String,
}

impl FactsFile {
    pub(super) fn new(path: PathBuf, text: String) -> Self {
        Self { path, text }
    }

    pub(super) fn write(&self) -> Result<()> {
        let context = || format!("writing {}", self.path.display());
        let mut bytes = self.text.clone().into_bytes();
        if self.is_compressed() {
            // No timestamp, so that the same facts produce the same file.
            let mut writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
            writer.write_all(&bytes).with_context(context)?;
            bytes = writer.finish().with_context(context)?;
        }
        std::fs::write(&self.path, &bytes).with_context(context)?;
        println!("{}: {} bytes", self.path.display(), bytes.len());
        Ok(())
    }

    fn is_compressed(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "gz")
    }

    fn stored(&self) -> Result<String> {
        let context = || format!("reading {}", self.path.display());
        let bytes = std::fs::read(&self.path).with_context(context)?;
        if !self.is_compressed() {
            return String::from_utf8(bytes).with_context(context);
        }
        let mut text = String::new();
        GzDecoder::new(&bytes[..]).read_to_string(&mut text).with_context(context)?;
        Ok(text)
    }
}

/// Prints the lines that differ between the files and the facts.
///
/// # Errors
/// A file differs or cannot be read.
pub(super) fn check(files: &[FactsFile]) -> Result<()> {
    let mut differing = 0;
    for file in files {
        let lines = changes(&file.stored()?, &file.text);
        if lines.is_empty() {
            continue;
        }
        differing += 1;
        println!("{}: {} lines differ", file.path.display(), lines.len());
        lines.iter().take(SHOWN_MAX).for_each(|line| println!("{line}"));
        if lines.len() > SHOWN_MAX {
            println!("... and {} more", lines.len() - SHOWN_MAX);
        }
    }
    if differing > 0 {
        bail!(
            "{differing} of {} files differ from the facts; without --check, they are written",
            files.len()
        );
    }
    println!("all {} files are as the facts say", files.len());
    Ok(())
}

/// The lines that only the old text has (`- `), and those that only the new one has (`+ `), in their order.
fn changes(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut lines = Vec::new();
    for (tag, part) in diff_slices(Algorithm::Myers, &old, &new) {
        let sign = match tag {
            ChangeTag::Equal => continue,
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        };
        lines.extend(part.iter().map(|line| format!("{sign} {line}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_removed_and_added_lines() {
        assert_eq!(changes("a\nb\nc\n", "a\nb\nc\n"), [""; 0]);
        assert_eq!(changes("a\nb\nc\n", "a\nB\nc\nd\n"), ["- b", "+ B", "+ d"]);
        assert_eq!(changes("a\nb\nc\n", "c\n"), ["- a", "- b"]);
        assert_eq!(changes("a\nb\nc\nd\ne\n", "b\nc\nx\nd\ne\n"), ["- a", "+ x"]);
        assert_eq!(changes("", "a\n"), ["+ a"]);
        assert_eq!(changes("a\n", "b\n"), ["- a", "+ b"]);
    }

    #[test]
    fn a_written_file_has_no_differences() {
        let folder = std::env::temp_dir().join(format!("tombolo-facts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["plain.txt", "packed.gz"] {
            let file = FactsFile::new(folder.join(name), "one\ntwo\n".to_owned());
            file.write().unwrap();
            check(&[file]).unwrap();
            let other = FactsFile::new(folder.join(name), "one\n".to_owned());
            assert!(check(&[other]).is_err(), "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
