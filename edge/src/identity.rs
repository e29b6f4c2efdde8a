//! The node's identity: joining with a token, the certificate files, renewal.
//!
//! The key never leaves the node. Key and certificate are in one file, which is replaced atomically, so that they
//! always match.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use thiserror::Error;
use tombolo_link::TlsError;
use tombolo_link::tls::{self, ClientTls};
use tombolo_proto::ids::NodeId;
use tombolo_proto::message::is_passing;
use tombolo_runtime::files;

mod certificate;
mod clock;
mod enroll;
mod fetch;
mod rotate;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use clock::WallClock;
pub use enroll::{EnrollOptions, Shown, enroll, is_registered, renew, show};
pub(crate) use rotate::{CloudRenewal, rotate};

/// Folder of the files, inside the data folder.
const FOLDER: &str = "pki";
/// File of the key and the certificate.
const NODE_FILE: &str = "node.pem";
/// File of the CA that signs the cloud's certificate and this node's.
const CA_FILE: &str = "ca.crt";

/// A node's key, its certificate and the CA of its cloud.
pub struct Identity {
    /// The node's certificate.
    pub certificate: CertificateDer<'static>,
    /// The CA of the cloud.
    pub ca: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("validity", &self.validity().ok()).finish_non_exhaustive()
    }
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { certificate: self.certificate.clone(), ca: self.ca.clone(), key: self.key.clone_key() }
    }
}

impl Identity {
    /// An identity without key and certificate, for simulations: their connections have no TLS.
    #[cfg(feature = "simulation")]
    pub(crate) fn none() -> Self {
        let nothing = || CertificateDer::from(Vec::new());
        Self { certificate: nothing(), ca: nothing(), key: PrivatePkcs8KeyDer::from(Vec::new()) }
    }

    /// The client certificate and key for TLS connections to the cloud.
    #[must_use]
    pub fn tls(&self) -> tls::Identity {
        tls::Identity::new(vec![self.certificate.clone()], PrivateKeyDer::Pkcs8(self.key.clone_key()))
    }

    /// TLS for links to the cloud.
    ///
    /// # Errors
    /// [`TlsError`] when key and certificate do not match.
    pub fn client_tls(&self) -> Result<ClientTls, TlsError> {
        ClientTls::new(Some(self.tls()), std::slice::from_ref(&self.ca))
    }

    /// Start and end of the certificate's validity.
    ///
    /// # Errors
    /// [`IdentityError::Unusable`] when the certificate cannot be read.
    pub fn validity(&self) -> Result<(SystemTime, SystemTime), IdentityError> {
        certificate::validity(&self.certificate)
    }

    /// The node that the certificate names.
    ///
    /// # Errors
    /// [`IdentityError::Unusable`] when it names no node.
    pub fn node(&self) -> Result<NodeId, IdentityError> {
        let what = || "the node's certificate".to_owned();
        tombolo_link::identity::node_of(std::slice::from_ref(&self.certificate))
            .map_err(|error| IdentityError::Unusable { what: what(), problem: error.to_string() })
    }

    /// Reads the identity of a data folder, which must be that of `node`.
    ///
    /// # Errors
    /// [`IdentityError`] says what to do.
    pub fn load(data_dir: &Path, node: &NodeId) -> Result<Self, IdentityError> {
        let identity = Self::read(data_dir)?;
        certificate::belongs_to(&identity.certificate, node).map_err(|problem| {
            let what = data_dir.join(FOLDER).join(NODE_FILE).display().to_string();
            IdentityError::Unusable { what, problem }
        })?;
        Ok(identity)
    }

    /// Reads the identity of a data folder, for any node.
    ///
    /// # Errors
    /// [`IdentityError`] says what to do.
    pub fn read(data_dir: &Path) -> Result<Self, IdentityError> {
        let folder = data_dir.join(FOLDER);
        type Reader = fn(&Path) -> std::io::Result<Option<Vec<u8>>>;
        let read = |name: &str, reader: Reader| -> Result<(PathBuf, Vec<u8>), IdentityError> {
            let path = folder.join(name);
            match reader(&path).map_err(|source| IdentityError::Io { path: path.clone(), source })? {
                Some(content) => Ok((path, content)),
                None => Err(IdentityError::NotJoined { path }),
            }
        };
        let (path, pem) = read(NODE_FILE, files::read_private)?;
        let bad = |path: &Path, problem: String| IdentityError::Unusable {
            what: path.display().to_string(),
            problem,
        };
        let unreadable = |error: rustls_pki_types::pem::Error| bad(&path, error.to_string());
        let certificate = CertificateDer::from_pem_slice(&pem).map_err(unreadable)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(unreadable)?;
        let (ca_path, ca) = read(CA_FILE, files::read_if_there)?;
        let ca = CertificateDer::from_pem_slice(&ca).map_err(|error| bad(&ca_path, error.to_string()))?;
        Ok(Self { certificate, ca, key })
    }

