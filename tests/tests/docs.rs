//! What the documents name exists: paths, crates, flags and metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use tombolo_tests::source::{CRATES, files, relative, root};

fn documents() -> Vec<PathBuf> {
    let mut all = files("docs", ".md");
    all.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    all
}

/// Words in backticks, outside of code blocks.
fn code_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let quoted = line.split('`').skip(1).step_by(2);
            words.extend(quoted.flat_map(str::split_whitespace).map(str::to_owned));
        }
    }
    words
}

/// Lines of shell in the code blocks.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            lines.push(line.to_owned());
        }
    }
    lines
}

fn sources() -> String {
    let texts =
        CRATES.iter().flat_map(|name| files(name, ".rs")).map(|file| fs::read_to_string(file).unwrap());
    texts.collect::<Vec<_>>().join("\n")
}

/// Flags of the project's own programs: fields under an `arg` attribute that says `long`.
fn flags(sources: &str) -> BTreeSet<String> {
    let mut known = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    let mut lines = sources.lines();
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        if !attribute.starts_with("#[arg(") || !attribute.contains("long") {
            continue;
        }
        if let Some(name) = attribute.split("long = \"").nth(1).and_then(|rest| rest.split('"').next()) {
            known.insert(format!("--{name}"));
        }
        let field = lines.find(|line| !line.trim_start().starts_with(['#', '/'])).unwrap_or_default();
        let name = field.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if let Some(name) = name.split(':').next() {
            known.insert(format!("--{}", name.replace('_', "-")));
        }
    }
    known
}

#[test]
fn named_paths_exist() {
    let top =
        fs::read_dir(root()).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let top: BTreeSet<String> = top.collect();
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in code_words(&text) {
            let path = word.trim_end_matches(['/', '.', ',', ':', ';']);
            let is_path =
                path.split('/').next().is_some_and(|first| top.contains(first)) && path.contains('/');
            let is_file = top.contains(path) || !path.contains('/') && path.ends_with(".md");
            let wildcard = path.contains(['*', '<', '{']);
            if (is_path || is_file) && !wildcard && !root().join(path).exists() {
                missing.push(format!("{}: {path}", relative(&document)));
            }
        }
    }
    assert!(missing.is_empty(), "documents name paths that are not there:\n{}", missing.join("\n"));
}

#[test]
fn linked_files_exist() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let outside = target.starts_with("http") || target.is_empty();
            let path = document.parent().unwrap().join(target);
            assert!(outside || path.exists(), "{}: link to {target}", relative(&document));
        }
    }
}

#[test]
fn named_crates_exist() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in code_words(&text).iter().filter(|word| word.starts_with("tombolo-")) {
            let is_name = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let known = lock.contains(&format!("name = \"{word}\""));
            // Kubernetes objects of ours have such names too; they are in deploy/.
            let deployed = files("deploy", ".yaml")
                .iter()
                .any(|file| fs::read_to_string(file).unwrap().contains(word.as_str()));
            let in_code = sources().contains(&format!("\"{word}\""));
            assert!(!is_name || known || deployed || in_code, "{}: {word} is neither", relative(&document));
        }
    }
}

#[test]
fn named_flags_exist() {
    let known = flags(&sources());
    let foreign = ["cargo", "kubectl", "curl", "etcd", "kube-apiserver", "ip", "tc", "systemctl"];
    let ours = ["tombolo", "cloudcore", "edgecore", "cargo xtask", "cargo run"];
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned));
        for command in quoted.chain(shell_lines(&text)) {
            let is_ours = ours.iter().any(|name| command.trim_start().starts_with(name));
            let is_foreign = foreign.iter().any(|name| command.trim_start().starts_with(name)) && !is_ours;
            if is_foreign {
                continue;
            }
            // Flags before the dashes of `cargo run --release -- up` are cargo's.
            let own = command.split(" -- ").last().unwrap_or_default();
            for flag in own.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
                let flag = flag.split('=').next().unwrap().trim_end_matches([',', '.', ')', ']']);
                assert!(known.contains(flag), "{}: {flag} in `{command}`", relative(&document));
            }
        }
    }
}

#[test]
fn named_metrics_exist() {
    let sources = sources();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in code_words(&text) {
            let name = word.split('{').next().unwrap_or_default();
            let Some(metric) =
                ["tombolo_cloud_", "tombolo_edge_"].iter().find_map(|prefix| name.strip_prefix(prefix))
            else {
                continue;
            };
            let base = metric.trim_end_matches("_total");
            let known = [metric, base].iter().any(|name| sources.contains(&format!("\"{name}\"")));
            assert!(metric.is_empty() || known, "{}: metric {word}", relative(&document));
        }
    }
}

#[test]
fn every_flag_is_found() {
    let found = flags(
        "#[arg(long, default_value_t = 3)]\n    edges: u32,\n#[arg(long = \"apply\")]\nfiles: Vec<PathBuf>,",
    );
    assert!(found.contains("--edges") && found.contains("--apply"));
}
