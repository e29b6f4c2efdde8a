//! Renews what must not expire while cloudcore runs: the join token and the server certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use tombolo_link::tls::Identity;
use tombolo_runtime::{Backoff, BackoffConfig, Drain};

use super::authority::{Authority, KeyedCertificate, private_key};
use super::error::BootstrapError;
use super::pem::PemPair;
use super::secrets::{self, SecretData, SecretError, SecretStore};
use super::storage::{self, TOKEN, TOKEN_SECRET};
use super::{Inner, shared_token};

/// How often the server certificate is checked. It is renewed when a third of its lifetime is left.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(3600);

/// Waits between attempts to store a token.
const TOKEN_RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_secs(1), max: Duration::from_secs(60), factor: 2.0 };

/// A valid token and the time until it must be replaced. It is the stored token while more than half of its lifetime is
/// left, otherwise a new one that may not be stored yet.
pub(super) struct Token {
    pub(super) text: String,
    pub(super) fresh_for: Duration,
    pub(super) stored: bool,
}

pub(super) async fn token(
    store: &dyn SecretStore,
    authority: &Authority,
    refresh: Duration,
    now: SystemTime,
) -> Result<Token, BootstrapError> {
    let stored = store.get(TOKEN_SECRET).await.ok().flatten();
    let stored = stored.and_then(|mut secret| String::from_utf8(secret.data.remove(TOKEN)?).ok());
    if let Some(text) = stored
        && let Ok(left) = shared_token::verify_whole(authority, &text, now)
        && left > refresh
    {
        return Ok(Token { text, fresh_for: left.saturating_sub(refresh), stored: true });
    }
    let text = shared_token::issue(authority, now, refresh.saturating_mul(2))?;
    Ok(Token { text, fresh_for: refresh, stored: false })
}

/// Stores a token that is not stored yet, so that operators can hand it to edges.
///
/// # Errors
/// [`SecretError`] when this must be retried.
pub(super) async fn store(secrets: &dyn SecretStore, token: &mut Token) -> Result<(), SecretError> {
    if !token.stored {
        let data = SecretData::from([(TOKEN.to_owned(), token.text.clone().into_bytes())]);
        secrets::put(secrets, TOKEN_SECRET, data).await?;
        token.stored = true;
    }
    Ok(())
}

/// Replaces the token in time and never returns. A failure to store it is retried and never ends the loop
/// (docs/reference/kubeedge.md#holes-of-the-join-port).
pub(super) async fn keep_token(inner: Arc<Inner>, first: Option<Token>) {
    let Some(mut token) = first else { return };
    let mut backoff = Backoff::new(TOKEN_RETRY);
    loop {
        if let Err(error) = store(&*inner.secrets, &mut token).await {
            tracing::warn!(%error, "cannot store the join token; trying again");
            let wait = backoff.next_delay(&mut rand::rng());
            tokio::time::sleep(wait).await;
            continue;
        }
        backoff.reset();
        tokio::time::sleep(token.fresh_for).await;
        match self::token(&*inner.secrets, &inner.authority, inner.token_refresh, inner.now()).await {
            Ok(next) => token = next,
            Err(error) => {
                tracing::error!(%error, "cannot create a new join token; keeping the current one");
                token = Token { fresh_for: TOKEN_RETRY.max, stored: true, ..token };
            }
        }
    }
}

/// Renews the server certificate before it expires. Every listener uses the new one from the next handshake on.
pub(super) async fn keep_certificate(inner: Arc<Inner>, mut pair: KeyedCertificate) {
    loop {
        tokio::time::sleep(CERTIFICATE_CHECK).await;
        if let Some(files) = &inner.server_files {
            match reload(&inner, files, &pair) {
                Ok(Some(replaced)) => {
                    tracing::info!("server certificate reloaded");
                    pair = replaced;
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "cannot use the changed server certificate"),
            }
            continue;
        }
        let now = inner.now();
        if storage::fits(&pair, &inner.authority, &inner.addresses, now) {
            continue;
        }
        match renew(&inner, now).await {
            Ok(renewed) => {
                tracing::info!("server certificate renewed");
                pair = renewed;
            }
            Err(error) => {
                tracing::error!(%error, "cannot renew the server certificate; trying again later");
            }
        }
    }
}

