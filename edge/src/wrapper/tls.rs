//! TLS of the wrapper, from the files in its settings. The files are read again regularly, so a certificate is renewed
//! by replacing them.

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

/// The wrapper's certificate. With a CA, clients must present a certificate signed by it.
pub(super) struct WrapperCertificate {
    settings: WrapperTls,
    tls: HttpsTls,
    config: Arc<ServerConfig>,
    /// The content that is served.
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

    /// The configuration of the listener. It follows the files while [`Self::follow`] runs.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Follows the files for ever.
    pub(super) async fn follow(mut self, interval: Duration) {
        let mut unusable = Fault::default();
        loop {
            tokio::time::sleep(interval).await;
            let settings = self.settings.clone();
            let read = tombolo_runtime::blocking::run(move || Files::read(&settings)).await;
            // The reader fails only when the runtime stops.
            let Ok(read) = read else { return };
            match read.and_then(|files| self.serve(files)) {
                Ok(news) => {
                    if unusable.over().is_some() || news {
                        info!("the wrapper serves the current content of its certificate files");
                    }
                }
                Err(error) => {
                    if unusable.failed(&error.to_string()) {
                        warn!(%error, "cannot load the wrapper's certificate files; keeping the old ones");
                    }
                }
            }
        }
    }

    /// Serves the content of the files from the next handshake on. Returns whether it has changed.
    ///
    /// # Errors
    /// Names the file that cannot be used. The served content stays unchanged.
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

/// The raw content of the files.
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

/// Names the file and the setting that an error concerns.
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
