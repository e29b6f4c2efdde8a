//! Join tokens: each for the names that it was created for, with a number of uses and an expiry.
//!
//! A token is `<hex SHA-256 of the CA's DER>.tombolo.<ID>.<secret>`: four parts separated by dots, as in KubeEdge's
//! tokens, so that a KubeEdge edge can use it too. All tokens are entries of one Secret, which contains the hash of
//! each secret but never the secret itself. A use is counted by compare-and-swap before a certificate is issued, so
//! that two replicas cannot both grant the last use.

mod known;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tombolo_proto::NodeId;

pub(super) use known::KnownTokens;

use super::secrets::{SecretData, SecretError, SecretStore};

/// Secret of all tokens.
pub(super) const SECRET: &str = "tombolo-join-tokens";

/// Second part of such a token. In KubeEdge's tokens it is the header of a JWT.
const MARK: &str = "tombolo";

/// Maximum number of tokens. Expired tokens do not count, and used-up tokens are removed to make room for new ones.
const TOKENS_MAX: usize = 1000;

/// Maximum number of names of one token.
const NAMES_MAX: usize = 100;

/// Longest lifetime of a token.
const LIFE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Attempts to count a use while others count theirs.
const ATTEMPTS: usize = 32;

/// Number of latest joins that are remembered per token. Up to this many concurrent joins can find out, during or after
/// the count, whether their use was counted.
const REMEMBERED_JOINS_MAX: usize = 16;

/// Distinguishes a join from all others, so that its use is counted once and given back once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinId(u64);

impl JoinId {
    pub(super) fn new() -> Self {
        Self(rand::random())
    }
}

/// A token to be created.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// Names of the nodes that may join with it; empty for any free name.
    pub names: Vec<NodeId>,
    /// Number of joins that it admits.
    pub uses: u32,
    /// How long it is valid.
    pub life: Duration,
    /// Whether it may replace existing Nodes.
    pub replace: bool,
}

/// A token as it is stored, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredToken {
    /// Hex SHA-256 of the secret.
    hash: String,
    /// Names of the nodes that may join with it; empty for any free name.
    #[serde(default)]
    pub names: Vec<String>,
    /// Number of remaining joins.
    pub uses_left: u32,
    /// Expiry, in Unix seconds.
    pub expires: u64,
    /// Whether it may replace existing Nodes.
    #[serde(default)]
    pub replace: bool,
    /// The latest joins whose uses are counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    joins: Vec<u64>,
}

impl StoredToken {
    fn count(&mut self, join: JoinId) {
        self.uses_left = self.uses_left.saturating_sub(1);
        self.joins.push(join.0);
        let surplus = self.joins.len().saturating_sub(REMEMBERED_JOINS_MAX);
        self.joins.drain(..surplus);
    }
}

/// Why tokens cannot be created or counted.
#[derive(Debug, Error)]
pub enum TokenStoreError {
    /// The Secret could not be read or written.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A requested value is out of range.
    #[error("{0}")]
    Invalid(&'static str),
    /// There are too many tokens.
    #[error("the limit of {TOKENS_MAX} join tokens is reached: delete some (`tombolo token delete ID`)")]
    Full,
    /// There is no token with this ID.
    #[error("join token {0} does not exist: `tombolo token list` shows all join tokens")]
    Absent(String),
}

/// Why a token does not admit a node. The texts are sent to the edge.
#[derive(Debug, Error)]
pub(super) enum Refused {
    #[error("the join token is malformed. Copy the whole token; it has four parts separated by dots")]
    Malformed,
    #[error(
        "this cloud does not know the join token: it was deleted, expired long ago, or belongs to another cloud"
    )]
    Unknown,
    #[error("the join token expired {0} seconds ago: create a new one (`tombolo token create`)")]
    Expired(u64),
    #[error("the join token has no uses left: create a new one (`tombolo token create`)")]
    UsedUp,
    #[error(
        "the join token is not valid for node {0}: create one for it (`tombolo token create --node {0}`)"
    )]
    OtherName(NodeId),
    #[error(transparent)]
    Store(#[from] SecretError),
}

/// What a token grants to a join that it admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) replace: bool,
}

