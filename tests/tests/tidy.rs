//! The repository follows its own rules: layers, sizes, and crates without IO.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tombolo_tests::modules::{Circle, Modules, without_scope};
use tombolo_tests::source::{CRATES, files, functions, product_lines, relative, root};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
/// More fields need a reason in the docs of their struct.
const STRUCT_FIELDS_MAX: usize = 12;

/// The dependencies of a crate in the section of its manifest with this name.
fn dependencies(name: &str, section: &str) -> Vec<String> {
    dependencies_in(&fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap(), section)
}

fn dependencies_in(manifest: &str, section: &str) -> Vec<String> {
    let text = manifest.split(&format!("\n[{section}]\n")).nth(1).unwrap_or_default();
    let text = text.split("\n[").next().unwrap_or_default();
    text.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned).collect()
}

/// Every crate with rules: its folder, the name of its package, and the packages below it that it may use.
const ARROWS: [(&str, &str, &[&str]); 15] = [
    ("proto", "tombolo-proto", &[]),
    ("grid", "tombolo-grid", &[]),
    ("runtime", "tombolo-runtime", &[]),
    ("link", "tombolo-link", &["proto", "runtime"]),
    ("replay", "tombolo-replay", &["proto"]),
    ("apiserver/core", "tombolo-apicore", &["proto"]),
    ("apiserver/catalog", "tombolo-catalog", &["apicore"]),
    ("apiserver/cel", "tombolo-cel", &["apicore"]),
    ("apiserver/control", "tombolo-apiserver", &["proto", "apicore", "catalog", "cel", "runtime"]),
    ("cloud", "tombolo-cloud", &["proto", "link", "apicore", "grid", "runtime", "replay"]),
    ("edge", "tombolo-edge", &["proto", "link", "apicore", "grid", "runtime"]),
    ("cli", "tombolo", &["proto", "link", "grid", "runtime", "replay", "cloud", "edge", "apiserver"]),
    ("sim", "tombolo-sim", &["proto", "link", "apicore", "runtime", "cloud", "edge", "testkit"]),
    ("testkit", "tombolo-testkit", &[]),
    ("xtask", "xtask", &[]),
];

/// What only tests may use: a package that is made for them, and for one crate a package above it, without which its
/// tests would have to write a server's behaviour again.
const FOR_TESTS: [(&str, &str); 2] = [("tombolo-proto", "proto-v1"), ("tombolo-apicore", "catalog")];

/// What a crate uses, by its manifest, that is not below it. Its tests may use what is below indirectly, too.
fn against_the_arrows(package: &str, manifest: &str) -> Vec<String> {
    let arrows =
        |package: &str| ARROWS.iter().find(|(_, name, _)| *name == package).map_or(&[][..], |row| row.2);
    let direct: BTreeSet<&str> = arrows(package).iter().copied().collect();
    let mut for_tests: BTreeSet<&str> = direct.iter().copied().chain(["testkit"]).collect();
    for_tests.extend(FOR_TESTS.iter().filter(|(user, _)| *user == package).map(|(_, used)| *used));
    let mut next: Vec<&str> = direct.iter().copied().collect();
    while let Some(name) = next.pop() {
        next.extend(arrows(&format!("tombolo-{name}")).iter().filter(|below| for_tests.insert(below)));
    }
    let sections =
        [("dependencies", &direct), ("build-dependencies", &direct), ("dev-dependencies", &for_tests)];
    let wrong = sections.iter().flat_map(|(section, allowed)| {
        let used = dependencies_in(manifest, section).into_iter();
        used.filter(|name| {
            name == "tombolo" || name.strip_prefix("tombolo-").is_some_and(|ours| !allowed.contains(ours))
        })
    });
    wrong.collect()
}

#[test]
fn crates_point_down_only() {
    for (folder, package, _) in ARROWS {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("\nname = \"{package}\"\n")), "{folder} is no {package}");
        let wrong = against_the_arrows(package, &manifest);
        assert!(wrong.is_empty(), "{folder} must not depend on {wrong:?}");
    }
}

/// Crates that decide without IO and clock, the code that only they must not have, and dependencies that they may have
/// although these could tell the time: they only parse and print it.
const PURE: [(&str, &[&str], &[&str]); 5] = [
    ("proto", &RANDOM_MAPS, &[]),
    ("grid", &[THREADS], &[]),
    ("replay", &[THREADS], &[]),
    ("apiserver/catalog", &[THREADS], &["jiff"]),
    // It parses and evaluates on threads with large stacks.
    ("apiserver/cel", &[], &["jiff"]),
];

