use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use tombolo_apiserver::{Embedded, Options};

use super::*;
use crate::kube::Kube;

/// The file is on a disk that does not answer: a reader waits until something is written. The test runs on one thread,
/// so a call that waited would block everything.
#[tokio::test(start_paused = true)]
async fn hanging_disk_delays_no_call() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("kubeconfig");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let config = Config::new("http://127.0.0.1:1".parse().expect("an address"));
    let connections = Connections::new(config, Some(path.clone())).expect("connections");
    let (done, is_done) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let in_time = is_done.recv_timeout(Duration::from_secs(20)).is_ok();
        std::fs::write(path, "{").map(|()| in_time)
    });
    tokio::time::advance(LOOK_INTERVAL).await;
    let _pool = connections.current();
    done.send(()).expect("it waits");
    let in_time = tokio::task::spawn_blocking(|| writer.join()).await.expect("a thread").expect("no panic");
    assert!(in_time.expect("it is written"), "the copy never replaces a call");
}

/// This kubeconfig, with a certificate that expires after `life`.
fn with_short_life(kubeconfig: &[u8], pki: &Path, life: Duration) -> String {
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).expect(name);
    let key = KeyPair::from_pem(&read("ca.key")).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(&read("ca.crt"), key).expect("an authority");
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().expect("a key"));
    params.distinguished_name.push(DnType::CommonName, "kubernetes-admin");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_after = (std::time::SystemTime::now() + life).into();
    let certificate = params.signed_by(&key, &issuer).expect("signed").pem();
    let mut config: Value = serde_json::from_slice(kubeconfig).expect("a kubeconfig");
    let user = &mut config["users"][0]["user"];
    user["client-certificate-data"] = json!(STANDARD.encode(certificate));
    user["client-key-data"] = json!(STANDARD.encode(key.serialize_pem()));
    config.to_string()
}

/// The status code of a request.
async fn code(kube: &Kube) -> u16 {
    let request = http::Request::get("/api/v1/namespaces").body(Vec::new()).expect("a request");
    match kube.client().request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

/// Makes the next call look at the files again.
async fn look_again() {
    tokio::time::pause();
    tokio::time::advance(LOOK_INTERVAL).await;
    tokio::time::resume();
}

#[tokio::test]
async fn kubeconfig_access_outlives_the_certificate_in_it() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let bound = Embedded::start(Options::new(folder.path().join("cluster"))).await.expect("started");
    let renewed = std::fs::read(bound.kubeconfig()).expect("a kubeconfig");
    let path = folder.path().join("kubeconfig");
    let short = with_short_life(&renewed, bound.pki_folder(), Duration::from_secs(3));
    std::fs::write(&path, short).expect("written");
    let parsed = kube::config::Kubeconfig::read_from(&path).expect("a kubeconfig");
    let config = kube::Config::try_from(parsed).expect("a configuration");
    let (stop, drain) = tombolo_runtime::drain::channel(Duration::from_secs(5));
    let server = tokio::spawn(bound.run(drain));
    let once = Kube::from_config(config.clone()).expect("a client");
    let own = Kube::following(config, Some(&path)).expect("a client");
    // Both now have connections with the first certificate.
    while (code(&once).await, code(&own).await) != (401, 401) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    std::fs::write(&path, renewed).expect("written");
    look_again().await;
    // The call that starts the look at the files does not wait for it.
    let accepted = async {
        while code(&own).await != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), accepted).await.expect("the certificate that was renewed");
    assert_eq!(code(&once).await, 401);
    // A file that is being written.
    std::fs::write(&path, "{").expect("written");
    look_again().await;
    assert_eq!(code(&own).await, 200);
    stop.start();
    server.await.expect("no panic").expect("it ends well");
}
