//! Sends the same requests to the real kube-apiserver, to the embedded server and to the library that both it and
//! edgecore use. Code, warnings and body must be equal, field by field, except for what `differences` lists.

mod differences;
mod edge;
mod line;
mod lines;
mod mutations;
mod openapi;
mod rounds;
mod target;
mod verdict;

use std::time::Duration;

use serde_json::{Value, json};
use tombolo_testkit::{cluster_or_skip, wait_for};

use differences::beside_real::DIFFERENCES;
use differences::{Judge, Where};
use line::Line;
use lines::{JSON, combinations};
use target::Target;

/// A definition with two versions that differ in their name, their selectable fields, and their description. Selectable
/// fields are rejected where all versions have the same schema.
fn definition() -> Value {
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage,
            "selectableFields": if storage { json!([{"jsonPath": ".spec.size"}]) } else { json!(null) },
            "schema": {"openAPIV3Schema": {"type": "object", "description": name, "properties": {
                "spec": {"type": "object", "properties": {
                    "size": {"type": "integer"},
                    "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }},
            }}},
        })
    };
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": "widgets.conformance.example"},
        "spec": {
            "group": "conformance.example", "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

/// Publishes the definition and creates the account.
async fn prepare(target: &Target) {
    let body = definition().to_string();
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(target.ask(&Line::new(&("POST", path, JSON, &body))).await.code, 201);
    default_account(target).await;
    // An edge knows the selectable fields only once the cluster has published them.
    for query in
        ["v1/namespaces/default/widgets?fieldSelector=spec.size=0", "v1beta1/namespaces/default/widgets"]
    {
        let list = Line::get(&format!("/apis/conformance.example/{query}"));
        wait_for("the custom kind", Duration::from_secs(30), || async {
            let answer = target.ask(&list).await;
            if answer.code == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

/// Creates the account that pods use.
async fn default_account(target: &Target) {
    let account = r#"{"metadata":{"name":"default"}}"#;
    let path = "/api/v1/namespaces/default/serviceaccounts";
    wait_for("the account of pods", Duration::from_secs(30), || async {
        let code = target.ask(&Line::new(&("POST", path, JSON, account))).await.code;
        if matches!(code, 201 | 409) { Ok(()) } else { Err(code.to_string()) }
    })
    .await;
}

/// The crypto provider of both servers' TLS. Installing it a second time fails, which is fine.
fn install_provider() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// The servers under test.
struct Servers {
    real: Target,
    embedded: Target,
    library: Target,
}

impl Servers {
    async fn start() -> Self {
        install_provider();
        let (real, embedded) = tokio::join!(Target::real(), Target::embedded());
        let (real, embedded) = (real.unwrap(), embedded.unwrap());
        let library = Target::library(&definition()).await.unwrap();
        tokio::join!(prepare(&real), prepare(&embedded));
        Self { real, embedded, library }
    }

    /// Compares the lines that depend only on serving.
    async fn compare_all(&self, judge: &mut Judge) {
        for line in lines::all() {
            let (real, embedded, library) =
                tokio::join!(self.real.ask(&line), self.embedded.ask(&line), self.library.ask(&line));
            judge.compare(Where::Embedded, &line.label, &real, &embedded);
            judge.compare(Where::Library, &line.label, &real, &library);
        }
    }

    /// Compares definitions and their consequences, in the order of the lines; then rejected objects of the core group.
    async fn compare_cases(&self, judge: &mut Judge) {
        for case in lines::definitions::cases().into_iter().chain(lines::core::cases()) {
            let (real, embedded) = tokio::join!(self.real.settle(&case), self.embedded.settle(&case));
            judge.compare_case(&case, &real, &embedded);
        }
    }

    /// Compares lists and watches with every combination of parameters.
    async fn compare_combinations(&self, judge: &mut Judge) {
        let (real, embedded, library) = tokio::join!(
            combinations::ask(&self.real),
            combinations::ask(&self.embedded),
            combinations::ask(&self.library)
        );
        for (index, path) in combinations::paths().iter().enumerate() {
            judge.compare(Where::Embedded, path, &real[index], &embedded[index]);
            judge.compare(Where::Library, path, &real[index], &library[index]);
        }
    }

    /// Compares subresources, and one object of every kind. The library is left out because it has no admission, which
    /// is compared here.
    async fn compare_rounds(&self, judge: &mut Judge) {
        let (before, ours_before) = tokio::join!(revision(&self.real), revision(&self.embedded));
        for line in lines::admitted().chain(rounds::lines()) {
            let (real, embedded) = tokio::join!(self.real.ask(&line), self.embedded.ask(&line));
            judge.compare(Where::Embedded, &line.label, &real, &embedded);
        }
        let (real, embedded) =
            tokio::join!(rounds::watch(&self.real, &before), rounds::watch(&self.embedded, &ours_before));
        for (index, line) in rounds::watches().iter().enumerate() {
            judge.compare(Where::Embedded, &line.label, &real[index], &embedded[index]);
        }
    }
}

/// The newest revision of a server.
async fn revision(target: &Target) -> String {
    let list = target.raw(&Line::get("/api/v1/namespaces/default/configmaps?limit=1")).await.body;
    list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_equal_those_of_kube_apiserver() {
    cluster_or_skip!("conformance with kube-apiserver");
    let servers = Servers::start().await;
    let mut judge = Judge::new(&[DIFFERENCES]);
    servers.compare_all(&mut judge).await;
    servers.compare_combinations(&mut judge).await;
    servers.compare_rounds(&mut judge).await;
    servers.compare_cases(&mut judge).await;
    let wrong = judge.verdict();
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
