//! Rows of the groups for access, certificates, scheduling, admission and resources.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{created, dated, human, name, named, or_none};
use crate::value::{at, int, items, text};

/// Rows of the remaining groups.
pub(super) fn other(group: &str, kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    match (group, kind) {
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(object, now),
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(object, now),
        ("scheduling.k8s.io", "PriorityClass") => {
            let global = json!(object["globalDefault"] == true);
            let mut row = named(object, now, [json!(int(object, &["value"])), global]);
            row.push(json!(text(object, &["preemptionPolicy"])));
            row
        }
        ("node.k8s.io", "RuntimeClass") => named(object, now, [json!(text(object, &["handler"]))]),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_schema(object, now),
        ("flowcontrol.apiserver.k8s.io", _) => priority_level(object, now),
        ("resource.k8s.io", _) => resource(kind, object, now),
        ("admissionregistration.k8s.io", _) => admission(kind, object, now),
        ("apiregistration.k8s.io", _) => api_service(object, now),
        _ => dated(object),
    }
}

fn api_service(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = &object["spec"]["service"];
    let service = match service.is_object() {
        true => format!("{}/{}", text(service, &["namespace"]), text(service, &["name"])),
        false => "Local".to_owned(),
    };
    let conditions = items(object, &["status", "conditions"]);
    let available = conditions.iter().find(|condition| text(condition, &["type"]) == "Available");
    let available = match available.map(|own| (text(own, &["status"]), text(own, &["reason"]))) {
        None => "Unknown".to_owned(),
        Some((status @ "True", _) | (status, "")) => status.to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
    };
    named(object, now, [json!(service), json!(available)])
}

fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = &object["roleRef"];
    let role = format!("{}/{}", text(role, &["kind"]), text(role, &["name"]));
    let subjects = |kind: &str| -> String {
        let of_kind = items(object, &["subjects"]).iter().filter(|s| text(s, &["kind"]) == kind);
        let names = of_kind.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(subject, &["namespace"]), text(subject, &["name"])),
            _ => text(subject, &["name"]).to_owned(),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let mut row = named(object, now, [json!(role)]);
    row.extend([json!(subjects("User")), json!(subjects("Group")), json!(subjects("ServiceAccount"))]);
    row
}

fn signing_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let has = |ty: &str| items(object, &["status", "conditions"]).iter().any(|c| text(c, &["type"]) == ty);
    let mut condition = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !text(object, &["status", "certificate"]).is_empty() {
        condition.push_str(",Issued");
    }
    let duration = at(object, &["spec", "expirationSeconds"]).as_i64();
    vec![
        name(object),
        json!(created(object, now)),
        json!(or_none(text(object, &["spec", "signerName"]))),
        json!(text(object, &["spec", "username"])),
        json!(duration.map_or_else(|| "<none>".to_owned(), human)),
        json!(condition),
    ]
}

fn flow_schema(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let dangling = items(object, &["status", "conditions"]).iter().find(|c| text(c, &["type"]) == "Dangling");
    let mut row = named(
        object,
        now,
        [
            json!(text(spec, &["priorityLevelConfiguration", "name"])),
            json!(int(spec, &["matchingPrecedence"])),
            json!(or_none(text(spec, &["distinguisherMethod", "type"]))),
        ],
    );
    row.push(json!(dangling.map_or("?", |condition| text(condition, &["status"]))));
    row
}

fn priority_level(object: &Value, now: Timestamp) -> Vec<Value> {
    let limited = at(object, &["spec", "limited"]);
    let queuing = at(limited, &["limitResponse", "queuing"]);
    let number = |of: &Value, field: &str| match of.is_object() {
        true => json!(int(of, &[field])),
        false => json!("<none>"),
    };
    named(
        object,
        now,
        [
            json!(text(object, &["spec", "type"])),
            number(limited, "nominalConcurrencyShares"),
            number(queuing, "queues"),
            number(queuing, "handSize"),
            number(queuing, "queueLengthLimit"),
        ],
    )
}

fn resource(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    match kind {
        "ResourceClaim" => named(object, now, [json!(claim_state(object))]),
        "ResourceSlice" => named(
            object,
            now,
            [
                json!(text(spec, &["nodeName"])),
                json!(text(spec, &["driver"])),
                json!(text(spec, &["pool", "name"])),
            ],
        ),
        _ => named(object, now, []),
    }
}

fn claim_state(object: &Value) -> String {
    let deleted = !at(object, &["metadata", "deletionTimestamp"]).is_null();
    let allocated = at(object, &["status", "allocation"]).is_object();
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if allocated {
        states.push("allocated");
        if !items(object, &["status", "reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !deleted {
        states.push("pending");
    }
    states.join(",")
}

fn admission(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let parameters = match at(spec, &["paramKind"]) {
        Value::Null => "<unset>".to_owned(),
        kind => format!("{}/{}", text(kind, &["apiVersion"]), text(kind, &["kind"])),
    };
    match kind {
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            named(object, now, [json!(items(object, &["webhooks"]).len())])
        }
        "ValidatingAdmissionPolicy" => {
            named(object, now, [json!(items(spec, &["validations"]).len()), json!(parameters)])
        }
        "MutatingAdmissionPolicy" => {
            named(object, now, [json!(items(spec, &["mutations"]).len()), json!(parameters)])
        }
        _ => {
            let reference = at(spec, &["paramRef"]);
            let shown = match (reference.is_object(), text(reference, &["namespace"])) {
                (false, _) => "<unset>".to_owned(),
                (true, "") => format!("*/{}", text(reference, &["name"])),
                (true, namespace) => format!("{namespace}/{}", text(reference, &["name"])),
            };
            named(object, now, [json!(text(spec, &["policyName"])), json!(shown)])
        }
    }
}
