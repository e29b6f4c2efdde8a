//! Answers of all kinds, and silent connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use http_body_util::BodyExt as _;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tombolo_proto::NodeId;

use super::*;
use crate::kube::call::Refusal;
use crate::kube::pool::{BUFFER_LEN_MAX, KEEPALIVE_IDLE};
use crate::kube::{ApiCall, CallError, Caller, Kube};

const BODY_LEN: usize = 8 * 1024 * 1024;

/// A server that immediately answers each call with a long body, and appends the requests to `asked`.
async fn server(asked: Arc<Mutex<String>>) -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            while !asked.lock().ends_with("\r\n\r\n") {
                let len = stream.read(&mut head).await.unwrap();
                asked.lock().push_str(std::str::from_utf8(&head[..len]).unwrap());
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_LEN}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b'x'; BODY_LEN]).await.unwrap();
        }
    });
    Config::new(format!("http://{address}/base").parse().unwrap())
}

#[tokio::test]
async fn long_answer_arrives_in_small_pieces() {
    let asked = Arc::default();
    let mut config = server(Arc::clone(&asked)).await;
    config.auth_info = AuthInfo { token: Some("t".to_owned().into()), ..AuthInfo::default() };
    config.headers = vec![(http::HeaderName::from_static("x-more"), http::HeaderValue::from_static("m"))];
    let request = Request::get("/api?x=1").body(Body::empty()).unwrap();
    let mut body = client(config).unwrap().send(request).await.unwrap().into_body();
    let (mut all, mut most) = (0, 0);
    while let Some(frame) = body.frame().await {
        let len = frame.unwrap().into_data().unwrap().len();
        (all, most) = (all + len, most.max(len));
    }
    assert_eq!(all, BODY_LEN);
    // A growing buffer reserves up to twice as much.
    assert!(most <= 2 * BUFFER_LEN_MAX, "{most} bytes at a time");
    let asked = asked.lock().to_lowercase();
    for part in ["get /base/api?x=1 http/1.1\r\n", "authorization: bearer t\r\n", "x-more: m\r\n"] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
    assert!(!asked.contains("accept-encoding"), "{asked}");
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_an_error_without_its_password() {
    let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
    config.proxy_url = Some("http://user:secret@proxy.example:2".parse().unwrap());
    let error = client(config).err().expect("no client").to_string();
    assert!(error.contains("proxy.example") && error.contains("proxy-url"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn a_proxy_that_only_the_environment_names_is_not_used() {
    let proxy = "http://user:secret@proxy.example:2";
    let left = |environment: [&str; 2]| {
        let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
        config.proxy_url = Some(proxy.parse().unwrap());
        without_proxies(config, &environment.map(str::to_owned)).proxy_url
    };
    assert_eq!(left([proxy, ""]), None);
    assert_eq!(left(["", proxy]), None);
    for environment in [["", ""], ["http://other.example:2", "no address"]] {
        assert!(left(environment).is_some(), "{environment:?}");
    }
}

/// Reads the head of a request.
async fn hear(stream: &mut TcpStream) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") && stream.read_buf(&mut asked).await.unwrap() > 0 {}
}

/// A server that answers the first call of each connection with these bytes and closes it.
async fn saying(answer: Vec<u8>) -> Config {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            hear(&mut stream).await;
            // The client may already have closed the connection.
            let _ = stream.write_all(&answer).await;
        }
    });
    Config::new(format!("http://{address}").parse().unwrap())
}

async fn asked(answer: impl Into<Vec<u8>>) -> Result<(u16, String), CallError> {
    let kube = Kube::from_config(saying(answer.into()).await).unwrap();
    let answer = kube.call(Caller::Own, ApiCall::get("/api")).await?;
    Ok((answer.code, String::from_utf8(answer.body.to_vec()).unwrap()))
}

#[tokio::test]
async fn answers_of_all_forms_are_read() {
    for (what, answer, code) in [
        ("HTTP/1.0, whose end is its end", "HTTP/1.0 200 OK\r\n\r\nbody", 200),
        (
            "words before it",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody",
            200,
        ),
        (
            "pieces with a trailer",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\na: b\r\n\r\n",
            200,
        ),
        ("another place", "HTTP/1.1 302 Found\r\nlocation: http://x/\r\ncontent-length: 4\r\n\r\nbody", 302),
    ] {
        assert_eq!(asked(answer).await.expect(what), (code, "body".to_owned()), "{what}");
    }
}

