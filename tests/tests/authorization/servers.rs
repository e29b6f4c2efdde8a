//! The two servers, and how the tests send requests to them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{CertificateParams, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tombolo_apiserver::{Embedded, Options};
use tombolo_runtime::{Trigger, drain};
use tombolo_testkit::{ControlPlane, ControlPlaneOptions};
use tombolo_tests::pki::{issue, node_params};

use crate::cases::{Call, Caller, Case, Question};
use crate::rights::NODES;

/// Token of the embedded server's administrator.
const TOKEN: &str = "authorization";

/// Time for pending requests at the end.
const GRACE: Duration = Duration::from_secs(1);

/// Time for the head of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The decision of authentication and authorization on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The caller is unknown.
    Unauthenticated,
    /// The caller is denied.
    Denied,
    /// The caller is allowed; the result of the request is not compared.
    Allowed,
}

/// One server.
pub(crate) struct Server {
    admin: Client,
    /// A client without credentials.
    nobody: Client,
    /// Clients with the certificates of [`NODES`].
    nodes: Vec<Client>,
    /// A client with a certificate that this server does not know.
    foreign: Client,
    _running: Running,
}

/// Parts that must live as long as the server.
#[expect(dead_code, reason = "held until the server is dropped")]
enum Running {
    Real(Box<ControlPlane>),
    Embedded(Trigger, TempDir),
}

impl Server {
    /// kube-apiserver with etcd and the controllers, one of which aggregates roles.
    pub(crate) async fn real() -> Result<Self> {
        let options = ControlPlaneOptions { controllers: true, ..ControlPlaneOptions::default() };
        let plane = ControlPlane::start(options).await?;
        let kubeconfig = serde_json::to_value(Kubeconfig::read_from(plane.kubeconfig())?)?;
        let folder = plane.folder().to_owned();
        Self::of(kubeconfig, &folder, Running::Real(Box::new(plane))).await
    }