    /// Writes the identity into a data folder.
    ///
    /// # Errors
    /// [`IdentityError::Io`]; a previous identity is then still complete.
    pub fn save(&self, data_dir: &Path) -> Result<(), IdentityError> {
        let folder = data_dir.join(FOLDER);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Io { path, source }
        };
        files::private_folder(&folder).map_err(failed(&folder))?;
        let path = folder.join(CA_FILE);
        let ca = certificate::pem("CERTIFICATE", &self.ca);
        files::replace(&path, ca.as_bytes(), files::PUBLIC).map_err(failed(&path))?;
        let path = folder.join(NODE_FILE);
        let pair = certificate::pem("PRIVATE KEY", self.key.secret_pkcs8_der())
            + &certificate::pem("CERTIFICATE", &self.certificate);
        files::replace(&path, pair.as_bytes(), files::PRIVATE).map_err(failed(&path))
    }
}

/// Why there is no usable identity in the data folder.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The node has not joined.
    #[error("this node has not joined a cloud yet ({path} is missing): run edgecore join", path = path.display())]
    NotJoined {
        /// The missing file.
        path: PathBuf,
    },
    /// A file or the certificate is invalid.
    #[error("{what}: {problem}; run edgecore join again")]
    Unusable {
        /// The file, or the certificate.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// The file system reports an error.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// How to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The certificate request and the endpoint that it is sent to.
    pub enroll: EnrollOptions,
    /// Data folder for the identity.
    pub data_dir: PathBuf,
}

/// Joins: requests a certificate from the cloud and saves it in the data folder.
///
/// # Errors
/// [`JoinError`] names the problem and how to solve it.
pub async fn join(options: &JoinOptions) -> Result<Identity, JoinError> {
    let identity = enroll(&options.enroll).await?;
    identity.save(&options.data_dir)?;
    Ok(identity)
}

/// Why the node got no certificate.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The token is not a join token.
    #[error("the token {0}: copy the whole token that `tombolo token` prints")]
    Token(&'static str),
    /// The cloud cannot be reached.
    #[error("cannot reach the join endpoint {endpoint}: {problem}{hint}")]
    Connect {
        /// `HOST:PORT`.
        endpoint: String,
        /// What happened.
        problem: String,
        /// Possible cause.
        hint: String,
    },
    /// Another server answers at this address, or the token belongs to another cloud.
    #[error(
        "{endpoint} shows a CA certificate with hash {found}, but the token is for {expected}: \
         the token belongs to another cloud, or the connection is intercepted"
    )]
    WrongCa {
        /// `HOST:PORT`.
        endpoint: String,
        /// SHA-256 of the certificate presented.
        found: String,
        /// SHA-256 in the token.
        expected: String,
    },
    /// The cloud refuses the request.
    #[error("the cloud refuses node {node} ({code}): {message}{hint}")]
    Refused {
        /// The node's name.
        node: NodeId,
        /// HTTP status code.
        code: u16,
        /// Message of the cloud.
        message: String,
        /// Possible cause.
        hint: String,
    },
    /// The clocks differ by more than certificates allow.
    #[error(
        "this node's clock is {minutes} minutes {side} the cloud's (here {here}, at {endpoint} {cloud}), and {effect}: \
         set this node's clock, then join again"
    )]
    Clock {
        /// `HOST:PORT`.
        endpoint: String,
        /// The difference.
        minutes: u64,
        /// `behind` or `ahead of`.
        side: &'static str,
        /// This node's time.
        here: String,
        /// The cloud's time.
        cloud: String,
        /// The consequence.
        effect: &'static str,
    },
    /// The answer does not fit the request.
    #[error("the cloud's answer cannot be used: {0}")]
    Answer(String),
    /// The identity cannot be saved.
    #[error(transparent)]
    Keep(#[from] IdentityError),
}

impl JoinError {
    /// Whether a later retry may succeed.
    #[must_use]
    pub fn may_heal(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Clock { .. } | Self::Keep(_) => true,
            Self::Refused { code, .. } => is_passing(*code),
            Self::Token(_) | Self::WrongCa { .. } | Self::Answer(_) => false,
        }
    }

    /// What the operator can do about it.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Clock { .. } => "set this node's clock; edgecore will retry",
            Self::Connect { .. } => "check the setting cloud.join and the network path; edgecore will retry",
            Self::Refused { code, .. } if is_passing(*code) => "nothing: edgecore will retry",
            Self::Refused { .. } | Self::Token(_) => {
                "run edgecore join with a new token, then restart edgecore"
            }
            Self::WrongCa { .. } | Self::Answer(_) => {
                "check which server answers at cloud.join; to join another cloud, run edgecore join with its token"
            }
            Self::Keep(_) => "make the data folder writable and free space on its disk; edgecore will retry",
        }
    }
}
