//! The form of impersonation that cloudcore uses, for every combination of rights, on kube-apiserver with and without
//! constrained impersonation.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tombolo_cloud::Kube;
use tombolo_cloud::kube::ImpersonationForm::{self, Constrained, Legacy};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions, cluster_or_skip, wait_for, wait_for_value};

const DEADLINE: Duration = Duration::from_secs(60);
const CONSTRAINED_ROLE: &str = "cloudcore/20-impersonation.yaml";
const LEGACY_ROLE: &str = "optional/legacy-impersonation.yaml";

fn manifest(name: &str) -> String {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "deploy", name].iter().collect();
    root.display().to_string()
}

fn kubectl(plane: &ControlPlane, verb: &str, name: &str) {
    let output = plane.kubectl(&[verb, "-f", &manifest(name)]).unwrap();
    assert!(output.status.success(), "{verb} {name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// cloudcore's ServiceAccount, with the rights of `deploy/cloudcore/10-rights.yaml`.
async fn cloudcore(plane: &ControlPlane) -> kube::Config {
    kubectl(plane, "apply", "cloudcore/00-namespace.yaml");
    kubectl(plane, "apply", "cloudcore/10-rights.yaml");
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.admin_client().await.unwrap(), "kubeedge");
    let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let token =
        accounts.create_token_request("tombolo-cloudcore", &PostParams::default(), &request).await.unwrap();
    let kubeconfig = plane.kubeconfig_with_token(&token.status.unwrap().token.unwrap());
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).unwrap();
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

/// The form that a newly started cloudcore detects, or its error message. kube-apiserver needs a moment to apply a
/// changed role, so this waits for the expected answer.
async fn finds(config: &kube::Config, what: &str, expected: Option<ImpersonationForm>) -> String {
    wait_for_value(what, DEADLINE, || async {
        let kube = Kube::from_config(config.clone()).unwrap();
        let text =
            kube.probe_impersonation().await.map_or_else(|error| error.to_string(), |()| String::new());
        let found = kube.impersonation().form();
        assert_eq!(found.is_none(), !text.is_empty(), "a form and an error: {found:?} {text}");
        if found == expected { Ok(text) } else { Err(format!("{found:?} {text}")) }
    })
    .await
}

/// Waits until the API server applies a granted role.
async fn granted(plane: &ControlPlane, verb: &str, group: &str, resource: &str) {
    let reviews: Api<SubjectAccessReview> = Api::all(plane.admin_client().await.unwrap());
    let question = json!({"spec": {
        "user": "system:serviceaccount:kubeedge:tombolo-cloudcore",
        "resourceAttributes": {"verb": verb, "group": group, "resource": resource}}});
    let question: SubjectAccessReview = serde_json::from_value(question).unwrap();
    wait_for(&format!("{verb} {resource} to be granted"), DEADLINE, || async {
        let answer = reviews.create(&PostParams::default(), &question).await.unwrap();
        if answer.status.as_ref().is_some_and(|status| status.allowed) {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        }
    })
    .await;
}

async fn every_mixture(feature_gates: &'static str, with_constrained: [Option<ImpersonationForm>; 4]) {
    let options = ControlPlaneOptions { feature_gates, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await.unwrap();
    let config = cloudcore(&plane).await;
    let [none, constrained, both, legacy] = with_constrained;
    let text = finds(&config, "no role", none).await;
    for part in
        ["deploy/cloudcore/20-impersonation.yaml", "deploy/optional/legacy-impersonation.yaml", "forbidden"]
    {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    kubectl(&plane, "apply", CONSTRAINED_ROLE);
    granted(&plane, "impersonate:arbitrary-node", "authentication.k8s.io", "nodes").await;
    finds(&config, "the constrained role alone", constrained).await;
    kubectl(&plane, "apply", LEGACY_ROLE);
    granted(&plane, "impersonate", "", "users").await;
    finds(&config, "both roles", both).await;
    kubectl(&plane, "delete", CONSTRAINED_ROLE);
    finds(&config, "the legacy role alone", legacy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_constrained_impersonation_needs_no_more_than_that() {
    cluster_or_skip!("a_server_with_constrained_impersonation_needs_no_more_than_that");
    every_mixture("", [None, Some(Constrained), Some(Constrained), Some(Legacy)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_the_setting_uses_the_legacy_role() {
    cluster_or_skip!("server_without_the_setting_uses_the_legacy_role");
    every_mixture("ConstrainedImpersonation=false", [None, None, Some(Legacy), Some(Legacy)]).await;
}
