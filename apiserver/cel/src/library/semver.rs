//! Semantic versions (`kubernetes.Semver`).

use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString};
use cel::{DeclarationError, Env, ExecutionError};

use crate::opaque::opaque;

#[derive(Debug, Clone, PartialEq)]
struct Version(semver::Version);

opaque!(Version, "kubernetes.Semver");

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn parse: (CelString<'_>) -> Result<Version>, name = "semver")?;
    cel::add_overload!(env, fn parse_normalized: (CelString<'_>, CelBool) -> Result<Version>, name = "semver")?;
    cel::add_overload!(env, fn is_semver: (CelString<'_>) -> CelBool, name = "isSemver")?;
    cel::add_overload!(env, fn is_normalized: (CelString<'_>, CelBool) -> CelBool, name = "isSemver")?;
    cel::add_member_overload!(env, fn is_greater_than: (Version, Version) -> CelBool)?;
    cel::add_member_overload!(env, fn is_less_than: (Version, Version) -> CelBool)?;
    cel::add_member_overload!(env, fn compare_to: (Version, Version) -> CelInt)?;
    cel::add_member_overload!(env, fn major: (Version) -> CelInt)?;
    cel::add_member_overload!(env, fn minor: (Version) -> CelInt)?;
    cel::add_member_overload!(env, fn patch: (Version) -> CelInt)
}

fn read(text: &str, normalize: bool) -> Result<Version, String> {
    let normalized;
    let text = match normalize {
        true => {
            normalized = normal(text);
            &normalized
        }
        false => text,
    };
    semver::Version::parse(text).map(Version).map_err(|error| error.to_string())
}

/// Normalizes a version: drops a leading `v` and leading zeros, and adds missing minor and patch numbers.
fn normal(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut parts: Vec<&str> = numbers.splitn(3, '.').collect();
    parts.resize(3, "0");
    let bare = |part: &&str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        bare => bare.to_owned(),
    };
    let numbers: Vec<String> = parts.iter().map(bare).collect();
    format!("{}{rest}", numbers.join("."))
}

fn parse(text: &CelString<'_>) -> Result<Version, ExecutionError> {
    read(text.inner(), false).map_err(|error| ExecutionError::function_error("semver", error))
}

fn parse_normalized(text: &CelString<'_>, normalize: &CelBool) -> Result<Version, ExecutionError> {
    read(text.inner(), *normalize.inner()).map_err(|error| ExecutionError::function_error("semver", error))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    read(text.inner(), false).is_ok().into()
}

fn is_normalized(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    read(text.inner(), *normalize.inner()).is_ok().into()
}

fn is_greater_than(a: &Version, b: &Version) -> CelBool {
    (a.0.cmp_precedence(&b.0) == Ordering::Greater).into()
}

fn is_less_than(a: &Version, b: &Version) -> CelBool {
    (a.0.cmp_precedence(&b.0) == Ordering::Less).into()
}

fn compare_to(a: &Version, b: &Version) -> CelInt {
    i64::from(a.0.cmp_precedence(&b.0) as i8).into()
}

fn number(part: u64) -> CelInt {
    i64::try_from(part).unwrap_or(i64::MAX).into()
}

fn major(version: &Version) -> CelInt {
    number(version.0.major)
}

fn minor(version: &Version) -> CelInt {
    number(version.0.minor)
}

fn patch(version: &Version) -> CelInt {
    number(version.0.patch)
}
