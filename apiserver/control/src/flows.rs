//! The classification part of Kubernetes' API priority and fairness: each response names the FlowSchema that the
//! request matches and its PriorityLevelConfiguration. There are no seats: priority levels neither delay nor refuse
//! requests.

mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;
use serde_json::Value;
use tombolo_apicore::api::REQUESTS_MAX;
use tombolo_apicore::auth::{Attributes, Classification, Classifier};
use tombolo_apicore::store::Stored;
use tombolo_proto::object::Resource;

use self::rules::FlowSchemaRule;
use super::objects::{items, text, v1};

/// Group of the kinds.
const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// Plural of FlowSchema.
pub(super) const SCHEMAS: &str = "flowschemas";

/// Plural of PriorityLevelConfiguration.
pub(super) const LEVELS: &str = "prioritylevelconfigurations";

/// Subresources that are long connections. They are not classified.
const CONNECTIONS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// Default precedence of a schema (Kubernetes default).
const PRECEDENCE: i64 = 1000;

/// One of the two resources.
pub(super) fn resource(plural: &str) -> Resource {
    v1(GROUP, plural)
}

#[derive(Debug)]
struct Schema {
    uid: HeaderValue,
    precedence: i64,
    level: String,
    rules: Vec<FlowSchemaRule>,
}

impl Schema {
    fn read(object: &Value, uid: HeaderValue) -> Self {
        let spec = &object["spec"];
        Self {
            uid,
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(PRECEDENCE),
            level: text(spec, "/priorityLevelConfiguration/name").to_owned(),
            rules: items(spec, "/rules").iter().map(FlowSchemaRule::read).collect(),
        }
    }
}

#[derive(Debug, Clone)]
struct Level {
    uid: HeaderValue,
    /// Its share of the concurrent requests, relative to the shares of other levels.
    shares: i64,
}

impl Level {
    fn read(object: &Value, uid: HeaderValue) -> Self {
        let shares = |part: &str| object["spec"][part]["nominalConcurrencyShares"].as_i64();
        Self { uid, shares: shares("limited").or_else(|| shares("exempt")).unwrap_or(0) }
    }
}

/// The stored schemas and levels.
#[derive(Debug, Clone, Default)]
struct Set {
    schemas: BTreeMap<String, Arc<Schema>>,
    levels: BTreeMap<String, Level>,
    /// Schemas whose level exists, in matching order.
    order: Vec<(Arc<Schema>, HeaderValue)>,
}

impl Set {
    fn with_schema(mut self, name: &str, schema: Option<Arc<Schema>>) -> Self {
        match schema {
            Some(schema) => drop(self.schemas.insert(name.to_owned(), schema)),
            None => drop(self.schemas.remove(name)),
        }
        self.ordered()
    }

    fn with_level(mut self, name: &str, level: Option<Level>) -> Self {
        match level {
            Some(level) => drop(self.levels.insert(name.to_owned(), level)),
            None => drop(self.levels.remove(name)),
        }
        self.ordered()
    }

    fn ordered(self) -> Self {
        let usable =
            |schema: &Arc<Schema>| Some((Arc::clone(schema), self.levels.get(&schema.level)?.uid.clone()));
        // They are sorted by name, which decides among schemas of equal precedence.
        let mut order: Vec<_> = self.schemas.values().filter_map(usable).collect();
        order.sort_by_key(|(schema, _)| schema.precedence);
        Self { order, ..self }
    }
}

/// An index of schemas and levels. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Flows(Arc<ArcSwap<Set>>);

impl Flows {
    /// Applies a change: an object as it is now stored, or its removal.
    pub(super) fn apply(&self, stored: &Stored, deleted: bool) {
        let resource = stored.key.resource();
        if &*resource.group != GROUP {
            return;
        }
        let object: Option<Value> = if deleted { None } else { serde_json::from_slice(&stored.body()).ok() };
        let Ok(uid) = HeaderValue::from_str(stored.uid.as_str()) else { return };
        let name = stored.key.name();
        if &*resource.name == SCHEMAS {
            let schema = object.map(|object| Arc::new(Schema::read(&object, uid)));
            self.0.rcu(|set| Set::clone(set).with_schema(name, schema.clone()));
        } else {
            let level = object.map(|object| Level::read(&object, uid));
            self.0.rcu(|set| Set::clone(set).with_level(name, level.clone()));
        }
    }

    /// Whether a priority level exists.
    pub(super) fn has_level(&self, name: &str) -> bool {
        self.0.load().levels.contains_key(name)
    }