    /// The server of `tombolo apiserver`.
    pub(crate) async fn embedded() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let mut options = Options::new(&data);
        options.admin_token = Some(TOKEN.to_owned());
        let bound = Embedded::start(options).await?;
        let (trigger, drain) = drain::channel(GRACE);
        tokio::spawn(bound.run(drain));
        let mut kubeconfig = serde_json::to_value(Kubeconfig::read_from(data.join("kubeconfig"))?)?;
        kubeconfig["users"][0]["user"] = json!({ "token": TOKEN });
        Self::of(kubeconfig, &data.join("pki"), Running::Embedded(trigger, folder)).await
    }

    async fn of(kubeconfig: Value, keys: &Path, running: Running) -> Result<Self> {
        let ca = std::fs::read_to_string(keys.join("ca.crt"))?;
        let key = std::fs::read_to_string(keys.join("ca.key"))?;
        let issuer = Issuer::from_ca_cert_pem(&ca, KeyPair::from_pem(&key)?)?;
        let stranger = CertificateParams::default();
        let stranger = Issuer::new(stranger, KeyPair::generate()?);
        let mut nodes = Vec::new();
        for node in NODES {
            nodes.push(client(&kubeconfig, certificate(&issuer, node)?).await?);
        }
        Ok(Self {
            admin: client(&kubeconfig, kubeconfig["users"][0]["user"].clone()).await?,
            nobody: client(&kubeconfig, json!({})).await?,
            foreign: client(&kubeconfig, certificate(&stranger, NODES[0])?).await?,
            nodes,
            _running: running,
        })
    }

    /// Creates an object as the administrator, unless it exists.
    pub(crate) async fn make(&self, path: &str, object: &Value) -> Result<()> {
        let (code, text) = send(&self.admin, json_request("POST", path).body(body(object))?, true).await?;
        ensure!(matches!(code, 201 | 409), "{path} {object}: {code} {text}");
        Ok(())
    }

    /// Removes the objects of a collection that have a label.
    pub(crate) async fn remove(&self, path: &str, label: &str) -> Result<()> {
        let path = format!("{path}?labelSelector={label}");
        let (code, text) =
            send(&self.admin, json_request("DELETE", &path).body(Body::empty())?, true).await?;
        ensure!(code == 200, "{path}: {code} {text}");
        Ok(())
    }

    /// A token of a service account.
    pub(crate) async fn token(&self, namespace: &str, account: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let wanted = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
        let (_, text) = send(&self.admin, json_request("POST", &path).body(body(&wanted))?, true).await?;
        let answer: Value = serde_json::from_str(&text)?;
        Ok(answer["status"]["token"].as_str().with_context(|| text.clone())?.to_owned())
    }

    /// The verdict on a case, with the answer's code and text for people. `tokens` are those of this world's accounts.
    pub(crate) async fn judge(&self, case: &Case, tokens: &[String]) -> Result<(Verdict, String)> {
        match &case.question {
            Question::Review(spec) => self.review(spec).await,
            Question::Call(call) => self.call(&case.caller, call, tokens).await,
        }
    }

    /// The result of a SubjectAccessReview.
    pub(crate) async fn review(&self, spec: &Value) -> Result<(Verdict, String)> {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let review =
            json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec});
        let (code, text) = send(&self.admin, json_request("POST", path).body(body(&review))?, true).await?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let allowed = answer["status"]["allowed"].as_bool();
        // If a review is rejected as malformed, both servers must reject it; this counts as a denial.
        let verdict = if allowed == Some(true) { Verdict::Allowed } else { Verdict::Denied };
        Ok((verdict, format!("{code} {}", if allowed.is_some() { &answer["status"] } else { &answer })))
    }

    async fn call(&self, caller: &Caller, call: &Call, tokens: &[String]) -> Result<(Verdict, String)> {
        let mut request = json_request(call.method, &call.path);
        for (name, value) in caller.impersonation() {
            request = request.header(name, value);
        }
        if let Some(account) = caller.account() {
            request = request.header("authorization", format!("Bearer {}", tokens[account]));
        }
        let client = match caller {
            Caller::Admin(_) => &self.admin,
            Caller::Node(index) => &self.nodes[*index],
            Caller::Foreign(_) => &self.foreign,
            Caller::Account(..) | Caller::Nobody => &self.nobody,
        };
        // The body of a deletion would override the dry run.
        let bare = matches!(call.method, "GET" | "HEAD" | "DELETE");
        let content = if bare { Body::empty() } else { body(&json!({})) };
        let (code, text) = send(client, request.body(content)?, false).await?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let message = answer["message"].as_str().unwrap_or(&text);
        let verdict = match code {
            401 => Verdict::Unauthenticated,
            // Admission refuses with 403 as well, but with another message. HEAD has no message and never reaches
            // admission.
            403 if call.method == "HEAD" || is_by_authorizer(message) => Verdict::Denied,
            _ => Verdict::Allowed,
        };
        Ok((verdict, format!("{code} {message}")))
    }
}

/// Whether the message of a 403 comes from the authorizer.
fn is_by_authorizer(message: &str) -> bool {
    message.split_once("User \"").is_some_and(|(_, rest)| rest.contains("\" cannot "))
}

fn json_request(method: &str, path: &str) -> http::request::Builder {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    Request::builder().method(method).uri(path).header("content-type", content_type)
}

fn body(object: &Value) -> Body {
    Body::from(object.to_string().into_bytes())
}

/// Code and text of an answer. Without `whole`, only the text of refusals, since a watch does not end.
async fn send(client: &Client, request: Request<Body>, whole: bool) -> Result<(u16, String)> {
    let shown = format!("{} {}", request.method(), request.uri());
    let answer = tokio::time::timeout(ANSWER_MAX, client.send(request)).await;
    let response = answer.with_context(|| format!("{shown}: no answer"))?.with_context(|| shown.clone())?;
    let code = response.status().as_u16();
    if !whole && code < 400 {
        return Ok((code, String::new()));
    }
    let bytes = tokio::time::timeout(ANSWER_MAX, response.into_body().collect()).await;
    let bytes =
        bytes.with_context(|| format!("{shown}: no body"))?.with_context(|| shown.clone())?.to_bytes();
    Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
}

async fn client(kubeconfig: &Value, user: Value) -> Result<Client> {
    let mut kubeconfig = kubeconfig.clone();
    kubeconfig["users"][0]["user"] = user;
    let kubeconfig = serde_json::from_value(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The first answer is compared, so the client must not retry.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Credentials of a node for a kubeconfig.
fn certificate(issuer: &Issuer<'_, KeyPair>, node: &str) -> Result<Value> {
    let (certificate, key) = issue(&node_params(node), issuer)?;
    Ok(json!({
        "client-certificate-data": STANDARD.encode(certificate),
        "client-key-data": STANDARD.encode(key),
    }))
}
