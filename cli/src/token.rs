//! `tombolo token` and `tombolo revoke`: which nodes may join, and which may not return.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};
use kube::Client;
use tombolo_cloud::bootstrap::{
    self, ClusterNodes, ClusterSecrets, NewToken, SecretStore, StoredToken, identities, inspect,
};
use tombolo_proto::NodeId;

use crate::cluster;
use crate::operate::ClusterOptions;

/// How long the agents that this program starts have to join.
pub(crate) const AGENTS_TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// Join tokens.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TokenOptions {
    #[command(subcommand)]
    action: Option<TokenAction>,
    /// The cluster.
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Debug, Clone, Subcommand)]
enum TokenAction {
    /// Create a join token and print it; it is shown only once.
    Create(CreateOptions),
    /// List the join tokens, without their secrets.
    List(ClusterOptions),
    /// Delete join tokens.
    Delete(DeleteOptions),
}

#[derive(Debug, Clone, Args)]
struct CreateOptions {
    /// Name of a node that may join with the token; repeat the flag for several names.
    #[arg(long, value_name = "NAME", required_unless_present = "any_name", value_parser = node_name)]
    node: Vec<NodeId>,

    /// Let nodes of any name join, if no Node of that name exists yet.
    #[arg(long, conflicts_with = "node")]
    any_name: bool,

    /// How many times the token can be used [default: once for each name].
    #[arg(long, value_name = "COUNT")]
    uses: Option<u32>,

    /// Lifetime of the token, for example `45s`, `30m`, `1h` or `7d`.
    #[arg(long, default_value = "1h", value_parser = span)]
    ttl: Duration,

    /// Let the token take over the name of an existing Node, a control plane node or a revoked node.
    #[arg(long, conflicts_with = "any_name")]
    replace: bool,

    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Debug, Clone, Args)]
struct DeleteOptions {
    /// Token IDs, as printed by `tombolo token list`.
    #[arg(required = true)]
    id: Vec<String>,

    #[command(flatten)]
    cluster: ClusterOptions,
}

/// The nodes whose certificates are revoked.
#[derive(Debug, Clone, Args)]
pub struct RevokeOptions {
    /// Names of nodes.
    #[arg(required = true, value_parser = node_name)]
    node: Vec<NodeId>,

    #[command(flatten)]
    cluster: ClusterOptions,
}

fn node_name(text: &str) -> Result<NodeId, String> {
    NodeId::parse(text).map_err(|error| error.to_string())
}

fn span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 45s, 30m, 1h or 7d");
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    count.checked_mul(unit).map(Duration::from_secs).ok_or_else(wrong)
}

/// Creates, lists or deletes join tokens; without a subcommand, prints KubeEdge's shared token.
///
/// # Errors
/// When the cluster does not answer or refuses.
pub async fn token(options: &TokenOptions) -> Result<()> {
    match &options.action {
        None => shared(&options.cluster).await,
        Some(TokenAction::Create(create)) => {
            let count = u32::try_from(create.node.len()).unwrap_or(u32::MAX).max(1);
            let token = NewToken {
                names: create.node.clone(),
                uses: create.uses.unwrap_or(count),
                life: create.ttl,
                replace: create.replace,
            };
            let client = create.cluster.client().await?;
            println!("{}", make(client, &create.cluster.namespace, &token).await?);
            Ok(())
        }
        Some(TokenAction::List(cluster)) => list(cluster).await,
        Some(TokenAction::Delete(delete)) => {
            let store = store(&delete.cluster).await?;
            for id in &delete.id {
                bootstrap::delete(&store, id).await?;
                println!("join token {id} deleted");
            }
            Ok(())
        }
    }
}

/// Creates a join token in a cluster.
pub(crate) async fn make(client: Client, namespace: &str, token: &NewToken) -> Result<String> {
    let now = SystemTime::now();
    let kept = inspect(client.clone(), namespace, now).await;
    let authority = kept.authority.map_err(anyhow::Error::msg)?.hash();
    Ok(bootstrap::create(&ClusterSecrets::new(client, namespace), &authority, token, now).await?)
}

async fn store(cluster: &ClusterOptions) -> Result<ClusterSecrets> {
    Ok(ClusterSecrets::new(cluster.client().await?, &cluster.namespace))
}

async fn shared(cluster: &ClusterOptions) -> Result<()> {
    let token = cluster::shared_token(cluster.client().await?, &cluster.namespace).await?;
    let token = token.context(
        "there is no shared join token (cloudcore's setting sharedToken is off): create a token for the node with `tombolo token create --node NAME`",
    )?;
    println!("{token}");
    Ok(())
}

async fn list(cluster: &ClusterOptions) -> Result<()> {
    let tokens = bootstrap::list(&store(cluster).await?).await?;
    println!("{:<12} {:<10} {:<9} {:<8} NODES", "ID", "USES LEFT", "EXPIRES", "REPLACE");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for (id, token) in tokens {
        let StoredToken { names, uses_left, expires, replace, .. } = token;
        let left = expires.saturating_sub(now);
        let ends = if left == 0 { "expired".to_owned() } else { format!("{}m", left.div_ceil(60)) };
        let nodes = if names.is_empty() { "(any)".to_owned() } else { names.join(",") };
        let replace = if replace { "yes" } else { "no" };
        println!("{id:<12} {uses_left:<10} {ends:<9} {replace:<8} {nodes}");
    }
    Ok(())
}

/// Revokes certificates: their sessions end within a second or two, and they can neither be renewed nor open a session.
///
/// # Errors
/// When the cluster does not answer or refuses.
pub async fn revoke(options: &RevokeOptions) -> Result<()> {
    let client = options.cluster.client().await?;
    let kept = inspect(client.clone(), &options.cluster.namespace, SystemTime::now()).await;
    ensure!(kept.authority.is_ok(), "{}", kept.authority.err().unwrap_or_default());
    let store: Arc<dyn SecretStore> =
        Arc::new(ClusterSecrets::new(client.clone(), &options.cluster.namespace));
    for node in &options.node {
        let nodes = Arc::new(ClusterNodes::new(client.clone()));
        match identities::revoke(Arc::clone(&store), nodes, node).await? {
            true => println!("certificates of node {node} revoked"),
            false => println!(
                "no certificate of node {node} is on record: check the name. The name is now blocked; a token \
                 created with --replace unblocks it"
            ),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Create {
        #[command(flatten)]
        _options: CreateOptions,
    }

    /// Such a token could take any name, including those of the control plane.
    #[test]
    fn token_for_any_name_cannot_replace_a_node() {
        let parse = |arguments: &[&str]| Create::try_parse_from([&["create"], arguments].concat()).is_ok();
        assert!(parse(&["--any-name"]) && parse(&["--node", "a", "--replace"]));
        assert!(!parse(&["--any-name", "--replace"]));
    }

    #[test]
    fn times_are_read() {
        assert_eq!(span("45s"), Ok(Duration::from_secs(45)));
        assert_eq!(span("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for wrong in ["", "h", "1", "1 h", "-1h", "1w", "99999999999999999999d", "1ä"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