    /// Each priority level with its nominal share of the concurrent requests of this server.
    pub(super) fn nominal_seats(&self) -> Vec<(String, i64)> {
        let set = self.0.load();
        let all = set.levels.values().map(|level| level.shares).fold(0, i64::saturating_add).max(1);
        let most = i64::try_from(REQUESTS_MAX).unwrap_or(i64::MAX);
        let seats = |level: &Level| level.shares.saturating_mul(most).saturating_add(all - 1) / all;
        set.levels.iter().map(|(name, level)| (name.clone(), seats(level))).collect()
    }
}

impl Classifier for Flows {
    fn classify(&self, asked: &Attributes) -> Option<Classification> {
        if asked.is_resource && CONNECTIONS.contains(&asked.subresource.as_str()) {
            return None;
        }
        let set = self.0.load();
        let fits =
            |(schema, _): &&(Arc<Schema>, HeaderValue)| schema.rules.iter().any(|rule| rule.fits(asked));
        let (schema, level) = set.order.iter().find(fits)?;
        Some(Classification { flow_schema: schema.uid.clone(), priority_level: level.clone() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::auth::Identity;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;
    use crate::bootstrap;
    use crate::objects::Objects;

    /// The objects that every server starts with, and these schemas: name, precedence, level, user.
    async fn flows(schemas: &[(&str, i64, &str, &str)]) -> (Objects, Flows) {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        bootstrap::flows::ensure(&objects).await.unwrap();
        for (name, precedence, level, user) in schemas {
            let subjects = json!([{"kind": "User", "user": {"name": user}}]);
            let paths = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
            let schema = json!({"metadata": {"name": name}, "spec": {
                "matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": level},
                "rules": [{"subjects": subjects, "nonResourceRules": paths}],
            }});
            objects.create(resource(SCHEMAS), schema).await.unwrap();
        }
        let flows = Flows::default();
        for plural in [SCHEMAS, LEVELS] {
            objects.list_raw(&resource(plural), None).iter().for_each(|stored| flows.apply(stored, false));
        }
        (objects, flows)
    }

    fn version(user: &str, groups: &[&str]) -> Attributes {
        let identity = Identity::new(user, groups);
        Attributes { identity, verb: "get".into(), path: "/version".into(), ..Attributes::default() }
    }

    /// The name of the object with this UID.
    fn name(objects: &Objects, plural: &str, uid: &HeaderValue) -> String {
        let found = objects.list(&resource(plural), None).find(|one| one.uid.as_str() == uid);
        found.unwrap().key.name().to_owned()
    }

    fn sorted(objects: &Objects, flows: &Flows, asked: &Attributes) -> (String, String) {
        let classes = flows.classify(asked).unwrap();
        (name(objects, SCHEMAS, &classes.flow_schema), name(objects, LEVELS, &classes.priority_level))
    }

    #[tokio::test]
    async fn the_schema_of_the_lowest_precedence_and_then_of_the_first_name_counts() {
        let schemas =
            [("late", 600, "system", "ann"), ("b", 500, "system", "ann"), ("a", 500, "node-high", "ann")];
        let (objects, flows) = flows(&schemas).await;
        let all = ["system:authenticated"];
        assert_eq!(sorted(&objects, &flows, &version("ann", &all)), ("a".into(), "node-high".into()));
        let other = ("global-default".into(), "global-default".into());
        assert_eq!(sorted(&objects, &flows, &version("bob", &all)), other);
        let master = version("ann", &["system:masters"]);
        assert_eq!(sorted(&objects, &flows, &master), ("exempt".into(), "exempt".into()));
        let log = Attributes { is_resource: true, subresource: "log".into(), ..version("ann", &all) };
        assert_eq!(flows.classify(&log), None);
    }

    #[tokio::test]
    async fn flow_schema_without_its_level_is_skipped() {
        let (objects, flows) = flows(&[("a", 5, "mine", "ann")]).await;
        let asked = version("ann", &["system:authenticated"]);
        assert_eq!(sorted(&objects, &flows, &asked).0, "global-default");
        let level = json!({"metadata": {"name": "mine"}, "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 255}}});
        let level = objects.create(resource(LEVELS), level).await.unwrap();
        flows.apply(&level, false);
        assert_eq!(sorted(&objects, &flows, &asked), ("a".into(), "mine".into()));
        let seats = flows.nominal_seats();
        let of = |name: &str| seats.iter().find(|(own, _)| own == name).unwrap().1;
        assert_eq!((of("mine"), of("exempt")), (523, 0), "255 of 500 shares of 1,024, rounded up");
        flows.apply(&level, true);
        assert_eq!(sorted(&objects, &flows, &asked).0, "global-default");
    }
}
