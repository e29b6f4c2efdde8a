//! Every limit is in the table of `docs/protocol.md`, and the table has no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_table_of_limits_is_complete() {
    let source = read("src/limits.rs");
    let limits: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    let page = read("../docs/protocol.md");
    let (_, section) = page.split_once("## Limits").expect("a section on limits");
    let names: BTreeSet<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split('|').next())
        .flat_map(|cell| cell.split('`').filter(|name| name.chars().next().is_some_and(char::is_uppercase)))
        .collect();
    assert_eq!(names, limits);
}
