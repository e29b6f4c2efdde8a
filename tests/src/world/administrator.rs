//! An account that may do everything, for requests to the local API of an edge.

use anyhow::Result;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde_json::json;

use super::World;
use super::edges::impatient;

/// The account, and the binding of its role.
const ADMINISTRATOR: &str = "edge-administrator";

impl World {
    /// A client of a node's local API with a token of an account that may do everything. It does not retry.
    ///
    /// # Errors
    /// When there is no token, or no kubeconfig yet.
    pub async fn edge_administrator(&self, node: &str) -> Result<Client> {
        let administrator = self.client().await?;
        let create = PostParams::default();
        let accounts: Api<ServiceAccount> = Api::namespaced(administrator.clone(), "kube-system");
        if accounts.get_opt(ADMINISTRATOR).await?.is_none() {
            let account = json!({"metadata": {"name": ADMINISTRATOR}});
            accounts.create(&create, &serde_json::from_value(account)?).await?;
            let binding = json!({"metadata": {"name": ADMINISTRATOR},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": ADMINISTRATOR, "namespace": "kube-system"}]});
            let bindings: Api<ClusterRoleBinding> = Api::all(administrator);
            bindings.create(&create, &serde_json::from_value(binding)?).await?;
        }
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let issued = accounts.create_token_request(ADMINISTRATOR, &create, &request).await?;
        let token = issued.status.and_then(|status| status.token).unwrap_or_default();
        let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(self.edge_kubeconfig(node)?)?)?;
        kubeconfig["users"][0]["user"] = json!({ "token": token });
        impatient(serde_json::from_value(kubeconfig)?).await
    }
}
