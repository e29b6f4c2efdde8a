//! Encoding and decoding of a 2 KiB pod message in both dialects: `cargo bench -p tombolo-proto --bench codec`.
//! The sizes on the wire are printed before the times.

#[path = "fixture/pod.rs"]
mod fixture;

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use fixture::{POD_LEN, deliver, message, pod};
use tombolo_proto::ids::Lane;
use tombolo_proto::{codec, kubeedge, package};

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
