use std::sync::Arc;

use serde_json::json;
use tombolo_apicore::admission::Warnings;
use tombolo_apicore::auth::{Attributes, Decision, Identity};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::kinds::{KindInfo, Kinds};
use tombolo_apicore::memory::MemoryStore;
use tombolo_testkit::{Growth, alone};

use super::*;
use crate::objects::{core, v1};

/// Allows `jane` to get pods in any namespace, and every user to read paths.
#[derive(Debug)]
struct Rights;

impl Authorize for Rights {
    fn decide(&self, asked: &Attributes) -> Decision {
        let pods = asked.identity.user == "jane" && (&*asked.verb, &*asked.resource) == ("get", "pods");
        if pods || asked.path == "/open" { Decision::Allow } else { Decision::NoOpinion("no".to_owned()) }
    }
}

struct World {
    enforcement: Enforcement,
    kinds: Kinds,
}

impl World {
    fn new() -> Self {
        let kinds = tombolo_catalog::kinds();
        let objects = Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default()));
        let enforcement =
            Enforcement::new(Policies::default(), objects, Registry::new(kinds.clone()), Arc::new(Rights));
        Self { enforcement, kinds }
    }

    fn kind(&self, group: &str, version: &str, kind: &str) -> Arc<KindInfo> {
        Arc::clone(self.kinds.by_kind(group, version, kind).unwrap())
    }

    async fn put(&self, resource: Resource, object: Value) {
        let stored = self.enforcement.objects.create(resource, object).await.unwrap();
        self.enforcement.policies.apply(&stored, false);
    }

    async fn policy(&self, mode: Mode, spec: Value, binding: Value) {
        let (policies, bindings) = names(mode);
        self.put(v1(GROUP, policies), json!({"metadata": {"name": "p"}, "spec": spec})).await;
        let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
        spec.as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
        self.put(v1(GROUP, bindings), json!({"metadata": {"name": "b"}, "spec": spec})).await;
    }

    /// Creates a Deployment or a ConfigMap. Returns the object after the policies ran, and the warnings.
    async fn create(&self, object: &Value) -> Result<(Value, Vec<String>), ApiError> {
        let deployment = object["kind"] == "Deployment";
        let (group, plural) = if deployment { ("apps", "deployments") } else { ("", "configmaps") };
        let kind = self.kind(group, "v1", object["kind"].as_str().unwrap());
        let attributes = Attributes {
            identity: Identity::new("jane", &["dev"]),
            verb: "create".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: plural.to_owned(),
            namespace: "shop".to_owned(),
            is_resource: true,
            ..Attributes::default()
        };
        let mut object = object.clone();
        let mut request = AdmissionRequest {
            attributes: &attributes,
            operation: Operation::Create,
            kind: &kind,
            namespace: "shop",
            name: "d",
            object: Some(&mut object),
            old: None,
            dry_run: false,
            warnings: Warnings::default(),
        };
        self.enforcement.mutate(&mut request).await?;
        self.enforcement.validate(&request).await?;
        let warnings = request.warnings.into_vec();
        Ok((object, warnings))
    }
}

fn constraints() -> Value {
    json!({"resourceRules": [{
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"],
    }]})
}

fn deployment(replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"app": "d"}},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
    })
}

fn text_of(refusal: &ApiError) -> (u16, &str, &str) {
    (refusal.code.as_u16(), refusal.reason, &refusal.message)
}

