//! What the fuzz targets do with their bytes. The stable tests run the same functions for a bounded time.

use bytes::Bytes;
use tombolo_proto::package::{Assembler, Package, Reader};
use tombolo_proto::{codec, kubeedge};

/// KubeEdge's JSON: whatever is understood is written and understood alike again.
pub fn kubeedge_json(data: &[u8]) {
    if let Ok(message) = kubeedge::decode(&Bytes::copy_from_slice(data)) {
        let again = kubeedge::decode(&kubeedge::encode(&message)).expect("own output is understood");
        assert_eq!(again, message);
    }
}

/// A payload, a WebSocket message and a byte stream of dialect `tombolo`.
pub fn frame(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    payload(bytes.clone());
    if let Ok(package) = Package::parse(&bytes) {
        payload(package.payload);
    }
    stream(data);
}

fn payload(bytes: Bytes) {
    if let Ok(frame) = codec::decode(bytes) {
        for zstd in [false, true] {
            let again = codec::decode(codec::encode(&frame, zstd)).expect("own output is understood");
            assert_eq!(again, frame);
        }
    }
}

/// The first byte says how the stream falls into reads; the result must not depend on it.
fn stream(data: &[u8]) {
    let Some((chunk, stream)) = data.split_first() else { return };
    let whole = frames(stream, stream.len().max(1));
    let pieces = frames(stream, usize::from(*chunk).max(1));
    assert_eq!(whole, pieces);
    whole.into_iter().for_each(payload);
}

fn frames(stream: &[u8], chunk: usize) -> Vec<Bytes> {
    let (mut reader, mut assembler, mut frames) = (Reader::new(), Assembler::new(), Vec::new());
    for bytes in stream.chunks(chunk) {
        reader.push(bytes);
        loop {
            match reader.pop().map(|package| package.map(|package| assembler.accept(package))) {
                Ok(Some(Ok(frame))) => frames.extend(frame.map(|(_, bytes)| bytes)),
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) => return frames,
            }
        }
    }
    frames
}