/// How often the stored authority is compared with the one that this process trusts.
const AUTHORITY_CHECK: Duration = Duration::from_secs(10);

/// Ends when the authority of the operator's files, or otherwise the stored one, is no longer the one of the start.
/// Sessions with certificates of the former authority must not go on, and this process can trust a new one only from
/// its start. A missing or damaged authority is reported and changes nothing, because it has not been replaced by
/// another one.
pub(super) async fn authority_stays(inner: Arc<Inner>) -> Result<(), BootstrapError> {
    let (mut reported, mut file_problem) = (false, None);
    loop {
        tokio::time::sleep(AUTHORITY_CHECK).await;
        if let Some(files) = &inner.authority_files {
            let problem = authority_file_stays(&inner, files)?;
            if let Some(problem) = problem.as_ref().filter(|problem| file_problem.as_ref() != Some(*problem))
            {
                tracing::error!(
                    problem,
                    "the files of the certificate authority are unusable; repair them before the next start"
                );
            }
            file_problem = problem;
        }
        match storage::read_pair(&*inner.secrets, &storage::CA).await {
            Ok(Some(Ok(pair))) if pair.certificate != inner.authority.pair().certificate => {
                let origin = format!("secret {}", storage::CA.secret);
                return Err(BootstrapError::AuthorityReplaced { origin });
            }
            Ok(Some(Ok(_))) => reported = false,
            Ok(stored) if !reported => {
                let problem = if stored.is_some() { "damaged" } else { "gone" };
                tracing::error!(
                    secret = storage::CA.secret,
                    problem,
                    "the stored certificate authority is unusable: restore it before the next start, or every node must join again"
                );
                reported = true;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot read the stored certificate authority"),
        }
    }
}

/// Fails when the operator's files hold another authority than at the start. Otherwise returns what is wrong with them,
/// if anything. While only one of the two files has been replaced, they hold no authority.
fn authority_file_stays(inner: &Inner, files: &PemPair) -> Result<Option<String>, BootstrapError> {
    let origin = files.certificate.display().to_string();
    let pair = match files.read() {
        Ok(Some(pair)) if pair.certificate != inner.authority.pair().certificate => pair,
        // Without files the Secret counts.
        Ok(_) => return Ok(None),
        Err(error) => return Ok(Some(error.to_string())),
    };
    match Authority::load(&origin, pair) {
        Ok(_) => Err(BootstrapError::AuthorityReplaced { origin }),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Reloads the operator's files.
fn reload(
    inner: &Inner,
    files: &PemPair,
    present: &KeyedCertificate,
) -> Result<Option<KeyedCertificate>, BootstrapError> {
    let Some(pair) = files.read()?.filter(|pair| pair != present) else { return Ok(None) };
    inner.server_tls.replace_identity(identity(&pair, &inner.authority)?)?;
    Ok(Some(pair))
}

async fn renew(inner: &Inner, now: SystemTime) -> Result<KeyedCertificate, BootstrapError> {
    let pair = storage::server_certificate(&*inner.secrets, &inner.authority, &inner.addresses, now).await?;
    inner.server_tls.replace_identity(identity(&pair, &inner.authority)?)?;
    Ok(pair)
}

/// Certificate, CA and key in the form that the listeners need.
pub(super) fn identity(pair: &KeyedCertificate, authority: &Authority) -> Result<Identity, BootstrapError> {
    let key = private_key(&pair.key).map_err(|reason| BootstrapError::Signing { reason })?;
    let chain = vec![CertificateDer::from(pair.certificate.clone()), authority.certificate()];
    Ok(Identity::new(chain, key))
}

/// Runs until the drain starts.
pub(super) async fn until_drained(drain: &Drain, work: impl Future<Output = ()>) {
    let _ = drain.until_started(work).await;
}
