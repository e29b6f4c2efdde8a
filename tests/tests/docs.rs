//! Everything that the documents name exists: paths, crates, flags and metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use tombolo_tests::modules::without_scope;
use tombolo_tests::source::{CRATES, files, relative, root};

fn documents() -> Vec<PathBuf> {
    files("", ".md")
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

/// Shell lines in the code blocks.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            lines.push(line.trim_start_matches("$ ").to_owned());
        }
    }
    lines
}

fn sources_of(crates: &[&str]) -> String {
    let texts =
        crates.iter().flat_map(|name| files(name, ".rs")).map(|file| fs::read_to_string(file).unwrap());
    texts.collect::<Vec<_>>().join("\n")
}

fn sources() -> String {
    sources_of(&CRATES)
}

/// Flags of the project's own programs: fields below an `arg` attribute that contains `long`.
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
        if let Some(name) = without_scope(field.trim_start()).split(':').next() {
            known.insert(format!("--{}", name.replace('_', "-")));
        }
    }
    known
}

/// Extensions of files in this repository. A word with a folder and such an extension names one of them, unless it
/// begins like a path elsewhere: absolute, or in a folder that the programs create.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".yaml", ".json", ".service"];

/// Folders that the programs create for their data.
const MADE: [&str; 3] = ["pki/", "edges/", "target/"];

/// Whether a word of a document names a file or folder of this repository. `top` has the entries of its root folder.
fn names_path(word: &str, top: &BTreeSet<String>) -> bool {
    let elsewhere =
        word.starts_with(['/', '~', '$', '.', '-', '<']) || MADE.iter().any(|made| word.starts_with(made));
    let pattern = word.contains(['*', '<', '{', '=', ':', 'X']);
    let folder = word.contains('/');
    let known_start = word.split('/').next().is_some_and(|first| top.contains(first));
    let ending = ENDINGS.iter().any(|ending| word.ends_with(ending));
    !elsewhere
        && !pattern
        && (folder && (known_start || ending) || top.contains(word) || word.ends_with(".md"))
}

#[test]
fn named_paths_exist() {
    let top =
        fs::read_dir(root()).unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let top: BTreeSet<String> = top.collect();
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let in_blocks = shell_lines(&text).join("\n");
        let in_blocks = in_blocks.split_whitespace().map(str::to_owned);
        for word in code_words(&text).into_iter().chain(in_blocks) {
            let path = word.split('#').next().unwrap_or_default();
            let path = path.trim_end_matches(['/', '.', ',', ':', ';', ')']);
            // Pages in a folder name their neighbours as seen from there.
            let exists = || root().join(path).exists() || document.with_file_name(path).exists();
            if names_path(path, &top) && !exists() {
                missing.push(format!("{}: {path}", relative(&document)));
            }
        }
    }
    assert!(missing.is_empty(), "documents name paths that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn paths_are_distinguished_from_other_words() {
    let top = BTreeSet::from(["cloud".to_owned(), "Cargo.toml".to_owned()]);
    for path in ["cloud/src", "clout/src/hub.rs", "Cargo.toml", "NOTES.md"] {
        assert!(names_path(path, &top), "{path}");
    }
    for word in ["/etc/tombolo/edgecore.yaml", "apps/v1", "pki/ca.crt", "cloud*", "edgecore.yaml"] {
        assert!(!names_path(word, &top), "{word}");
    }
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

/// Anchors of a page: its headings in GitHub's form.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block && line.starts_with('#') {
            let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            found.insert(heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect());
        }
    }
    found
}

#[test]
fn linked_anchors_exist() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let Some((file, anchor)) = target.split_once('#') else { continue };
            let page = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            let known = anchors(&fs::read_to_string(page).unwrap());
            assert!(known.contains(anchor), "{}: link to {target}", relative(&document));
        }
    }
}

/// Extensions of the files that cite pages of `docs`.
const CITING: [&str; 7] = [".rs", ".md", ".yaml", ".toml", ".proto", ".go", ".service"];

