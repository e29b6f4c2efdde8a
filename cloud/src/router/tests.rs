//! The notifications that a router receives for watch events.

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::table::{OBJECTS_BYTES_MAX, OBJECTS_MAX, RouterKind, Table};
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
    /// `insert rule/a 7`: operation, resource and version of each message. Clears the list.
    fn take(&self) -> Vec<String> {
        let line = |told: RouterMessage| {
            format!("{} {} {}", told.operation(), told.resource(), told.resource_version)
        };
        std::mem::take(&mut *self.0.lock()).into_iter().map(line).collect()
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
fn endpoints_have_a_resource_of_their_own() {
    let mut endpoints = Followed::new(RouterKind::RuleEndpoint);
    let object = json!({
        "metadata": {"namespace": "shop", "name": "in", "uid": "u", "resourceVersion": "3"},
        "spec": {"ruleEndpointType": "servicebus", "properties": {"service_port": "8080"}},
    });
    endpoints.table.handle(applied(object), &endpoints.told);
    let told = endpoints.told.0.lock()[0].object.clone();
    let RouterObject::RuleEndpoint(endpoint) = told else { panic!("{told:?}") };
    assert_eq!(
        (&*endpoint.metadata.namespace, endpoint.spec.rule_endpoint_type),
        ("shop", EndpointType::ServiceBus)
    );
    assert_eq!(endpoint.spec.properties["service_port"], "8080");
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

#[test]
fn what_rules_take_in_memory_is_bounded_and_what_goes_leaves_room() {
    let mut rules = Followed::new(RouterKind::Rule);
    let large = |number: usize| {
        let mut rule = rule(&format!("r{number}"), &format!("u{number}"), 1);
        let members = (0..20_000).map(|member| (member.to_string(), json!("")));
        rule["spec"]["sourceResource"] = members.collect::<serde_json::Map<_, _>>().into();
        rule
    };
    let all = OBJECTS_BYTES_MAX / (20_000 * 128);
    let told = rules.after((0..20).map(|number| applied(large(number))));
    assert_eq!(told.len(), all, "each takes more than 2.5 MB");
    assert_eq!(rules.after([applied(large(20))]), Vec::<String>::new());
    rules.after([deleted(large(0))]);
    assert_eq!(rules.after([applied(large(20))]), ["insert rule/r20 1"]);
    let list = [
        ObjectEvent::RelistStart,
        applied(large(20)),
        applied(rule("small", "u", 2)),
        ObjectEvent::RelistEnd,
    ];
    let mut told = rules.after(list);
    assert_eq!((told.remove(0), told.len()), ("insert rule/small 2".to_owned(), all - 1));
    rules.table.clear(&rules.told);
    assert_eq!(rules.told.take().len(), 2);
    assert_eq!(
        rules.after((0..20).map(|number| applied(large(number)))).len(),
        all,
        "nothing is counted of what is gone"
    );
}
