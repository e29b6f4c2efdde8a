//! TLS of the wrapper, from the files of its settings. They are read again as long as it serves: who renews a certificate
//! replaces files.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tombolo_link::TlsError;
use tombolo_link::tls::{HttpsTls, Identity, certificates_from_pem};
use tracing::{info, warn};

use super::WrapperError;
use crate::config::WrapperTls;
use crate::fault::Fault;

/// How often the files are read.
pub(super) const REREAD: Duration = Duration::from_secs(10);

/// Largest file that is read, in bytes.
const FILE_LEN_MAX: u64 = 1024 * 1024;

const CERT: &str = "wrapper.tls.certFile";
const KEY: &str = "wrapper.tls.keyFile";
const CA: &str = "wrapper.tls.caFile";

/// See the module. With a CA, clients must show a certificate that it has signed.
pub(super) struct WrapperCertificate {
    settings: WrapperTls,
    tls: HttpsTls,
    config: Arc<ServerConfig>,
    /// What is served.
    files: Files,
}

impl WrapperCertificate {
    /// Reads the files.
    pub(super) fn load(settings: &WrapperTls) -> Result<Self, WrapperError> {
        let files = Files::read(settings)?;
        let cas = files.client_cas(settings)?;
        let blamed = |error| blame(settings, &error);
        let tls = HttpsTls::new(files.identity(settings)?, cas.as_deref()).map_err(blamed)?;
        let config = tls.config().map_err(blamed)?;
        Ok(Self { settings: settings.clone(), tls, config, files })
    }

    /// The configuration of the listener. It follows the files as long as [`Self::follow`] does.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Follows the files for ever.
    pub(super) async fn follow(mut self, interval: Duration) {
        let mut unusable = Fault::default();
        loop {
            tokio::time::sleep(interval).await;
            let settings = self.settings.clone();
            let read = tokio::task::spawn_blocking(move || Files::read(&settings)).await;
            // Only a stop of the runtime takes the reader away.
            let Ok(read) = read else { return };
            match read.and_then(|files| self.serve(files)) {
                Ok(news) => {
                    if unusable.over().is_some() || news {
                        info!("the wrapper serves with its certificate files as they are now");
                    }
                }
                Err(error) => {
                    if unusable.failed(&error.to_string()) {
                        warn!(%error, "the wrapper goes on with the certificates that it has");
                    }
                }
            }
        }
    }

    /// Serves what the files hold from the next handshake on; whether that is something else than before.
    ///
    /// # Errors
    /// What cannot be used; what is served stays.
    pub(super) fn serve(&mut self, files: Files) -> Result<bool, WrapperError> {
        if files == self.files {
            return Ok(false);
        }
        let (settings, tls) = (&self.settings, &self.tls);
        let (identity, cas) = (files.identity(settings)?, files.client_cas(settings)?);
        tls.replace_identity(identity).map_err(|error| blame(settings, &error))?;
        if let Some(cas) = cas {
            tls.replace_client_cas(&cas).map_err(|error| blame(settings, &error))?;
        }
        self.files = files;
        Ok(true)
    }
}

/// What the files hold, as it is.
#[derive(PartialEq, Eq)]
pub(super) struct Files {
    chain: Vec<u8>,
    key: Vec<u8>,
    cas: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn read(settings: &WrapperTls) -> Result<Self, WrapperError> {
        let cas = settings.ca_file.as_ref().map(|path| read(CA, path)).transpose()?;
        Ok(Self { chain: read(CERT, &settings.cert_file)?, key: read(KEY, &settings.key_file)?, cas })
    }

    fn identity(&self, settings: &WrapperTls) -> Result<Identity, WrapperError> {
        let chain = certificates_from_pem("certificate", &self.chain)
            .map_err(|error| WrapperError::tls(CERT, &settings.cert_file, error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| WrapperError::tls(KEY, &settings.key_file, error))?;
        Ok(Identity::new(chain, key))
    }

    fn client_cas(
        &self,
        settings: &WrapperTls,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, WrapperError> {
        let (Some(cas), Some(path)) = (&self.cas, &settings.ca_file) else { return Ok(None) };
        certificates_from_pem("CA", cas).map(Some).map_err(|error| WrapperError::tls(CA, path, error))
    }
}

/// Which file an error is about.
fn blame(settings: &WrapperTls, error: &TlsError) -> WrapperError {
    match (error, &settings.ca_file) {
        (TlsError::NoRoots { .. }, Some(path)) => WrapperError::tls(CA, path, error),
        (TlsError::Key(_), _) => WrapperError::tls(KEY, &settings.key_file, error),
        _ => WrapperError::tls(CERT, &settings.cert_file, error),
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, WrapperError> {
    let bytes = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = bytes().map_err(|source| WrapperError::File { setting, path: path.into(), source })?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(WrapperError::tls(setting, path, "it is larger than 1 MiB"));
    }
    Ok(bytes)
}
