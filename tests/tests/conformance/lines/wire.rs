//! The form of answers, the forms that clients may request, and the precedence of errors.

use super::*;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

macro_rules! maps {
    ($rest:literal) => {
        concat!("/api/v1/namespaces/default/configmaps", $rest)
    };
}

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const ONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const MANY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Path and `Accept`.
const FORMS: &[(&str, &str)] = &[
    // A missing object takes precedence over an unsupported form.
    (maps!("/wire"), MANY),
    (maps!("/none"), MANY),
    (maps!("?watch=1&timeoutSeconds=1&labelSelector=wire"), MANY),
    (maps!("?watch=1&timeoutSeconds=1&labelSelector=none"), MANY),
    (maps!("?labelSelector=wire"), ONE),
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=1&labelSelector=none", ONE),
    ("/apis/events.k8s.io/v1/events?labelSelector=none", ONE),
    ("/apis/conformance.example/v1/widgets", ONE),
    (maps!("/wire"), "application/*"),
    (maps!("?labelSelector=wire"), "application/*"),
    (maps!("/wire"), "application/*, application/json;q=0.1"),
    (maps!("/none"), "text/html"),
    (maps!("/none"), "text/*;q=0.1"),
    (maps!("/wire"), "application/json;as=Foo;g=meta.k8s.io;v=v1"),
    (maps!("/wire"), "application/json;as=Table;g=meta.k8s.io;v=v9"),
    (maps!("/wire"), "application/json;g=meta.k8s.io"),
    (maps!("/none"), ONE),
    (maps!("/none"), "application/json;pretty=1"),
    (maps!("/none"), "application/json;pretty=true"),
    (maps!("?labelSelector=wire&includeObject=None"), TABLE),
    (maps!("/wire?includeObject=None"), TABLE),
    (maps!("/wire?includeObject=X"), TABLE),
    (maps!("/wire?includeObject=X"), ONE),
    (maps!("?watch=1&timeoutSeconds=1&labelSelector=wire&includeObject=None"), TABLE),
    ("/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

/// Paths that no other test reads.
const READS: &[&str] = &[
    maps!("/wire"),
    maps!("?labelSelector=wire"),
    maps!("/wire?resourceVersion=zz"),
    maps!("?resourceVersion=99999999999999999999"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=zz"),
    // Invalid revisions, and one that is too large.
    maps!("/wire?resourceVersion=-7"),
    maps!("/wire?resourceVersion=%2B7"),
    maps!("?resourceVersion=%2B7"),
    maps!("?resourceVersion=18446744073709551616"),
    maps!("?limit=%2B1&labelSelector=wire"),
    maps!("?limit=1_0"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=-7"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=%2B7"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551615"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551616"),
    maps!(
        "?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=-7"
    ),
    maps!("?watch=1&timeoutSeconds=1&continue=x"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=0&continue=x"),
    maps!("?watch=1&timeoutSeconds=1&resourceVersion=99999999"),
    maps!("?labelSelector=A_B.c/d%3De"),
    maps!("?labelSelector=a.b/c/d"),
    maps!("?labelSelector=a/%3Db"),
    maps!("?labelSelector=/a%3Db"),
    maps!("?fieldSelector=%3D&labelSelector=wire"),
    maps!("?fieldSelector=!%3D&labelSelector=wire"),
    maps!("?fieldSelector=%3Da"),
    "/api/v1/watch/namespaces/default/configmaps/wire?timeoutSeconds=1&fieldSelector=metadata.name%3Db",
    "/apis/apps/v9",
    "/apis/apps/v9/deployments",
    "/api/v2",
    "/api/v2/pods",
    "/apis/apps/v1/nothings/x",
    "/apis/none.example",
    "/apis/none.example/v1",
    "/apis/none.example/v1/things",
    "/apis/conformance.example/v9",
    "/apis/conformance.example/v9/widgets",
    "/apis/conformance.example/v1/nothings",
    "/apis/conformance.example/v1/namespaces/default/nothings/x",
    "/apis/apps",
    "/apis/apps/",
    "/nothing",
    "/healthz",
    "/healthz/",
    "/healthz/ping/",
    "/livez/",
];

/// User agents of programs that people use interactively, and the paths that they request.
const AGENTS: &[(&str, &str)] = &[
    (maps!("/none"), "curl/8.0"),
    (maps!("/wire"), "curl/8.0"),
    (maps!("?labelSelector=wire"), "Mozilla/5.0 (X11)"),
    (maps!("/none"), "Mozilla/4.0"),
    (maps!("/none"), "Wget/1.2"),
    (maps!("/none?pretty=0"), "curl/8.0"),
    (maps!("/none?pretty="), "curl/8.0"),
    (maps!("/none?pretty=zz"), "curl/8.0"),
    (maps!("/none?pretty=true"), "kubectl/1"),
    (maps!("?watch=1&timeoutSeconds=1&labelSelector=wire"), "curl/8.0"),
    ("/apis/apps", "curl/8.0"),
    ("/api", "curl/8.0"),
    ("/version", "kubectl/1"),
];

const WRITES: &[Row] = &[
    ("PUT", MAPS, JSON, "{}"),
    ("PUT", MAPS, "text/plain", "{}"),
    ("PATCH", MAPS, MERGE, "{}"),
    ("PATCH", MAPS, JSON, "{}"),
    ("POST", "/apis/apps/v9/deployments", JSON, "{}"),
    ("POST", "/apis/none.example/v1/things", JSON, "{}"),
    ("DELETE", "/nothing", "", ""),
    ("POST", "/version", JSON, "{}"),
    // An error includes the warnings that were found before it.
    ("POST", MAPS, JSON, r#"{"metadata":{"name":"wire"},"bogus":1}"#),
    ("POST", MAPS, JSON, r#"{"metadata":{"name":"A_"},"bogus":1}"#),
    ("PUT", maps!("/wire"), JSON, r#"{"metadata":{"name":"wire"},"immutable":1,"bogus":1}"#),
    // An object that waits for its finalizers blocks a new object with the same name.
    ("POST", MAPS, JSON, r#"{"metadata":{"name":"held","finalizers":["example.com/held"]}}"#),
    ("DELETE", maps!("/held"), "", ""),
    ("POST", MAPS, JSON, r#"{"metadata":{"name":"held"}}"#),
    ("PATCH", maps!("/held"), MERGE, r#"{"metadata":{"finalizers":null}}"#),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"spaceless","namespace":"x"}}"#,
    ),
];

/// Method, path, `Accept` and body.
const WRITTEN_FORMS: &[(&str, &str, &str, &str)] = &[
    ("POST", MAPS, MANY, r#"{"metadata":{"name":"wire"}}"#),
    ("POST", maps!("?dryRun=All"), MANY, r#"{"metadata":{"name":"other"}}"#),
    ("POST", maps!("?dryRun=All"), TABLE, r#"{"metadata":{"name":"other"}}"#),
    ("POST", maps!("?dryRun=All&includeObject=None"), TABLE, r#"{"metadata":{"name":"other"}}"#),
    ("DELETE", maps!("/none"), MANY, ""),
    ("DELETE", maps!("?dryRun=All&labelSelector=wire"), ONE, ""),
    ("DELETE", maps!("?dryRun=All&labelSelector=wire"), MANY, ""),
    ("DELETE", maps!("?dryRun=All&labelSelector=wire"), TABLE, ""),
];

/// Requests that are answered but not stored; paths without their common part.
const REVIEWS: &[(&str, &str)] = &[
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews?fieldManager=m",
        r#"{"spec":{"nonResourceAttributes":{"verb":"get","path":"/x"},"bogus":1}}"#,
    ),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews?fieldValidation=Strict",
        r#"{"spec":{"nonResourceAttributes":{"verb":"get","path":"/x"},"bogus":1}}"#,
    ),
    ("authorization.k8s.io/v1/selfsubjectaccessreviews", r#"{"spec":{}}"#),
    ("authorization.k8s.io/v1/selfsubjectaccessreviews", "{}"),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{},"nonResourceAttributes":{"path":"/x"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"fieldSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"In","values":["b"]}]}}}}"#,
    ),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"labelSelector":{"requirements":[{"key":"","operator":"X"},{"key":"a","operator":"In"},{"key":"b","operator":"Exists","values":["c"]}]},"fieldSelector":{}}}}"#,
    ),
    (
        "authorization.k8s.io/v1/selfsubjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"!!"}}}}"#,
    ),
    (
        "authorization.k8s.io/v1/subjectaccessreviews",
        r#"{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/subjectaccessreviews",
        r#"{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    ),
    ("authorization.k8s.io/v1/subjectaccessreviews", r#"{"spec":{}}"#),
    (
        "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
        r#"{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods","namespace":"default"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
        r#"{"spec":{"user":"u","resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
        r#"{"spec":{"user":"u","nonResourceAttributes":{"verb":"get","path":"/"}}}"#,
    ),
    (
        "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
        r#"{"metadata":{"namespace":"other"},"spec":{"user":"u"}}"#,
    ),
    ("authorization.k8s.io/v1/selfsubjectrulesreviews", "{}"),
    ("authentication.k8s.io/v1/tokenreviews", r#"{"spec":{"token":"abc"}}"#),
    ("authentication.k8s.io/v1/tokenreviews", r#"{"metadata":{"namespace":"x"},"spec":{}}"#),
];

const ADMITTED: &[Row] = &[
    (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/unknown",
        JSON,
        r#"{"metadata":{"name":"unknown","uid":"3f919656-38aa-43f2-97b2-20c4744f83e2"},"spec":{}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/pods",
        JSON,
        r#"{"metadata":{"name":"stream"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}"#,
    ),
    ("GET", "/api/v1/namespaces/default/pods/none/log", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/none/exec?command=a&stdout=1", "", ""),
    ("POST", "/api/v1/namespaces/default/pods/none/attach?stdout=1", "", ""),
    ("POST", "/api/v1/namespaces/default/pods/none/portforward", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/none/proxy", "", ""),
    ("GET", "/api/v1/namespaces/default/services/none/proxy", "", ""),
    ("GET", "/api/v1/nodes/none/proxy", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/none/log?tailLines=-1&sinceSeconds=0", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/stream/log?container=d", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/stream/log", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/stream/exec?command=a&stdout=1", "", ""),
    ("POST", "/api/v1/namespaces/default/pods/stream/attach?stdout=1", "", ""),
    ("POST", "/api/v1/namespaces/default/pods/stream/portforward", "", ""),
    ("GET", "/api/v1/namespaces/default/pods/stream/proxy", "", ""),
    ("POST", "/api/v1/namespaces/default/pods/stream/log", "", ""),
    ("DELETE", "/api/v1/namespaces/default/pods/stream?gracePeriodSeconds=0", "", ""),
];

/// Objects that are stored although they cause warnings.
const WARNED: &[Row] = &[
    (
        "POST",
        "/api/v1/namespaces/default/secrets?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"t"},"type":"kubernetes.io/tls","data":{"tls.crt":"","tls.key":""}}"#,
    ),
    (
        "POST",
        "/apis/storage.k8s.io/v1/csidrivers?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"d.example"},"spec":{"tokenRequests":[{"audience":"a"}]}}"#,
    ),
    (
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"c"},"provisioner":"p","allowedTopologies":[{"matchLabelExpressions":[{"key":"failure-domain.beta.kubernetes.io/zone","values":["a"]}]}]}"#,
    ),
    (
        "POST",
        "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"c"},"storageClassName":"s","nodeTopology":{"matchLabels":{"beta.kubernetes.io/os":"linux"},"matchExpressions":[{"key":"beta.kubernetes.io/arch","operator":"Exists"}]}}"#,
    ),
    (
        "POST",
        "/apis/node.k8s.io/v1/runtimeclasses?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"r"},"handler":"h","scheduling":{"nodeSelector":{"beta.kubernetes.io/os":"linux"}}}"#,
    ),
    (
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
        JSON,
        r#"{"metadata":{"name":"warns.lines.example"},"spec":{"group":"lines.example","scope":"Namespaced","names":{"plural":"warns","singular":"warn","kind":"Warn","listKind":"WarnList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string","format":"odd"},"b":{"type":"array","items":{"type":"integer","format":"int16"}},"c":{"type":"string","format":"k8s-short-name"}}}}}]}}"#,
    ),
    (
        "POST",
        maps!("?dryRun=All"),
        JSON,
        r#"{"metadata":{"name":"o","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u","controller":true},{"apiVersion":"v1","kind":"Node","name":"n","uid":"u","controller":true}]}}"#,
    ),
    ("POST", MAPS, JSON, r#"{"metadata":{"name":"owned"}}"#),
    (
        "PATCH",
        maps!("/owned?dryRun=All"),
        MERGE,
        r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"},{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}"#,
    ),
    ("DELETE", maps!("/owned"), "", ""),
    ("GET", "/api/v1/componentstatuses/none", "", ""),
];

/// Match conditions of a webhook.
const CONDITIONS: &[&str] = &[
    r#"[{"name":"a","expression":"request.userInfo.username != 'x' && object.metadata.name == 'y'"}]"#,
    r#"[{"name":"a","expression":"1"}]"#,
    r#"[{"name":"","expression":"true"},{"name":"b c","expression":"true"}]"#,
    r#"[{"name":"a","expression":"true"},{"name":"a","expression":" "}]"#,
];

/// A HorizontalPodAutoscaler with a metric of each type.
const AUTOSCALER: &str = r#"{"metadata":{"name":"metrics"},"spec":{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"},"maxReplicas":2,"metrics":METRICS}}"#;

const METRICS: &[&str] = &[
    r#"[{"type":"Resource","resource":{"name":"cpu","target":{"type":"AverageValue","averageValue":"500m"}}},{"type":"Pods","pods":{"metric":{"name":"m"},"target":{"type":"AverageValue","averageValue":"1k"}}}]"#,
    r#"[{"type":"Object","object":{"describedObject":{"kind":"S","name":"n"},"metric":{"name":"m"},"target":{"type":"Value","value":"2k"}}},{"type":"External","external":{"metric":{"name":"q"},"target":{"type":"AverageValue","averageValue":"30"}}}]"#,
    r#"[{"type":"ContainerResource","containerResource":{"name":"cpu","container":"c","target":{"type":"Utilization","averageUtilization":5}}},{"type":"External","external":{"metric":{"name":"q"},"target":{"type":"Value","value":"2"}}},{"type":"External","external":{"metric":{"name":"r"},"target":{"type":"Value","value":"2"}}}]"#,
];

pub(super) fn lines() -> impl Iterator<Item = Line> {
    let object = r#"{"metadata":{"name":"wire","labels":{"wire":"yes"}},"data":{"a":"b"}}"#;
    let create = Line::new(&("POST", MAPS, JSON, object));
    let forms = FORMS.iter().map(|(path, accept)| Line::get(path).accepting(accept));
    let reads = READS.iter().map(|path| Line::get(path));
    let agents = AGENTS.iter().map(|(path, agent)| Line::get(path).asked_by(agent));
    let written = WRITTEN_FORMS.iter().map(|(method, path, accept, body)| {
        let line = Line::new(&(method, path, JSON, body));
        let label = format!("{} as {accept}", line.label);
        line.accepting(accept).named(label)
    });
    let delete = Line::new(&("DELETE", maps!("/wire"), "", ""));
    let writes = WRITES.iter().map(Line::new);
    let read = forms.chain(reads).chain(agents).chain(written);
    std::iter::once(create).chain(read).chain(writes).chain([delete])
}

/// The requests whose answers depend on the server's admission.
pub(super) fn admitted() -> impl Iterator<Item = Line> {
    let reviews =
        REVIEWS.iter().map(|(path, body)| Line::new(&("POST", &format!("/apis/{path}"), JSON, body)));
    let scalers = METRICS.iter().map(|metrics| {
        let body = AUTOSCALER.replace("METRICS", metrics);
        let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers?dryRun=All";
        Line::new(&("POST", path, JSON, &body)).accepting(TABLE).named(format!("metrics {metrics}"))
    });
    let deployment = r#"{"metadata":{"name":"scaled"},"spec":{"replicas":2,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}"#;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let one = format!("{deployments}/scaled");
    let scale = format!("{one}/scale");
    let body = r#"{"spec":{"replicas":3}}"#;
    let scales = [
        Line::new(&("POST", deployments, JSON, deployment)),
        Line::get(&scale).accepting(TABLE),
        Line::get(&scale).accepting(ONE),
        Line::get(&scale).accepting(MANY),
        Line::new(&("PATCH", &scale, MERGE, body)).accepting(TABLE),
        Line::new(&("DELETE", &one, "", "")),
    ];
    let conditions = CONDITIONS.iter().map(|conditions| {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All";
        let webhook = format!(
            r#"{{"name":"a.b.c","clientConfig":{{"url":"https://localhost/x"}},"sideEffects":"None","admissionReviewVersions":["v1"],"matchConditions":{conditions}}}"#
        );
        let body = format!(r#"{{"metadata":{{"name":"w"}},"webhooks":[{webhook}]}}"#);
        Line::new(&("POST", path, JSON, &body)).named(format!("conditions {conditions}"))
    });
    let documents = [
        Line::get("/openid/v1/jwks").accepting("application/json"),
        Line::get("/.well-known/openid-configuration").accepting("application/jwk-set+json"),
    ];
    let warned = WARNED.iter().chain(ADMITTED).map(Line::new);
    reviews.chain(documents).chain(scalers).chain(conditions).chain(warned).chain(scales)
}
