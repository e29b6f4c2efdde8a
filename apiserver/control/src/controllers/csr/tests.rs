use rcgen::{CertificateParams, DnType, KeyPair};
use tombolo_apicore::store::Revision;
use tombolo_proto::ids::Uid;
use tombolo_proto::object::ObjectKey;

use super::*;
use crate::bootstrap::node_rules;

fn csr(common_name: &str, organization: &str, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    let key = KeyPair::generate().unwrap();
    STANDARD.encode(params.serialize_request(&key).unwrap().pem().unwrap())
}

fn object(signer: &str, request: &str, usages: &[&str], sender: (&str, &str)) -> StoredObject {
    let value = json!({"metadata": {"name": "c"}, "spec": {
        "signerName": signer, "request": request, "usages": usages, "username": sender.0, "groups": [sender.1],
    }});
    let key = ObjectKey::new(resource(), "", "c");
    StoredObject { key, uid: Uid::parse("u").unwrap(), revision: Revision(1), value }
}

/// The group `system:bootstrappers` may request node certificates; nodes may renew their own.
fn authorization() -> Authorization {
    let authorization = Authorization::new(node_rules());
    let grant = |name: &str, subresource: &str, group: &str| {
        let put = |resource: &str, value: Value| {
            let key = ObjectKey::new(v1("rbac.authorization.k8s.io", resource), "", name);
            let body = bytes::Bytes::from(value.to_string());
            let stored =
                tombolo_apicore::store::Stored::new(key, Uid::parse("u").unwrap(), Revision(1), body);
            authorization.apply(&stored, false);
        };
        let resource = format!("certificatesigningrequests/{subresource}");
        put(
            "clusterroles",
            json!({"rules": [{"verbs": ["create"], "apiGroups": ["certificates.k8s.io"], "resources": [resource]}]}),
        );
        let reference = json!({"kind": "ClusterRole", "name": name});
        put(
            "clusterrolebindings",
            json!({"roleRef": reference, "subjects": [{"kind": "Group", "name": group}]}),
        );
    };
    grant("first", "nodeclient", "system:bootstrappers");
    grant("renew", "selfnodeclient", "system:nodes");
    authorization
}

fn pki() -> Pki {
    let dir = tempfile::tempdir().unwrap();
    Pki::open(dir.path(), IpAddr::from([10, 0, 0, 1]), SystemTime::now()).unwrap()
}

#[test]
fn node_client_requests_are_approved_and_signed_for_authorized_requesters() {
    let (authorization, pki) = (authorization(), pki());
    let request = csr("system:node:a", "system:nodes", &[]);
    for (sender, approved) in [
        (("system:bootstrap:abc", "system:bootstrappers"), true),
        (("system:node:a", "system:nodes"), true),
        (("system:node:b", "system:nodes"), false),
        (("jane", "system:authenticated"), false),
    ] {
        let mut object = object(NODE_CLIENT, &request, &["client auth", "digital signature"], sender);
        let edit = step(&mut object, &authorization, &pki, SystemTime::now());
        assert_eq!(edit == Edit::Put, approved, "{sender:?}");
        assert_eq!(!object.text("/status/certificate").is_empty(), approved, "{sender:?}");
    }
}

#[test]
fn serving_certificate_request_waits_for_approval() {
    let (authorization, pki) = (authorization(), pki());
    let request = csr("system:node:a", "system:nodes", &["a.example", "10.1.2.3"]);
    let mut object = object(
        NODE_SERVING,
        &request,
        &["server auth", "digital signature"],
        ("system:node:a", "system:nodes"),
    );
    assert_eq!(step(&mut object, &authorization, &pki, SystemTime::now()), Edit::Keep);
    add_condition(&mut object.value, "Approved", "Person", "ok");
    assert_eq!(step(&mut object, &authorization, &pki, SystemTime::now()), Edit::Put);
    let pem = STANDARD.decode(object.text("/status/certificate")).unwrap();
    let (_, block) = parse_x509_pem(&pem).unwrap();
    let certificate = block.parse_x509().unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names.len(), 2);
    assert_eq!(step(&mut object, &authorization, &pki, SystemTime::now()), Edit::Keep, "signed once");
}

#[test]
fn mismatched_requests_fail_after_approval() {
    let (authorization, pki) = (authorization(), pki());
    for (signer, request, usages) in [
        (NODE_CLIENT, csr("jane", "system:nodes", &[]), ["client auth", "digital signature"]),
        (NODE_CLIENT, csr("system:node:a", "system:masters", &[]), ["client auth", "digital signature"]),
        (
            NODE_CLIENT,
            csr("system:node:a", "system:nodes", &["a.example"]),
            ["client auth", "digital signature"],
        ),
        (NODE_CLIENT, csr("system:node:a", "system:nodes", &[]), ["server auth", "digital signature"]),
        (NODE_SERVING, csr("system:node:a", "system:nodes", &[]), ["server auth", "digital signature"]),
    ] {
        let mut object = object(signer, &request, &usages, ("system:bootstrap:x", "system:bootstrappers"));
        assert_eq!(
            step(&mut object, &authorization, &pki, SystemTime::now()),
            Edit::Keep,
            "not approved by itself"
        );
        add_condition(&mut object.value, "Approved", "Person", "ok");
        assert_eq!(step(&mut object, &authorization, &pki, SystemTime::now()), Edit::Put);
        assert!(has_condition(&object.value, "Failed"));
        assert_eq!(object.text("/status/certificate"), "");
    }
}

#[test]
fn garbage_is_not_a_request() {
    for text in [
        "",
        "%%%",
        "aGVsbG8=",
        &STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"),
    ] {
        assert!(Request::parse(text).is_err(), "{text}");
    }
    assert!(Request::parse(&"A".repeat(REQUEST_LEN_MAX + 4)).is_err());
}
