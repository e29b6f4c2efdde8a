//! The types of the variables that policy expressions have.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use tombolo_cel::AUTHORIZER;
use tombolo_cel::types::{Field, ObjectType, Type};

/// The type of `request`, as in `admission.k8s.io/v1 AdmissionRequest`.
pub(super) static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let text = || Type::STRING;
    let kind = || {
        Type::object(
            "kubernetes.GroupVersionKind",
            [("group", text()), ("version", text()), ("kind", text())],
        )
    };
    let resource = || {
        Type::object(
            "kubernetes.GroupVersionResource",
            [("group", text()), ("version", text()), ("resource", text())],
        )
    };
    let user = Type::object(
        "kubernetes.UserInfo",
        [
            ("username", text()),
            ("uid", text()),
            ("groups", Type::list(text())),
            ("extra", Type::map(Type::list(text()))),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind()),
            ("resource", resource()),
            ("subResource", text()),
            ("requestKind", kind()),
            ("requestResource", resource()),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::DYN),
        ],
    )
});

/// The variables of every policy.
pub(super) fn variables() -> Vec<(String, Type)> {
    let dynamic = ["object", "oldObject", "namespaceObject"].map(|name| (name.to_owned(), Type::DYN));
    let mut all = dynamic.to_vec();
    all.push(("authorizer".to_owned(), Type::Opaque(AUTHORIZER)));
    all.push(("request".to_owned(), REQUEST.clone()));
    all
}

/// The type of `variables`.
pub(super) fn named_values(known: &[(String, Type)]) -> Type {
    let field = |(name, ty): &(String, Type)| (name.clone(), Field { json: name.clone(), ty: ty.clone() });
    let fields: BTreeMap<String, Field> = known.iter().map(field).collect();
    Type::Object(Arc::new(ObjectType { fields, name: "kubernetes.variables".to_owned() }))
}
