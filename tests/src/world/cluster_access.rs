//! The rights of cloudcore on a real cluster: exactly those that `deploy/` ships.

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;
use tombolo_testkit::ControlPlane;

use crate::source;

/// Applies the manifests of `deploy/` that grant rights, `impersonation` among them, and returns a kubeconfig of cloudcore's ServiceAccount.
pub(super) async fn grant(plane: &ControlPlane, impersonation: &str) -> Result<Value> {
    // The namespace first: everything else is in it or bound to something in it.
    let own = ["cloudcore/namespace.yaml", "cloudcore/rbac.yaml", "cloudcore/grids.yaml"];
    for name in own.into_iter().chain([impersonation, "cloudcore/edge-network.yaml"]) {
        let manifest = source::root().join("deploy").join(name);
        let path = manifest.display().to_string();
        let output = plane.kubectl(&["apply", "-f", &path])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "kubectl apply -f {path}: {stderr}");
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.admin_client().await?, "kubeedge");
    let request = TokenRequest {
        spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
        ..TokenRequest::default()
    };
    let token = accounts.create_token_request("cloudcore", &PostParams::default(), &request).await?;
    let token = token.status.and_then(|status| status.token).context("the API server gave no token")?;
    Ok(plane.kubeconfig_with_token(&token))
}
