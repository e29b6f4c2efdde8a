//! Compares the rights that `deploy/` grants with those that an audit log shows in use.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;
use tombolo_testkit::AuditEvent;

use crate::source::{documents, root};

/// Verb, API group and resource.
pub type Right = (String, String, String);

/// A right that a test does not use, with the reason: verb, API group, resource, reason.
pub type Unused = (&'static str, &'static str, &'static str, &'static str);

/// User name of cloudcore in the API server.
pub const CLOUDCORE: &str = "system:serviceaccount:kubeedge:tombolo-cloudcore";

/// The rights in a manifest of `deploy/` whose verb has this prefix; the prefix is removed.
///
/// # Errors
/// When the manifest cannot be read.
pub fn granted(manifest: &str, prefix: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for document in documents(&root().join("deploy").join(manifest))? {
        for rule in document["rules"].as_array().into_iter().flatten() {
            for verb in texts(&rule["verbs"]).filter_map(|verb| verb.strip_prefix(prefix)) {
                for group in texts(&rule["apiGroups"]) {
                    let resources = texts(&rule["resources"]);
                    rights.extend(
                        resources.map(|resource| (verb.to_owned(), group.to_owned(), resource.to_owned())),
                    );
                }
            }
        }
    }
    Ok(rights)
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The right that a request needed.
#[must_use]
pub fn right_of(event: &AuditEvent) -> Right {
    (event.verb.clone(), event.group.clone(), event.resource.clone())
}

/// The rights that are granted but neither used nor excused.
#[must_use]
pub fn not_asked<'a>(
    granted: &'a BTreeSet<Right>,
    asked: &BTreeSet<Right>,
    excused: &[Unused],
) -> Vec<&'a Right> {
    let is_excused = |(verb, group, resource): &Right| {
        excused.iter().any(|(v, g, r, _)| (*v, *g, *r) == (verb.as_str(), group.as_str(), resource.as_str()))
    };
    granted.iter().filter(|right| !asked.contains(*right) && !is_excused(right)).collect()
}
