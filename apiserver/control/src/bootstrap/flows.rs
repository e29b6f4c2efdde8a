//! The flow schemas and priority levels that every cluster has, as kube-apiserver 1.36 creates them
//! (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`).

use serde_json::{Value, json};
use tombolo_proto::object::{ObjectKey, Resource};

use super::failed;
use crate::error::EmbeddedError;
use crate::flows::{GROUP, LEVELS, SCHEMAS, resource};
use crate::objects::{Edit, Objects, text};

/// Annotation of objects whose specification is restored after a change.
const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Names of the mandatory schemas and levels. Their specifications are always restored, whatever the annotation says.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// Maximum number of requests that wait in one queue of a level.
const QUEUE_LEN_MAX: i64 = 50;

/// A limited level: name, shares, lendable percentage, and for levels with queues, their number and how many of them
/// one flow may use.
type Limited = (&'static str, i64, i64, Option<(i64, i64)>);

const LIMITED: [Limited; 7] = [
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
];

/// A schema: name, level, precedence, flow distinguisher, subjects, and their requests. A subject is a group (`g:`), a
/// user (`u:`) or all accounts of a namespace (`a:`).
type Sorted = (&'static str, &'static str, i64, &'static str, &'static [&'static str], MatchedRequests);

const SORTED: [Sorted; 11] = [
    ("exempt", "exempt", 1, "", &["g:system:masters"], MatchedRequests::Everything),
    ("probes", "exempt", 2, "", ANYBODY, MatchedRequests::Probes),
    (
        "system-leader-election",
        "leader-election",
        100,
        "ByUser",
        &["u:system:kube-controller-manager", "u:system:kube-scheduler", "a:kube-system"],
        MatchedRequests::Leases,
    ),
    ("system-node-high", "node-high", 400, "ByUser", &["g:system:nodes"], MatchedRequests::Heartbeats),
    ("system-nodes", "system", 500, "ByUser", &["g:system:nodes"], MatchedRequests::Everything),
    (
        "kube-controller-manager",
        "workload-high",
        800,
        "ByNamespace",
        &["u:system:kube-controller-manager"],
        MatchedRequests::Everything,
    ),
    (
        "kube-scheduler",
        "workload-high",
        800,
        "ByNamespace",
        &["u:system:kube-scheduler"],
        MatchedRequests::Everything,
    ),
    (
        "kube-system-service-accounts",
        "workload-high",
        900,
        "ByNamespace",
        &["a:kube-system"],
        MatchedRequests::Everything,
    ),
    (
        "service-accounts",
        "workload-low",
        9000,
        "ByUser",
        &["g:system:serviceaccounts"],
        MatchedRequests::Everything,
    ),
    ("global-default", "global-default", 9900, "ByUser", ANYBODY, MatchedRequests::Everything),
    ("catch-all", "catch-all", 10_000, "ByUser", ANYBODY, MatchedRequests::Everything),
];

const ANYBODY: &[&str] = &["g:system:unauthenticated", "g:system:authenticated"];

/// The requests that a schema matches.
#[derive(Clone, Copy)]
enum MatchedRequests {
    Everything,
    /// Health checks of this server.
    Probes,
    /// Leader election.
    Leases,
    /// Status and Leases of nodes.
    Heartbeats,
}

impl MatchedRequests {
    /// Rules about resources and rules about paths.
    fn rules(self) -> (Value, Value) {
        let resources = |verbs: &[&str], group: &str, resources: &[&str], cluster: bool| {
            let mut rule =
                json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"]});
            if cluster {
                rule["clusterScope"] = json!(true);
            }
            rule
        };
        let leases = |verbs| resources(verbs, "coordination.k8s.io", &["leases"], false);
        match self {
            Self::Everything => (
                json!([resources(&["*"], "*", &["*"], true)]),
                json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]),
            ),
            Self::Probes => {
                let paths = ["/healthz", "/readyz", "/livez"];
                (Value::Null, json!([{"verbs": ["get"], "nonResourceURLs": paths}]))
            }
            Self::Leases => (json!([leases(&["get", "create", "update"])]), Value::Null),
            Self::Heartbeats => {
                let nodes = resources(&["*"], "", &["nodes", "nodes/status"], true);
                (json!([nodes, leases(&["*"])]), Value::Null)
            }
        }
    }
}

/// Creates missing objects, and restores the specifications that users must not change.
///
/// # Errors
/// [`EmbeddedError::Bootstrap`] when the store refuses.
pub(crate) async fn ensure(objects: &Objects) -> Result<(), EmbeddedError> {
    for (resource, wanted) in levels().chain(schemas()) {
        let name = text(&wanted, "/metadata/name").to_owned();
        let report = |error| failed(&format!("{resource} {name}"), &error);
        let key = ObjectKey::new(resource.clone(), "", &name);
        let restore = objects.update(&key, |object| {
            let automatic = object.value["metadata"]["annotations"][AUTO_UPDATE] == "true";
            let ours = automatic || MANDATORY.contains(&name.as_str());
            if !ours || object.value["spec"] == wanted["spec"] {
                return Edit::Keep;
            }
            object.value["spec"] = wanted["spec"].clone();
            Edit::Put
        });
        if restore.await.map_err(report)?.is_none() {
            objects.ensure(resource.clone(), wanted.clone()).await.map_err(report)?;
        }
    }
    Ok(())
}

fn object(plural: &str, kind: &str, name: &str, spec: &Value) -> (Resource, Value) {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"name": name, "generation": 1, "annotations": {AUTO_UPDATE: "true"}},
        "spec": spec, "status": {},
    });
    (resource(plural), object)
}

