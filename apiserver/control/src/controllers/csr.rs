//! Certificate signing requests: parsing, automatic approval and signing.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tombolo_apicore::auth::{Attributes, Decision, Identity};
use tombolo_proto::object::Resource;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;

use super::Context;
use super::feed::Feed;
use crate::authz::Authorization;
use crate::objects::{Edit, StoredObject, items, list_member, member, text, timestamp, v1};
use crate::pki::{Leaf, LeafUsage, Pki};

/// Signs client certificates of any user.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// Signs client certificates of nodes.
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Signs serving certificates of nodes.
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

/// Lifetime of a certificate whose request sets none, in seconds.
const DEFAULT_SECONDS: u64 = 365 * 86_400;

/// Shortest lifetime, in seconds.
const MIN_SECONDS: u64 = 600;

/// Longest request that is parsed, in bytes of base64.
const REQUEST_LEN_MAX: usize = 64 * 1024;

/// How long decided requests are kept, and how long pending ones (values of kube-controller-manager).
const DECIDED_AGE_MAX: Duration = Duration::from_secs(3600);
const PENDING_AGE_MAX: Duration = Duration::from_secs(86_400);

/// How often old requests are removed.
const CLEAN_INTERVAL: Duration = Duration::from_secs(600);

fn resource() -> Resource {
    v1("certificates.k8s.io", "certificatesigningrequests")
}

/// A parsed PKCS#10 request with a valid signature.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Request {
    /// Subject common name.
    pub(crate) common_name: String,
    /// Subject organizations.
    pub(crate) organizations: Vec<String>,
    dns_names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Number of e-mail addresses, URIs and other names.
    other_names: usize,
    public_key_der: Vec<u8>,
}

impl Request {
    /// Parses `spec.request`: base64 of PEM.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn parse(base64: &str) -> Result<Self, String> {
        if base64.len() > REQUEST_LEN_MAX {
            return Err(format!("longer than {REQUEST_LEN_MAX} bytes"));
        }
        let pem = STANDARD.decode(base64).map_err(|e| e.to_string())?;
        let (_, block) = parse_x509_pem(&pem).map_err(|_| "PEM block type must be CERTIFICATE REQUEST")?;
        if block.label != "CERTIFICATE REQUEST" {
            return Err("PEM block type must be CERTIFICATE REQUEST".into());
        }
        let (_, request) = X509CertificationRequest::from_der(&block.contents).map_err(|e| e.to_string())?;
        request.verify_signature().map_err(|_| "the signature is not made by the key of the request")?;
        let info = &request.certification_request_info;
        let strings = |names: &mut dyn Iterator<Item = &x509_parser::x509::AttributeTypeAndValue<'_>>| {
            names.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect::<Vec<_>>()
        };
        let mut parsed = Self {
            common_name: strings(&mut info.subject.iter_common_name()).into_iter().next().unwrap_or_default(),
            organizations: strings(&mut info.subject.iter_organization()),
            public_key_der: info.subject_pki.raw.to_vec(),
            ..Self::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                names.general_names.iter().for_each(|name| parsed.add_name(name));
            }
        }
        Ok(parsed)
    }

    fn add_name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::IPAddress(octets) => {
                let v4 = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
                match v4.or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from)) {
                    Ok(address) => self.addresses.push(address),
                    Err(_) => self.other_names += 1,
                }
            }
            _ => self.other_names += 1,
        }
    }

    fn is_of_a_node(&self) -> Result<(), &'static str> {
        if self.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes");
        }
        if !self.common_name.starts_with("system:node:") {
            return Err("subject common name does not begin with system:node:");
        }
        Ok(())
    }

    /// Whether the named signer may sign this request with these usages.
    fn fits(&self, signer: &str, usages: &[&str]) -> Result<LeafUsage, &'static str> {
        let only = |allowed: &[&str]| usages.iter().all(|usage| allowed.contains(usage));
        let key_encipherment = usages.contains(&"key encipherment");
        match signer {
            NODE_CLIENT => {
                self.is_of_a_node()?;
                if !self.dns_names.is_empty() || !self.addresses.is_empty() || self.other_names > 0 {
                    return Err("subject alternative names are not allowed");
                }
                if !usages.contains(&"client auth")
                    || !only(&["client auth", "digital signature", "key encipherment"])
                {
                    return Err("usages did not match");
                }
                Ok(LeafUsage { server: false, client: true, key_encipherment })
            }
            NODE_SERVING => {
                self.is_of_a_node()?;
                if self.other_names > 0 {
                    return Err("only DNS names and IP addresses are allowed");
                }
                if self.dns_names.is_empty() && self.addresses.is_empty() {
                    return Err("DNS names or IP addresses are required");
                }
                if !usages.contains(&"server auth")
                    || !only(&["server auth", "digital signature", "key encipherment"])
                {
                    return Err("usages did not match");
                }
                Ok(LeafUsage { server: true, client: false, key_encipherment })
            }
            CLIENT => {
                if self.organizations.len() > 1 {
                    return Err("more than one organization is not supported by this signer");
                }
                if !usages.contains(&"client auth")
                    || !only(&["client auth", "digital signature", "key encipherment"])
                {
                    return Err("usages did not match");
                }
                Ok(LeafUsage { server: false, client: true, key_encipherment })
            }
            _ => Err("no such signer"),
        }
    }
}