#[tokio::test]
async fn bound_policy_refuses_only_what_it_matches() {
    let world = World::new();
    world.put(core("namespaces"), json!({"metadata": {"name": "shop", "labels": {"env": "prod"}}})).await;
    let spec = json!({
        "matchConstraints": constraints(),
        "variables": [
            {"name": "count", "expression": "object.spec.replicas"},
            {"name": "enough", "expression": "variables.count > 1"},
        ],
        "validations": [
            {"expression": "variables.enough", "messageExpression": "'wants more than ' + string(variables.count)"},
            {"expression": "request.userInfo.username == 'jane' && namespaceObject.metadata.labels.env == 'prod'"},
        ],
    });
    let selected = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"env": "prod"}}}});
    world.policy(Mode::Validating, spec, selected).await;
    assert!(world.create(&deployment(2)).await.is_ok());
    let refusal = world.create(&deployment(1)).await.unwrap_err();
    let wanted = "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                  wants more than 1";
    assert_eq!(text_of(&refusal), (422, "Invalid", wanted));
    assert!(world.create(&json!({"apiVersion": "v1", "kind": "ConfigMap"})).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn slow_policy_does_not_delay_other_requests() {
    let world = Arc::new(World::new());
    let slow = json!({"expression": "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0))"});
    let spec = json!({"matchConstraints": constraints(), "validations": [slow, slow, slow]});
    world.policy(Mode::Validating, spec, json!({})).await;
    let began = Arc::new(tokio::sync::Notify::new());
    let (asking, begins) = (Arc::clone(&world), Arc::clone(&began));
    let asked = tokio::spawn(async move {
        begins.notify_one();
        let refusal = asking.create(&deployment(1)).await.unwrap_err();
        (refusal, std::time::Instant::now())
    });
    began.notified().await;
    let served = tokio::spawn(async { std::time::Instant::now() }).await.unwrap();
    let (refusal, ended) = asked.await.unwrap();
    assert!(refusal.message.contains("cost limit exceeded"), "{refusal}");
    assert!(served < ended, "the only worker served no other request until the policy had finished");
}

#[tokio::test]
async fn actions_conditions_parameters_and_failures_are_respected() {
    let validations =
        json!([{"expression": "object.spec.replicas <= int(params.data.most)", "reason": "Forbidden"}]);
    let spec = |more: Value| {
        let mut spec = json!({
            "matchConstraints": constraints(), "validations": validations,
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let params = json!({"paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}});

    let world = World::new();
    world.policy(Mode::Validating, spec(json!({})), params.clone()).await;
    let missing = world.create(&deployment(1)).await.unwrap_err();
    assert!(missing.message.contains("no params found"), "{missing}");
    world
        .put(
            core("configmaps"),
            json!({"metadata": {"name": "limits", "namespace": "shop"}, "data": {"most": "3"}}),
        )
        .await;
    assert!(world.create(&deployment(3)).await.is_ok());
    let refusal = world.create(&deployment(4)).await.unwrap_err();
    assert_eq!((refusal.code.as_u16(), refusal.reason), (403, "Forbidden"));

    let world = World::new();
    let conditions = json!({"matchConditions": [{"name": "big", "expression": "object.spec.replicas > 5"}]});
    let warn = json!({"validationActions": ["Warn", "Audit"]});
    let mut spec_without = spec(conditions);
    spec_without.as_object_mut().unwrap().remove("paramKind");
    spec_without["validations"] = json!([{"expression": "object.spec.replicas < 7", "message": "too many"}]);
    world.policy(Mode::Validating, spec_without, warn).await;
    assert_eq!(
        world.create(&deployment(9)).await.unwrap().1,
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': too many"]
    );
    assert!(world.create(&deployment(5)).await.unwrap().1.is_empty());

    for (policy, refused) in [("Fail", true), ("Ignore", false)] {
        let world = World::new();
        let spec = json!({
            "matchConstraints": constraints(), "failurePolicy": policy,
            "validations": [{"expression": "object.spec.missing == 1"}],
        });
        world.policy(Mode::Validating, spec, json!({})).await;
        assert_eq!(world.create(&deployment(1)).await.is_err(), refused, "{policy}");
    }
}

#[tokio::test]
async fn a_mutating_policy_sets_fields_and_applies_patches() {
    let world = World::new();
    let spec = json!({
        "matchConstraints": constraints(),
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{spec: Object.spec{\
                replicas: object.spec.replicas * 2, template: Object.spec.template{spec: Object.spec.template.spec{\
                containers: [Object.spec.template.spec.containers{name: 'side', image: 's'}]}}}}"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/metadata/labels/' + \
                jsonpatch.escapeKey('a/b'), value: string(object.spec.replicas)}]"}},
        ],
    });
    world.policy(Mode::Mutating, spec, json!({})).await;
    let (object, _) = world.create(&deployment(4)).await.unwrap();
    assert_eq!(object["spec"]["replicas"], 8);
    assert_eq!(object["metadata"]["labels"], json!({"app": "d", "a/b": "8"}));
    let names: Vec<&str> =
        items(&object, "/spec/template/spec/containers").iter().map(|c| text(c, "/name")).collect();
    assert_eq!(names.len(), 2, "{object}");
    assert!(names.contains(&"c") && names.contains(&"side"));
}

/// Adds many small parts to an object, so that its tree takes 45 MiB.
fn of_many_parts(mut object: Value) -> Value {
    object["x"] = vec![json!({"": 0}); 60_000].into();
    object
}

/// Users who create ConfigMaps decide how many a binding selects, and how much memory the tree of each takes.
#[tokio::test]
async fn policy_parameters_are_parsed_one_at_a_time() {
    if !alone(module_path!(), "policy_parameters_are_parsed_one_at_a_time") {
        return;
    }
    let patch = "[JSONPatch{op: 'add', path: '/metadata/labels/' + params.metadata.name, value: 'x'}]";
    let mutations = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]);
    let validations = json!([{"expression": "params.metadata.name != 'm7'", "message": "the last one"}]);
    for (mode, rules) in [(Mode::Mutating, mutations), (Mode::Validating, validations)] {
        let world = World::new();
        let rules_name = if mode == Mode::Mutating { "mutations" } else { "validations" };
        let mut spec = json!({"matchConstraints": constraints(), "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
        spec[rules_name] = rules;
        let selected = json!({"matchLabels": {"limits": "yes"}});
        let reference = json!({"selector": selected, "parameterNotFoundAction": "Deny"});
        world.policy(mode, spec, json!({"paramRef": reference})).await;
        for number in 0..8 {
            let labels = json!({"limits": "yes"});
            let metadata = json!({"name": format!("m{number}"), "namespace": "shop", "labels": labels});
            world.put(core("configmaps"), of_many_parts(json!({"metadata": metadata}))).await;
        }
        let growth = Growth::begin();
        let outcome = world.create(&deployment(1)).await;
        let grown = growth.most() / 1024 / 1024;
        assert!(grown < 128, "{mode:?}: {grown} MiB, and each takes 45");
        match outcome {
            Ok((object, _)) => assert_eq!(object["metadata"]["labels"].as_object().unwrap().len(), 9),
            Err(refusal) => assert!(refusal.message.contains("the last one"), "{refusal}"),
        }
    }
}

/// For reinvocation, each policy keeps a number instead of a copy of the object.
#[tokio::test]
async fn reinvoked_policies_keep_no_copies_of_objects() {
    if !alone(module_path!(), "reinvoked_policies_keep_no_copies_of_objects") {
        return;
    }
    let world = World::new();
    let patch = |label: &str, value: &str| {
        let patch = format!("[JSONPatch{{op: 'add', path: '/metadata/labels/{label}', value: {value}}}]");
        json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}])
    };
    let (policies, bindings) = names(Mode::Mutating);
    let count = "'a' + object.metadata.labels.app";
    for (name, label, value) in
        [("p", "app", count), ("q", "own", "'b'"), ("r", "own", "'b'"), ("s", "own", "'b'")]
    {
        let spec = json!({
            "matchConstraints": constraints(), "mutations": patch(label, value), "reinvocationPolicy": "IfNeeded",
        });
        world.put(v1(GROUP, policies), json!({"metadata": {"name": name}, "spec": spec})).await;
        for number in 0..3 {
            let metadata = json!({"name": format!("{name}{number}")});
            let spec = json!({"policyName": name});
            world.put(v1(GROUP, bindings), json!({"metadata": metadata, "spec": spec})).await;
        }
    }
    let object = of_many_parts(deployment(1));
    let growth = Growth::begin();
    let (object, _) = world.create(&object).await.unwrap();
    let grown = growth.most() / 1024 / 1024;
    assert!(grown < 300, "{grown} MiB, and twelve copies take 540");
    // Three bindings apply, and each applies once more after the others changed the object.
    assert_eq!(object["metadata"]["labels"], json!({"app": "aaaaaad", "own": "b"}));
}

