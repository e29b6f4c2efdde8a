//! Read-only inspection of the join state in a cluster, for operators who want to know why nodes cannot join.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kube::Client;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{Authority, KeyedCertificate, belongs, key_pair};
use super::secrets::{ClusterSecrets, SecretStore};
use super::shared_token;
use super::storage::{self, CA, SERVER, TOKEN, TOKEN_SECRET};

/// A certificate in its Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Start of validity.
    pub not_before: SystemTime,
    /// End of validity.
    pub not_after: SystemTime,
    /// Host names and addresses that it is for; none for the CA.
    pub names: Vec<String>,
}

impl CertificateFacts {
    /// Hex SHA-256 of the certificate's DER, as at the beginning of join tokens.
    #[must_use]
    pub fn hash(&self) -> String {
        hex::encode(Sha256::digest(&self.certificate))
    }
}

/// The shared join token in its Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenFacts {
    /// The whole token.
    pub text: String,
    /// Remaining validity.
    pub left: Duration,
}

impl std::fmt::Debug for TokenFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenFacts").field("left", &self.left).finish_non_exhaustive()
    }
}

/// The state that was found, or for each part what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The certificate authority, if its key matches.
    pub authority: Result<CertificateFacts, String>,
    /// The hub's certificate, if its key matches and the authority has signed it.
    pub server: Result<CertificateFacts, String>,
    /// KubeEdge's shared join token, if there is one. The authority has signed it and it has not expired.
    pub token: Result<Option<TokenFacts>, String>,
}

/// Inspects the Secrets of one namespace of a cluster.
pub async fn inspect(client: Client, namespace: &str, now: SystemTime) -> Inspection {
    inspect_store(&ClusterSecrets::new(client, namespace), now).await
}

pub(super) async fn inspect_store(store: &dyn SecretStore, now: SystemTime) -> Inspection {
    let ca = read(store, &CA).await;
    let authority = ca.and_then(|pair| {
        let loaded = Authority::load(&format!("secret {}", CA.secret), pair);
        loaded.map_err(|error| error.to_string())
    });
    let unknown = || format!("cannot be checked without secret {}", CA.secret);
    let server = match &authority {
        Ok(authority) => read(store, &SERVER).await.and_then(|pair| signed(&pair, authority)),
        Err(_) => Err(unknown()),
    };
    let token = match &authority {
        Ok(authority) => join_token(store, authority, now).await,
        Err(_) => Err(unknown()),
    };
    let authority = authority.and_then(|authority| facts(&authority.pair().certificate));
    Inspection { authority, server, token }
}

async fn read(
    store: &dyn SecretStore,
    names: &storage::CertificateSecret,
) -> Result<KeyedCertificate, String> {
    match storage::read_pair(store, names).await {
        Ok(Some(Ok(pair))) => Ok(pair),
        Ok(Some(Err(error))) => Err(error.to_string()),
        Ok(None) => Err(absent(names.secret)),
        Err(error) => Err(error.to_string()),
    }
}

fn absent(secret: &str) -> String {
    format!("secret {secret} does not exist: cloudcore has not run with this namespace")
}

fn signed(pair: &KeyedCertificate, authority: &Authority) -> Result<CertificateFacts, String> {
    let found = facts(&pair.certificate)?;
    let certificate = parse(&pair.certificate)?;
    let ca = authority.certificate();
    if certificate.verify_signature(Some(parse(&ca)?.public_key())).is_err() {
        return Err(format!(
            "the certificate of secret {} is not signed by secret {}",
            SERVER.secret, CA.secret
        ));
    }
    match key_pair(&pair.key) {
        Ok(key) if belongs(&certificate, &key) => Ok(found),
        Ok(_) => Err(format!("the key of secret {} does not match its certificate", SERVER.secret)),
        Err(reason) => Err(format!("secret {}: {reason}", SERVER.secret)),
    }
}

async fn join_token(
    store: &dyn SecretStore,
    authority: &Authority,
    now: SystemTime,
) -> Result<Option<TokenFacts>, String> {
    let stored = store.get(TOKEN_SECRET).await.map_err(|error| error.to_string())?;
    let Some(mut stored) = stored else { return Ok(None) };
    let text = stored.data.remove(TOKEN).and_then(|value| String::from_utf8(value).ok());
    let text = text.ok_or_else(|| format!("secret {TOKEN_SECRET} has no text in key {TOKEN}"))?;
    let left = shared_token::verify_whole(authority, &text, now).map_err(|error| error.to_string())?;
    Ok(Some(TokenFacts { text, left }))
}

fn facts(der: &[u8]) -> Result<CertificateFacts, String> {
    let certificate = parse(der)?;
    let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let validity = certificate.validity();
    Ok(CertificateFacts {
        certificate: CertificateDer::from(der.to_vec()),
        not_before: time(validity.not_before.timestamp()),
        not_after: time(validity.not_after.timestamp()),
        names: storage::names_of(&certificate),
    })
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| format!("the certificate is damaged: {error}"))?;
    Ok(certificate)
}
