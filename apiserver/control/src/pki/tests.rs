use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use x509_parser::pem::parse_x509_pem;

use super::*;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

fn open(dir: &Path, now: SystemTime) -> Pki {
    Pki::open(dir, ADDRESS, now).unwrap()
}

#[test]
fn restart_reads_the_credentials_of_the_first_start() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let first = open(dir.path(), now);
    let second = open(dir.path(), now);
    assert_eq!(first.ca_certificate(), second.ca_certificate());
    assert_eq!(first.serving().certificate, second.serving().certificate);
    assert_eq!(first.token_key, second.token_key);
    let mode = fs::metadata(dir.path().join("pki/ca.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn crash_during_creation_leaves_no_partial_credentials() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("pki.new")).unwrap();
    fs::write(dir.path().join("pki.new/ca.crt"), "half").unwrap();
    assert!(open(dir.path(), SystemTime::now()).ca_certificate().starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(!dir.path().join("pki.new").exists());
}

#[test]
fn leaves_are_renewed_when_old_or_when_the_service_address_changed() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let first = open(dir.path(), now);
    let later = open(dir.path(), now + LEAF_LIFE / 2 + CLOCK_SKEW);
    assert_eq!(first.ca_certificate(), later.ca_certificate());
    assert_ne!(first.serving().certificate, later.serving().certificate);
    assert_ne!(first.admin().certificate, later.admin().certificate);
    let moved = Pki::open(dir.path(), IpAddr::from([10, 96, 0, 1]), now).unwrap();
    assert_ne!(later.serving().certificate, moved.serving().certificate);
}

#[test]
fn a_damaged_certificate_is_reported_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path(), SystemTime::now());
    fs::write(dir.path().join("pki/ca.crt"), "not a certificate").unwrap();
    let error = Pki::open(dir.path(), ADDRESS, SystemTime::now()).unwrap_err();
    assert!(error.to_string().contains("pki/ca.crt"), "{error}");
}

#[test]
fn the_administrator_is_in_system_masters_and_signed_by_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path(), SystemTime::now());
    let (_, ca) = parse_x509_pem(pki.ca_certificate().as_bytes()).unwrap();
    let (_, admin) = parse_x509_pem(pki.admin().certificate.as_bytes()).unwrap();
    let (ca, admin) = (ca.parse_x509().unwrap(), admin.parse_x509().unwrap());
    admin.verify_signature(Some(ca.public_key())).unwrap();
    let organization = admin.subject().iter_organization().next().unwrap().as_str().unwrap();
    assert_eq!(organization, "system:masters");
}

#[test]
fn kill_between_certificate_and_key_leaves_a_matching_pair() {
    let now = SystemTime::now();
    let later = now + LEAF_LIFE / 2 + CLOCK_SKEW;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join("pki").join(name);
    let before = open(dir.path(), now);
    let old_key = fs::read(file("apiserver.key")).unwrap();
    assert!(before.renew(later).unwrap());
    let new = before.serving();
    // The state between the two writes of a renewal: the next start finishes it.
    let both = format!("{}{}", new.certificate, new.key);
    fs::write(file("apiserver.key"), &old_key).unwrap();
    tombolo_runtime::files::replace(&file("apiserver.pair"), both.as_bytes(), 0o600).unwrap();
    let after = open(dir.path(), later);
    assert_eq!(after.serving(), new);
    assert!(!file("apiserver.pair").exists());
    assert_eq!(fs::read_to_string(file("apiserver.key")).unwrap(), new.key);
    // The state after an interrupted renewal by a version that replaced one file after the other: the files are no
    // pair, so a new pair is created.
    fs::write(file("apiserver.key"), &old_key).unwrap();
    let repaired = open(dir.path(), later).serving();
    assert_ne!(repaired, new);
    assert!(leaf::fits(&repaired.certificate, &repaired.key));
    assert_eq!(fs::read_to_string(file("apiserver.key")).unwrap(), repaired.key);
}

#[test]
fn unwritable_renewal_keeps_the_present_pair() {
    let now = SystemTime::now();
    let dir = tempfile::tempdir().unwrap();
    let pki = open(dir.path(), now);
    let before = pki.serving();
    fs::create_dir(dir.path().join("pki/apiserver.pair.new")).unwrap();
    pki.renew(now + LEAF_LIFE / 2 + CLOCK_SKEW).unwrap_err();
    assert_eq!(pki.serving(), before);
    assert_eq!(open(dir.path(), now).serving(), before);
}
