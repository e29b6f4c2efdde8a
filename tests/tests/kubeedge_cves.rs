//! Vulnerabilities of KubeEdge that cannot occur here, because the programs have no such feature; docs/security.md has
//! the table.

use std::fs;
use std::path::Path;

use tombolo_tests::source::root;

/// Crates of cloudcore and edgecore.
const CRATES: [&str; 8] = ["proto", "link", "grid", "runtime", "replay", "apiserver/core", "cloud", "edge"];

/// Ways to start a program.
const STARTS: [&str; 3] = ["process::Command", "Command::new", "posix_spawn"];

/// Libraries that unpack archives into folders.
const ARCHIVES: [&str; 4] = ["tar", "zip", "async-tar", "tokio-tar"];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn cloudcore_and_edgecore_start_no_program_and_unpack_no_archive() {
    let mut found = Vec::new();
    for name in CRATES {
        sources(&root().join(name).join("src"), &mut found);
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for archive in ARCHIVES {
            let depends = manifest.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(archive));
            assert!(!depends, "{name} depends on {archive}");
        }
    }
    assert!(found.len() > 300, "{} files", found.len());
    for (path, text) in found {
        if path.contains("tests") {
            continue;
        }
        for start in STARTS {
            assert!(!text.contains(start), "{path} has {start}");
        }
    }
}