fn levels() -> impl Iterator<Item = (Resource, Value)> {
    let limited = LIMITED.iter().map(|(name, shares, lendable, queues)| {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({"type": "Queue", "queuing": {
                "queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LEN_MAX}}),
        };
        let limited =
            json!({"nominalConcurrencyShares": shares, "limitResponse": response, "lendablePercent": lendable});
        (*name, json!({"type": "Limited", "limited": limited}))
    });
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let all = std::iter::once(("exempt", exempt)).chain(limited);
    all.map(|(name, spec)| object(LEVELS, "PriorityLevelConfiguration", name, &spec))
}

fn schemas() -> impl Iterator<Item = (Resource, Value)> {
    SORTED.iter().map(|(name, level, precedence, distinguisher, subjects, asked)| {
        let subjects: Vec<Value> = subjects.iter().map(|written| subject(written)).collect();
        let mut rule = json!({"subjects": subjects});
        let (resources, paths) = asked.rules();
        for (part, rules) in [("resourceRules", resources), ("nonResourceRules", paths)] {
            if !rules.is_null() {
                rule[part] = rules;
            }
        }
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
        });
        if !distinguisher.is_empty() {
            spec["distinguisherMethod"] = json!({"type": distinguisher});
        }
        object(SCHEMAS, "FlowSchema", name, &spec)
    })
}

fn subject(written: &str) -> Value {
    match written.split_at(2) {
        ("g:", name) => json!({"kind": "Group", "group": {"name": name}}),
        ("u:", name) => json!({"kind": "User", "user": {"name": name}}),
        (_, namespace) => {
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": "*"}})
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;
    use tombolo_apicore::store::Store as _;

    use super::*;

    #[test]
    fn all_of_them_are_what_clients_could_create() {
        let kinds = tombolo_catalog::kinds();
        for (resource, object) in levels().chain(schemas()) {
            let kind = kinds.get(&resource).unwrap();
            let mut completed = object.clone();
            kind.default(&mut completed);
            assert_eq!(
                completed, object,
                "nothing is left to a default, so that a comparison finds no change"
            );
            assert_eq!(kind.validate_create(&completed), [], "{object}");
        }
    }

    #[tokio::test]
    async fn what_was_changed_or_deleted_comes_back_unless_its_annotation_says_no() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        ensure(&objects).await.unwrap();
        let first = objects.store().revision();
        ensure(&objects).await.unwrap();
        assert_eq!(objects.store().revision(), first, "a second start changes nothing");
        for (name, annotation) in [("system", "false"), ("node-high", "true"), ("catch-all", "false")] {
            let key = ObjectKey::new(resource(LEVELS), "", name);
            let spoil = objects.update(&key, |object| {
                object.value["metadata"]["annotations"][AUTO_UPDATE] = json!(annotation);
                object.value["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
                Edit::Put
            });
            spoil.await.unwrap();
        }
        let gone = ObjectKey::new(resource(SCHEMAS), "", "probes");
        objects.update(&gone, |_| Edit::Remove).await.unwrap();
        ensure(&objects).await.unwrap();
        let shares = |name: &str| {
            let level = objects.get(resource(LEVELS), "", name).unwrap();
            level.value["spec"]["limited"]["nominalConcurrencyShares"].as_i64().unwrap()
        };
        assert_eq!((shares("system"), shares("node-high"), shares("catch-all")), (7, 40, 5));
        assert!(objects.get_key(&gone).is_some());
    }
}