/// Creates a token and stores what is needed to recognise it. Expired tokens are removed.
///
/// # Errors
/// [`TokenStoreError`] when the numbers are out of range or the token cannot be stored.
pub async fn create(
    store: &dyn SecretStore,
    authority: &str,
    token: &NewToken,
    now: SystemTime,
) -> Result<String, TokenStoreError> {
    if token.names.len() > NAMES_MAX {
        return Err(TokenStoreError::Invalid("a join token can list at most 100 names"));
    }
    if token.uses == 0 {
        return Err(TokenStoreError::Invalid("a join token must allow at least one use"));
    }
    if token.life.is_zero() || token.life > LIFE_MAX {
        return Err(TokenStoreError::Invalid("a join token must live between one second and 366 days"));
    }
    let now = unix_seconds(now);
    let (id, secret) = (hex::encode(rand::random::<[u8; 5]>()), hex::encode(rand::random::<[u8; 32]>()));
    let stored = StoredToken {
        hash: hash_of(&secret),
        names: token.names.iter().map(ToString::to_string).collect(),
        uses_left: token.uses,
        expires: now.saturating_add(token.life.as_secs()),
        replace: token.replace,
        joins: Vec::new(),
    };
    change(store, |tokens| {
        make_room(tokens, now)?;
        tokens.insert(id.clone(), stored.clone());
        Ok::<_, TokenStoreError>(())
    })
    .await?;
    Ok(format!("{authority}.{MARK}.{id}.{secret}"))
}

/// Removes expired tokens. A used-up token stays until it expires as long as there is room, because a failed join gives
/// its use back.
fn make_room(tokens: &mut BTreeMap<String, StoredToken>, now: u64) -> Result<(), TokenStoreError> {
    tokens.retain(|_, token| token.expires > now);
    while tokens.len() >= TOKENS_MAX {
        let used_up = tokens.iter().filter(|(_, token)| token.uses_left == 0);
        let Some((id, _)) = used_up.min_by_key(|(_, token)| token.expires) else {
            return Err(TokenStoreError::Full);
        };
        let id = id.clone();
        tokens.remove(&id);
    }
    Ok(())
}

/// All tokens by ID, including those that have expired but were not removed yet.
///
/// # Errors
/// [`SecretError`] when they cannot be read.
pub async fn list(store: &dyn SecretStore) -> Result<BTreeMap<String, StoredToken>, SecretError> {
    Ok(store.get(SECRET).await?.map(|stored| read(&stored.data)).unwrap_or_default())
}

/// Deletes a token.
///
/// # Errors
/// [`TokenStoreError`] when there is no token with this ID, or it cannot be removed.
pub async fn delete(store: &dyn SecretStore, id: &str) -> Result<(), TokenStoreError> {
    let mut found = false;
    change(store, |tokens| {
        // If the answer to our write was lost, the token is gone already.
        found |= tokens.remove(id).is_some();
        if found { Ok(()) } else { Err(TokenStoreError::Absent(id.to_owned())) }
    })
    .await
}

/// Whether a bearer token is one of these rather than KubeEdge's.
pub(super) fn is_ours(bearer: &str) -> bool {
    bearer.split('.').next() == Some(MARK)
}

/// Counts one use of a token for this join. If the answer to a count was lost, a repetition finds out whether it was
/// made.
pub(super) async fn spend(
    store: &dyn SecretStore,
    bearer: &str,
    node: &NodeId,
    join: JoinId,
    now: SystemTime,
) -> Result<(), Refused> {
    let (id, secret) = parts(bearer)?;
    let now = unix_seconds(now);
    let counted = |tokens: &mut BTreeMap<String, StoredToken>| {
        let own = |token: &&StoredToken| token.hash == hash_of(secret) && token.joins.contains(&join.0);
        if tokens.get(id).filter(own).is_some() {
            return Ok(());
        }
        judge(tokens, id, secret, node, now)?;
        if let Some(token) = tokens.get_mut(id) {
            token.count(join);
        }
        Ok(())
    };
    match change(store, counted).await {
        // The count may have been made nevertheless.
        Err(Refused::Store(_)) => change(store, counted).await,
        outcome => outcome,
    }
}

/// Gives the use of a failed join back. If the use is not counted, nothing is given back, so this can be repeated.
pub(super) async fn give_back(store: &dyn SecretStore, bearer: &str, join: JoinId) -> Result<(), Refused> {
    let (id, secret) = parts(bearer)?;
    let hash = hash_of(secret);
    change(store, |tokens| {
        if let Some(token) = tokens.get_mut(id).filter(|token| token.hash == hash)
            && let Some(at) = token.joins.iter().position(|own| *own == join.0)
        {
            token.joins.remove(at);
            token.uses_left = token.uses_left.saturating_add(1);
        }
        Ok(())
    })
    .await
}

