//! Label and field selectors: parsing Kubernetes' syntax, and matching objects.

pub mod field;
pub mod label;

use std::borrow::Cow;

use crate::kinds::KindInfo;
use crate::status::ApiError;
use crate::stored::{Facts, Newest, Stored};

use field::FieldSelector;
use label::LabelSelector;
#[cfg(test)]
mod tests;

/// Longest selector that is read, in bytes.
pub const SELECTOR_LEN_MAX: usize = 64 * 1024;

/// The objects of a resource that a request selects.
#[derive(Debug, Clone, Default)]
pub struct RequestSelection {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Required labels.
    pub labels: LabelSelector,
    /// Required fields.
    pub fields: FieldSelector,
}

impl RequestSelection {
    /// Parses the parameters of a request.
    ///
    /// # Errors
    /// 400 when a selector is invalid or names a field that is not selectable for the kind.
    pub fn parse(
        kind: &KindInfo,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, ApiError> {
        let labels =
            LabelSelector::parse(labels).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields =
            FieldSelector::parse(fields).map_err(|error| ApiError::bad_request(error.to_string()))?;
        for field in fields.fields() {
            if !kind.is_selectable(field) && (!is_meta(field) || kind.rules().unselectable.is_some()) {
                return Err(unknown_field(kind, field));
            }
        }
        Ok(Self { namespace: namespace.map(str::to_owned), labels, fields })
    }

    /// Whether every object of the namespace is selected.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches(&self, kind: &KindInfo, object: &Stored) -> bool {
        match object.facts.get() {
            Some(facts) => self.decide(kind, object, facts, None),
            None => self.decide(kind, object, &Facts::default(), None),
        }
    }

    /// Like [`Self::matches`], and caches the labels in the object or in `newest`, which belongs to its store: for
    /// watches, where many watchers check the same version.
    #[must_use]
    pub(crate) fn matches_shared(&self, kind: &KindInfo, object: &Stored, newest: &Newest) -> bool {
        let unchanging = !kind.outlives_writes();
        if !unchanging || (self.labels.is_empty() && self.fields.fields().all(is_meta)) {
            return self.decide(kind, object, &Facts::default(), None);
        }
        self.decide(kind, object, object.facts.get_or_init(Box::default), Some(newest))
    }

    fn decide(&self, kind: &KindInfo, object: &Stored, facts: &Facts, newest: Option<&Newest>) -> bool {
        let key = &object.key;
        if self.namespace.as_deref().is_some_and(|namespace| namespace != key.namespace()) {
            return false;
        }
        let meta_matches = self.fields.matches_where(is_meta, |field| {
            Cow::Borrowed(if field == "metadata.name" { key.name() } else { key.namespace() })
        });
        meta_matches
            && self.match_labels(facts, object, newest)
            && self.fields.matches_where(
                |field| !is_meta(field),
                |field| facts.field(field, || field_value(kind, object, field)),
            )
    }

    fn match_labels(&self, facts: &Facts, object: &Stored, newest: Option<&Newest>) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        facts
            .labels
            .look(object, newest, |labels| self.labels.matches(|name| labels.get(name).map(Cow::Borrowed)))
    }
}

/// The value of a field. Bodies in a store always parse; an unreadable one would match like an empty object.
fn field_value(kind: &KindInfo, object: &Stored, field: &str) -> String {
    let parsed = kind.read(&object.body()).unwrap_or_default();
    kind.field_value(&parsed, field).unwrap_or_default()
}

/// Translates a field selector of the served version to the stored version. An invalid one stays as it is.
#[must_use]
pub fn stored_fields(kind: &KindInfo, fields: &str) -> String {
    match FieldSelector::parse(fields) {
        Ok(parsed) if kind.resource != kind.storage => {
            parsed.renamed(|field| kind.stored_field(field)).to_string()
        }
        _ => fields.to_owned(),
    }
}

fn is_meta(field: &str) -> bool {
    matches!(field, "metadata.name" | "metadata.namespace")
}

fn unknown_field(kind: &KindInfo, field: &str) -> ApiError {
    ApiError::bad_request(match &kind.rules().unselectable {
        Some(words) => words.replace("{}", field),
        None if kind.custom => format!("field label not supported: {field}"),
        None => {
            let known = "\"metadata.name\", \"metadata.namespace\"";
            format!("{field:?} is not a known field selector: only {known}")
        }
    })
}