#[tokio::test]
async fn expressions_can_query_the_authorizer() {
    let check = "authorizer.group('').resource('pods').namespace('shop').check('get')";
    let account = "authorizer.serviceAccount('shop', 'till').group('').resource('pods').check('get')";
    for (expression, holds) in [
        (format!("{check}.allowed()"), true),
        (format!("{account}.allowed()"), false),
        (format!("{account}.reason() == 'no' && !{account}.errored()"), true),
        ("authorizer.path('/open').check('get').allowed()".to_owned(), true),
        ("authorizer.path('').check('get').allowed()".to_owned(), false),
        ("authorizer.requestResource.check('create').allowed()".to_owned(), false),
        ("authorizer.requestResource.name('x').check('create').reason() == 'no'".to_owned(), true),
    ] {
        let world = World::new();
        let spec = json!({
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"],
            }]},
            "validations": [{"expression": expression}],
        });
        world.policy(Mode::Validating, spec, json!({})).await;
        let outcome = world.create(&json!({"kind": "ConfigMap", "metadata": {"name": "m"}})).await;
        assert_eq!(outcome.is_ok(), holds, "{expression}: {outcome:?}");
    }
}

#[test]
fn policies_that_cannot_be_evaluated_are_refused() {
    let read = |mode, spec: Value| Compiled::read(&json!({"spec": spec}), mode).map(|_| ()).unwrap_err();
    let validation = |expression: &str| json!({"validations": [{"expression": expression}]});
    let cases = [
        (validation("object.x =="), "Syntax error"),
        (validation("authorizer.resource('pods').check('get').allowed()"), "found no matching overload"),
        (validation("params.x == 1"), "undeclared reference to 'params'"),
        (validation("1 + 1"), "must evaluate to bool"),
        (validation("variables.none == 1"), "undefined field 'none'"),
        (json!({"variables": [{"name": "q", "expression": "quantity('1')"}]}), "a value that JSON can hold"),
    ];
    for (spec, why) in cases {
        let errors = read(Mode::Validating, spec);
        assert!(errors.iter().any(|error| error.detail.contains(why)), "{why}: {errors:?}");
    }
    let errors = read(Mode::Mutating, json!({"mutations": [{"patchType": "Other"}]}));
    assert_eq!(errors[0].field, "spec.mutations[0].patchType");
}