/// Pages of other projects with a path like one of ours: redb's.
const PAGES_ELSEWHERE: [&str; 1] = ["docs/design.md"];

/// The pages of `docs` that a text cites, each with its anchor if there is one.
fn citations(text: &str) -> Vec<(&str, Option<&str>)> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let in_anchor = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    let cited = text.match_indices("docs/").filter_map(|(at, _)| {
        let word = text[at..].split(|c: char| !in_path(c)).next()?;
        let anchor = text[at + word.len()..].strip_prefix('#');
        let anchor = anchor.and_then(|rest| rest.split(|c: char| !in_anchor(c)).next());
        let page = word.trim_end_matches('.');
        page.ends_with(".md").then_some((page, anchor))
    });
    cited.filter(|(page, _)| !PAGES_ELSEWHERE.contains(page)).collect()
}

#[test]
fn citations_resolve() {
    let own = root().join("tests/tests/docs.rs");
    let mut pages: BTreeMap<String, Option<BTreeSet<String>>> = BTreeMap::new();
    let mut missing = Vec::new();
    for file in CITING.iter().flat_map(|ending| files("", ending)).filter(|file| *file != own) {
        let text = fs::read_to_string(&file).unwrap();
        for (page, anchor) in citations(&text) {
            let read = || fs::read_to_string(root().join(page)).ok().map(|text| anchors(&text));
            let known = pages.entry(page.to_owned()).or_insert_with(read);
            let is_known = |known: &BTreeSet<String>| anchor.is_none_or(|anchor| known.contains(anchor));
            if !known.as_ref().is_some_and(is_known) {
                missing.push(format!("{}: {page}#{}", relative(&file), anchor.unwrap_or_default()));
            }
        }
    }
    assert!(missing.is_empty(), "these are cited but do not exist:\n{}", missing.join("\n"));
}

#[test]
fn citations_and_anchors_are_found() {
    let page = "# A page\n```\n# no heading\n```\n## What SuperEdge overwrites\n### `a_b`, twice\n";
    assert_eq!(
        anchors(page),
        BTreeSet::from(["a-page", "what-superedge-overwrites", "a_b-twice"].map(str::to_owned))
    );
    let text = "(docs/a.md#one-two). See docs/b/c.md. And `docs/a.md#one`, docs/a, docs/design.md.";
    let cited = [("docs/a.md", Some("one-two")), ("docs/b/c.md", None), ("docs/a.md", Some("one"))];
    assert_eq!(citations(text), cited);
}

/// The page whose tables have the rows that tests name.
const ROWS: &str = "docs/reference/superedge.md";

/// Whether a word names such a row: the letter of its table and a number.
fn is_row(word: &str) -> bool {
    let number = word.strip_prefix(['P', 'W', 'H', 'G', 'A', 'O']).unwrap_or_default();
    matches!(number.len(), 1 | 2) && number.bytes().all(|b| b.is_ascii_digit())
}

#[test]
fn cited_rows_exist() {
    let page = fs::read_to_string(root().join(ROWS)).unwrap();
    let rows: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
        .filter(|row| is_row(row))
        .collect();
    assert!(rows.len() > 100, "{ROWS} has {} rows", rows.len());
    for file in CRATES.iter().flat_map(|name| files(name, ".rs")) {
        let text = fs::read_to_string(&file).unwrap();
        if !text.contains(ROWS) || file == root().join("tests/tests/docs.rs") {
            continue;
        }
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        let words = comments.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric()));
        for row in words.filter(|word| is_row(word)) {
            assert!(rows.contains(row), "{}: {ROWS} has no row {row}", relative(&file));
        }
    }
}

/// The comments of a Rust file as one text, so that line breaks hide nothing.
fn comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
    lines.map(|line| line.trim_start_matches(['/', '!']).trim()).collect::<Vec<_>>().join(" ")
}

