//! The findings of strict field validation about a readable body.

/// Maximum number of unknown and duplicate fields reported, as in kube-apiserver.
pub(crate) const STRICT_ERRORS_MAX: usize = 100;

/// Prefix of the Go YAML decoder before duplicate keys.
const YAML_PREFIX: &str = "yaml: unmarshal errors:";

/// Unknown and duplicate fields of a body, in the order in which kube-apiserver reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strict {
    /// Duplicate keys of a YAML body, each with its line.
    pub(crate) keys: Vec<String>,
    /// Fields, for example `unknown field "spec.foo"`.
    pub(crate) fields: Vec<String>,
}

impl Strict {
    /// Findings about fields alone.
    pub(crate) fn of_fields(fields: Vec<String>) -> Self {
        Self { keys: Vec::new(), fields }
    }

    /// Findings about the keys of a YAML text alone.
    pub(crate) fn of_keys(keys: Vec<String>) -> Self {
        Self { keys, fields: Vec::new() }
    }

    /// Whether there are no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.fields.is_empty()
    }

    /// Combines the findings of both; the earlier ones come first.
    #[must_use]
    pub(crate) fn then(mut self, later: Self) -> Self {
        self.keys.extend(later.keys);
        self.fields.extend(later.fields);
        self
    }

    /// The duplicate keys in the format of the Go decoder; empty when there are none.
    #[must_use]
    pub(crate) fn yaml_message(&self) -> String {
        let lines = self.keys.iter().map(|key| format!("\n  {key}"));
        if self.keys.is_empty() {
            String::new()
        } else {
            lines.fold(YAML_PREFIX.into(), |all, line| all + &line)
        }
    }

    /// The message of a refusal under strict field validation.
    #[must_use]
    pub fn message(&self) -> String {
        let yaml = (!self.keys.is_empty()).then(|| self.yaml_message());
        let all: Vec<String> = yaml.into_iter().chain(self.fields.iter().cloned()).collect();
        format!("strict decoding error: {}", all.join(", "))
    }

    /// One warning for each finding.
    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.keys.iter().chain(&self.fields)
    }
}