#[tokio::test]
async fn broken_answers_are_errors_with_a_reason() {
    let head = |len: usize| {
        format!("HTTP/1.1 200 OK\r\nx-long: {}\r\ncontent-length: 4\r\n\r\nbody", "x".repeat(len))
    };
    assert!(asked(head(BUFFER_LEN_MAX - 1024)).await.is_ok());
    for (what, answer, why) in [
        ("a head that is too long", head(BUFFER_LEN_MAX + 1024), "message head is too large"),
        ("no word", String::new(), "connection closed before message completed"),
        (
            "half a head",
            "HTTP/1.1 200 OK\r\ncontent-".to_owned(),
            "connection closed before message completed",
        ),
        (
            "half a body",
            "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nbody".to_owned(),
            "end of file before message length reached",
        ),
        (
            "half a piece",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nbody".to_owned(),
            "end of file before message length reached",
        ),
        ("no HTTP", "hello\r\n\r\n".to_owned(), "invalid HTTP version parsed"),
    ] {
        let error = asked(answer).await.expect_err(what).to_string();
        assert!(error.contains(why), "{what}: {error}");
    }
    let mut nobody = saying(Vec::new()).await;
    nobody.cluster_url = "http://127.0.0.1:1".parse().unwrap();
    let error = Kube::from_config(nobody).unwrap().call(Caller::Own, ApiCall::get("/api")).await;
    let error = error.expect_err("nobody listens").to_string();
    assert!(error.contains("Connection refused"), "{error}");
}

/// The kernel's connection list shows which timer a connection has, and when it expires, in hundredths of a second.
fn timer(port: u16) -> Option<(String, Duration)> {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let peer = format!(":{port:04X}");
    let mut ours = connections.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = ours.find(|fields| fields[2].ends_with(&peer) && fields[3] == "01")?;
    let (timer, when) = ours[5].split_once(':')?;
    Some((timer.to_owned(), Duration::from_millis(10 * u64::from_str_radix(when, 16).ok()?)))
}

#[tokio::test]
async fn silent_connection_is_probed() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let request = Request::get("/api").body(Body::empty()).unwrap();
    let client = client(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        hear(&mut stream).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    // A watch without events.
    let (_stream, _watch) = tokio::join!(serving, async { client.send(request).await.unwrap() });
    const KEEPALIVE: &str = "02";
    let set = async {
        loop {
            match timer(address.port()) {
                Some((timer, when)) if timer == KEEPALIVE => return when,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let when = tokio::time::timeout(Duration::from_secs(10), set).await.expect("it is asked");
    assert!(when <= KEEPALIVE_IDLE, "after {when:?}");
}

/// A server that gives every call this answer, and counts the calls.
async fn refusing(answer: String) -> (Kube, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut head, mut part) = (Vec::new(), [0; 4096]);
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                let len = stream.read(&mut part).await.unwrap();
                head.extend_from_slice(&part[..len]);
            }
            counted.fetch_add(1, Ordering::SeqCst);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (Kube::from_config(config).unwrap(), calls)
}

/// A repeated deletion whose answer was lost could delete a replacement of the object, and an eviction that a
/// disruption budget refuses would be refused again.
#[tokio::test]
async fn calls_are_never_repeated_and_a_refusal_says_when_to_retry() {
    let node = NodeId::parse("n").unwrap();
    let budget = r#"{"kind":"Status","message":"no","details":{"causes":[{"reason":"DisruptionBudget"}],"retryAfterSeconds":3}}"#;
    let pod = "/api/v1/namespaces/d/pods/p";
    let eviction = ApiCall::json(Method::POST, format!("{pod}/eviction"), &json!({}));
    let delete = ApiCall { method: Method::DELETE, ..ApiCall::get(pod) };
    let create = ApiCall::json(Method::POST, "/api/v1/namespaces/d/pods", &json!({}));
    for (code, body, call) in [
        (429, budget, &eviction),
        (429, "too many", &eviction),
        (503, "", &create),
        (504, "", &delete),
        (503, "", &ApiCall::get(pod)),
    ] {
        let length = body.len();
        let head =
            format!("HTTP/1.1 {code} x\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {length}");
        let (kube, calls) = refusing(format!("{head}\r\n\r\n{body}")).await;
        for caller in [Caller::Node(&node), Caller::Token(&node, "t")] {
            let before = calls.swap(0, Ordering::SeqCst);
            let answer = kube.call(caller, call.clone()).await.unwrap();
            assert_eq!((answer.code, calls.load(Ordering::SeqCst)), (code, 1), "{call:?}, before: {before}");
            if body == budget {
                assert_eq!(answer.body, budget, "as configured");
            } else if code == 429 {
                let Refusal { message, details, .. } = answer.refusal();
                let seconds = details.map(|details| details.retry_after_seconds);
                assert_eq!((message.as_deref(), seconds), (Some("too many"), Some(1)));
            }
        }
    }
}
