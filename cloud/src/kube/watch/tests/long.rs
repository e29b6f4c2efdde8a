//! Watches with long events.

use bytes::Bytes;
use futures::stream::BoxStream;
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::super::lines::{SHORT_LEN_MAX, TURN_MAX};
use super::*;

/// Bytes that arrive at a time.
const CHUNK: usize = 8 * 1024;

/// Bytes of incomplete lines that were handed out: the present number, and the maximum so far.
type Under = Arc<Mutex<(usize, usize)>>;

/// The response body of one watch.
type Body = BoxStream<'static, Result<Frame<Bytes>, std::convert::Infallible>>;

/// Sends these lines in pieces, one each millisecond, and then nothing more.
fn slowly(lines: &[String], under: &Under) -> Body {
    let all = Bytes::from(lines.join("\n") + "\n");
    let under = Arc::clone(under);
    let pieces = stream::iter((0..all.len()).step_by(CHUNK)).then(move |start| {
        let piece = all.slice(start..all.len().min(start + CHUNK));
        let under = Arc::clone(&under);
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut under = under.lock();
            under.0 += piece.len();
            under.1 = under.1.max(under.0);
            if piece.ends_with(b"\n") {
                under.0 -= (start + piece.len()).min(under.0);
            }
            Ok(Frame::data(piece))
        }
    });
    pieces.chain(stream::pending()).boxed()
}

/// An API server that lists nothing and sends one of these bodies to each watch; remaining bodies are not sent.
fn api(bodies: Vec<Body>) -> Kube {
    let bodies = Arc::new(Mutex::new(std::collections::VecDeque::from(bodies)));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=true");
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": []}).to_string();
        let body = match is_watch {
            true => bodies.lock().pop_front().unwrap_or_else(|| stream::pending().boxed()),
            false => stream::iter([Ok(Frame::data(Bytes::from(list)))]).boxed(),
        };
        async move { Ok::<_, tower::BoxError>(Response::new(StreamBody::new(body))) }
    });
    Client::new(service, "default").into()
}

fn long(number: usize, size: usize) -> String {
    event_of("MODIFIED", &object(number, size))
}

/// Follows until the test ends.
fn follow(kube: &Kube, spec: WatchSpec) -> (mpsc::Receiver<ObjectEvent>, mpsc::UnboundedReceiver<String>) {
    let (out, events) = mpsc::channel(1024);
    let (errors, failures) = mpsc::unbounded_channel();
    let failed = move |error: &WatchError| {
        let _ = errors.send(error.text.clone());
    };
    tokio::spawn(watch(kube.clone(), spec, out, |event| event, failed));
    (events, failures)
}

async fn object_of(events: &mut mpsc::Receiver<ObjectEvent>) -> RawObject {
    loop {
        if let ObjectEvent::Applied(object) = soon(events.recv()).await.expect("an event") {
            return object;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn texts_of_one_large_object_are_in_memory_one_at_a_time() {
    for own in [true, false] {
        let under = Under::default();
        let kube = api((0..48).map(|_| slowly(&[long(1, MIB)], &under)).collect());
        let shared = if own { WatchSpec::all(Resource::new("", "v1", "configmaps")) } else { spec(64 * MIB) };
        let mut watches: Vec<_> = (0..48).map(|_| follow(&kube, shared.clone())).collect();
        for (events, _) in &mut watches {
            assert_eq!(object_of(events).await.value()["data"]["k"].as_str().map(str::len), Some(MIB));
        }
        // Each watch has the beginning of its line, and one piece that it has not read.
        let most = MIB + 48 * (SHORT_LEN_MAX + 2 * CHUNK);
        assert!(under.lock().1 <= most, "{} bytes at a time, cloudcore's own: {own}", under.lock().1);
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_long_event_delays_no_short_one_and_long_ones_only_briefly() {
    let under = Under::default();
    let stalled = slowly(&[long(1, MIB)], &under).take(10).chain(stream::pending()).boxed();
    let bodies = vec![stalled, slowly(&[long(2, MIB)], &under), slowly(&[long(3, 100)], &under)];
    let (kube, spec) = (api(bodies), spec(4 * MIB));
    let begun = Instant::now();
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(follow(&kube, spec.clone()));
        // The first watch gets the permit before the second asks for it.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    object_of(&mut watches[2].0).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    object_of(&mut watches[1].0).await;
    assert_eq!(begun.elapsed().as_secs(), TURN_MAX.as_secs());
    let error = soon(watches[0].1.recv()).await.expect("an error");
    assert!(error.contains("did not arrive") && error.contains("16384 bytes"), "{error}");
}

/// The watch loses nothing else, and the object is not read again and again.
#[tokio::test(start_paused = true)]
async fn too_long_object_is_identified_and_the_watch_continues() {
    let under = Under::default();
    let lines = [long(1, LINE_LEN_MAX), event("MODIFIED", 2, "9")];
    let kube = api(vec![slowly(&lines, &under)]);
    let (mut events, mut failures) = follow(&kube, spec(MIB));
    let first = object_of(&mut events).await;
    assert_eq!(told(&ObjectEvent::Applied(first.clone())), "+1@5");
    let error = first.into_whole().expect_err("it was not read").to_string();
    assert!(error.contains("d/1") && error.contains("3145728 bytes"), "{error}");
    assert_eq!(told(&ObjectEvent::Applied(object_of(&mut events).await)), "+2@9");
    assert!(failures.try_recv().is_err());
}
