//! The fuzz targets' bodies on stable Rust, for a bounded number of inputs (see [`tombolo_testkit::fuzz`]).

#[path = "../fuzz/src/bodies.rs"]
#[allow(unreachable_pub)] // public in the fuzz workspace
mod bodies;

use tombolo_testkit::fuzz;

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const WIDGETS: &str = "/apis/fuzz.example/v1/namespaces/default/widgets";

const DEPLOYMENT: &str = r#"{"metadata":{"name":"d"},"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}]}]}}}}"#;

fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[test]
fn selector() {
    let valid = [
        "app",
        "!app",
        "app=till",
        "app==till",
        "app!=till,size>3",
        "app in (till,shop),size notin (1, 2)",
        "shop.example/app in (),size<9",
        "metadata.name=a,status.phase!=Running",
        r"metadata.name=a\,b\=c\\",
    ];
    fuzz("selector", 200_000, &bytes(&valid), bodies::selector);
}

#[test]
fn patch() {
    let patches = [
        r#"{"metadata":{"labels":{"x":null}},"spec":{"replicas":3}}"#,
        r#"[{"op":"add","path":"/metadata/labels/x","value":{}},{"op":"test","path":"/spec/replicas","value":1}]"#,
        r#"[{"op":"copy","from":"/spec","path":"/spec/x"},{"op":"move","from":"/spec/x","path":"/metadata/labels/~1~0"},{"op":"remove","path":"/spec/template"},{"op":"replace","path":"/metadata/name","value":"e"}]"#,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","$patch":"delete"},{"name":"d","image":"k"}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"$retainKeys":["containers"],"containers":[{"name":"c","image":"k","ports":[{"containerPort":80,"$patch":"replace"}]}]}}}}"#,
        r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"finalizers":["b"]},"spec":{"$patch":"replace"}}"#,
    ];
    let valid: Vec<Vec<u8>> =
        patches.iter().map(|patch| format!("{DEPLOYMENT}\0{patch}").into_bytes()).collect();
    fuzz("patch", 20_000, &valid, bodies::patch);
}

#[test]
fn request() {
    let create = |path: &str, body: &str| format!("POST {path} application/json\n{body}");
    let config_map = create(CONFIGMAPS, r#"{"metadata":{"name":"a"},"data":{"x":"1"}}"#);
    let deployment = create(DEPLOYMENTS, DEPLOYMENT);
    let widget =
        create(WIDGETS, r#"{"metadata":{"name":"w"},"spec":{"size":1,"set":["a"],"ports":[{"port":1}]}}"#);
    let after = |first: &str, then: &[String]| format!("{first}\0{}", then.join("\0")).into_bytes();
    let patch = |path: &str, kind: &str, body: &str| format!("PATCH {path} application/{kind}\n{body}");
    let apply = |path: &str, body: &str| {
        patch(&format!("{path}?fieldManager=m&force=true"), "apply-patch+yaml", body)
    };
    let a = &format!("{CONFIGMAPS}/a");
    let d = &format!("{DEPLOYMENTS}/d");
    let w = &format!("{WIDGETS}/w");
    let valid = [
        after(
            &config_map,
            &[
                patch(a, "merge-patch+json", r#"{"data":{"x":null,"y":"2"}}"#),
                patch(a, "json-patch+json", r#"[{"op":"replace","path":"/data/y","value":"3"}]"#),
                format!(
                    "PUT {a} application/json\n{}",
                    r#"{"metadata":{"name":"a","resourceVersion":"2"},"data":{}}"#
                ),
                format!(
                    "DELETE {a} application/json\n{}",
                    r#"{"preconditions":{"uid":"x"},"propagationPolicy":"Foreground"}"#
                ),
            ],
        ),
        after(
            &deployment,
            &[
                patch(
                    d,
                    "strategic-merge-patch+json",
                    r#"{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"k"}]}}}}"#,
                ),
                format!(
                    "PUT {d}/scale application/json\n{}",
                    r#"{"metadata":{"name":"d","namespace":"default"},"spec":{"replicas":3}}"#
                ),
                format!(
                    "PUT {d}/status application/json\n{}",
                    r#"{"metadata":{"name":"d"},"status":{"replicas":3}}"#
                ),
                apply(
                    d,
                    "spec:\n  replicas: 4\n  template:\n    spec:\n      containers:\n      - name: c\n        image: j\n",
                ),
            ],
        ),
        after(
            &widget,
            &[
                apply(
                    w,
                    "apiVersion: fuzz.example/v1\nkind: Widget\nspec:\n  ports: [{port: 1, name: n}]\n  set: [b]\n  port: 80%\n",
                ),
                format!(
                    "PUT {w}/scale?fieldValidation=Strict application/json\n{}",
                    r#"{"metadata":{"name":"w","namespace":"default"},"spec":{"replicas":2}}"#
                ),
                format!("GET {w}  application/json;as=Table;g=meta.k8s.io;v=v1"),
                format!("GET {WIDGETS}?fieldSelector=spec.name=a&limit=1  application/yaml"),
            ],
        ),
        after(
            &config_map,
            &[
                format!("GET {CONFIGMAPS}?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Mn0"),
                format!("GET {CONFIGMAPS}?resourceVersion=9&resourceVersionMatch=NotOlderThan"),
                format!(
                    "GET {CONFIGMAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=3"
                ),
                format!(
                    "GET {CONFIGMAPS}?watch=1&resourceVersion=1&labelSelector=a%20in%20(b)&timeoutSeconds=1"
                ),
                format!("DELETE {CONFIGMAPS}?labelSelector=!x&dryRun=All"),
            ],
        ),
        after(
            "GET /openapi/v3/apis/apps/v1",
            &[
                "GET /apis  application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList".to_owned(),
                "GET /version".to_owned(),
                "GET /readyz?verbose&exclude=ping".to_owned(),
                "POST /api/v1/namespaces/default/pods application/vnd.kubernetes.protobuf\nk8s".to_owned(),
            ],
        ),
    ];
    fuzz("request", 3_000, &valid, bodies::request);
}
