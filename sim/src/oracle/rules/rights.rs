//! Nothing reaches a node without a right to it.
//!
//! In the pushed set, and in documents of dialect `kubeedge`, a node receives its own Node, pods bound to it, and
//! ConfigMaps and Secrets to which such a pod refers. A subscription needs the right to list and to watch its
//! selection, and brings nothing outside of it. A ConfigMap or Secret in an answer needs one of both, or the right to
//! get it. What a replica knew when it sent counts; a right by RBAC may be used until its next review.

use crate::observation::{Millis, ObjectId, Observation, Seen, SeenChange, SeenFrame, SeenVersion};
use crate::oracle::connections::{Connection, Subscription};
use crate::oracle::needs::needed_sometime;
use crate::oracle::rbac::{Subject, Wish, allowed_sometime};
use crate::oracle::{Context, Judge, Violation};

const RULE: &str = "rights";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rights;

/// One frame to a node.
struct Arrival<'a> {
    context: &'a Context,
    connection: &'a Connection,
    at: Millis,
}

impl Judge for Rights {
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>) {
        let Seen::Sent { connection, up: false, frame, .. } = &observation.seen else { return };
        let Some(connection) = context.connections.get(*connection) else { return };
        let arrival = Arrival { context, connection, at: observation.at };
        let mut report = |object: &ObjectId, seen: &str| {
            found.push(Violation {
                rule: RULE,
                at: observation.at,
                node: connection.node.clone(),
                object: Some(object.clone()),
                seen: seen.to_owned(),
                expected: "a pod that refers to it, or a right that the API has granted".to_owned(),
            });
        };
        match frame {
            SeenFrame::Deliver(delivery) if matches!(delivery.change, SeenChange::Upsert(_)) => {
                let object = &delivery.object;
                let is_lawful = match delivery.subscription {
                    0 => arrival.is_needed(object),
                    number => {
                        connection.subscriptions.get(&number).is_some_and(|s| arrival.is_followed(s, object))
                    }
                };
                if !is_lawful {
                    report(object, &format!("it is delivered in subscription {}", delivery.subscription));
                }
            }
            SeenFrame::Document { operation, objects, .. }
                if matches!(&**operation, "insert" | "update" | "response") =>
            {
                for (object, _) in arrival.confidential(objects) {
                    report(object, &format!("a document `{operation}` contains it"));
                }
            }
            SeenFrame::Reply { id, code: 0 | 200..300, objects } => {
                let token = connection.requests.get(id).and_then(Option::as_deref);
                for (object, _) in arrival.confidential(objects) {
                    if !arrival.may_get(token, object) {
                        report(object, &format!("the answer to request {id} contains it"));
                    }
                }
            }
            _ => {}
        }
    }
}

