//! The cost of a 2 KiB pod message in the codecs of both dialects.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use tombolo_proto::ids::Lane;
use tombolo_proto::{codec, kubeedge, package};

use super::fixture::{deliver, message, pod};
use super::table::Row;

/// Runs of one measurement. The median counts, because other programs use the machine too.
const RUNS: usize = 31;

/// Number of calls in one run.
const CALLS: u32 = 5_000;

/// Sizes on the wire, and the time to encode and to decode.
pub(crate) fn measure() -> Result<Vec<Row>> {
    let body = pod();
    let (frame, message) = (deliver(&body), message(&body));
    let framed = codec::encode_package(Lane::Delivery, &frame, false)?;
    let payload = package::Package::parse(&framed)?.payload;
    let document = kubeedge::encode(&message);
    Ok(vec![
        Row::once("2 KiB pod, dialect tombolo: package", "B", framed.len() as f64),
        Row::once("2 KiB pod, dialect tombolo: encode", "ns", {
            nanos(|| drop(black_box(codec::encode_package(Lane::Delivery, black_box(&frame), false))))
        }),
        Row::once("2 KiB pod, dialect tombolo: decode", "ns", {
            nanos(|| drop(black_box(codec::decode(black_box(payload.clone())))))
        }),
        Row::once("2 KiB pod, dialect kubeedge: document", "B", document.len() as f64),
        Row::once("2 KiB pod, dialect kubeedge: encode", "ns", {
            nanos(|| drop(black_box(kubeedge::encode(black_box(&message)))))
        }),
        Row::once("2 KiB pod, dialect kubeedge: decode", "ns", {
            nanos(|| drop(black_box(kubeedge::decode(black_box(&document)))))
        }),
    ])
}

/// Median time of one call, in nanoseconds.
fn nanos(mut call: impl FnMut()) -> f64 {
    let mut runs: Vec<f64> = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let begin = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        runs.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    runs.sort_unstable_by(f64::total_cmp);
    runs[RUNS / 2]
}
