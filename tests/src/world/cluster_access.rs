//! The rights of cloudcore on a real cluster: exactly those that `deploy/` ships.

use anyhow::Result;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;
use tombolo_testkit::{ControlPlane, wait_for, wait_for_value};

use super::DEADLINE;
use crate::source;

/// Applies the manifests of `deploy/` that grant rights, including `impersonation`, and returns a kubeconfig of
/// cloudcore's ServiceAccount.
pub(super) async fn grant(plane: &ControlPlane, impersonation: &str) -> Result<Value> {
    // The namespace comes first: everything else is in it or bound to something in it.
    let own = ["cloudcore/00-namespace.yaml", "cloudcore/10-rights.yaml"];
    let options = ["optional/grids.yaml", "optional/kubeedge-edges.yaml"];
    for name in own.into_iter().chain([impersonation, "cloudcore/30-edge-network.yaml"]).chain(options) {
        let manifest = source::root().join("deploy").join(name);
        let path = manifest.display().to_string();
        // A server that has just become ready may be overloaded.
        wait_for(&format!("kubectl apply -f {path}"), DEADLINE, || async {
            let output = plane.kubectl(&["apply", "-f", &path]).map_err(|error| format!("{error:#}"))?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            if output.status.success() { Ok(()) } else { Err(stderr.into_owned()) }
        })
        .await;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.admin_client().await?, "kubeedge");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let token = wait_for_value("a token of cloudcore", DEADLINE, || async {
        let asked =
            accounts.create_token_request("tombolo-cloudcore", &PostParams::default(), &request).await;
        let status = asked.map_err(|error| error.to_string())?.status;
        status.and_then(|status| status.token).ok_or_else(|| "the API server returned no token".to_owned())
    })
    .await;
    Ok(plane.kubeconfig_with_token(&token))
}
