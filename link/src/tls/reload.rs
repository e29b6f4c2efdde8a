//! Certificates and CAs that can be replaced under a running TLS configuration.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::error::TlsError;

/// This side's certificate.
#[derive(Debug, Default)]
pub(super) struct CertificateSlot {
    current: ArcSwapOption<CertifiedKey>,
}

impl CertificateSlot {
    pub(super) fn holding(certified: CertifiedKey) -> Self {
        Self { current: ArcSwapOption::from_pointee(certified) }
    }

    pub(super) fn replace(&self, certified: Option<CertifiedKey>) {
        self.current.store(certified.map(Arc::new));
    }
}

impl ResolvesServerCert for CertificateSlot {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

impl ResolvesClientCert for CertificateSlot {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }

    fn has_certs(&self) -> bool {
        self.current.load().is_some()
    }
}

fn root_store(cas: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(cas.iter().cloned());
    if usable == 0 { Err(TlsError::NoRoots { given: cas.len() }) } else { Ok(Arc::new(store)) }
}

/// Checks client certificates against CAs that can be replaced; a certificate is always required.
#[derive(Debug)]
pub(super) struct ClientCheck {
    current: ArcSwap<Arc<dyn ClientCertVerifier>>,
}

impl ClientCheck {
    pub(super) fn new(
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        Ok(Self { current: ArcSwap::from_pointee(Self::verifier(cas, provider)?) })
    }

    pub(super) fn replace(
        &self,
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), TlsError> {
        self.current.store(Arc::new(Self::verifier(cas, provider)?));
        Ok(())
    }

    fn verifier(
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        WebPkiClientVerifier::builder_with_provider(root_store(cas)?, Arc::clone(provider))
            .build()
            .map_err(|error| TlsError::Config(error.to_string()))
    }
}

impl ClientCertVerifier for ClientCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: they could not follow a replacement, and a node has only one certificate to present anyway.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().supported_verify_schemes()
    }
}

/// Checks server certificates against CAs that can be replaced.
#[derive(Debug)]
pub(super) struct ServerCheck {
    current: ArcSwap<WebPkiServerVerifier>,
}

impl ServerCheck {
    pub(super) fn new(
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        Ok(Self { current: ArcSwap::new(Self::verifier(cas, provider)?) })
    }

    pub(super) fn replace(
        &self,
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<(), TlsError> {
        self.current.store(Self::verifier(cas, provider)?);
        Ok(())
    }

    fn verifier(
        cas: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
        WebPkiServerVerifier::builder_with_provider(root_store(cas)?, Arc::clone(provider))
            .build()
            .map_err(|error| TlsError::Config(error.to_string()))
    }
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.current.load().verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().supported_verify_schemes()
    }
}
