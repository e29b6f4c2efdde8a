//! Senders cannot exhaust what others need: connections, requests, bodies and answers of a server that divides its
//! limits.

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tombolo_testkit::wait_for;

use super::*;
use crate::api::Activity;
use crate::api::dispatch::BODY_STALL_MAX;
use crate::auth::{AUTHENTICATED_GROUP, Authenticator, BadCredentials, Identity};
use crate::senders::SENDER_SHARE;

const DEADLINE: Duration = Duration::from_secs(30);

/// Authenticates any client that gives a name.
pub(super) struct Named;

impl Authenticator for Named {
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
        _: &'a Peer,
    ) -> BoxFuture<'a, Result<Identity, BadCredentials>> {
        let name = request.headers.get("user").and_then(|name| name.to_str().ok());
        let identity = match name {
            None => Identity::anonymous(),
            Some("nobody") => {
                let wrong = BadCredentials::Wrong { reason: "nobody is called so".to_owned() };
                return Box::pin(std::future::ready(Err(wrong)));
            }
            Some("admin") => Identity::new("admin", &["system:masters", AUTHENTICATED_GROUP]),
            Some(name) => Identity::new(name, &[AUTHENTICATED_GROUP]),
        };
        Box::pin(std::future::ready(Ok(identity)))
    }
}

pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) activity: Box<dyn Fn() -> Activity + Send + Sync>,
    _stop: DropGuard,
}

pub(super) async fn shared(max: usize) -> Shared {
    shared_behind(max, None).await
}

pub(super) async fn shared_behind(max: usize, tls: Option<Arc<rustls::ServerConfig>>) -> Shared {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    put(&store).await;
    let api = ApiServer::builder(Arc::new(store.clone()), Registry::new(Kinds::builtin()))
        .connections_max(max)
        .answers_len_max(4 * ANSWERS_LEN)
        .authenticator(Arc::new(Named))
        .writes(Arc::new(crate::write::LocalWrites::new(Arc::new(store))))
        .shared_out();
    let activity = Box::new(api.activity());
    let serving = Serving { tls, stop: stop.clone(), grace: Duration::ZERO };
    tokio::spawn(serve(listener, api.build(), serving));
    Shared { address, activity, _stop: stop.drop_guard() }
}

/// Sends a request over an HTTP/1.1 connection, which stays open.
async fn ask(address: SocketAddr, user: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let code = ask_on(&mut stream, user).await;
    (code, stream)
}

pub(super) async fn ask_on(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), user: &str) -> String {
    let head = format!("GET /version HTTP/1.1\r\nhost: a\r\nuser: {user}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let len = timeout(DEADLINE, stream.read(&mut answer)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer[..len]).get(9..12).unwrap_or("closed").to_owned()
}

#[tokio::test]
async fn silent_connections_make_room_for_authenticated_ones() {
    let server = shared(16 * 1024).await;
    let (code, mut known) = ask(server.address, "bob").await;
    assert_eq!(code, "200");
    let mut silent = Vec::new();
    for _ in 0..UNPROVEN_PER_SOURCE_MAX + 44 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    wait_for("the oldest to be ended", DEADLINE, || async {
        let now = (server.activity)();
        let ok = now.unproven <= UNPROVEN_PER_SOURCE_MAX && now.ended >= 44;
        ok.then_some(()).ok_or_else(|| format!("{now:?}"))
    })
    .await;
    assert_eq!(timeout(DEADLINE, silent[0].read(&mut [0])).await.expect("an end").unwrap_or(0), 0);
    assert_eq!(ask(server.address, "eve").await.0, "200", "from the same address");
    assert_eq!(ask_on(&mut known, "bob").await, "200", "a proven connection is not ended");
}

#[tokio::test]
async fn one_sender_gets_a_share_of_connections_and_newcomers_find_a_slot() {
    let server = shared(64).await;
    // A quarter of 64 slots is for new connections, and a quarter of the rest for each sender.
    let mut held = Vec::new();
    for _ in 0..48 / SENDER_SHARE {
        let (code, stream) = ask(server.address, "eve").await;
        assert_eq!(code, "200");
        held.push(stream);
    }
    assert_eq!(ask(server.address, "eve").await.0, "429");
    assert_eq!(ask(server.address, "bob").await.0, "200");
    for user in ["a", "b", "c", "d"] {
        for _ in 0..48 / SENDER_SHARE {
            held.push(ask(server.address, user).await.1);
        }
    }
    assert_eq!(ask(server.address, "mallory").await.0, "429", "the rest is reserved");
    assert_eq!(ask(server.address, "admin").await.0, "200");
    // One of Eve's connections stays open: she is still known, with what she has released.
    held.truncate(1);
    wait_for("the places to be given back", DEADLINE, || async {
        let code = ask(server.address, "eve").await.0;
        (code == "200").then_some(()).ok_or(code)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unread_answers_of_one_sender_hold_no_request_slots() {
    let server = shared(64).await;
    let get = async |sender: &mut http2::SendRequest<Empty<Bytes>>, user: &str| {
        let request = Request::get(format!("http://{}{ONE}", server.address)).header("user", user);
        sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap()
    };
    let (mut sender, _connection) = windowed(server.address, 0).await;
    let mut unread = Vec::new();
    for expected in [200, 200, 429] {
        let answer = get(&mut sender, "eve").await;
        assert_eq!(answer.status(), expected, "{} are unread", unread.len());
        unread.push(answer);
    }
    let now = (server.activity)();
    assert_eq!(now.requests, 0, "an unread answer occupies no request slot");
    assert!(now.answers_len > 2 * OBJECT_LEN, "{now:?}");
    let (mut sender, _connection) = windowed(server.address, 64 * 1024).await;
    let answer = get(&mut sender, "bob").await;
    assert_eq!(answer.status(), 200);
    assert!(answer.into_body().collect().await.unwrap().to_bytes().len() > OBJECT_LEN);
}

#[tokio::test(start_paused = true)]
async fn stalled_request_body_is_abandoned() {
    let server = shared(16).await;
    let mut stream = connected(server.address).await;
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: a\r\nuser: eve\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let began = Instant::now();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(4 * BODY_STALL_MAX, stream.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(&answer[9..], b"408");
    assert!(began.elapsed() <= BODY_STALL_MAX + MARGIN, "{:?}", began.elapsed());
}
