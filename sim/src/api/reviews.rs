//! Questions to the server: who somebody is, and what somebody may do.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::object::text;
use super::rights::{ApiUser, AskedRight};
use super::state::ModelState;
use super::status::{ApiStatus, FieldProblem};
use super::tokens;

/// Answers a review.
///
/// # Errors
/// 400 or 422 for a review that cannot be answered.
pub(super) fn answer(
    state: &ModelState,
    user: &ApiUser,
    (resource, namespace): (&str, &str),
    mut review: Value,
) -> Result<Value, ApiStatus> {
    let spec = review["spec"].clone();
    let status = match resource {
        "tokenreviews" => token_review(state, &spec)?,
        "selfsubjectreviews" => json!({ "userInfo": info(user) }),
        "selfsubjectaccessreviews" => access(state, user, &spec)?,
        "selfsubjectrulesreviews" => {
            json!({"resourceRules": [], "nonResourceRules": [], "incomplete": true})
        }
        _ => {
            let asked_in = text(&spec, "/resourceAttributes/namespace");
            if resource == "localsubjectaccessreviews" && asked_in != namespace {
                return Err(ApiStatus::bad_request("spec.resourceAttributes.namespace must match namespace"));
            }
            access(state, &subject(&spec)?, &spec)?
        }
    };
    review["status"] = status;
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    if resource == "selfsubjectreviews" {
        review["metadata"] = json!({"creationTimestamp": state.clock.timestamp(0)});
    }
    Ok(review)
}

/// A user as reviews and certificate requests name it.
pub(super) fn info(user: &ApiUser) -> Value {
    // The group of all authenticated users comes last.
    const ALL: &str = "system:authenticated";
    let own = user.groups.iter().filter(|group| *group != ALL);
    let groups: Vec<&String> = own.chain(user.groups.get(ALL)).collect();
    let mut info = json!({"username": user.name, "groups": groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    info
}

fn token_review(state: &ModelState, spec: &Value) -> Result<Value, ApiStatus> {
    let token = text(spec, "/token");
    if token.is_empty() {
        return Err(ApiStatus::bad_request("token is required for TokenReview in authentication"));
    }
    let wanted = spec["audiences"].as_array().cloned().unwrap_or_default();
    Ok(match tokens::owner(state, token) {
        Some(found)
            if wanted.is_empty() || wanted.iter().any(|one| found.audiences.iter().any(|own| one == own)) =>
        {
            let mut user = info(&found.user);
            if !found.pod.is_empty() {
                user["extra"] = json!({"authentication.kubernetes.io/pod-uid": [found.pod]});
            }
            json!({"authenticated": true, "user": user, "audiences": found.audiences})
        }
        _ => json!({"user": {}, "error": "[invalid bearer token, unknown]"}),
    })
}

fn subject(spec: &Value) -> Result<ApiUser, ApiStatus> {
    let groups = spec["groups"].as_array().into_iter().flatten();
    let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect::<BTreeSet<_>>();
    let name = text(spec, "/user").to_owned();
    if name.is_empty() && groups.is_empty() {
        let detail = "at least one of user or group must be specified";
        let problem = FieldProblem::invalid("spec.user", &"".into(), detail);
        return Err(ApiStatus::invalid_request("authorization.k8s.io", "", &problem));
    }
    Ok(ApiUser { name, groups, uid: text(spec, "/uid").to_owned() })
}

fn access(state: &ModelState, user: &ApiUser, spec: &Value) -> Result<Value, ApiStatus> {
    let attributes = &spec["resourceAttributes"];
    if !attributes.is_object() {
        if spec["nonResourceAttributes"].is_object() {
            return Ok(json!({"allowed": !user.name.is_empty()}));
        }
        let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(ApiStatus::new(422, "Invalid", message));
    }
    let text = |name: &str| attributes[name].as_str().unwrap_or_default().to_owned();
    let asked = AskedRight {
        verb: text("verb"),
        group: text("group"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        field_selector: selector(&attributes["fieldSelector"]),
    };
    Ok(match state.check(user, &asked) {
        Ok(()) => json!({"allowed": true}),
        Err(reason) => {
            let mut status = Map::from_iter([("allowed".to_owned(), false.into())]);
            if !reason.is_empty() {
                status.insert("reason".to_owned(), reason.into());
            }
            status.into()
        }
    })
}

/// A field selector, which a review states as a text or in requirements.
fn selector(given: &Value) -> String {
    if let Some(raw) = given["rawSelector"].as_str() {
        return raw.to_owned();
    }
    let requirements = given["requirements"].as_array().into_iter().flatten();
    let texts = requirements.filter(|one| one["operator"] == "In").filter_map(|one| {
        let value = one["values"].as_array()?.first()?.as_str()?;
        Some(format!("{}={value}", one["key"].as_str()?))
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::rights::{RightsGrant, RightsTable};
    use super::*;

    fn state() -> ModelState {
        let grant = RightsGrant::new("tombolo:edge-nodes", &["list"], &[""], &["services"]);
        ModelState::new(1, 0, RightsTable { open: true, grants: vec![grant] })
    }

    #[tokio::test]
    async fn access_reviews_are_answered_by_the_table_and_the_node_authorizer() {
        let (state, user) = (state(), ApiUser::named("cloudcore"));
        let ask = |spec: Value| {
            let review = answer(&state, &user, ("subjectaccessreviews", ""), json!({ "spec": spec }));
            review.map(|review| review["status"]["allowed"].clone())
        };
        let services = json!({"verb": "list", "resource": "services"});
        assert_eq!(
            ask(json!({"groups": ["tombolo:edge-nodes"], "resourceAttributes": services})),
            Ok(json!(true))
        );
        assert_eq!(ask(json!({"groups": ["other"], "resourceAttributes": services})), Ok(json!(false)));
        let node = |fields: Value| {
            ask(json!({
                "user": "system:node:n", "groups": ["system:nodes"],
                "resourceAttributes": {"verb": "watch", "resource": "pods", "fieldSelector": fields},
            }))
        };
        assert_eq!(node(json!({"rawSelector": "spec.nodeName=n"})), Ok(json!(true)));
        assert_eq!(node(json!({"rawSelector": "spec.nodeName=m"})), Ok(json!(false)));
        let requirement = json!({"key": "spec.nodeName", "operator": "In", "values": ["n"]});
        assert_eq!(node(json!({"requirements": [requirement]})), Ok(json!(true)));
        assert_eq!(ask(json!({"resourceAttributes": services})).expect_err("about nobody").code, 422);
        assert_eq!(ask(json!({"user": "u"})).expect_err("about nothing").code, 422);
    }

    #[tokio::test]
    async fn everybody_may_ask_who_it_is() {
        let node = ApiUser::named("system:node:n");
        let review = answer(&state(), &node, ("selfsubjectreviews", ""), json!({})).expect("an answer");
        let groups = &review["status"]["userInfo"]["groups"];
        assert!(groups.as_array().is_some_and(|groups| groups.contains(&json!("system:nodes"))), "{groups}");
        let refused = answer(&state(), &node, ("tokenreviews", ""), json!({"spec": {"token": ""}}));
        assert_eq!(refused.expect_err("no token").code, 400);
    }
}
