//! `cargo xtask quick`: checks within a minute whether a change is worth a full run.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{run, test};

/// Numbers of random schedules and cases. The full run tries many times as many.
const SCHEDULES: &str = "200";
const CASES: &str = "16";

/// Packages without IO, whose integration tests are run too, and their folders.
const PURE: [(&str, &str); 4] = [
    ("tombolo-proto", "proto"),
    ("tombolo-grid", "grid"),
    ("tombolo-replay", "replay"),
    ("tombolo-catalog", "apiserver/catalog"),
];

/// The package with the repository's own rules, and the tests of these.
const RULES: (&str, [&str; 2]) = ("tombolo-tests", ["docs", "tidy"]);

/// Runs the format check, the unit tests of all crates, the integration tests of the pure crates, and the repository's
/// own rules. Needs neither Go nor a cluster.
///
/// # Errors
/// One of these fails.
pub(crate) fn run() -> Result<()> {
    run::check(run::cargo().args(["fmt", "--all", "--check"]))?;
    let started = Instant::now();
    let mut command = run::cargo();
    // Features depend on the selected packages. So this is one command, with the packages and features of the full
    // run: neither builds again what the other has built.
    command.args(["test", "--locked", "--workspace", "--features", test::FEATURES, "--lib"]);
    for name in integration_tests()?.iter().map(String::as_str).chain(RULES.1) {
        command.args(["--test", name]);
    }
    test::run_programs(&mut command, is_quick, |command| {
        command.env("TOMBOLO_SCHEDULES", SCHEDULES).env("PROPTEST_CASES", CASES);
    })?;
    eprintln!("built and ran the tests in {} s", started.elapsed().as_secs());
    Ok(())
}

/// The names of the integration tests of the pure packages.
fn integration_tests() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (_, folder) in PURE {
        let folder = run::root().join(folder).join("tests");
        if !folder.exists() {
            continue;
        }
        for entry in folder.read_dir().with_context(|| folder.display().to_string())? {
            names.extend(integration_test(&entry?.path()));
        }
    }
    Ok(names)
}

/// The name of the integration test in a file or folder; `None` if there is none.
fn integration_test(path: &Path) -> Option<String> {
    let is_test = path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").exists();
    is_test.then(|| path.file_stem().map(|name| name.to_string_lossy().into_owned()))?
}

/// Whether a test program belongs to the quick run: other packages may have an integration test of the same name.
fn is_quick(program: &str) -> bool {
    let mut words = program.split(' ');
    match (words.next(), words.next(), words.next()) {
        (_, Some("lib"), _) => true,
        (Some(package), _, Some(target)) if package == RULES.0 => RULES.1.contains(&target),
        (Some(package), ..) => PURE.iter().any(|(name, _)| *name == package),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_other_packages_and_of_the_whole_system_are_left_out() {
        for program in
            ["tombolo-edge lib tombolo_edge", "tombolo-proto test session", "tombolo-tests test tidy"]
        {
            assert!(is_quick(program), "{program}");
        }
        for program in ["tombolo-apicore test fuzz_bounded", "tombolo-tests test wrapper"] {
            assert!(!is_quick(program), "{program}");
        }
    }

    #[test]
    fn integration_tests_are_found_and_their_names_differ_from_those_of_the_whole_system() {
        let names = integration_tests().unwrap();
        assert!(
            ["session", "recorded", "excuses"].iter().all(|name| names.iter().any(|found| found == name))
        );
        assert!(!names.contains(&"common".to_owned()), "a folder of modules");
        for name in names {
            let path = run::root().join("tests/tests").join(&name);
            assert!(
                !path.exists() && !path.with_extension("rs").exists(),
                "it would build that one too: {name}"
            );
        }
    }
}