impl Arrival<'_> {
    /// A pod of the node refers to it, or it is the node's own, in what the replica may have seen.
    fn is_needed(&self, object: &ObjectId) -> bool {
        let since = self.context.basis_of(self.connection.replica, "pods", self.at);
        needed_sometime(&self.context.history, &self.connection.node, object, since)
    }

    /// ConfigMaps and Secrets that no pod of the node refers to.
    fn confidential<'o>(
        &self,
        objects: &'o [(ObjectId, SeenVersion)],
    ) -> impl Iterator<Item = &'o (ObjectId, SeenVersion)> {
        objects.iter().filter(|(object, _)| object.is_referable() && !self.is_needed(object))
    }

    fn subject(&self, token: Option<&str>) -> Option<Subject> {
        match token {
            None => Some(Subject::node(&self.connection.node)),
            Some(token) => self.context.account(token).map(Subject::account),
        }
    }

    fn is_followed(&self, subscription: &Subscription, object: &ObjectId) -> bool {
        let selection = &subscription.selection;
        let is_inside = selection.resource == object.resource
            && (selection.namespace.is_empty() || selection.namespace == object.namespace);
        let name = selection.fields.strip_prefix("metadata.name=").unwrap_or_default();
        is_inside && (name.is_empty() || name == object.name) && {
            let wish =
                |verb| Wish { verb, resource: &selection.resource, namespace: &selection.namespace, name };
            let token = subscription.token.as_deref();
            ["list", "watch"].into_iter().all(|verb| self.was_allowed(token, wish(verb)))
        }
    }

    fn may_get(&self, token: Option<&str>, object: &ObjectId) -> bool {
        let wish = |verb| Wish {
            verb,
            resource: &object.resource,
            namespace: &object.namespace,
            name: if verb == "get" { &object.name } else { "" },
        };
        ["get", "list"].into_iter().any(|verb| self.was_allowed(token, wish(verb)))
    }

    fn was_allowed(&self, token: Option<&str>, wish: Wish<'_>) -> bool {
        let since = self.context.history.at(self.at.saturating_sub(self.context.limits.review));
        self.subject(token)
            .is_some_and(|subject| allowed_sometime(&self.context.history, &subject, wish, since))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::observation::{SeenDelivery, Selection};
    use crate::oracle::testing::{Bench, down, id, up};

    fn grant(bench: &mut Bench<Rights>, subject: &serde_json::Value, resource: &str) {
        let rule = json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": [resource]});
        bench.api.put("clusterroles.rbac.authorization.k8s.io//r", "admin", json!({"rules": [rule]}));
        let reference = json!({"kind": "ClusterRole", "name": "r"});
        let body = json!({"roleRef": reference, "subjects": [subject]});
        bench.api.put("clusterrolebindings.rbac.authorization.k8s.io//b", "admin", body);
    }

    #[test]
    fn a_secret_is_pushed_while_a_pod_of_the_node_refers_to_it() {
        let mut bench = Bench::<Rights>::new();
        bench.api.put("secrets/d/s", "user", json!({}));
        bench.api.pod("other", "m", &["secrets/d/s"]);
        let sent = bench.upsert(1, "secrets/d/s");
        bench.wrong(sent.clone());
        bench.api.pod("own", "n", &["secrets/d/s"]);
        bench.fine(sent.clone());
        let known = bench.api.now();
        bench.api.delete("pods/d/own");
        bench.wrong(sent.clone());
        bench.views(&["pods"], known);
        bench.fine(sent);
        let foreign = bench.upsert(1, "pods/d/other");
        bench.wrong(foreign);
    }

    #[test]
    fn a_mirror_pod_gives_no_right() {
        let mut bench = Bench::<Rights>::new();
        bench.api.put("secrets/d/s", "user", json!({}));
        let volume = json!({"secret": {"secretName": "s"}});
        bench.api.put(
            "pods/d/m",
            "system:node:n",
            json!({
                "metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}},
                "spec": {"nodeName": "n", "volumes": [volume]}
            }),
        );
        let sent = bench.upsert(1, "secrets/d/s");
        bench.wrong(sent);
    }

    #[test]
    fn a_subscription_brings_what_its_right_covers_until_the_next_review() {
        let mut bench = Bench::<Rights>::new();
        bench.api.put("services/d/s", "user", json!({}));
        bench.api.put("secrets/d/s", "user", json!({}));
        let selection = Selection { resource: "services".to_owned(), ..Selection::default() };
        bench.fine(up(1, SeenFrame::Subscribe { subscription: 4, selection, token: None }));
        let sent = |bench: &Bench<Rights>, object: &str| {
            let change = SeenChange::Upsert(bench.api.version(object));
            let (object, dependencies) = (id(object), Vec::new());
            down(
                1,
                SeenFrame::Deliver(SeenDelivery { subscription: 4, seq: 1, object, change, dependencies }),
            )
        };
        bench.wrong(sent(&bench, "services/d/s"));
        grant(&mut bench, &json!({"kind": "Group", "name": "tombolo:edge-nodes"}), "services");
        bench.fine(sent(&bench, "services/d/s"));
        bench.wrong(sent(&bench, "secrets/d/s"));
        bench.api.delete("clusterrolebindings.rbac.authorization.k8s.io//b");
        bench.fine(sent(&bench, "services/d/s"));
        bench.pass(200);
        bench.wrong(sent(&bench, "services/d/s"));
    }

    #[test]
    fn an_answer_is_judged_by_who_has_asked() {
        let mut bench = Bench::<Rights>::new();
        bench.api.put("secrets/d/s", "user", json!({}));
        let account = "system:serviceaccount:d:a".to_owned();
        bench.fine(Seen::TokenIssued { token: "t".to_owned(), account });
        grant(&mut bench, &json!({"kind": "ServiceAccount", "namespace": "d", "name": "a"}), "secrets");
        let objects = vec![(id("secrets/d/s"), bench.api.version("secrets/d/s"))];
        for (number, token, lawful) in [(1, Some("t"), true), (2, None, false), (3, Some("forged"), false)] {
            let (what, token) = ("GET".to_owned(), token.map(str::to_owned));
            bench.fine(up(1, SeenFrame::Request { id: number, what, token }));
            let reply = down(1, SeenFrame::Reply { id: number, code: 200, objects: objects.clone() });
            assert_eq!(bench.see(reply).is_empty(), lawful, "request {number}");
        }
        let document = |operation: &str| {
            let (operation, resource) = (operation.to_owned(), "d/secret/s".to_owned());
            down(1, SeenFrame::Document { operation, resource, objects: objects.clone() })
        };
        bench.wrong(document("update"));
        bench.fine(document("delete"));
    }
}
