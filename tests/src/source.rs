//! Reads the repository itself, for the tests that check it against its own rules.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Crates that are subject to the size rules.
pub const CRATES: [&str; 15] = [
    "proto",
    "link",
    "grid",
    "runtime",
    "replay",
    "apiserver/core",
    "apiserver/catalog",
    "apiserver/cel",
    "apiserver/control",
    "cloud",
    "edge",
    "cli",
    "testkit",
    "tests",
    "xtask",
];

/// The repository's root folder.
#[must_use]
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// All files below a folder of the repository with this ending, except build output.
#[must_use]
pub fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&root().join(folder), ending, &mut found);
    found.sort();
    found
}

/// The YAML documents of a file.
///
/// # Errors
/// When it cannot be read or is not YAML.
pub fn documents(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

/// The path relative to the repository.
#[must_use]
pub fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// A Rust file without its inline test modules; the size rules count these lines.
///
/// A test module is recognised as `#[cfg(test)]` followed by a `mod` with a body; it ends at the first line
/// that is a closing brace at the module's own indentation, which rustfmt guarantees.
#[must_use]
pub fn product_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = Vec::new();
    let mut index = 0;
    while index < lines.len() {
        let opens_tests = lines[index].trim() == "#[cfg(test)]"
            && lines
                .get(index + 1)
                .is_some_and(|next| next.trim().starts_with("mod ") && next.ends_with('{'));
        if !opens_tests {
            kept.push(lines[index]);
            index += 1;
            continue;
        }
        let indentation = lines[index].len() - lines[index].trim_start().len();
        let end = format!("{}}}", " ".repeat(indentation));
        index = lines[index..]
            .iter()
            .position(|line| *line == end)
            .map_or(lines.len(), |after| index + after + 1);
    }
    kept
}

/// Functions of a formatted Rust file: name, first line (from 1) and number of lines.
#[must_use]
pub fn functions(lines: &[&str]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indentation = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indentation));
        let rest = &lines[start..];
        // A declaration without a body ends with a semicolon before any closing brace.
        let length = rest
            .iter()
            .position(|line| *line == end || line.trim_end().ends_with(';') && !line.contains('{'));
        let Some(length) = length else { continue };
        if rest[length] == end {
            found.push((name, start + 1, length + 1));
        } else if let Some(body) = rest.iter().position(|line| *line == end) {
            let opened = rest[..=length].iter().any(|line| line.trim_end().ends_with('{'));
            if opened {
                found.push((name, start + 1, body + 1));
            }
        }
    }
    found
}

fn function_name(line: &str) -> Option<String> {
    let code = line.trim_start();
    let mut rest = code;
    for prefix in ["pub(crate) ", "pub(super) ", "pub ", "default ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (!code.ends_with('}')).then(|| rest[..end].to_owned())
}
