//! The selection of a shared watch, validated before any rights check, and normalised.

use tombolo_apicore::selector::field::FieldSelector;
use tombolo_apicore::selector::label::LabelSelector;
use tombolo_proto::Resource;
use tombolo_proto::frame::Subscribe;
use tombolo_proto::limits::SELECTOR_LEN_MAX;

use super::closed::Closed;
use super::volumes::VolumeKind;
use crate::kube::{Waiting, WatchSpec, is_path_segment};

/// A resource and the selectors for it. Two selections are equal when all their parts are; there is no hashing
/// involved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Selection {
    pub(super) resource: Resource,
    /// Empty for all namespaces and for cluster scope.
    pub(super) namespace: String,
    pub(super) label_selector: String,
    pub(super) field_selector: String,
    /// The one object that it selects, if the API server would check the right by that name.
    pub(super) name: Option<String>,
}

impl Selection {
    /// Parses what an edge wants to follow. A selection that the API server could not parse is rejected here, so that
    /// it never reaches a rights check or a watch.
    ///
    /// # Errors
    /// 400, with what is wrong.
    pub(super) fn of(subscribe: &Subscribe) -> Result<Self, Closed> {
        let bad = |text: String| Closed::new(400, &text);
        let Subscribe { resource, namespace, label_selector, field_selector, .. } = subscribe;
        // The core group is empty and not part of a path.
        let group = Some(&*resource.group).filter(|group| !group.is_empty());
        if ![&*resource.version, &*resource.name].into_iter().chain(group).all(is_path_segment) {
            return Err(bad("group, version and resource must be Kubernetes names".to_owned()));
        }
        if !namespace.is_empty() && !is_path_segment(namespace) {
            return Err(bad("the namespace is not a Kubernetes name".to_owned()));
        }
        if [label_selector, field_selector].into_iter().any(|selector| selector.len() > SELECTOR_LEN_MAX) {
            return Err(bad(format!("a selector has more than {SELECTOR_LEN_MAX} bytes: use a shorter one")));
        }
        let labels = LabelSelector::parse(label_selector)
            .map_err(|error| bad(format!("invalid label selector {label_selector:?}: {error}")))?;
        let fields = FieldSelector::parse(field_selector)
            .map_err(|error| bad(format!("invalid field selector {field_selector:?}: {error}")))?;
        // As in the API server: a right to one name is enough for a list restricted to this name.
        let name = fields.fixed("metadata.name").filter(|name| is_name(name)).map(str::to_owned);
        Ok(Self {
            resource: resource.clone(),
            namespace: namespace.clone(),
            label_selector: labels.to_string(),
            field_selector: fields.to_string(),
            name,
        })
    }

    /// All volumes or all claims. cloudcore follows only these for nodes without checking their right to the whole
    /// list, because it sends each node only the objects that the API server has already returned to it.
    pub(super) fn of_volumes(kind: VolumeKind) -> Self {
        let (namespace, label_selector, field_selector, name) = Default::default();
        Self { resource: kind.resource(), namespace, label_selector, field_selector, name }
    }

    /// A watch of this selection. Its events take their memory from the budget that all watches share.
    pub(super) fn to_watch(&self, waiting: &Waiting) -> WatchSpec {
        WatchSpec {
            resource: self.resource.clone(),
            namespace: self.namespace.clone(),
            list_turns: None,
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            waiting: Some(waiting.clone()),
        }
    }
}

/// Whether the API server accepts a text as an object name (its rule for path segments).
fn is_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '%'])
}

#[cfg(test)]
mod tests {
    use tombolo_proto::SubscriptionId;
    use tombolo_proto::frame::Inventory;

    use super::*;

    fn subscribe(plural: &str, labels: &str, fields: &str) -> Subscribe {
        Subscribe {
            subscription: SubscriptionId(1),
            resource: Resource::new("", "v1", plural),
            namespace: "d".to_owned(),
            label_selector: labels.to_owned(),
            field_selector: fields.to_owned(),
            caller_token: None,
            epoch: None,
            inventory: Inventory::Full(Vec::new()),
        }
    }

    fn name_of(fields: &str) -> Option<String> {
        Selection::of(&subscribe("pods", "", fields)).expect(fields).name
    }

    #[test]
    fn selection_name_is_the_one_the_api_server_finds() {
        for fields in ["metadata.name=a", "metadata.name==a", "spec.x=b,metadata.name=a", ",metadata.name=a"]
        {
            assert_eq!(name_of(fields).as_deref(), Some("a"), "{fields}");
        }
        assert_eq!(name_of(r"metadata.name=a\,b").as_deref(), Some("a,b"));
        let none = [
            "",
            "metadata.name!=a",
            "metadata.name=",
            "metadata.name=a/b",
            "metadata.name=..",
            "xmetadata.name=a",
        ];
        for fields in none {
            assert_eq!(name_of(fields), None, "{fields}");
        }
    }

    #[test]
    fn selections_are_normalised() {
        let of = |labels, fields| Selection::of(&subscribe("pods", labels, fields)).expect("a selection");
        assert_eq!(of("a = b , c in (d)", "x==y"), of("a=b,c==d", "x=y"));
        assert_ne!(of("a=b", ""), of("", "a=b"));
        assert_ne!(of("a=b", ""), of("a", ""));
    }

    #[test]
    fn list_and_watch_select_the_same_objects() {
        let path = |labels, fields| {
            Selection::of(&subscribe("pods", labels, fields)).expect("one").to_watch(&Waiting::new(1)).path()
        };
        assert_eq!(path("", ""), "/api/v1/namespaces/d/pods");
        assert_eq!(path("", "x=y"), "/api/v1/namespaces/d/pods?fieldSelector=x%3Dy");
        assert_eq!(path("a=b", "x=y"), "/api/v1/namespaces/d/pods?labelSelector=a%3Db&fieldSelector=x%3Dy");
    }

    #[test]
    fn selection_unreadable_to_the_api_server_is_refused() {
        let long = format!("a={}", "x".repeat(SELECTOR_LEN_MAX));
        for (plural, labels, fields) in [
            ("pods", "a in", ""),
            ("pods", "a=b=c", ""),
            ("pods", long.as_str(), ""),
            ("pods", "", "metadata.name"),
            ("pods", "", "metadata.name=a=b"),
            ("pods", "", r"metadata.name=\a"),
            ("", "", ""),
            ("pods/log", "", ""),
            ("*", "", ""),
            ("..", "", ""),
        ] {
            let closed = Selection::of(&subscribe(plural, labels, fields)).expect_err("refused");
            assert_eq!(closed.code, 400, "{plural} {labels} {fields}: {}", closed.reason);
        }
    }
}