/// Approves and signs until the server stops.
pub(super) async fn run(context: &Context) {
    let mut feed = Feed::new(&context.objects, resource());
    let mut clean = tokio::time::interval(CLEAN_INTERVAL);
    loop {
        tokio::select! {
            key = feed.next() => {
                let Some(key) = key else { return };
                let now = SystemTime::now();
                let result = context.objects.update(&key, |request| step(request, &context.authorization, &context.pki, now));
                if let Err(error) = result.await {
                    tracing::warn!(%key, %error, "cannot approve or sign a certificate signing request");
                }
            }
            _ = clean.tick() => remove_old(context).await,
        }
    }
}

/// Processes one request: approval, then the certificate.
fn step(object: &mut StoredObject, authorization: &Authorization, pki: &Pki, now: SystemTime) -> Edit {
    let signer = object.text("/spec/signerName").to_owned();
    if ![CLIENT, NODE_CLIENT, NODE_SERVING].contains(&signer.as_str()) {
        return Edit::Keep;
    }
    if has_condition(&object.value, "Denied") || has_condition(&object.value, "Failed") {
        return Edit::Keep;
    }
    let Ok(request) = Request::parse(object.text("/spec/request")) else { return Edit::Keep };
    let usages: Vec<&str> = items(&object.value, "/spec/usages").iter().filter_map(Value::as_str).collect();
    let fits = request.fits(&signer, &usages);
    if !has_condition(&object.value, "Approved") {
        let Some(message) = fits.ok().and_then(|_| approval(object, &request, &signer, authorization)) else {
            return Edit::Keep;
        };
        add_condition(&mut object.value, "Approved", "AutoApproved", message);
    }
    if !object.text("/status/certificate").is_empty() {
        return Edit::Keep;
    }
    let signed = fits.map_err(str::to_owned).and_then(|usage| sign(object, &request, usage, pki, now));
    match signed {
        Ok(certificate) => {
            let certificate = STANDARD.encode(certificate);
            member(&mut object.value, "status").insert("certificate".into(), json!(certificate));
        }
        Err(why) => add_condition(&mut object.value, "Failed", "SignerValidationFailure", &why),
    }
    Edit::Put
}

fn sign(
    object: &StoredObject,
    request: &Request,
    usage: LeafUsage,
    pki: &Pki,
    now: SystemTime,
) -> Result<Vec<u8>, String> {
    let asked = object.value.pointer("/spec/expirationSeconds").and_then(Value::as_u64);
    let leaf = Leaf {
        common_name: request.common_name.clone(),
        organization: request.organizations.first().cloned(),
        dns_names: request.dns_names.clone(),
        addresses: request.addresses.clone(),
        usage,
        life: Duration::from_secs(asked.unwrap_or(DEFAULT_SECONDS).clamp(MIN_SECONDS, DEFAULT_SECONDS)),
    };
    pki.sign(&leaf, &request.public_key_der, now).map(String::into_bytes).map_err(|e| e.to_string())
}

/// Why a request for a node's client certificate is approved automatically: its sender may request node certificates,
/// or renews its own.
fn approval(
    object: &StoredObject,
    request: &Request,
    signer: &str,
    authorization: &Authorization,
) -> Option<&'static str> {
    if signer != NODE_CLIENT {
        return None;
    }
    let sender = sender(&object.value);
    let may = |subresource: &str| {
        let asked = Attributes {
            identity: sender.clone(),
            verb: "create".into(),
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            resource: "certificatesigningrequests".into(),
            subresource: subresource.into(),
            is_resource: true,
            ..Attributes::default()
        };
        authorization.decide(&asked) == Decision::Allow
    };
    if sender.user == request.common_name && may("selfnodeclient") {
        return Some("Auto approving self kubelet client certificate after SubjectAccessReview.");
    }
    may("nodeclient").then_some("Auto approving kubelet client certificate after SubjectAccessReview.")
}

/// The sender of a request, as the server recorded it.
fn sender(object: &Value) -> Identity {
    let groups = items(object, "/spec/groups").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Identity { user: text(object, "/spec/username").to_owned(), groups, ..Identity::default() }
}

fn has_condition(object: &Value, kind: &str) -> bool {
    items(object, "/status/conditions").iter().any(|condition| text(condition, "/type") == kind)
}

fn add_condition(object: &mut Value, kind: &str, reason: &str, message: &str) {
    let now = timestamp(jiff::Timestamp::now());
    let condition = json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now,
    });
    list_member(member(object, "status"), "conditions").push(condition);
}

async fn remove_old(context: &Context) {
    for request in context.objects.list(&resource(), None) {
        let decided = has_condition(&request.value, "Approved") || has_condition(&request.value, "Denied");
        let limit = if decided { DECIDED_AGE_MAX } else { PENDING_AGE_MAX };
        let old = super::age(&request).is_some_and(|age| age > limit);
        if old && let Err(error) = context.objects.update(&request.key, |_| Edit::Remove).await {
            tracing::warn!(key = %request.key, %error, "an old certificate signing request was not removed");
        }
    }
}

#[cfg(test)]
mod tests;
