//! `cargo xtask mutants`: changes the product in small ways, one at a time, and runs its tests with each change. A
//! change that no test finds shows a rule that no test holds.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::run;
use crate::tool::Tool;

mod equivalent;

/// The names of mutants, which `equivalent.txt` lists, differ between versions.
const CARGO_MUTANTS: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };

const EQUIVALENT: &str = include_str!("mutants/equivalent.txt");

/// Numbers of random schedules and cases and of power cuts for each mutant. The full tests try many times as many.
const NUMBERS: [(&str, &str); 3] =
    [("TOMBOLO_SCHEDULES", "200"), ("PROPTEST_CASES", "64"), ("TOMBOLO_POWER_CUTS", "200")];

/// Modules of one package of which each rule must be held by a test.
struct Examined {
    package: &'static str,
    /// Paths of the modules without `.rs`. Modules below them belong to them.
    modules: &'static [&'static str],
    /// Arguments of `cargo test` that select the programs with the tests that must find the mutants.
    programs: &'static [&'static str],
    /// Words of which the path of such a test has at least one. Without any, all tests count.
    tests: &'static [&'static str],
}

static EXAMINED: [Examined; 5] = [
    Examined {
        package: "tombolo-proto",
        modules: &["proto/src/session"],
        programs: &["--lib", "--test=session", "--test=kubeedge_sessions", "--test=fuzz_bounded"],
        tests: &[],
    },
    Examined {
        package: "tombolo-cloud",
        modules: &[
            "cloud/src/edgecontroller/index",
            "cloud/src/edgecontroller/location_cache",
            "cloud/src/edgecontroller/pod_manager",
        ],
        programs: &["--lib"],
        tests: &["edgecontroller"],
    },
    Examined {
        package: "tombolo-edge",
        modules: &["edge/src/store"],
        programs: &["--lib"],
        tests: &["store", "localapi", "hub"],
    },
    Examined {
        package: "tombolo-apiserver",
        modules: &["apiserver/control/src/authz"],
        programs: &["--lib"],
        tests: &["authz", "admission", "authn", "bootstrap", "controllers"],
    },
    Examined {
        package: "tombolo-grid",
        modules: &["grid/src/prune", "grid/src/reach", "grid/src/endpoints"],
        programs: &["--lib"],
        tests: &[],
    },
];

#[derive(Args)]
pub(crate) struct MutantsOptions {
    /// Examine only the modules of these packages.
    #[arg(long, value_parser = PossibleValuesParser::new(EXAMINED.each_ref().map(|examined| examined.package)))]
    package: Vec<String>,

    /// Examine only the modules whose paths match this pattern, for example `proto/src/session/cloud.rs`.
    #[arg(long)]
    file: Vec<String>,

    /// Examine only one part of the mutants, for example 0/8 for the first of eight.
    #[arg(long)]
    shard: Option<String>,

    /// List the mutants instead of examining them.
    #[arg(long)]
    list: bool,

    /// Install cargo-mutants when it is missing (2 minutes).
    #[arg(long)]
    install: bool,
}

impl MutantsOptions {
    /// The modules that are selected.
    ///
    /// # Errors
    /// There are none.
    fn examined(&self) -> Result<Vec<&'static Examined>> {
        let is_selected = |examined: &&Examined| {
            let by_package =
                self.package.is_empty() || self.package.iter().any(|name| name == examined.package);
            let by_file = self.file.is_empty() || self.file.iter().any(|file| examined.has(file));
            by_package && by_file
        };
        let selected: Vec<_> = EXAMINED.iter().filter(is_selected).collect();
        if selected.is_empty() {
            let modules: Vec<_> = EXAMINED.iter().flat_map(|examined| examined.modules).copied().collect();
            bail!("--package and --file select none of the examined modules: {}", modules.join(", "));
        }
        Ok(selected)
    }

    /// Whether all mutants of a package are examined.
    fn is_complete(&self) -> bool {
        self.file.is_empty() && self.shard.is_none()
    }
}

/// Examines the mutants, and reports those that survive and are not listed as equivalent.
///
/// # Errors
/// There are such mutants, listed ones did not survive, or cargo-mutants cannot run.
pub(crate) fn run(options: &MutantsOptions) -> Result<()> {
    let listed = equivalent::parse(EQUIVALENT).context("xtask/src/mutants/equivalent.txt")?;
    CARGO_MUTANTS.ensure(options.install, "mutants")?;
    let started = Instant::now();
    let (mut unlisted, mut stale) = (Vec::new(), Vec::new());
    for examined in options.examined()? {
        examined.start(options)?;
        if options.list {
            continue;
        }
        let report = examined.survivors()?;
        unlisted.extend(equivalent::unlisted(&report, &listed)?);
        if options.is_complete() {
            let survived = equivalent::count(&report)?;
            stale.extend(equivalent::stale(&survived, &listed, |name| examined.has(name)));
        }
    }
    if !unlisted.is_empty() || !stale.is_empty() {
        bail!("{}", complaint(&unlisted, &stale));
    }
    if !options.list {
        eprintln!("every mutant was found or is equivalent; {} s", started.elapsed().as_secs());
    }
    Ok(())
}

