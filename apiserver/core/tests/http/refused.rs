//! Clients that are still sending when they are refused see the refusal: curl and Go, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
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

const HTTP2: &str = "--http2-prior-knowledge";

/// What curl 7.88 may print after the status. When it has received the head of a refusal, it ends its body, which is
/// then shorter than its `Content-Length`. A server resets such a stream (RFC 9113, section 8.1.1). curl takes this for
/// a failure if the head came alone.
const CUT_SHORT: &str = "curl: (92) HTTP/2 stream 1 was not closed cleanly: PROTOCOL_ERROR (err 1)";

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
        for (protocol, headers) in
            [(HTTP2, "expect:"), ("--http1.1", "expect:"), ("--http1.1", "expect: 100-continue")]
        {
            for _ in 0..TRIES {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", protocol, "-X", case.method]);
                curl.args(["-H", headers, "-H", &format!("user: {}", case.user)]);
                curl.args(["-H", &format!("content-type: {}", case.media_type)]);
                curl.arg("--data-binary").arg(format!("@{}", body.display())).arg(case.url(address));
                // A client whose permission does not arrive in time sends without it.
                curl.args(["--expect100-timeout", "60"]);
                let (ended_well, text) = output(curl).await;
                let code = case.code.to_string();
                let cut_short = protocol == HTTP2 && text == format!("{code}{CUT_SHORT}");
                assert!(ended_well && text == code || cut_short, "{code} {protocol} {headers}: {text}");
            }
        }
    }
}

/// A client that got permission to send is in the middle of its body when it is refused.
#[tokio::test]
async fn body_requested_by_continue_is_read_after_a_refusal() {
    const LEN: usize = 3_000_000;
    let (address, _stop) = start(BODIES_LEN_MAX).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: a\r\nuser: bob\r\n\
         content-type: application/json\r\ncontent-length: {LEN}\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 100 "));
    let (first, rest) = (BODIES_LEN_MAX + 1, LEN - BODIES_LEN_MAX - 1);
    stream.write_all(&vec![b' '; first]).await.unwrap();
    let refusal = answer(&mut stream).await;
    assert!(refusal.starts_with("HTTP/1.1 429 "), "{refusal}");
    stream.write_all(&vec![b' '; rest]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut body = String::new();
    stream.read_to_string(&mut body).await.expect("the connection is not reset");
    assert!(body.contains("TooManyRequests"), "{body}");
}

/// Reads the head of an answer.
async fn answer(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
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