const THREADS: &str = "std::thread";

/// Their order differs from run to run.
const RANDOM_MAPS: [&str; 6] = [
    THREADS,
    "RandomState",
    "HashMap::new",
    "HashMap::with_capacity(",
    "HashSet::new",
    "HashSet::with_capacity(",
];

#[test]
fn pure_crates_decide_without_io() {
    let banned_crates = ["tokio", "rand", "hyper", "quinn", "rustls", "futures", "jiff", "getrandom"];
    let banned_code = [
        "Instant::now",
        "SystemTime",
        "Timestamp::now",
        "Zoned::now",
        "std::fs",
        "std::net",
        "std::process",
        "async fn",
        "thread_rng",
    ];
    for (name, banned, allowed) in PURE {
        for dependency in dependencies(name, "dependencies").iter().map(String::as_str) {
            let is_banned = banned_crates.contains(&dependency) && !allowed.contains(&dependency);
            assert!(!is_banned, "{name} must not depend on {dependency}");
        }
        for file in product_files(name) {
            let text = fs::read_to_string(&file).unwrap();
            for line in product_lines(&text).iter().filter(|line| !line.trim_start().starts_with("//")) {
                for code in banned_code.iter().chain(banned) {
                    assert!(!line.contains(code), "{}: {code} in `{}`", relative(&file), line.trim());
                }
            }
        }
    }
}

fn product_files(name: &str) -> Vec<std::path::PathBuf> {
    let is_test = |path: &std::path::Path| {
        path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
    };
    let source = root().join(name).join("src");
    files(&format!("{name}/src"), ".rs")
        .into_iter()
        .filter(|path| !path.strip_prefix(&source).is_ok_and(is_test))
        .collect()
}

#[test]
fn modules_have_no_cycles() {
    let mut found = String::new();
    for name in CRATES.into_iter().filter(|name| !matches!(*name, "tests" | "testkit" | "xtask")) {
        let mut modules = Modules::default();
        for file in product_files(name) {
            let text = fs::read_to_string(&file).unwrap();
            let path = file.strip_prefix(root().join(name).join("src")).unwrap();
            modules.add(&path.display().to_string(), &product_lines(&text));
        }
        for Circle { folder, modules } in modules.circles() {
            found.push_str(&format!("{name}/src/{folder}: {}\n", modules.join(", ")));
        }
    }
    assert!(found.is_empty(), "these use each other:\n{found}");
}

/// The names of the types that a product file declares, also inside functions. An indented `type` is an associated one,
/// whose name a trait determines.
fn declared_types(lines: &[&str]) -> Vec<String> {
    let declared = |(index, line): (usize, &&str)| {
        let code = line.trim_start();
        let (keyword, rest) = without_scope(code).split_once(' ')?;
        let is_type = matches!(keyword, "struct" | "enum" | "trait" | "union");
        let is_alias = keyword == "type" && code.len() == line.len();
        let name = leading_name(rest);
        let counts = (is_type || is_alias) && !is_read_part(&lines[..index], code, name);
        counts.then(|| name.to_owned())
    };
    // A macro fills in the name of some.
    lines.iter().enumerate().filter_map(declared).filter(|name| !name.is_empty()).collect()
}

/// Names of parts of Kubernetes objects.
const OBJECT_PARTS: [&str; 4] = ["Metadata", "Object", "Spec", "Status"];

/// Whether a declaration only lists the fields that its own module reads or writes of a part of an object: it is named
/// as the part, private, and read or written by serde.
fn is_read_part(above: &[&str], code: &str, name: &str) -> bool {
    let attributes =
        above.iter().rev().map(|line| line.trim_start()).take_while(|line| line.starts_with(['#', '/']));
    let is_derived = |line: &str| {
        line.starts_with("#[derive(") && (line.contains("Deserialize") || line.contains("Serialize"))
    };
    OBJECT_PARTS.contains(&name) && code.starts_with("struct ") && attributes.into_iter().any(is_derived)
}

#[test]
fn type_names_are_declared_at_most_three_times() {
    let mut declarations: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in CRATES.into_iter().flat_map(product_files) {
        let text = fs::read_to_string(&file).unwrap();
        for name in declared_types(&product_lines(&text)) {
            declarations.entry(name).or_default().push(relative(&file));
        }
    }
    declarations.retain(|_, files| files.len() > 3);
    assert!(declarations.is_empty(), "name the concept as well: {declarations:#?}");
}

