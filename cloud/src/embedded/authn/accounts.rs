//! Whether a service-account token still speaks for a living account (Kubernetes: bound tokens).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tombolo_apiserve::auth::{AUTHENTICATED_GROUP, Identity};
use tombolo_proto::object::Resource;

use super::tokens::{Bound, Claims};
use crate::embedded::objects::{Objects, core, text};

/// Clocks may differ by this much; objects stay valid this long after their deletion was asked for.
const LEEWAY: Duration = Duration::from_secs(60);

/// Prefix of the keys of [`Identity::extra`] that authentication sets.
const EXTRA: &str = "authentication.kubernetes.io/";

/// The identity behind claims, at `now` (Unix seconds).
///
/// # Errors
/// What is wrong with them, for the log and for token reviews.
pub(in crate::embedded) fn identify(
    claims: &Claims,
    objects: &Objects,
    now: u64,
) -> Result<Identity, String> {
    if claims.exp < now.saturating_sub(LEEWAY.as_secs()) {
        return Err("service account token has expired".into());
    }
    if claims.nbf > now.saturating_add(LEEWAY.as_secs()) {
        return Err("service account token is not valid yet".into());
    }
    let place = &claims.place;
    let living = Living { objects, now };
    living.check("serviceaccounts", &place.namespace, &place.serviceaccount)?;
    if let Some(secret) = &place.secret {
        living.check("secrets", &place.namespace, secret)?;
    }
    if let Some(pod) = &place.pod {
        living.check("pods", &place.namespace, pod)?;
    } else if let Some(node) = &place.node {
        // The node of a bound pod only informs; a token bound to a node lives as long as the node.
        living.check("nodes", "", node)?;
    }
    Ok(identity(claims))
}

fn identity(claims: &Claims) -> Identity {
    let place = &claims.place;
    let mut extra = BTreeMap::new();
    let mut note = |key: &str, value: &str| {
        if !value.is_empty() {
            extra.insert(format!("{EXTRA}{key}"), vec![value.to_owned()]);
        }
    };
    if !claims.jti.is_empty() {
        note("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &place.pod {
        note("pod-name", &pod.name);
        note("pod-uid", &pod.uid);
    }
    if let Some(node) = &place.node {
        note("node-name", &node.name);
        note("node-uid", &node.uid);
    }
    Identity {
        user: format!("system:serviceaccount:{}:{}", place.namespace, place.serviceaccount.name),
        uid: Some(place.serviceaccount.uid.clone()),
        groups: groups(&place.namespace),
        extra,
    }
}

/// The groups of every account of a namespace.
pub(in crate::embedded) fn groups(namespace: &str) -> Vec<String> {
    let own = format!("system:serviceaccounts:{namespace}");
    vec!["system:serviceaccounts".into(), own, AUTHENTICATED_GROUP.into()]
}

struct Living<'a> {
    objects: &'a Objects,
    now: u64,
}

impl Living<'_> {
    fn check(&self, plural: &str, namespace: &str, bound: &Bound) -> Result<(), String> {
        let resource: Resource = core(plural);
        let Some(object) = self.objects.get(resource, namespace, &bound.name) else {
            return Err(format!(
                "service account token has been invalidated: {plural} {:?} is gone",
                bound.name
            ));
        };
        if object.uid.as_str() != bound.uid {
            return Err(format!("{plural} UID ({}) does not match claim ({})", object.uid, bound.uid));
        }
        if deleted_before(&object.value, self.now.saturating_sub(LEEWAY.as_secs())) {
            return Err(format!(
                "service account token has been invalidated: {plural} {:?} was deleted",
                bound.name
            ));
        }
        Ok(())
    }
}

fn deleted_before(object: &Value, unix_seconds: u64) -> bool {
    let deleted: Option<jiff::Timestamp> = text(object, "/metadata/deletionTimestamp").parse().ok();
    deleted.is_some_and(|time| u64::try_from(time.as_second()).is_ok_and(|deleted| deleted < unix_seconds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apiserve::history::LogLimits;
    use tombolo_apiserve::memory::MemoryStore;

    use super::super::tokens::{ISSUER, Place};
    use super::*;
    use crate::embedded::objects::Edit;

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
        let place = Place {
            namespace: "shop".into(),
            node: Some(Bound { name: "n".into(), uid: "node-uid".into() }),
            pod: Some(Bound { name: "p".into(), uid: pod.uid.to_string() }),
            secret: None,
            serviceaccount: Bound { name: "till".into(), uid: account.uid.to_string() },
            warnafter: None,
        };
        let claims = Claims::new(place, vec![ISSUER.into()], NOW, Duration::from_secs(600));
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
    async fn time_and_bound_objects_end_a_token() {
        let World { objects, claims } = world().await;
        assert!(identify(&claims, &objects, NOW + 660).is_ok());
        assert!(identify(&claims, &objects, NOW + 661).unwrap_err().contains("expired"));
        assert!(identify(&claims, &objects, NOW - 61).unwrap_err().contains("not valid yet"));
        let key = objects.get(core("pods"), "shop", "p").unwrap().key;
        let terminate = |object: &mut crate::embedded::objects::Object| {
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
