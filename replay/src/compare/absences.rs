//! Objects that every cluster creates by itself, requested from a cluster that had not created them yet.

use serde_json::Value;

use super::Comparison;
use crate::cluster_objects::is_clusters_own;
use crate::frame::Frame;
use crate::rules::Rule;

impl Comparison<'_> {
    /// Whether the recorded cloud answered that the object does not exist, and the run's cloud answers with that
    /// object, which its cluster creates by itself.
    pub(super) fn had_not_made(&mut self, recorded: &Frame, live: &Frame) -> bool {
        let [object] = &live.objects()[..] else { return false };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let same = recorded.key().zip(live.key()).is_none_or(|(one, other)| one == other);
        let excused = same && is_clusters_own(object) && is_not_found(recorded, name);
        if excused {
            self.rules.push(Rule::ClusterObjects);
        }
        excused
    }
}

/// Whether an answer says that no object has this name: with a status, or with the message of one.
fn is_not_found(answer: &Frame, name: &str) -> bool {
    let content = answer.content();
    if content.as_str().is_some_and(|said| said.contains(&format!("{name:?} not found"))) {
        return true;
    }
    let pointers = ["/ErrStatus", "/Err/ErrStatus", "/Error/ErrStatus", "/body"];
    let mut statuses = pointers.iter().filter_map(|pointer| content.pointer(pointer));
    statuses.any(|status| {
        status["reason"] == "NotFound"
            && status["code"] == 404
            && status.pointer("/details/name").and_then(Value::as_str) == Some(name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::Own;
    use crate::identifiers::Identifiers;

    fn answer(resource: &str, content: &Value) -> Frame {
        Frame::new(json!({
            "header": {"msg_id": "a", "parent_msg_id": "q"},
            "route": {"source": "edgecontroller", "group": "resource", "operation": "response", "resource": resource},
            "content": content,
        }))
    }

    fn missing(name: &str, reason: &str, code: u16) -> Value {
        json!({"status": "Failure", "reason": reason, "code": code, "message": "m",
            "details": {"name": name, "kind": "configmaps"}})
    }

    fn map(namespace: &str, name: &str) -> Value {
        let metadata = json!({"name": name, "namespace": namespace, "uid": "u", "resourceVersion": "5"});
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"ca.crt": "text"}})
    }

    /// The rules under which two answers are the same; `None` if they differ.
    fn rules(recorded: &Frame, live: &Frame) -> Option<Vec<Rule>> {
        let (identifiers, additions, own) = (Identifiers::default(), Vec::new(), Own::default());
        let mut comparison = Comparison::new(&identifiers, &additions, &own);
        comparison.reply(recorded, live).ok()?;
        Some(comparison.rules)
    }

    #[test]
    fn cluster_object_may_be_missing_in_the_recording() {
        const PATH: &str = "shop/configmap/kube-root-ca.crt";
        const NAME: &str = "kube-root-ca.crt";
        let there = answer(PATH, &map("shop", NAME));
        let failure = missing(NAME, "NotFound", 404);
        let said = "configmaps \"kube-root-ca.crt\" not found";
        for recorded in
            [json!({"ErrStatus": failure}), json!({"Err": {"ErrStatus": failure}, "Object": {}}), json!(said)]
        {
            assert_eq!(
                rules(&answer(PATH, &recorded), &there),
                Some(vec![Rule::ClusterObjects]),
                "{recorded}"
            );
        }
    }

    #[test]
    fn only_the_named_object_is_excused() {
        let there = |name: &str| answer(&format!("shop/configmap/{name}"), &map("shop", name));
        let recorded = |name: &str, status: Value| {
            answer(&format!("shop/configmap/{name}"), &json!({"ErrStatus": status}))
        };
        const NAME: &str = "kube-root-ca.crt";
        for (recorded, live, what) in [
            (recorded("app", missing("app", "NotFound", 404)), there("app"), "another object"),
            (recorded(NAME, missing(NAME, "Forbidden", 403)), there(NAME), "a refusal"),
            (recorded(NAME, missing("app", "NotFound", 404)), there(NAME), "an answer about another object"),
            (recorded(NAME, missing(NAME, "NotFound", 404)), there("app"), "the answer to another question"),
            (there(NAME), recorded(NAME, missing(NAME, "NotFound", 404)), "one that the run lacks"),
        ] {
            assert_eq!(rules(&recorded, &live), None, "{what}");
        }
    }
}
