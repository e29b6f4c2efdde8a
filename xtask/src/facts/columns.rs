//! Records the columns of kube-apiserver's Tables, with their descriptions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::GroupVersion;

const HEAD: &str = "\
# Columns of the Table form, recorded by `cargo xtask facts` from kube-apiserver. Do not edit.
#
# text NUMBER TEXT                                             what a column means, as JSON
# GROUP KIND NAME|TYPE|FORMAT|PRIORITY|NUMBER;...              the columns of a kind; the core group is '-'
";

/// The file as text. `get` returns the Table at a path.
pub(super) fn table(served: &[GroupVersion], get: impl Fn(&str) -> Result<Value>) -> Result<String> {
    let mut texts: BTreeMap<String, usize> = BTreeMap::new();
    let mut lines: BTreeMap<(String, String), String> = BTreeMap::new();
    for group_version in served {
        let (group, root) = match group_version.name.split_once('/') {
            Some((group, _)) => (group, format!("/apis/{}", group_version.name)),
            None => ("-", format!("/api/{}", group_version.name)),
        };
        for resource in &group_version.resources {
            let (name, kind) = (text(&resource["name"]), text(&resource["kind"]));
            if (group, name) == ("apps", "deployments/scale") {
                let line = line(&scale(&root, &get)?, &mut texts)?;
                lines.insert(("autoscaling".to_owned(), kind.to_owned()), line);
            }
            let listed =
                resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|verb| verb == "list"));
            if !listed || name.contains('/') {
                continue;
            }
            let table = get(&format!("{root}/{name}?limit=1"))?;
            let columns =
                table["columnDefinitions"].as_array().with_context(|| format!("no columns of {name}"))?;
            let line = line(columns, &mut texts)?;
            lines.insert((group.to_owned(), kind.to_owned()), line);
        }
    }
    let mut numbered: Vec<(&usize, &String)> = texts.iter().map(|(text, number)| (number, text)).collect();
    numbered.sort_unstable();
    let mut out = HEAD.to_owned();
    for (number, text) in numbered {
        writeln!(out, "text {number} {}", Value::from(text.as_str()))?;
    }
    for ((group, kind), line) in lines {
        writeln!(out, "{group} {kind} {line}")?;
    }
    Ok(out)
}

/// The columns of a Scale. Only a single object shows them, not a list.
fn scale(root: &str, get: &impl Fn(&str) -> Result<Value>) -> Result<Vec<Value>> {
    let list = get(&format!("{root}/deployments?limit=1"))?;
    let found = &list["rows"][0]["object"]["metadata"];
    let (Some(namespace), Some(name)) = (found["namespace"].as_str(), found["name"].as_str()) else {
        bail!("reading the columns of a Scale needs a Deployment, and the server has none");
    };
    let table = get(&format!("{root}/namespaces/{namespace}/deployments/{name}/scale"))?;
    table["columnDefinitions"].as_array().cloned().context("the Table of a Scale has no columns")
}

fn line(columns: &[Value], texts: &mut BTreeMap<String, usize>) -> Result<String> {
    let mut parts = Vec::new();
    for column in columns {
        let next = texts.len() + 1;
        let number = match text(&column["description"]) {
            "" => String::new(),
            description => texts.entry(description.to_owned()).or_insert(next).to_string(),
        };
        let (name, ty, format) = (text(&column["name"]), text(&column["type"]), text(&column["format"]));
        if [name, ty, format].iter().any(|part| part.contains(['|', ';'])) {
            bail!("the column {name:?} contains '|' or ';', which the file's form reserves");
        }
        parts.push(format!("{name}|{ty}|{format}|{}|{number}", column["priority"]));
    }
    Ok(parts.join(";"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
