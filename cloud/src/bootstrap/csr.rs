//! Certificate signing requests, checked field by field before anything is signed
//! (docs/reference/kubeedge.md#holes-of-the-join-port).

use thiserror::Error;
use tombolo_link::identity::{NODE_GROUP, NODE_NAME_PREFIX};
use tombolo_proto::NodeId;
use x509_parser::certification_request::{X509CertificationRequest, X509CertificationRequestInfo};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_X509_COMMON_NAME, OID_X509_COUNTRY_NAME,
    OID_X509_LOCALITY_NAME, OID_X509_ORGANIZATION_NAME, OID_X509_STATE_OR_PROVINCE_NAME,
};
use x509_parser::prelude::{FromDer, ParsedCriAttribute};
use x509_parser::x509::X509Name;

/// Why a request is refused. The texts are sent to the edge.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum CsrError {
    #[error("the body is not a certificate signing request in DER form: {0}")]
    Unreadable(String),
    #[error("the certificate signing request is not signed by the key in it")]
    Signature,
    #[error("the certificate signing request is for {found:?}, expected common name {expected:?}")]
    CommonName { found: String, expected: String },
    #[error("the certificate signing request has organisations {0:?}, expected exactly system:nodes")]
    Organisation(Vec<String>),
    #[error("the certificate signing request has the subject field {0}, which node certificates do not have")]
    SubjectField(String),
    #[error("the certificate signing request asks for {0}; a node certificate contains only a name")]
    Extension(String),
    #[error("the certificate signing request has a key that is not ECDSA P-256")]
    Key,
}

/// Checks a request for `node` and returns its public key (`SubjectPublicKeyInfo`, DER).
pub(super) fn check(der: &[u8], node: &NodeId) -> Result<Vec<u8>, CsrError> {
    let (rest, request) =
        X509CertificationRequest::from_der(der).map_err(|error| CsrError::Unreadable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(CsrError::Unreadable(format!("{} bytes follow the request", rest.len())));
    }
    let info = &request.certification_request_info;
    check_key(info)?;
    request.verify_signature().map_err(|_| CsrError::Signature)?;
    check_subject(&info.subject, node)?;
    check_attributes(info)?;
    Ok(info.subject_pki.raw.to_vec())
}

fn check_key(info: &X509CertificationRequestInfo<'_>) -> Result<(), CsrError> {
    let algorithm = &info.subject_pki.algorithm;
    let curve = algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve != Some(OID_EC_P256) {
        return Err(CsrError::Key);
    }
    Ok(())
}

/// Organisation and common name must be the node's. Country, state and locality of a KubeEdge edge are accepted once
/// each and left out of the certificate.
fn check_subject(subject: &X509Name<'_>, node: &NodeId) -> Result<(), CsrError> {
    let tolerated = [OID_X509_COUNTRY_NAME, OID_X509_STATE_OR_PROVINCE_NAME, OID_X509_LOCALITY_NAME];
    let (mut names, mut organisations, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for field in subject.iter_attributes() {
        let oid = field.attr_type();
        let text = || field.as_str().unwrap_or("(not text)").to_owned();
        if *oid == OID_X509_COMMON_NAME {
            names.push(text());
        } else if *oid == OID_X509_ORGANIZATION_NAME {
            organisations.push(text());
        } else if !tolerated.contains(oid) || seen.contains(&oid) {
            return Err(CsrError::SubjectField(oid.to_id_string()));
        }
        seen.push(oid);
    }
    if organisations != [NODE_GROUP] {
        return Err(CsrError::Organisation(organisations));
    }
    let expected = format!("{NODE_NAME_PREFIX}{node}");
    if names != [expected.as_str()] {
        return Err(CsrError::CommonName { found: names.join(", "), expected });
    }
    Ok(())
}

fn check_attributes(info: &X509CertificationRequestInfo<'_>) -> Result<(), CsrError> {
    for attribute in info.iter_attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(request) => {
                if let Some(extension) = request.extensions.first() {
                    return Err(CsrError::Extension(format!("extension {}", extension.oid)));
                }
            }
            _ => return Err(CsrError::Extension(format!("attribute {}", attribute.oid))),
        }
    }
    Ok(())
}