fn complaint(unlisted: &[String], stale: &[String]) -> String {
    let mut text = String::new();
    for (what, names) in [
        (
            "no test finds these mutants: write one, or list them in xtask/src/mutants/equivalent.txt with the reason \
             why the program does the same",
            unlisted,
        ),
        ("xtask/src/mutants/equivalent.txt lists mutants that tests find, or that do not exist", stale),
    ] {
        if !names.is_empty() {
            text.push_str(&format!("{what}:\n  {}\n", names.join("\n  ")));
        }
    }
    text
}

impl Examined {
    /// The folder of the reports.
    fn output(&self) -> Result<PathBuf> {
        Ok(run::target()?.join("mutants").join(self.package))
    }

    /// Whether a text that begins with the path of a file is about these modules.
    fn has(&self, text: &str) -> bool {
        let is_below = |rest: &str| rest.starts_with(".rs") || rest.starts_with('/');
        self.modules.iter().any(|module| text.strip_prefix(module).is_some_and(is_below))
    }

    /// Runs cargo-mutants.
    fn start(&self, options: &MutantsOptions) -> Result<()> {
        let output = self.output()?;
        // No report of an earlier run may be taken for that of this one.
        if output.exists() && !options.list {
            fs::remove_dir_all(&output).with_context(|| format!("cannot remove {}", output.display()))?;
        }
        fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
        let mut command = run::cargo();
        command.args(["mutants", "--package", self.package, "--output"]).arg(&output);
        if options.file.is_empty() {
            let patterns = self.modules.iter().flat_map(|module| ["", "/**/*"].map(|below| (module, below)));
            command.args(
                patterns.flat_map(|(module, below)| ["--file".to_owned(), format!("{module}{below}.rs")]),
            );
        }
        command.args(options.file.iter().flat_map(|file| ["--file", file.as_str()]));
        command.args(options.shard.iter().flat_map(|shard| ["--shard", shard.as_str()]));
        if options.list {
            return run::check(command.arg("--list"));
        }
        // Dependencies stay built from one run to the next, and only what a mutant changes is compiled again.
        command.env("CARGO_TARGET_DIR", run::target()?.join("mutants/build")).env("CARGO_INCREMENTAL", "1");
        command.envs(NUMBERS);
        command.args(self.programs.iter().map(|argument| format!("--cargo-arg={argument}")));
        command.args(["--", "--"]).args(self.tests);
        let line = run::describe(&command);
        eprintln!("$ {line}");
        let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
        match status.code() {
            // Some mutants survived, or made the tests run for too long, which counts as found.
            Some(0 | 2 | 3) => Ok(()),
            Some(4) => bail!("the tests of {} fail without any mutation", self.package),
            _ => bail!("`{line}` ended with {status}"),
        }
    }

    /// The report about the mutants that no test has found.
    fn survivors(&self) -> Result<String> {
        let path = self.output()?.join("mutants.out/missed.txt");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_the_tests_and_the_listed_mutants_exist() {
        let root = run::root();
        for examined in &EXAMINED {
            for module in examined.modules {
                assert!(root.join(format!("{module}.rs")).is_file(), "{module}");
            }
            for test in examined.programs.iter().filter_map(|program| program.strip_prefix("--test=")) {
                assert!(run::has_test(test), "there is no test {test}");
            }
        }
        for name in equivalent::parse(EQUIVALENT).unwrap().keys() {
            let (file, _) = name.split_once(": ").unwrap();
            assert!(root.join(file).is_file(), "{name}");
            assert!(EXAMINED.iter().any(|examined| examined.has(name)), "{name}: no task examines it");
        }
    }

    #[test]
    fn a_mutant_belongs_to_the_module_that_its_path_names() {
        let proto = &EXAMINED[0];
        assert!(proto.has("proto/src/session.rs: x") && proto.has("proto/src/session/cloud.rs: x"));
        assert!(!proto.has("proto/src/sessions.rs: x") && !proto.has("grid/src/prune.rs: x"));
    }

    #[test]
    fn a_file_selects_the_package_that_has_it() {
        let selected = |file: &str| {
            let mut options = MutantsOptions {
                package: Vec::new(),
                file: Vec::new(),
                shard: None,
                list: false,
                install: false,
            };
            options.file.push(file.to_owned());
            let examined = options.examined().map_err(|error| error.to_string())?;
            Ok::<_, String>(examined.iter().map(|examined| examined.package).collect::<Vec<_>>())
        };
        assert_eq!(selected("grid/src/prune.rs"), Ok(vec!["tombolo-grid"]));
        assert_eq!(selected("edge/src/store/*.rs"), Ok(vec!["tombolo-edge"]));
        assert!(selected("cli/src/main.rs").is_err_and(|error| error.contains("edge/src/store")));
    }

    #[test]
    fn error_text_names_the_remedy() {
        let (new, old) = (["a.rs:1:2: x".to_owned()], ["b.rs: y".to_owned()]);
        let both = complaint(&new, &old);
        assert!(both.contains("write one, or list them") && both.contains("a.rs:1:2: x\n"), "{both}");
        assert!(both.contains("that tests find") && both.ends_with("  b.rs: y\n"), "{both}");
        assert!(!complaint(&new, &[]).contains("that tests find"));
    }
}
