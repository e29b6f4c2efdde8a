use std::net::IpAddr;

use http::Request;
use rcgen::{KeyPair, PublicKeyData as _};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;

use super::*;
use crate::pki::{Leaf, LeafUsage, Pki};

fn pki() -> Pki {
    let folder = tempfile::tempdir().unwrap();
    Pki::open(folder.path(), IpAddr::from([10, 0, 0, 1]), SystemTime::now()).unwrap()
}

fn certificate(pki: &Pki, common_name: &str) -> CertificateDer<'static> {
    let leaf = Leaf {
        common_name: common_name.into(),
        usage: LeafUsage::CLIENT,
        life: Duration::from_secs(3600),
        ..Leaf::default()
    };
    let key = KeyPair::generate().unwrap();
    let pem = pki.sign(&leaf, &key.subject_public_key_info(), SystemTime::now()).unwrap();
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Certificate, `Authorization` header, and the resulting user; `None` when they are refused.
const CASES: [(&str, &str, Option<&str>); 16] = [
    ("none", "", Some("system:anonymous")),
    ("none", "Bearer good", Some("admin")),
    ("none", "bearer good more", Some("admin")),
    ("none", "Bearer  good", Some("system:anonymous")),
    ("none", "Bearer bad", None),
    ("none", "Basic eDp5", Some("system:anonymous")),
    ("jane", "", Some("jane")),
    ("jane", "Bearer good", Some("jane")),
    ("jane", "Bearer bad", Some("jane")),
    ("foreign", "", None),
    ("foreign", "Bearer good", Some("admin")),
    ("foreign", "Bearer bad", None),
    ("foreign", "Basic eDp5", None),
    ("nameless", "", Some("system:anonymous")),
    ("nameless", "Bearer good", Some("admin")),
    ("nameless", "Bearer bad", None),
];

#[test]
fn bad_credentials_of_one_kind_do_not_hide_good_ones_of_another() {
    let (own, foreign) = (pki(), pki());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let authentication = Authentication::new(
        Certificates::new(own.ca_der(), provider).unwrap(),
        Arc::new(TokenKey::from_pem(&own.token_key).unwrap()),
        Objects::new(MemoryStore::new(MemoryStore::START, LogLimits::default())),
        Some("good"),
    );
    let certificates = HashMap::from([
        ("jane", certificate(&own, "jane")),
        ("foreign", certificate(&foreign, "jane")),
        ("nameless", certificate(&own, "")),
    ]);
    for (name, authorization, wanted) in CASES {
        let peer =
            Peer { certificates: certificates.get(name).into_iter().cloned().collect(), ..Peer::default() };
        let mut request = Request::get("/");
        if !authorization.is_empty() {
            request = request.header(AUTHORIZATION, authorization);
        }
        let (request, ()) = request.body(()).unwrap().into_parts();
        let found = authentication.identify(&request, &peer);
        let user = found.as_ref().ok().map(|identity| identity.user.as_str());
        assert_eq!(user, wanted, "certificate {name}, {authorization:?}: {found:?}");
    }
}