/// A struct of a source file.
#[derive(Debug, PartialEq)]
struct Declaration {
    name: String,
    /// Its doc comment, as one line.
    docs: String,
    /// Number of named fields.
    fields: usize,
}

/// The beginning of a text that is a name.
fn leading_name(text: &str) -> &str {
    let text = text.strip_prefix("r#").unwrap_or(text);
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
}

/// The structs of a formatted Rust file, except those whose name a macro fills in.
fn structs(lines: &[&str]) -> Vec<Declaration> {
    let declared = |(start, line): (usize, &&str)| {
        let code = line.trim_start();
        let name = leading_name(without_scope(code).strip_prefix("struct ")?);
        let indentation = &line[..line.len() - code.len()];
        let opening = start + lines[start..].iter().position(|line| line.ends_with(['{', ';', '}']))?;
        let has_body = lines[opening].ends_with('{');
        let fields = if has_body { field_count(&lines[opening + 1..], indentation) } else { 0 };
        let docs = docs_above(&lines[..start]);
        (!name.is_empty()).then(|| Declaration { name: name.to_owned(), docs, fields })
    };
    lines.iter().enumerate().filter_map(declared).collect()
}

/// Number of fields in the body of a struct with this indentation.
fn field_count(body: &[&str], indentation: &str) -> usize {
    let end = format!("{indentation}}}");
    let is_field = |line: &&&str| {
        let field = line.strip_prefix(indentation).and_then(|line| line.strip_prefix("    "));
        let field = without_scope(field.unwrap_or_default());
        let name = leading_name(field);
        !name.is_empty() && field.trim_start_matches("r#")[name.len()..].starts_with(':')
    };
    body.iter().take_while(|line| **line != end).filter(is_field).count()
}

/// The doc comment at the end of these lines, possibly with attributes after it.
fn docs_above(lines: &[&str]) -> String {
    let belongs = |line: &&&str| {
        let is_comment = line.trim_start().starts_with("//");
        is_comment || !(line.is_empty() || line.ends_with(['{', ';', '}']))
    };
    let above = lines.iter().rev().take_while(belongs);
    let mut docs: Vec<&str> = above.filter_map(|line| line.trim_start().strip_prefix("///")).collect();
    docs.reverse();
    docs.concat().trim().to_owned()
}

/// Some have good reasons for many fields, for others a group of fields is a concept without a name.
#[test]
fn large_structs_state_their_reason() {
    let reasons = ["many fields because", "one field for each"];
    let mut complaints = Vec::new();
    for file in CRATES.into_iter().filter(|name| *name != "tests").flat_map(product_files) {
        let text = fs::read_to_string(&file).unwrap();
        for found in structs(&product_lines(&text)) {
            let says_why = reasons.iter().any(|reason| found.docs.to_lowercase().contains(reason));
            if found.fields > STRUCT_FIELDS_MAX && !says_why {
                complaints.push(format!("{}: {} has {} fields", relative(&file), found.name, found.fields));
            }
        }
    }
    let complaints = complaints.join("\n");
    assert!(complaints.is_empty(), "group fields, or say in the docs {reasons:?}:\n{complaints}");
}

/// The part of a page under one heading.
fn section(page: &str, heading: &str) -> String {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("{page} has no section {heading:?}"));
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Paths of source files that a text contains.
fn named_files(text: &str) -> BTreeSet<String> {
    let words = text.split('`').filter(|word| word.ends_with(".rs") && !word.contains(' '));
    words.map(str::to_owned).collect()
}

/// Product files of some crates in which a line contains one of these words.
fn files_with(crates: &[&str], words: &[&str]) -> BTreeSet<String> {
    let has = |file: &std::path::PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let lines = product_lines(&text);
        let code = lines.iter().filter(|line| !line.trim_start().starts_with("//"));
        code.copied().any(|line| words.iter().any(|word| line.contains(word)))
    };
    crates.iter().flat_map(|name| product_files(name)).filter(has).map(|file| relative(&file)).collect()
}

/// A fast, non-cryptographic hash must not decide anything that one party can influence and another relies on; each use
/// states its reason.
#[test]
fn every_fast_hash_is_listed_with_its_reason() {
    let words = [
        "xxh",
        "DefaultHasher",
        "BuildHasherDefault",
        "SipHasher",
        "crc32",
        "fxhash",
        "FxHash",
        "ahash",
        "murmur",
    ];
    let programs = [
        "proto",
        "grid",
        "runtime",
        "link",
        "replay",
        "apiserver/core",
        "apiserver/catalog",
        "apiserver/cel",
        "apiserver/control",
        "cloud",
        "edge",
        "cli",
    ];
    let listed = named_files(&section("docs/security.md", "\n## Fast hashes\n"));
    assert_eq!(files_with(&programs, &words), listed, "docs/security.md, \"Fast hashes\", lists other files");
}

