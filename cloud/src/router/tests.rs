//! What a router is told, from what a watch tells.

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::table::{OBJECTS_MAX, RouterKind, Table};
use super::*;
use crate::kube::{ObjectEvent, RawObject};

#[derive(Default)]
struct Told(Mutex<Vec<RouterMessage>>);

impl Router for Told {
    fn handle(&self, message: RouterMessage) {
        self.0.lock().push(message);
    }
}

impl Told {
    /// `insert rule/a 7`: operation, resource and version of each message, forgotten after that.
    fn take(&self) -> Vec<String> {
        let id = || MessageId::parse("m").expect("valid");
        let message = |told: RouterMessage| told.to_message(id(), 1).expect("small");
        let line = |message: Message| {
            let (operation, resource) = (message.route.operation, message.route.resource.to_wire());
            format!("{} {resource} {}", operation.as_str(), message.header.resource_version)
        };
        std::mem::take(&mut *self.0.lock()).into_iter().map(message).map(line).collect()
    }
}

fn rule(name: &str, uid: &str, version: u32) -> Value {
    json!({
        "apiVersion": API, "kind": "Rule",
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"source": "in", "sourceResource": {"path": "/a"}, "target": "out", "targetResource": {"topic": "t"}},
    })
}

fn applied(object: Value) -> ObjectEvent {
    ObjectEvent::Applied(RawObject::new(object))
}

fn deleted(object: Value) -> ObjectEvent {
    ObjectEvent::Deleted(RawObject::new(object))
}

struct Followed {
    table: Table,
    told: Told,
}

impl Followed {
    fn new(kind: RouterKind) -> Self {
        Self { table: Table::new(kind), told: Told::default() }
    }

    fn after(&mut self, events: impl IntoIterator<Item = ObjectEvent>) -> Vec<String> {
        events.into_iter().for_each(|event| self.table.handle(event, &self.told));
        self.told.take()
    }
}

#[test]
fn additions_and_deletions_are_told_and_changes_are_not() {
    let mut rules = Followed::new(RouterKind::Rule);
    assert_eq!(rules.after([applied(rule("a", "u1", 7))]), ["insert rule/a 7"]);
    assert_eq!(rules.after([applied(rule("a", "u1", 8))]), Vec::<String>::new());
    assert_eq!(rules.after([deleted(rule("a", "u1", 9))]), ["delete rule/a 7"]);
    assert_eq!(rules.after([deleted(rule("a", "u1", 9))]), Vec::<String>::new(), "it was gone");
    let twice = [applied(rule("a", "u2", 10)), applied(rule("a", "u3", 12))];
    assert_eq!(rules.after(twice), ["insert rule/a 10", "delete rule/a 10", "insert rule/a 12"]);
}

#[test]
fn endpoints_have_a_resource_of_their_own_and_their_object_as_content() {
    let mut endpoints = Followed::new(RouterKind::RuleEndpoint);
    let object = json!({
        "metadata": {"namespace": "shop", "name": "in", "uid": "u", "resourceVersion": "3"},
        "spec": {"ruleEndpointType": "servicebus", "properties": {"service_port": "8080"}},
    });
    endpoints.table.handle(applied(object.clone()), &endpoints.told);
    let message =
        endpoints.told.0.lock()[0].to_message(MessageId::parse("m").expect("valid"), 1).expect("small");
    assert_eq!((message.route.source, message.route.group), (Source::EdgeController, Group::Resource));
    let content: Value = message.content.read().expect("JSON");
    assert_eq!(content["spec"], object["spec"]);
    assert_eq!(content["metadata"]["namespace"], "shop");
    assert_eq!(endpoints.told.take(), ["insert ruleendpoint/in 3"]);
}

#[test]
fn what_a_new_list_lacks_is_gone_and_what_it_repeats_is_known() {
    let mut rules = Followed::new(RouterKind::Rule);
    rules.after([applied(rule("a", "u1", 1)), applied(rule("b", "u2", 2))]);
    let list = [ObjectEvent::RelistStart, applied(rule("b", "u2", 5)), applied(rule("c", "u3", 6))];
    assert_eq!(rules.after(list), ["insert rule/c 6"]);
    assert_eq!(rules.after([ObjectEvent::RelistEnd]), ["delete rule/a 1"]);
    rules.table.clear(&rules.told);
    assert_eq!(rules.told.take(), ["delete rule/b 2", "delete rule/c 6"], "the definition is gone");
}

#[test]
fn unusable_and_too_many_objects_are_left_out() {
    let mut rules = Followed::new(RouterKind::Rule);
    let mut broken = rule("a", "u1", 1);
    broken["spec"] = json!({"source": 7});
    assert_eq!(rules.after([applied(broken)]), Vec::<String>::new());
    let many = (0..=OBJECTS_MAX).map(|number| applied(rule(&format!("r{number}"), &format!("u{number}"), 1)));
    assert_eq!(rules.after(many).len(), OBJECTS_MAX);
}
