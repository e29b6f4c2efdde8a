//! Tests of the wrapper's TLS.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair, SanType};
use rustls_pki_types::CertificateDer;
use tombolo_proto::ids::NodeId;

use super::http_api::{Served, settings};
use super::*;
use crate::config::{WrapperConfig, WrapperTls};
use crate::identity::Identity;
use crate::identity::testing::{get_tls, identity_for, pem, test_ca};
use crate::wrapper::tls::{Files, WrapperCertificate};
use crate::wrapper::{Wrapper, WrapperError};

/// Writes a new certificate into the files, and returns its CA.
fn renew(tls: &WrapperTls) -> CertificateDer<'static> {
    let ca = test_ca();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
    let leaf = params.signed_by(&key, &ca.issuer).unwrap();
    std::fs::write(&tls.cert_file, leaf.pem()).unwrap();
    std::fs::write(&tls.key_file, key.serialize_pem()).unwrap();
    ca.certificate
}

/// A certificate for loopback in a folder, and its CA.
fn certificate(folder: &Path) -> (WrapperTls, CertificateDer<'static>) {
    let tls =
        WrapperTls { cert_file: folder.join("cert.pem"), key_file: folder.join("key.pem"), ca_file: None };
    let ca = renew(&tls);
    (tls, ca)
}

#[tokio::test]
async fn tls_asks_for_certificates_where_a_ca_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tls, ca) = certificate(folder.path());
    let client = identity_for(&NodeId::parse("proxy").unwrap());
    let stranger = identity_for(&NodeId::parse("proxy").unwrap());
    for checked in [false, true] {
        if checked {
            let file = folder.path().join("ca.pem");
            std::fs::write(&file, pem("CERTIFICATE", &client.ca)).unwrap();
            tls.ca_file = Some(file);
        }
        let served =
            Served::start(&Source::new(), &WrapperConfig { tls: Some(tls.clone()), ..settings() }).await;
        let ask = async |identity: Option<&Identity>| get_tls(served.address, &ca, identity, "/livez").await;
        assert_eq!(ask(Some(&client)).await, Ok(StatusCode::OK));
        assert_eq!(ask(None).await.is_ok(), !checked);
        assert_eq!(ask(Some(&stranger)).await.is_ok(), !checked);
        served.end().await;
    }
}

#[tokio::test]
async fn files_that_cannot_be_used_name_their_setting() {
    let folder = tempfile::tempdir().unwrap();
    let (good, _) = certificate(folder.path());
    let garbage = folder.path().join("garbage.pem");
    std::fs::write(&garbage, "garbage").unwrap();
    let missing = folder.path().join("missing.pem");
    for (tls, setting) in [
        (WrapperTls { cert_file: garbage.clone(), ..good.clone() }, "wrapper.tls.certFile"),
        (WrapperTls { key_file: missing.clone(), ..good.clone() }, "wrapper.tls.keyFile"),
        (WrapperTls { key_file: good.cert_file.clone(), ..good.clone() }, "wrapper.tls.keyFile"),
        (WrapperTls { ca_file: Some(missing), ..good.clone() }, "wrapper.tls.caFile"),
        (WrapperTls { ca_file: Some(garbage), ..good.clone() }, "wrapper.tls.caFile"),
    ] {
        let error = Wrapper::bind(&WrapperConfig { tls: Some(tls), ..settings() }).await.err().unwrap();
        assert!(error.to_string().contains(setting), "{error}");
    }
    let used = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = WrapperConfig { address: used.local_addr().ok(), ..settings() };
    assert!(matches!(Wrapper::bind(&taken).await.err().unwrap(), WrapperError::Listen(_)));
    assert!(Wrapper::bind(&WrapperConfig { address: None, ..settings() }).await.unwrap().is_none());
}

/// Row O28 of docs/reference/superedge.md#offline-rows: new connections see files that were replaced, on both sides of
/// the handshake.
#[tokio::test]
async fn replaced_certificate_files_are_served_to_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tls, old_ca) = certificate(folder.path());
    let [old, new] = [(); 2].map(|()| identity_for(&NodeId::parse("proxy").unwrap()));
    let clients = folder.path().join("ca.pem");
    std::fs::write(&clients, pem("CERTIFICATE", &old.ca)).unwrap();
    tls.ca_file = Some(clients.clone());
    let served = Served::start(&Source::new(), &WrapperConfig { tls: Some(tls.clone()), ..settings() }).await;
    let ask = async |ca: &CertificateDer<'static>, identity: &Identity| {
        get_tls(served.address, ca, Some(identity), "/livez").await == Ok(StatusCode::OK)
    };
    let until = async |what: &str, ca: &CertificateDer<'static>, identity: &Identity| {
        let holds = async {
            while !ask(ca, identity).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, holds).await.expect(what);
    };
    assert!(ask(&old_ca, &old).await && !ask(&old_ca, &new).await);
    let new_ca = renew(&tls);
    until("the new certificate", &new_ca, &old).await;
    assert!(!ask(&old_ca, &old).await, "the old certificate is no longer presented");
    std::fs::write(&clients, pem("CERTIFICATE", &new.ca)).unwrap();
    until("the new CA of clients", &new_ca, &new).await;
    assert!(!ask(&new_ca, &old).await, "the old CA's clients are refused");
    // Unusable files do no harm, and later valid ones are used.
    std::fs::write(&tls.cert_file, "half a cert").unwrap();
    std::fs::remove_file(&clients).unwrap();
    assert!(ask(&new_ca, &new).await);
    let newest_ca = renew(&tls);
    std::fs::write(&clients, pem("CERTIFICATE", &old.ca)).unwrap();
    until("the newest of everything", &newest_ca, &old).await;
    served.end().await;
}

#[test]
fn unusable_replacement_keeps_the_served_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tls, _) = certificate(folder.path());
    let clients = folder.path().join("ca.pem");
    std::fs::write(&clients, pem("CERTIFICATE", &test_ca().certificate)).unwrap();
    tls.ca_file = Some(clients.clone());
    let mut served = WrapperCertificate::load(&tls).unwrap();
    let mut look =
        || Files::read(&tls).and_then(|files| served.serve(files)).map_err(|error| error.to_string());
    assert_eq!(look(), Ok(false), "nothing has changed");
    let good = std::fs::read(&tls.cert_file).unwrap();
    for (file, content, setting) in [
        (&tls.cert_file, b"half a cert".to_vec(), "wrapper.tls.certFile"),
        (&tls.cert_file, vec![b' '; 1024 * 1024 + 1], "larger than 1 MiB"),
        (&clients, Vec::new(), "wrapper.tls.caFile"),
        (&tls.key_file, b"no key".to_vec(), "wrapper.tls.keyFile"),
    ] {
        let before = std::fs::read(file).unwrap();
        std::fs::write(file, content).unwrap();
        let problem = look().unwrap_err();
        assert!(problem.contains(setting) && problem.contains("wrapper.tls."), "{problem}");
        std::fs::write(file, before).unwrap();
        assert_eq!(look(), Ok(false), "{setting}: the restored file has the served content");
    }
    // The key belongs to another certificate, as in the middle of a renewal.
    renew(&tls);
    std::fs::write(&tls.cert_file, good).unwrap();
    assert!(look().unwrap_err().contains("wrapper.tls.keyFile"));
    renew(&tls);
    assert_eq!(look(), Ok(true));
    assert_eq!(look(), Ok(false));
}
