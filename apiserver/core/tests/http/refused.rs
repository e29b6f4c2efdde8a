//! Clients that are still sending when they are refused see the refusal: curl and Go, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tombolo_apicore::api::ApiServer;
use tombolo_apicore::auth::{
    AUTHENTICATED_GROUP, Attributes, Authenticator, Authorizer, BadCredentials, Decision, Identity, Peer,
};
use tombolo_apicore::history::LogLimits;
use tombolo_apicore::memory::MemoryStore;
use tombolo_apicore::registry::Registry;
use tombolo_apicore::server::{Serving, serve};
use tombolo_apicore::write::LocalWrites;

/// Tries of each case: what went wrong here did not each time.
const TRIES: usize = 5;

/// Bytes of bodies that are received at the same time, at most.
const BODIES_LEN_MAX: usize = 5 * 1024 * 1024 / 2;

/// What is refused, why, and with what.
struct Case {
    code: u16,
    method: &'static str,
    media_type: &'static str,
    user: &'static str,
    len: usize,
}

const JSON: &str = "application/json";

const CASES: [Case; 8] = [
    Case { code: 401, method: "POST", media_type: JSON, user: "wrong", len: 2_000_000 },
    Case { code: 403, method: "POST", media_type: JSON, user: "denied", len: 2_000_000 },
    Case { code: 413, method: "POST", media_type: JSON, user: "bob", len: 4_000_000 },
    Case { code: 415, method: "PATCH", media_type: "text/plain", user: "bob", len: 2_000_000 },
    Case { code: 429, method: "POST", media_type: JSON, user: "bob", len: 3_000_000 },
    // As much as is taken in of a body that is too large.
    Case { code: 401, method: "POST", media_type: JSON, user: "wrong", len: 9_000_000 },
    Case { code: 403, method: "POST", media_type: JSON, user: "denied", len: 6_000_000 },
    Case { code: 415, method: "PATCH", media_type: "text/plain", user: "bob", len: 9_000_000 },
];

struct ByName;

impl Authenticator for ByName {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        let user = request.headers.get("user").and_then(|user| user.to_str().ok()).unwrap_or_default();
        let known = Identity::new(user, &[AUTHENTICATED_GROUP]);
        let wrong = BadCredentials::Wrong { reason: "no such user".to_owned() };
        Box::pin(std::future::ready(if user == "wrong" { Err(wrong) } else { Ok(known) }))
    }
}

impl Authorizer for ByName {
    fn authorize<'a>(&'a self, attributes: &'a Attributes) -> BoxFuture<'a, Decision> {
        let denied = attributes.identity.user == "denied";
        Box::pin(std::future::ready(if denied {
            Decision::NoOpinion(String::new())
        } else {
            Decision::Allow
        }))
    }
}

async fn start(bodies_len_max: usize) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let api = ApiServer::builder(Arc::new(store.clone()), Registry::new(tombolo_catalog::kinds()))
        .authenticator(Arc::new(ByName))
        .authorizer(Arc::new(ByName))
        .bodies_len_max(bodies_len_max)
        .writes(Arc::new(LocalWrites::new(Arc::new(store))))
        .build();
    let serving = Serving { tls: None, stop: stop.clone(), grace: std::time::Duration::ZERO };
    tokio::spawn(serve(listener, api, serving));
    (address, stop.drop_guard())
}

impl Case {
    fn url(&self, address: SocketAddr) -> String {
        let name = if self.method == "PATCH" { "/a" } else { "" };
        format!("http://{address}/api/v1/namespaces/default/configmaps{name}")
    }

    fn bodies_len_max(&self) -> usize {
        if self.code == 429 { BODIES_LEN_MAX } else { usize::MAX }
    }
}

/// Runs a program to its end without holding up the server.
async fn output(mut command: Command) -> (bool, String) {
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_sees_every_early_answer() {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES {
        let (address, _stop) = start(case.bodies_len_max()).await;
        let body = folder.path().join(case.code.to_string());
        std::fs::write(&body, vec![b' '; case.len]).unwrap();
        for (protocol, headers) in [
            ("--http2-prior-knowledge", "expect:"),
            ("--http1.1", "expect:"),
            ("--http1.1", "expect: 100-continue"),
        ] {
            for _ in 0..TRIES {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", protocol, "-X", case.method]);
                curl.args(["-H", headers, "-H", &format!("user: {}", case.user)]);
                curl.args(["-H", &format!("content-type: {}", case.media_type)]);
                curl.arg("--data-binary").arg(format!("@{}", body.display())).arg(case.url(address));
                let (ended_well, text) = output(curl).await;
                assert!(
                    ended_well && text == case.code.to_string(),
                    "{} {protocol} {headers}: {text}",
                    case.code
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_sees_every_early_answer() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("refused");
    let mut build = Command::new("go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/refused.go");
    build.arg("build").arg("-o").arg(&program).arg(source);
    let (built, text) = output(build).await;
    assert!(built, "{text}");
    for case in CASES {
        let (address, _stop) = start(case.bodies_len_max()).await;
        for protocol in ["1", "2"] {
            let mut go = Command::new(&program);
            let arguments = [
                case.url(address),
                protocol.into(),
                case.method.into(),
                case.media_type.into(),
                case.user.into(),
            ];
            go.args(arguments).arg(case.len.to_string());
            let (ended_well, text) = output(go).await;
            let expected = vec![case.code.to_string(); TRIES].join(" ");
            assert!(ended_well && text == expected, "{} over HTTP/{protocol}: {text}", case.code);
        }
    }
}