/// A citation without a page here: a section number of another text, or a row without its page.
fn cited_elsewhere(text: &str) -> Option<String> {
    let titles =
        ["reference ", "reference section ", "reference sections ", "design ", "Design ", "design section "];
    let has_number = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let title = titles.into_iter().find(|title| text.split(*title).skip(1).any(has_number));
    let mut after_row = text.split("Row").skip(1).map(|rest| rest.trim_start_matches('s').trim_start());
    let rows =
        after_row.any(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric()).next().is_some_and(is_row));
    title.or((rows && !text.contains(ROWS)).then_some("Row ")).map(|word| format!("{word}N"))
}

#[test]
fn only_pages_of_this_repository_are_cited() {
    let own = root().join("tests/tests/docs.rs");
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
    let sources = CRATES.iter().flat_map(|name| files(name, ".rs")).filter(|file| *file != own);
    let texts = sources.map(|file| (relative(&file), comments(&read(&file))));
    let pages = documents().into_iter().map(|file| (relative(&file), read(&file).replace('\n', " ")));
    for (file, text) in texts.chain(pages) {
        assert_eq!(cited_elsewhere(&text), None, "{file}: cite a page of docs/reference with its anchor");
    }
}

#[test]
fn citations_of_other_texts_are_found() {
    for line in [
        "//! As told (reference\n//! 4.2).",
        "/// One (design 9.9).",
        "/// Rows W2 and W3.",
        "// Row A1: so.",
    ] {
        assert!(cited_elsewhere(&comments(line)).is_some(), "{line}");
    }
    for line in [
        "/// A reference to 3 pods.",
        "/// Row W2 of docs/reference/superedge.md#rows.",
        "/// Rows of 3 columns.",
    ] {
        assert_eq!(cited_elsewhere(&comments(line)), None, "{line}");
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
            // Our Kubernetes objects have such names too; they are in deploy/.
            let deployed = files("deploy", ".yaml")
                .iter()
                .any(|file| fs::read_to_string(file).unwrap().contains(word.as_str()));
            let in_code = sources().contains(&format!("\"{word}\""));
            assert!(!is_name || known || deployed || in_code, "{}: {word} is neither", relative(&document));
        }
    }
}

#[test]
fn the_table_of_crates_has_every_crate() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate ")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    let named: BTreeSet<&str> = rows
        .flat_map(|line| line.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let crates: BTreeSet<&str> = CRATES.into_iter().collect();
    assert_eq!(named, crates);
}

/// Flags that `cargo xtask test` passes on to cargo.
const PASSED_ON: [&str; 2] = ["--test", "--lib"];

/// The crates that hold the flags of the program in a command; all crates if the program is not ours.
fn crates_of(command: &str) -> Vec<&'static str> {
    let command = command.trim_start().trim_start_matches("sudo ");
    let command = ["target/release/", "target/dist/"]
        .iter()
        .find_map(|folder| command.strip_prefix(folder))
        .unwrap_or(command);
    match command.split_whitespace().next() {
        Some("cloudcore") => vec!["cloud", "runtime"],
        Some("edgecore") => vec!["edge", "runtime"],
        Some("tombolo") => vec!["cli", "runtime"],
        // The measuring and simulating programs parse their own arguments.
        Some("cargo") if command.starts_with("cargo xtask") => vec!["xtask", "tests", "sim"],
        Some("cargo") if command.contains(" -- ") => vec!["cli", "runtime"],
        _ => CRATES.to_vec(),
    }
}

#[test]
fn named_flags_exist() {
    let mut known: BTreeMap<Vec<&str>, BTreeSet<String>> = BTreeMap::new();
    let foreign = ["cargo", "kubectl", "curl", "etcd", "kube-", "kubelet", "ip", "tc", "systemctl"];
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
            let crates = crates_of(&command);
            let known = known.entry(crates.clone()).or_insert_with(|| flags(&sources_of(&crates)));
            // Flags before the ` -- ` of `cargo run --release -- up` are cargo's.
            let own = command.split(" -- ").last().unwrap_or_default();
            for flag in own.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
                let flag = flag.split('=').next().unwrap().trim_end_matches([',', '.', ')', ']']);
                let is_cargos = command.starts_with("cargo xtask test") && PASSED_ON.contains(&flag);
                assert!(known.contains(flag) || is_cargos, "{}: {flag} in `{command}`", relative(&document));
            }
        }
    }
}

