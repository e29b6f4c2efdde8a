//! What is found, created, kept and refused at the start, and what is renewed afterwards.

use std::fs;

use super::world::{MemorySecrets, options, parts};
use super::*;

async fn start(secrets: &Arc<MemorySecrets>, options: Options) -> Result<Bootstrap, BootstrapError> {
    Bootstrap::with_parts(parts(secrets), options).await
}

fn set(secrets: &MemorySecrets, name: &str, key: &str, value: &[u8]) {
    let mut stored = secrets.secrets.lock();
    stored.get_mut(name).expect("stored").data.insert(key.to_owned(), value.to_vec());
}

#[tokio::test]
async fn replicas_that_start_together_share_one_ca() {
    for _ in 0..20 {
        let secrets = Arc::new(MemorySecrets::default());
        let started = futures::future::join_all((0..4).map(|_| start(&secrets, options()))).await;
        let authorities: Vec<_> =
            started.into_iter().map(|bootstrap| bootstrap.expect("ready").authority()).collect();
        assert!(authorities.windows(2).all(|pair| pair[0] == pair[1]));
        let created = secrets.writes.lock().iter().filter(|name| *name == "casecret").count();
        assert_eq!(created, 1);
    }
}

#[tokio::test]
async fn replicas_accept_each_others_tokens() {
    let secrets = Arc::new(MemorySecrets::default());
    let (one, two) = futures::join!(start(&secrets, options()), start(&secrets, options()));
    let (one, two) = (one.expect("ready"), two.expect("ready"));
    let token = secrets.shared_token();
    for replica in [one, two] {
        assert!(shared_token::verify_whole(&replica.inner.authority, &token, SystemTime::now()).is_ok());
    }
}

#[tokio::test]
async fn the_server_certificate_follows_the_addresses() {
    let secrets = Arc::new(MemorySecrets::default());
    let certificate = || secrets.value("tombolo-server", "cloudcoredata");
    start(&secrets, options()).await.expect("ready");
    let first = certificate();
    start(&secrets, options()).await.expect("ready");
    assert_eq!(certificate(), first, "nothing changed");
    let more = [options().advertise, vec!["fd00::1".to_owned()]].concat();
    start(&secrets, Options::new(more.clone())).await.expect("ready");
    let second = certificate();
    assert_ne!(second, first);
    start(&secrets, Options::new(more)).await.expect("ready");
    assert_eq!(certificate(), second, "IPv6 addresses are recognised");
    set(&secrets, "tombolo-server", "cloudcoredata", b"damaged");
    start(&secrets, options()).await.expect("made again");
    assert_ne!(certificate(), b"damaged");
}

#[tokio::test]
async fn an_old_server_certificate_is_made_again() {
    let secrets = Arc::new(MemorySecrets::default());
    start(&secrets, options()).await.expect("ready");
    let first = secrets.value("tombolo-server", "cloudcoredata");
    let later = |days: u64| {
        let mut parts = parts(&secrets);
        parts.clock = Arc::new(move || SystemTime::now() + Duration::from_secs(days * 86_400));
        Bootstrap::with_parts(parts, options())
    };
    later(240).await.expect("ready");
    assert_eq!(secrets.value("tombolo-server", "cloudcoredata"), first);
    later(250).await.expect("ready");
    assert_ne!(secrets.value("tombolo-server", "cloudcoredata"), first);
}

#[tokio::test]
async fn a_damaged_ca_is_refused_and_left_alone() {
    let secrets = Arc::new(MemorySecrets::default());
    start(&secrets, options()).await.expect("ready");
    let (other, good) = (Arc::new(MemorySecrets::default()), secrets.value("casecret", "cakeydata"));
    start(&other, options()).await.expect("ready");
    let foreign = other.value("casecret", "cakeydata");
    let leaf = secrets.value("tombolo-server", "cloudcoredata");
    let cases: [(&str, &[u8], &str); 4] = [
        ("cakeydata", b"damaged", "not an ECDSA P-256 key"),
        ("cakeydata", b"", "cakeydata is missing"),
        ("cakeydata", &foreign, "does not match"),
        ("cadata", &leaf, "not a CA certificate"),
    ];
    for (key, value, sentence) in cases {
        let before = secrets.writes.lock().len();
        set(&secrets, "casecret", key, value);
        let text = start(&secrets, options()).await.expect_err(sentence).to_string();
        assert!(text.contains("casecret") && text.contains(sentence), "{text}");
        assert_eq!(secrets.writes.lock().len(), before, "nothing was overwritten");
        set(&secrets, "casecret", "cakeydata", &good);
    }
}

