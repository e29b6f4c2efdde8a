//! Whether a service-account token still belongs to an existing account (Kubernetes: bound tokens).

use serde_json::Value;
use tombolo_apicore::accounts::{self, BoundObject, Claims, Living, check_bound, check_times};
use tombolo_apicore::auth::Identity;
use tombolo_proto::object::Resource;

use crate::objects::{Objects, core, text};

/// The identity of the claims, at `now` (Unix seconds).
///
/// # Errors
/// What is wrong with the claims, for the log and for token reviews.
pub(crate) fn identify(claims: &Claims, objects: &Objects, now: u64) -> Result<Identity, String> {
    check_times(claims, now)?;
    let claim = &claims.kubernetes;
    let living = BoundObjectLookup { objects, now };
    living.check("serviceaccounts", &claim.namespace, &claim.serviceaccount)?;
    if let Some(secret) = &claim.secret {
        living.check("secrets", &claim.namespace, secret)?;
    }
    if let Some(pod) = &claim.pod {
        living.check("pods", &claim.namespace, pod)?;
    } else if let Some(node) = &claim.node {
        // For a token bound to a pod, the node is only informational. A token bound to a node is valid as long as the
        // node exists.
        living.check("nodes", "", node)?;
    }
    Ok(accounts::identity(claims))
}

struct BoundObjectLookup<'a> {
    objects: &'a Objects,
    now: u64,
}

impl BoundObjectLookup<'_> {
    fn check(&self, plural: &str, namespace: &str, bound: &BoundObject) -> Result<(), String> {
        let resource: Resource = core(plural);
        let object = self.objects.get(resource, namespace, &bound.name);
        let found = object.as_ref().map(|object| Living {
            uid: object.uid.as_str(),
            deletion_timestamp: deletion_timestamp(&object.value),
        });
        check_bound(plural, bound, found, self.now)
    }
}

fn deletion_timestamp(object: &Value) -> &str {
    text(object, "/metadata/deletionTimestamp")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use std::time::Duration;

    use tombolo_apicore::accounts::KubernetesClaim;

    use super::super::tokens::ISSUER;
    use super::*;
    use crate::objects::Edit;

    const NOW: u64 = 1_700_000_000;

    struct World {
        objects: Objects,
        claims: Claims,
    }

    async fn world() -> World {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let named = |name: &str| json!({"metadata": {"namespace": "shop", "name": name}});
        let account = objects.create(core("serviceaccounts"), named("till")).await.unwrap();
        let pod = objects.create(core("pods"), named("p")).await.unwrap();
        let claim = KubernetesClaim {
            namespace: "shop".into(),
            node: Some(BoundObject { name: "n".into(), uid: "node-uid".into() }),
            pod: Some(BoundObject { name: "p".into(), uid: pod.uid.to_string() }),
            secret: None,
            serviceaccount: BoundObject { name: "till".into(), uid: account.uid.to_string() },
            warnafter: None,
        };
        let claims =
            Claims::new(ISSUER, "id".into(), claim, vec![ISSUER.into()], NOW, Duration::from_secs(600));
        World { objects, claims }
    }

    #[tokio::test]
    async fn a_good_token_names_account_pod_and_node() {
        let World { objects, claims } = world().await;
        let identity = identify(&claims, &objects, NOW).unwrap();
        assert_eq!(identity.user, "system:serviceaccount:shop:till");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"];
        assert_eq!(identity.groups, groups);
        assert_eq!(identity.extra["authentication.kubernetes.io/node-name"], ["n"]);
        assert_eq!(identity.extra["authentication.kubernetes.io/pod-name"], ["p"]);
    }

    #[tokio::test]
    async fn token_ends_with_its_expiry_or_its_bound_object() {
        let World { objects, claims } = world().await;
        assert!(identify(&claims, &objects, NOW + 660).is_ok());
        assert!(identify(&claims, &objects, NOW + 661).unwrap_err().contains("expired"));
        assert!(identify(&claims, &objects, NOW - 61).unwrap_err().contains("not valid yet"));
        let key = objects.get(core("pods"), "shop", "p").unwrap().key;
        let terminate = |object: &mut crate::objects::StoredObject| {
            object.value["metadata"]["deletionTimestamp"] = json!("2023-11-14T22:13:20Z");
            Edit::Put
        };
        objects.update(&key, terminate).await.unwrap();
        assert!(identify(&claims, &objects, NOW + 60).is_ok(), "a minute of grace");
        assert!(identify(&claims, &objects, NOW + 61).unwrap_err().contains("deleted"));
        objects.update(&key, |_| Edit::Remove).await.unwrap();
        assert!(identify(&claims, &objects, NOW).unwrap_err().contains("gone"));
        objects.create(core("pods"), json!({"metadata": {"namespace": "shop", "name": "p"}})).await.unwrap();
        assert!(identify(&claims, &objects, NOW).unwrap_err().contains("UID"));
    }
}
