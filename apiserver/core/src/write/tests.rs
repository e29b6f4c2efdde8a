mod memory;

use serde_json::json;

use super::*;
use crate::auth::{AUTHENTICATED_GROUP, Attributes, Identity};
use crate::backend::PatchType;
use crate::blocking::LARGE;
use crate::history::LogLimits;
use crate::kinds::Kinds;
use crate::memory::MemoryStore;
use crate::query::params::Params;
use crate::senders::{Payer, Senders, Source};

fn request(verb: WriteVerb, payer: &Payer, body: &Value) -> WriteRequest {
    let kinds = Kinds::builtin();
    let kind = kinds.by_kind("", "v1", "ConfigMap").expect("a built-in kind");
    let attributes = Attributes {
        namespace: "shop".into(),
        name: "m".into(),
        payer: payer.clone(),
        ..Attributes::default()
    };
    let media_type = match verb {
        WriteVerb::Patch(patch) => patch.media_type(),
        _ => "application/json",
    };
    WriteRequest {
        attributes,
        kind: Arc::clone(kind),
        verb,
        options: WriteOptions { field_manager: "t".into(), force: true, ..WriteOptions::default() },
        may_create: false,
        body: body.to_string().into(),
        content_type: media_type.into(),
        query: Params::default(),
        path_and_query: String::new(),
        authorization: None,
    }
}

/// The clock is paused: it advances only while every task waits.
#[tokio::test(start_paused = true)]
async fn processing_of_large_writes_queues_behind_its_sender() {
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let writes = LocalWrites::new(Arc::new(store));
    let senders = Senders::default();
    let [eve, bob] = ["eve", "bob"].map(|name| {
        Payer::from(senders.find(&Identity::new(name, &[AUTHENTICATED_GROUP]), Source::of(None)))
    });
    let object = |len: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "x".repeat(len)}});
    let patches = [PatchType::Strategic, PatchType::Merge, PatchType::Apply].map(WriteVerb::Patch);
    let code = async |verb, payer: &Payer, len: usize| {
        let reply = writes.execute(request(verb, payer, &object(len))).await;
        reply.map_or_else(|error| error.code.as_u16(), |reply| reply.status.as_u16())
    };
    {
        let _running = (eve.turn().await, eve.turn().await);
        assert_eq!(code(WriteVerb::Create, &eve, LARGE).await, 429);
        assert_eq!(code(WriteVerb::Create, &eve, 1).await, 201, "small ones do not wait");
        for verb in patches.into_iter().chain([WriteVerb::Update]) {
            assert_eq!(code(verb, &eve, LARGE).await, 429, "{verb:?}");
            assert_eq!(code(verb, &eve, 2).await, 200, "{verb:?}");
        }
        assert_eq!(code(WriteVerb::Update, &bob, LARGE).await, 200);
        assert_eq!(code(patches[1], &eve, 3).await, 429, "a small patch of a large object");
        let copy = json!([{"op": "copy", "from": "/data", "path": "/data"}]);
        let small = request(WriteVerb::Patch(PatchType::Json), &eve, &copy);
        let error = writes.execute(small).await.expect_err("what it makes may be large");
        assert_eq!(error.code, 429);
    }
    assert_eq!(code(patches[1], &eve, LARGE).await, 200, "in its turn");
}
