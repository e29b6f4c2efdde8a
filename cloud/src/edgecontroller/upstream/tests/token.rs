//! Token requests while the Node authorizer lags behind (docs/reference/kubernetes.md#authorizer-lag).

use tokio::time::Instant;
use tombolo_proto::{ObjectKey, Uid};

use super::*;
use crate::kube::resources;

/// Requests the token of a pod's account. The API server answers with these codes in turn, the last one for ever.
/// Returns the reply, the number of calls and the time taken.
async fn ask(codes: &'static [u16], bound: bool) -> (Message, usize, Duration) {
    let asked = Arc::new(AtomicUsize::new(0));
    let (client, log) = scripted(move |_| {
        let code = codes[asked.fetch_add(1, Ordering::SeqCst).min(codes.len() - 1)];
        (code, json!({"kind": "Thing", "metadata": {"name": "x"}, "message": format!("code {code}")}))
    });
    let down = NodeObjectCache::default();
    let uid = Uid::parse("pod-uid").expect("valid");
    if bound {
        down.location.set_pod(&node(), &uid, &ObjectKey::new(resources::pods(), "d", "p"), &[]);
    }
    let content =
        json!({"spec": {"audiences": [], "boundObjectRef": {"kind": "Pod", "name": "p", "uid": "pod-uid"}}});
    let request = message(Operation::Query, path("d", ResourceType::ServiceAccountToken, "a"), &content);
    let begin = Instant::now();
    let (reply, _) =
        Upstream::new(client.into(), Arc::new(down)).answer_message(&node(), request, None).await;
    let calls = log.lock().clone();
    assert!(calls.iter().all(|call| call.user == "system:node:n" && call.body == content), "{calls:?}");
    (reply, calls.len(), begin.elapsed())
}

fn refused(reply: &Message, code: u16) -> bool {
    reply.route.operation == Operation::Error
        && reply.content.as_text().is_some_and(|text| text == format!("code {code}"))
}

#[tokio::test(start_paused = true)]
async fn token_refusal_is_retried_while_the_pod_is_bound_here() {
    for codes in [&[403, 403, 201], &[404, 403, 201]] {
        let (reply, calls, took) = ask(codes, true).await;
        assert_eq!(calls, 3, "{codes:?}");
        assert!((TOKEN_RETRY * 2..TOKEN_PATIENCE).contains(&took), "{codes:?}: {took:?}");
        assert_eq!(reply.content.read::<Value>().expect("the object")["kind"], "Thing", "{codes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lasting_token_refusal_is_reported_after_two_seconds() {
    let (reply, calls, took) = ask(&[403], true).await;
    assert!(refused(&reply, 403), "{reply:?}");
    assert!(calls > 3, "{calls} calls");
    assert!((TOKEN_PATIENCE..TOKEN_PATIENCE + TOKEN_RETRY).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn other_token_refusals_are_reported_at_once() {
    for (codes, bound) in
        [(&[403, 201], false), (&[404, 201], false), (&[422, 201], true), (&[401, 201], true)]
    {
        let (reply, calls, took) = ask(codes, bound).await;
        assert!(refused(&reply, codes[0]), "{codes:?}: {reply:?}");
        assert_eq!((calls, took), (1, Duration::ZERO), "{codes:?}");
    }
}
