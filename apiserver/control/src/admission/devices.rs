//! Expressions that select devices (`resource.k8s.io`): they are compiled when they are written, so that the scheduler
//! never finds one that it cannot evaluate.

use serde_json::Value;
use tombolo_apicore::admission::{AdmissionRequest, Operation};
use tombolo_apicore::auth::Attributes;
use tombolo_apicore::blocking::run_blocking;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::status::ApiError;
use tombolo_cel::Environment;
use tombolo_cel::types::Type;

use crate::objects::{Objects, items, text, v1};

const GROUP: &str = "resource.k8s.io";

/// Claims in namespaces with this label may request admin access to devices that others use.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";

/// Refuses a class or a claim with a selector that cannot be evaluated, and a claim for admin access in a namespace
/// that does not allow it.
///
/// # Errors
/// 422 with all errors.
pub(super) async fn admit(objects: &Objects, request: &AdmissionRequest<'_>) -> Result<(), ApiError> {
    let asked = request.attributes;
    if asked.group != GROUP || request.operation == Operation::Delete || !asked.subresource.is_empty() {
        return Ok(());
    }
    let Some(object) = request.object.as_deref() else { return Ok(()) };
    if request.old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Ok(());
    }
    let errors = run_blocking(&asked.payer, || wrong(objects, asked, object)).await?;
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(GROUP, &request.kind.kind, request.name, &errors))
}

fn wrong(objects: &Objects, asked: &Attributes, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (spec, path) = match asked.resource.as_str() {
        "resourceclaimtemplates" => (&object["spec"]["spec"], "spec.spec"),
        _ => (&object["spec"], "spec"),
    };
    match asked.resource.as_str() {
        "deviceclasses" => selectors(spec, path, &mut errors),
        "resourceclaims" | "resourceclaimtemplates" => {
            claim(spec, path, &mut errors);
            administration(objects, &asked.namespace, spec, &mut errors);
        }
        _ => {}
    }
    errors
}

/// Checks admin access. The field path is the same for claims and templates, as in kube-apiserver.
fn administration(objects: &Objects, namespace: &str, spec: &Value, errors: &mut Vec<FieldError>) {
    let asks = |request: &Value| request["exactly"]["adminAccess"] == true;
    let Some(index) = items(spec, "/devices/requests").iter().position(asks) else { return };
    let found = objects.get(v1("", "namespaces"), "", namespace);
    if found.is_some_and(|found| found.value["metadata"]["labels"][ADMIN_LABEL] == "true") {
        return;
    }
    let detail = format!(
        "admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
    );
    errors.push(FieldError::forbidden(format!("spec.devices.requests[{index}].adminAccess"), detail));
}

fn claim(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (index, one) in items(spec, "/devices/requests").iter().enumerate() {
        let at = format!("{path}.devices.requests[{index}]");
        selectors(&one["exactly"], &format!("{at}.exactly"), errors);
        for (index, alternative) in items(one, "/firstAvailable").iter().enumerate() {
            selectors(alternative, &format!("{at}.firstAvailable[{index}]"), errors);
        }
    }
}

fn selectors(of: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let list = items(of, "/selectors");
    if list.is_empty() {
        return;
    }
    let environment = Environment::new(vec![("device".to_owned(), device())]);
    for (index, selector) in list.iter().enumerate() {
        let source = text(selector, "/cel/expression");
        let problem = match environment.compile(source) {
            Err(why) => format!("compilation failed: {why}"),
            Ok(expression) => match expression.result_type() {
                Type::Bool | Type::Dyn(_) => continue,
                _ => "must evaluate to bool or the unknown type".to_owned(),
            },
        };
        errors.push(FieldError::invalid(
            format!("{path}.selectors[{index}].cel.expression"),
            source,
            problem,
        ));
    }
}

/// The type of `device` in an expression: attributes and capacities are keyed by domain, then by name.
fn device() -> Type {
    let by_domain = || Type::map(Type::map(Type::DYN));
    Type::object(
        "DRADevice",
        [
            ("driver", Type::STRING),
            ("attributes", by_domain()),
            ("capacity", by_domain()),
            ("allowMultipleAllocations", Type::Bool),
        ],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_are_expressions_about_a_device() {
        let wrong = |source: &str| {
            let mut errors = Vec::new();
            selectors(&json!({"selectors": [{"cel": {"expression": source}}]}), "spec", &mut errors);
            errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        for good in [
            "device.driver == 'gpu.example'",
            "device.attributes['gpu.example'].model == 'a' && device.allowMultipleAllocations",
            "device.capacity['gpu.example'].memory.compareTo(quantity('10Gi')) >= 0",
        ] {
            assert!(wrong(good).is_empty(), "{good}: {:?}", wrong(good));
        }
        for bad in ["", "device.nothing", "nothing", "device.driver", "1 +"] {
            assert_eq!(wrong(bad), ["spec.selectors[0].cel.expression"], "{bad}");
        }
    }
}
