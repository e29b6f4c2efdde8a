//! Flow schemas and priority levels: restores those that every cluster has, and sets a condition on each schema that
//! says whether its level exists.

use std::time::Duration;

use tombolo_apicore::store::StoreError;
use tombolo_proto::object::ObjectKey;

use super::Context;
use super::feed::Feed;
use crate::bootstrap;
use crate::flows::{Flows, LEVELS, SCHEMAS, resource};
use crate::objects::{Edit, StoredObject, set_condition};

/// How often the objects that every cluster has are checked (kube-apiserver's interval).
const INTERVAL: Duration = Duration::from_secs(60);

/// The condition type of a schema.
const DANGLING: &str = "Dangling";

/// Follows schemas and levels until the server stops.
pub(super) async fn run(context: &Context) {
    let objects = &context.objects;
    let mut schemas = Feed::new(objects, resource(SCHEMAS));
    let mut levels = Feed::new(objects, resource(LEVELS));
    let mut round = tokio::time::interval(INTERVAL);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(key) = schemas.next() => settle(context, &key).await,
            Some(_) = levels.next() => {
                for stored in objects.list_raw(&resource(SCHEMAS), None) {
                    settle(context, &stored.key).await;
                }
            }
            _ = round.tick() => {
                if let Err(error) = bootstrap::flows::ensure(objects).await {
                    tracing::warn!(%error, "cannot restore the default flow schemas and priority levels; retrying");
                }
            }
        }
    }
}

async fn settle(context: &Context, key: &ObjectKey) {
    if let Err(error) = write(context, key).await {
        tracing::warn!(%key, %error, "the status of a flow schema was not written");
    }
}

async fn write(context: &Context, key: &ObjectKey) -> Result<(), StoreError> {
    let update = context
        .objects
        .update(key, |schema| if judge(schema, &context.flows) { Edit::Put } else { Edit::Keep });
    update.await.map(|_| ())
}

/// Sets the condition of a schema. Returns whether it changed.
fn judge(schema: &mut StoredObject, flows: &Flows) -> bool {
    let level = schema.text("/spec/priorityLevelConfiguration/name");
    let about = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match flows.has_level(level) {
        true => ("False", "Found", format!("{about} and it exists")),
        false => ("True", "NotFound", format!("{about} but there is no such object")),
    };
    set_condition(&mut schema.value, DANGLING, (status, reason, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_apicore::history::LogLimits;
    use tombolo_apicore::memory::MemoryStore;

    use super::*;
    use crate::objects::Objects;

    #[tokio::test]
    async fn flow_schema_reports_whether_its_level_exists() {
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let schema =
            json!({"metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": "l"}}});
        objects.create(resource(SCHEMAS), schema).await.unwrap();
        let mut schema = objects.get(resource(SCHEMAS), "", "s").unwrap();
        let flows = Flows::default();
        let said = |schema: &StoredObject| schema.text("/status/conditions/0/status").to_owned();
        assert!(judge(&mut schema, &flows) && said(&schema) == "True");
        assert!(!judge(&mut schema, &flows), "the condition is already set");
        let level =
            objects.create(resource(LEVELS), json!({"metadata": {"name": "l"}, "spec": {}})).await.unwrap();
        flows.apply(&level, false);
        assert!(judge(&mut schema, &flows) && said(&schema) == "False");
        assert_eq!(schema.value["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}