/// Names under which a program registers its metrics, including its prefix.
fn metrics(prefix: &str, source: &str) -> BTreeSet<String> {
    let calls = source.split(".register(").skip(1);
    let names = calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split('"').next());
    names.map(|name| format!("{prefix}{name}")).collect()
}

#[test]
fn named_metrics_exist() {
    let source = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let mut known = metrics("tombolo_cloud_", &source("cloud/src/metrics.rs"));
    let kube = ["call_limits", "group_rights", "published"].map(|name| format!("cloud/src/kube/{name}.rs"));
    for file in kube.iter().map(String::as_str).chain(["cloud/src/grids/metrics.rs"]) {
        known.extend(metrics("tombolo_cloud_", &source(file)));
    }
    for file in ["edge/src/metrics.rs", "edge/src/wrapper/metrics.rs", "edge/src/dns/metrics.rs"] {
        known.extend(metrics("tombolo_edge_", &source(file)));
    }
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in code_words(&text) {
            let name = word.split('{').next().unwrap_or_default().trim_end_matches(['.', ',']);
            let rest =
                ["tombolo_cloud_", "tombolo_edge_"].iter().find_map(|prefix| name.strip_prefix(prefix));
            if rest.is_none_or(str::is_empty) {
                continue;
            }
            let endings = ["_total", "_bucket", "_sum", "_count"];
            let base = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
            assert!(known.contains(name) || known.contains(base), "{}: metric {word}", relative(&document));
        }
    }
}

#[test]
fn metrics_are_those_that_are_registered() {
    let found = metrics("p_", "x.register(\n    \"sessions\", \"Nodes\", a);\nlet kind = \"kind\";");
    assert_eq!(found, BTreeSet::from(["p_sessions".to_owned()]));
}

#[test]
fn every_flag_is_found() {
    let found = flags(
        "#[arg(long, default_value_t = 3)]\n    edges: u32,\n#[arg(long = \"apply\")]\nfiles: Vec<PathBuf>,",
    );
    assert!(found.contains("--edges") && found.contains("--apply"));
}

/// Longest line of prose. Table rows cannot be broken, and code is shown unchanged.
const LINE_LEN_MAX: usize = 140;

#[test]
fn prose_has_no_long_lines() {
    let mut long = Vec::new();
    for file in documents() {
        let mut in_block = false;
        for (number, line) in (1..).zip(fs::read_to_string(&file).unwrap().lines()) {
            in_block ^= line.trim_start().starts_with("```");
            let is_prose = !in_block && !line.trim_start().starts_with(['|', '[']);
            if is_prose && line.chars().count() > LINE_LEN_MAX {
                long.push(format!("{}:{number}", relative(&file)));
            }
        }
    }
    assert!(long.is_empty(), "lines above {LINE_LEN_MAX} characters: {}", long.join(", "));
}

/// The version of Kubernetes is defined in one file. The modules that tests build, and the pages, must match it.
#[test]
fn one_kubernetes_version_is_used_everywhere() {
    let text = fs::read_to_string(root().join("apiserver/KUBERNETES_VERSION")).unwrap();
    let version = text.trim();
    let libraries = version.replacen("v1.", "v0.", 1);
    let mut seen = 0;
    for file in files("tests", "go.mod") {
        // CoreDNS requires the library versions that it was released with.
        if relative(&file).contains("coredns") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (name, wanted) in [("k8s.io/kubernetes", version), ("k8s.io/client-go", &libraries)] {
            let required = text.lines().filter_map(|line| line.trim().strip_prefix(&format!("{name} v")));
            for found in required.map(|rest| format!("v{}", rest.split(' ').next().unwrap_or_default())) {
                assert_eq!(found, wanted, "{name} in {}", relative(&file));
                seen += 1;
            }
        }
    }
    assert!(seen >= 6, "{seen} requirements");
}
