//! Certificates for tests.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, SanType,
};
use rustls_pki_types::CertificateDer;
use tombolo_link::tls::{ClientTls, Identity, ServerTls};

/// A certificate authority.
pub(crate) struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// A hub's certificate for 127.0.0.1.
    pub(crate) fn hub(&self) -> Identity {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        identity(&self.sign(&params))
    }

    pub(crate) fn node(&self, name: &str) -> Identity {
        self.client(&format!("system:node:{name}"), "system:nodes")
    }

    pub(crate) fn client(&self, name: &str, group: &str) -> Identity {
        identity(&self.client_pem(name, group))
    }

    /// Chain and key as PEM texts.
    pub(crate) fn node_pem(&self, name: &str) -> (String, String) {
        self.client_pem(&format!("system:node:{name}"), "system:nodes")
    }

    fn client_pem(&self, name: &str, group: &str) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    pub(crate) fn server_tls(&self) -> ServerTls {
        ServerTls::new(self.hub(), &[self.certificate()]).unwrap()
    }

    pub(crate) fn client_tls(&self, node: &str) -> ClientTls {
        ClientTls::new(Some(self.node(node)), &[self.certificate()]).unwrap()
    }

    fn sign(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn identity((chain, key): &(String, String)) -> Identity {
    Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
}
