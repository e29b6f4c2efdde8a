//! Reaching a cluster and reading its join token: what several commands do.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};

/// Namespace of cloudcore's own objects unless it is told otherwise.
pub(crate) const NAMESPACE: &str = "kubeedge";

/// Name of the Secret with the join token (reference section 4.2).
const TOKEN_SECRET: &str = "tokensecret";

/// How to reach the cluster of a kubeconfig file.
pub(crate) async fn config(kubeconfig: &Path) -> Result<kube::Config> {
    let parsed =
        Kubeconfig::read_from(kubeconfig).with_context(|| format!("cannot use {}", kubeconfig.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?)
}

/// The present join token.
pub(crate) async fn join_token(client: Client, namespace: &str) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let secret = secrets.get_opt(TOKEN_SECRET).await.context("cannot read the join token")?;
    let secret = secret
        .with_context(|| format!("{namespace}/{TOKEN_SECRET} is not there: has cloudcore run here?"))?;
    let data = secret.data.and_then(|mut data| data.remove("tokendata"));
    let token = data.with_context(|| format!("{namespace}/{TOKEN_SECRET} has no tokendata"))?;
    String::from_utf8(token.0).context("the token is not text")
}
