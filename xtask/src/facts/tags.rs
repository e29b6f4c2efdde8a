//! Records the tags of declarative validation (`+k8s:...`) in the published API types.

use std::path::Path;

use anyhow::{Context, Result};

use super::gosource;

const HEAD: &str = "\
# Tags of declarative validation in the Go types of k8s.io/api, listed by `cargo xtask facts`. Do not edit.
#
# GROUP/VERSION TYPE[.FIELD]: TAG, TAG                         (v1 is the core group; the tags are without +k8s:)
";

/// The file as text, for these group-versions.
pub(super) fn table(sources: &Path, group_versions: &[&str]) -> Result<String> {
    let api = gosource::module(sources, "api")?;
    let mut lines = Vec::new();
    for name in group_versions {
        let (group, version) = name.rsplit_once('/').unwrap_or(("core", name));
        let folder = group.split('.').next().unwrap_or_default();
        let path = api.join(folder).join(version).join("types.go");
        // Two groups have a module of their own.
        if path.exists() {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            lines.extend(tagged(&text).iter().map(|line| format!("{name} {line}\n")));
        }
    }
    lines.sort();
    Ok(HEAD.to_owned() + &lines.concat())
}

/// The types and fields with tags, in the order of a Go file.
fn tagged(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut ty = "";
    let mut tags: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(tag) = line.strip_prefix("//").and_then(|comment| comment.trim().strip_prefix("+k8s:")) {
            tags.extend(is_validation(tag).then(|| tag.replace("+k8s:", "")));
        } else if !line.is_empty() && !line.starts_with("//") {
            let owner = match line.strip_prefix("type ").and_then(|rest| rest.split(' ').next()) {
                Some(declared) => {
                    ty = declared;
                    declared.to_owned()
                }
                None => format!("{ty}.{}", field_name(line)),
            };
            if !tags.is_empty() {
                found.push(format!("{owner}: {}", std::mem::take(&mut tags).join(", ")));
            }
        }
    }
    found
}

/// The JSON name of a field, or its Go name if JSON inlines it.
fn field_name(line: &str) -> &str {
    let json = line.split_once("json:\"").and_then(|(_, tag)| tag.split(['"', ',']).next());
    json.filter(|name| !name.is_empty()).or_else(|| line.split_whitespace().next()).unwrap_or_default()
}

/// Whether a tag is about validation. The others are for generators of code, or name fields that are gone.
fn is_validation(tag: &str) -> bool {
    let name = tag.split([':', '=', '(']).next().unwrap_or_default();
    !name.ends_with("-gen") && name != "deprecated"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_belong_to_the_declaration_below_them() {
        let text = r#"
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// Claim is a request; a tag such as +k8s:optional in the text is none.
type Claim struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	// +k8s:alpha(since: "1.36")=+k8s:subfield(name)=+k8s:optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// +k8s:deprecated=kind

	// Items are free.
	Items []Item `json:"items"`
	// +k8s:required

	// +k8s:maxItems=32
	//+k8s:listType=atomic
	Spec ClaimSpec `json:"spec" protobuf:"bytes,2,name=spec"`
}

// +enum
// +k8s:enum
type Mode string

const (
	// +k8s:ifEnabled(Gate)=+k8s:enumExclude
	ModeOff Mode = "Off"
)
"#;
        let expected = [
            "Claim: supportsSubresource=\"/status\"",
            "Claim.metadata: alpha(since: \"1.36\")=subfield(name)=optional",
            "Claim.spec: required, maxItems=32, listType=atomic",
            "Mode: enum",
            "Mode.ModeOff: ifEnabled(Gate)=enumExclude",
        ];
        assert_eq!(tagged(text), expected);
    }
}
