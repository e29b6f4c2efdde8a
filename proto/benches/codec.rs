//! Encoding and decoding of a 2 KiB pod message in both dialects: `cargo bench -p tombolo-proto --bench codec`.
//! The sizes on the wire are printed before the times.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use tombolo_proto::frame::{Change, Deliver};
use tombolo_proto::ids::{CloudRevision, Lane, ScopeId, Seq, Uid};
use tombolo_proto::inventory::content_hash;
use tombolo_proto::message::{
    Content, Group, Message, MessageId, ObjectPath, Operation, ResourceType, Route, Source,
};
use tombolo_proto::object::{ObjectKey, ObjectVersion, Resource, SharedObject};
use tombolo_proto::{Frame, codec, kubeedge, package};

const POD_LEN: usize = 2048;

/// A pod of exactly [`POD_LEN`] bytes with a container list like those of real manifests.
fn pod() -> Bytes {
    let head = concat!(
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"default","#,
        r#""uid":"7c9e6679-7425-40de-944b-e07fc1f90ae7"},"spec":{"nodeName":"edge1","containers":["#,
    );
    let container = r#"{"name":"c","image":"registry.example/web:1.2.3","env":[{"name":"MODE","value":"edge"}],"resources":{"limits":{"cpu":"100m","memory":"64Mi"}}}"#;
    let mut text = format!("{head}{container}");
    while text.len() + container.len() + 40 < POD_LEN {
        text = format!("{text},{container}");
    }
    let tail = r#"],"schedulerName":""}}"#;
    let padding = "x".repeat(POD_LEN - text.len() - tail.len());
    format!("{text}],\"schedulerName\":\"{padding}\"}}}}").into()
}

fn deliver(body: &Bytes) -> Frame {
    let key = |resource, name| ObjectKey::new(Resource::new("", "v1", resource), "default", name);
    let version = ObjectVersion {
        uid: Uid::parse("7c9e6679-7425-40de-944b-e07fc1f90ae7").expect("a uid"),
        revision: CloudRevision(4711),
        hash: content_hash(body),
    };
    let dependencies = vec![key("configmaps", "web"), key("secrets", "web-tls")];
    let object = SharedObject::new(key("pods", "web-0"), version, body.clone(), dependencies);
    Frame::Deliver(Deliver { seq: Seq(9), scope: ScopeId::NODE, change: Change::Upsert(Arc::new(object)) })
}

fn message(body: &Bytes) -> Message {
    let resource = ObjectPath::new("default", ResourceType::Pod, "web-0").into();
    let route = Route::new(Source::EdgeController, Group::Resource, Operation::Update, resource);
    let content = Content::from_json(body).expect("JSON");
    let id = MessageId::from_random_bytes([7; 16]);
    Message::new(id, 1_786_000_000_000, route, content).with_resource_version("4711")
}

fn main() {
    let body = pod();
    assert_eq!(body.len(), POD_LEN);
    let (frame, message) = (deliver(&body), message(&body));
    let framed = codec::encode_package(Lane::Delivery, &frame, false).expect("small");
    let payload = package::Package::parse(&framed).expect("own package").payload;
    let document = kubeedge::encode(&message);
    println!("pod {POD_LEN} B; tombolo {} B; kubeedge {} B", framed.len(), document.len());

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(POD_LEN as u64));
    group.bench_function("tombolo/encode", |bench| {
        bench.iter(|| codec::encode_package(Lane::Delivery, black_box(&frame), false));
    });
    group.bench_function("tombolo/decode", |bench| bench.iter(|| codec::decode(black_box(payload.clone()))));
    group.bench_function("kubeedge/encode", |bench| bench.iter(|| kubeedge::encode(black_box(&message))));
    group.bench_function("kubeedge/decode", |bench| bench.iter(|| kubeedge::decode(black_box(&document))));
    group.finish();
    criterion.final_summary();
}