/// Whether a line of code uses cloudcore's own rights: it holds a client of the API or derives something from one,
/// makes a call as cloudcore, opens a watch without a review, or uses the stores of the join port, under any of their
/// names.
fn acts_as_cloudcore(line: &str) -> bool {
    let types = ["Client", "ClusterNodes", "ClusterSecrets", "NodeLookup", "SecretStore"];
    let uses = [
        "Api::",
        "Api<",
        "Caller::Own",
        "Granted::",
        ".client()",
        ".document(",
        ".document_that(",
        ".nodes.state(",
        ".secrets.get(",
        "*inner.secrets",
        "*self.store",
        "watch(kube,",
        "watch(kube.",
        "watch_events(client",
        "watch_events(kube",
    ];
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let is_comment = line.trim_start().starts_with("//");
    !is_comment && (words.any(|word| types.contains(&word)) || uses.iter().any(|part| line.contains(part)))
}

/// Files of cloudcore that act with its own rights, and their functions that do.
fn files_that_act_as_cloudcore() -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for file in product_files("cloud") {
        let text = fs::read_to_string(&file).unwrap();
        let lines = product_lines(&text);
        if lines.iter().any(|line| acts_as_cloudcore(line)) {
            let acting = functions(&lines).into_iter().filter(|(_, first, length)| {
                lines.iter().skip(first - 1).take(*length).any(|line| acts_as_cloudcore(line))
            });
            found.insert(relative(&file), acting.map(|(name, ..)| name).collect());
        }
    }
    found
}

/// All code that runs with cloudcore's own rights is listed with the check that precedes it. If a file has several such
/// places, the table names the function of each.
#[test]
fn everything_cloudcore_does_in_its_own_name_is_listed() {
    let found = files_that_act_as_cloudcore();
    let table = section("docs/security.md", "\n## What cloudcore does in its own name\n");
    let listed = named_files(&table);
    let files: BTreeSet<String> = found.keys().cloned().collect();
    assert_eq!(files, listed, "docs/security.md, \"What cloudcore does in its own name\", lists other files");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let names = |row: &&&str, file: &str| row.contains(&format!("`{file}`"));
    for row in &rows {
        let own = named_files(row).into_iter().any(|file| {
            let named = rows.iter().filter(|row| names(row, &file)).count();
            let functions = &found[&file];
            let told_apart = |name: &String| row.contains(&format!("`{name}` in `{file}`"));
            named == 1 || functions.iter().any(told_apart)
        });
        assert!(own, "no check would notice if this row were missing: {row}");
    }
    for (file, functions) in &found {
        let missing: Vec<_> =
            functions.iter().filter(|name| !table.contains(&format!("`{name}` in `{file}`"))).collect();
        let told_apart = table.contains(&format!("` in `{file}`"));
        assert!(!told_apart || missing.is_empty(), "docs/security.md does not list {missing:?} of {file}");
    }
}

#[test]
fn files_and_functions_stay_small() {
    let mut complaints = Vec::new();
    for file in CRATES.iter().flat_map(|name| product_files(name)) {
        let text = fs::read_to_string(&file).unwrap();
        let lines = product_lines(&text);
        if lines.len() > FILE_LINES_MAX {
            complaints.push(format!("{}: {} product lines", relative(&file), lines.len()));
        }
        for (name, line, length) in functions(&lines) {
            if length > FUNCTION_LINES_MAX {
                complaints.push(format!("{}:{line}: fn {name} has {length} lines", relative(&file)));
            }
        }
    }
    assert!(complaints.is_empty(), "split these:\n{}", complaints.join("\n"));
}

#[test]
fn there_are_no_mod_rs_files_and_no_todos() {
    let own = root().join("tests/tests/tidy.rs");
    for file in CRATES.iter().flat_map(|name| files(name, ".rs")).filter(|file| *file != own) {
        assert!(!file.ends_with("mod.rs"), "{}: name the file after its module", relative(&file));
        let text = fs::read_to_string(&file).unwrap();
        for marker in ["todo!(", "unimplemented!(", "TODO", "FIXME", "dbg!("] {
            assert!(!text.contains(marker), "{}: {marker}", relative(&file));
        }
    }
}