fn parts(bearer: &str) -> Result<(&str, &str), Refused> {
    let mut parts = bearer.split('.').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(id), Some(secret), None) if !id.is_empty() && !secret.is_empty() => Ok((id, secret)),
        _ => Err(Refused::Malformed),
    }
}

fn judge(
    tokens: &BTreeMap<String, StoredToken>,
    id: &str,
    secret: &str,
    node: &NodeId,
    now: u64,
) -> Result<Grant, Refused> {
    // The ID is not secret. Hashes are compared, so that the timing reveals nothing about the secret.
    let token = tokens.get(id).filter(|token| token.hash == hash_of(secret)).ok_or(Refused::Unknown)?;
    if token.expires <= now {
        return Err(Refused::Expired(now - token.expires));
    }
    if !token.names.is_empty() && !token.names.iter().any(|name| name == node.as_str()) {
        return Err(Refused::OtherName(node.clone()));
    }
    if token.uses_left == 0 {
        return Err(Refused::UsedUp);
    }
    Ok(Grant { replace: token.replace })
}

fn hash_of(secret: &str) -> String {
    hex::encode(Sha256::digest(secret))
}

async fn change<T, E: From<SecretError>>(
    store: &dyn SecretStore,
    mut change: impl FnMut(&mut BTreeMap<String, StoredToken>) -> Result<T, E>,
) -> Result<T, E> {
    for _ in 0..ATTEMPTS {
        let stored = store.get(SECRET).await?;
        let mut tokens = stored.as_ref().map(|stored| read(&stored.data)).unwrap_or_default();
        let result = change(&mut tokens)?;
        let data = write(&tokens);
        let written = match &stored {
            Some(stored) if stored.data == data => return Ok(result),
            Some(stored) => store.update(SECRET, &stored.version, data).await,
            None => store.create(SECRET, data).await,
        };
        match written {
            Ok(_) => return Ok(result),
            Err(SecretError::Conflict { .. } | SecretError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SecretError::Conflict { name: SECRET.to_owned() }.into())
}

/// An unreadable token admits no node.
fn read(data: &SecretData) -> BTreeMap<String, StoredToken> {
    let token = |(id, value): (&String, &Vec<u8>)| Some((id.clone(), serde_json::from_slice(value).ok()?));
    data.iter().filter_map(token).collect()
}

fn write(tokens: &BTreeMap<String, StoredToken>) -> SecretData {
    let text = |token: &StoredToken| serde_json::to_vec(token).unwrap_or_default();
    tokens.iter().map(|(id, token)| (id.clone(), text(token))).collect()
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(uses_left: u32, expires: u64) -> StoredToken {
        StoredToken {
            hash: hash_of("s"),
            names: Vec::new(),
            uses_left,
            expires,
            replace: false,
            joins: Vec::new(),
        }
    }

    #[test]
    fn only_used_up_tokens_make_room_for_new_ones() {
        let id = |number: usize| number.to_string();
        let mut tokens: BTreeMap<_, _> = (0..TOKENS_MAX)
            .map(|number| (id(number), stored(u32::from(number > 1), 100 - number.min(9) as u64)))
            .collect();
        tokens.insert("over".to_owned(), stored(1, 10));
        make_room(&mut tokens, 50).expect("one is used up");
        assert_eq!(
            (tokens.len(), tokens.contains_key("1")),
            (TOKENS_MAX - 1, false),
            "the first to expire is dropped"
        );
        tokens.insert("new".to_owned(), stored(1, 100));
        make_room(&mut tokens, 50).expect("another one is");
        tokens.insert("newer".to_owned(), stored(1, 100));
        assert!(matches!(make_room(&mut tokens, 50), Err(TokenStoreError::Full)));
        assert_eq!(tokens.len(), TOKENS_MAX);
    }

    #[test]
    fn remembered_joins_per_token_are_bounded() {
        let mut token = stored(100, 100);
        for number in 0..=REMEMBERED_JOINS_MAX {
            token.count(JoinId(number as u64));
        }
        assert_eq!(
            (token.joins.len(), token.joins.contains(&0), token.uses_left),
            (REMEMBERED_JOINS_MAX, false, 99 - REMEMBERED_JOINS_MAX as u32)
        );
    }
}