#[tokio::test]
async fn a_hub_without_good_addresses_does_not_start() {
    let secrets = Arc::new(MemorySecrets::default());
    for addresses in [vec![], vec!["höst:10002".to_owned()]] {
        let error = start(&secrets, Options::new(addresses)).await.expect_err("no usable address");
        assert!(matches!(error, BootstrapError::Address { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_refreshed_for_ever_even_when_storing_fails_for_a_while() {
    let secrets = Arc::new(MemorySecrets::default());
    let (origin, mut parts) = (tokio::time::Instant::now(), parts(&secrets));
    let wall = SystemTime::now();
    parts.clock = Arc::new(move || wall + origin.elapsed());
    let bootstrap = Bootstrap::with_parts(parts, options()).await.expect("ready");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let server = tokio::spawn(bootstrap.serve(listener, Drain::never()));
    let first = secrets.shared_token();

    let hours = |hours: u64| tokio::time::sleep(Duration::from_secs(hours * 3600));
    hours(1).await;
    assert_eq!(secrets.shared_token(), first);
    *secrets.broken.lock() = Some("");
    hours(12).await;
    assert_eq!(secrets.shared_token(), first, "the new one cannot be stored");
    *secrets.broken.lock() = None;
    hours(1).await;
    let second = secrets.shared_token();
    assert_ne!(second, first, "stored when the store is back");
    hours(24).await;
    assert_ne!(secrets.shared_token(), second);
    server.abort();
}

#[tokio::test]
async fn a_restart_keeps_a_young_token() {
    let secrets = Arc::new(MemorySecrets::default());
    start(&secrets, options()).await.expect("ready");
    // A client that waits until cloudcore is ready finds the token.
    let first = secrets.shared_token();
    start(&secrets, options()).await.expect("ready");
    assert_eq!(secrets.shared_token(), first);
}

/// A pair as PEM files in `folder`.
fn write_pair(folder: &std::path::Path, name: &str, certificate: &[u8], key: &[u8]) -> PemPair {
    let pem = |label: &str, der: &[u8]| {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let path = |ending: &str| folder.join(format!("{name}.{ending}"));
    fs::write(path("crt"), pem("CERTIFICATE", certificate)).expect("written");
    fs::write(path("key"), pem("EC PRIVATE KEY", key)).expect("written");
    PemPair { certificate: path("crt"), key: path("key") }
}

/// Secrets of another installation, whose certificates serve as an operator's files.
async fn elsewhere() -> Arc<MemorySecrets> {
    let secrets = Arc::new(MemorySecrets::default());
    start(&secrets, options()).await.expect("ready");
    secrets
}

#[tokio::test]
async fn files_of_the_operator_win_and_are_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = elsewhere().await;
    let value = |name: &str, key: &str| other.value(name, key);
    let mut options = options();
    options.files = CertificateFiles {
        authority: Some(write_pair(
            folder.path(),
            "ca",
            &value("casecret", "cadata"),
            &value("casecret", "cakeydata"),
        )),
        server: Some(write_pair(
            folder.path(),
            "server",
            &value("tombolo-server", "cloudcoredata"),
            &value("tombolo-server", "cloudcorekeydata"),
        )),
    };
    let secrets = elsewhere().await;
    let bootstrap = start(&secrets, options.clone()).await.expect("ready");
    assert_eq!(bootstrap.authority().to_vec(), value("casecret", "cadata"));
    for (name, key) in [
        ("casecret", "cadata"),
        ("casecret", "cakeydata"),
        ("tombolo-server", "cloudcoredata"),
        ("tombolo-server", "cloudcorekeydata"),
    ] {
        assert_eq!(secrets.value(name, key), value(name, key), "{name} {key} holds what the files hold");
    }
    let token = secrets.shared_token();
    assert!(token.starts_with(&bootstrap.inner.authority.hash()), "tokens are of this authority");

    let server = options.files.server.clone().expect("set above");
    options.advertise = vec!["elsewhere.example".to_owned()];
    start(&secrets, options.clone()).await.expect("ready");
    let stored = secrets.value("tombolo-server", "cloudcoredata");
    assert_eq!(stored, value("tombolo-server", "cloudcoredata"), "a given certificate is never made again");

    fs::remove_file(&server.key).expect("was there");
    let error = start(&secrets, options.clone()).await.expect_err("half a pair").to_string();
    assert!(error.contains("server.key") && error.contains("both files or neither"), "{error}");
    fs::remove_file(&server.certificate).expect("was there");
    start(&secrets, options).await.expect("without files the Secret holds");
    assert_ne!(secrets.value("tombolo-server", "cloudcoredata"), stored, "made for the other address");
}

#[tokio::test]
async fn invalid_authority_files_do_not_replace_the_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let secrets = elsewhere().await;
    let good = secrets.value("casecret", "cadata");
    let mut options = options();
    let leaf = secrets.value("tombolo-server", "cloudcoredata");
    let pair = write_pair(folder.path(), "ca", &leaf, &secrets.value("tombolo-server", "cloudcorekeydata"));
    options.files.authority = Some(pair.clone());
    let error = start(&secrets, options.clone()).await.expect_err("a leaf").to_string();
    assert!(error.contains("ca.crt"), "{error}");
    fs::write(&pair.certificate, "no PEM").expect("written");
    let error = start(&secrets, options).await.expect_err("no PEM").to_string();
    assert!(error.contains("ca.crt"), "{error}");
    assert_eq!(secrets.value("casecret", "cadata"), good);
}

/// With a paused clock, time passes only when all tasks wait.
#[tokio::test(start_paused = true)]
async fn replaced_authority_file_ends_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (secrets, other) = (elsewhere().await, elsewhere().await);
    let pair = |of: &MemorySecrets| (of.value("casecret", "cadata"), of.value("casecret", "cakeydata"));
    let ((certificate, key), (other_certificate, other_key)) = (pair(&secrets), pair(&other));
    let write = |certificate: &[u8], key: &[u8]| write_pair(folder.path(), "ca", certificate, key);
    let mut options = options();
    options.files.authority = Some(write(&certificate, &key));
    let bootstrap = start(&secrets, options).await.expect("ready");
    let watching = tokio::spawn(bootstrap.authority_stays());
    let minute = || tokio::time::sleep(Duration::from_secs(60));
    minute().await;
    // Halfway: the new certificate is there, but its key is not.
    write(&other_certificate, &key);
    minute().await;
    assert!(!watching.is_finished(), "what is no pair is reported only");
    write(&other_certificate, &other_key);
    let ended = tokio::time::timeout(Duration::from_secs(600), watching).await.expect("it ends");
    let error = ended.expect("no panic").expect_err("another authority").to_string();
    assert!(error.contains("ca.crt"), "{error}");
}