/// What is random in a test can be replayed: it comes from a seed of testkit.
#[test]
fn nothing_in_tests_is_random_without_a_seed() {
    let drawn = ["rand::rng()", "rand::random", "from_os_rng", "thread_rng"];
    // The last one tests that a simulated machine seeds all of these.
    let allowed = ["tests/tests/tidy.rs", "testkit/src/seed.rs", "sim/tests/machine.rs"];
    let of_tests = |file: &std::path::PathBuf| {
        let path = relative(file);
        let beside = path.contains("/tests/") || path.ends_with("/tests.rs");
        (beside || path.starts_with("tests/") || path.starts_with("testkit/"))
            && !allowed.contains(&path.as_str())
    };
    for file in CRATES.iter().flat_map(|name| files(name, ".rs")).filter(of_tests) {
        let text = fs::read_to_string(&file).unwrap();
        for code in drawn {
            assert!(!text.contains(code), "{}: {code}; take a seed of testkit", relative(&file));
        }
    }
}

#[test]
fn disabled_tls_verification_stays_in_tests() {
    let own = root().join("tests/tests/tidy.rs");
    for file in CRATES.iter().flat_map(|name| product_files(name)).filter(|file| *file != own) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("danger_accept_invalid"), "{}: verification is disabled", relative(&file));
    }
}

#[cfg(test)]
mod the_rules_can_fail {
    use super::{against_the_arrows, functions, product_lines};

    #[test]
    fn dependencies_on_what_is_above_are_found() {
        let edge = "[package]\n\n[dependencies]\ntombolo-grid.workspace = true\ntombolo-cloud.workspace = true\n\n\
                    [build-dependencies]\ntombolo-testkit.workspace = true\n\n\
                    [dev-dependencies]\ntombolo-testkit = { workspace = true }\ntombolo-apiserver.workspace = true\n\
                    tombolo.workspace = true\ntombolo-runtime.workspace = true\n";
        let wrong = ["tombolo-cloud", "tombolo-testkit", "tombolo-apiserver", "tombolo"];
        assert_eq!(against_the_arrows("tombolo-edge", edge), wrong);
        let below_what_is_below = "\n[dependencies]\ntombolo-proto.workspace = true\n\
                                   [dev-dependencies]\ntombolo-proto.workspace = true\n";
        assert_eq!(against_the_arrows("tombolo-cel", below_what_is_below), ["tombolo-proto"]);
    }

    #[test]
    fn types_are_found() {
        let lines = [
            "pub(super) struct A<T>(T);",
            "pub enum B {",
            "type C = u8;",
            "    struct Inner;",
            "pub use x::Y;",
            "    #[derive(Debug, Deserialize)]",
            "    #[serde(default)]",
            "    struct Spec {",
            "#[derive(Deserialize)]",
            "pub struct Status {",
            "#[derive(Debug)]",
            "struct Object {",
        ];
        assert_eq!(super::declared_types(&lines), ["A", "B", "C", "Inner", "Status", "Object"]);
    }

    #[test]
    fn fields_of_structs_are_counted() {
        let text = "struct Unit;\n/// Says\n/// why.\n#[derive(Debug)]\npub(crate) struct A<T>\nwhere\n    T: Debug,\n{\n\
                    \x20   /// Not: this.\n    pub(super) one: T,\n    #[serde(rename = \"a: b\")]\n\
                    \x20   r#two: HashMap<\n        String,\n        Vec<u8>,\n    >,\n}\n\
                    mod inner {\n    struct B {\n        pub one: u8,\n    }\n    struct $name {\n        one: u8,\n    }\n}\n";
        let lines: Vec<&str> = text.lines().collect();
        let found = |name: &str, docs: &str, fields| {
            let (name, docs) = (name.to_owned(), docs.to_owned());
            super::Declaration { name, docs, fields }
        };
        let expected = [found("Unit", "", 0), found("A", "Says why.", 2), found("B", "", 1)];
        assert_eq!(super::structs(&lines), expected);
    }

    #[test]
    fn functions_are_measured() {
        let text = "impl A {\n    pub(crate) async fn long(\n        &self,\n    ) {\n        one();\n    }\n}\n\
                    trait B {\n    fn declared(&self);\n}\nfn short() {}\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(functions(&lines), vec![("long".to_owned(), 2, 5)]);
    }

    #[test]
    fn test_modules_do_not_count() {
        let text = "fn a() {\n}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {\n}\n";
        assert_eq!(product_lines(text), vec!["fn a() {", "}", "fn c() {", "}"]);
    }
}
