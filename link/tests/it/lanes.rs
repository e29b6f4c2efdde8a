//! Lanes do not wait for each other, and queues are bounded.

use std::time::Duration;

use futures::poll;
use tombolo_link::{LANE_QUEUE_BYTES, Link, LinkError, LinkEvent, mem};
use tombolo_proto::{Frame, Lane, NodeId};

use crate::world::{BOTH, drive, frame, large, pair, soon};

/// Far more than a transport or a hub accepts from an edge at once.
const BULK: usize = 3 * 1024 * 1024;

/// A control frame that is queued while a bulk frame is being written arrives before that bulk frame.
async fn control_overtakes(mut sender: Link, mut receiver: Link) {
    sender.send(Lane::Bulk, large(1, BULK)).unwrap();
    // Pending means that the transport accepted as much as it could: the bulk frame has begun.
    assert!(poll!(Box::pin(sender.next())).is_pending());
    sender.send(Lane::Control, Frame::Ping { id: 5 }).unwrap();
    let sending = drive(sender);
    assert_eq!(frame(&mut receiver).await, (Lane::Control, Frame::Ping { id: 5 }));
    let (lane, bulk) = frame(&mut receiver).await;
    assert_eq!(lane, Lane::Bulk);
    assert_eq!(bulk, large(1, BULK), "the bulk frame arrives complete");
    drop(receiver);
    soon("the sender's end", sending).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_frame_does_not_delay_control_frames() {
    for choice in BOTH {
        let pair = pair(choice).await;
        control_overtakes(pair.cloud, pair.edge).await;
        let pair = crate::world::pair(choice).await;
        control_overtakes(pair.edge, pair.cloud).await;
    }
    let (cloud, edge, _) = mem::pair(NodeId::parse("edge-1").unwrap());
    control_overtakes(cloud, edge).await;
}

const PIECE: usize = 32 * 1024;

/// Sends until all buffers to a silent peer are full; returns the number of bytes sent.
async fn fill(sender: &mut Link, lane: Lane) -> usize {
    /// Far above all windows and kernel buffers on the path.
    const LIMIT: usize = 64 * 1024 * 1024;
    let mut sent = 0;
    loop {
        while sender.can_send(lane) {
            sender.send(lane, large(1, PIECE)).unwrap();
            sent += PIECE;
        }
        assert!(sent < LIMIT, "{sent} bytes were sent to a peer that never reads");
        match tokio::time::timeout(Duration::from_secs(1), sender.next()).await {
            Ok(LinkEvent::Writable) => {}
            Ok(event) => panic!("unexpected {event:?}"),
            Err(_) => return sent,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_fills_a_bounded_queue() {
    for choice in BOTH {
        let mut pair = pair(choice).await;
        fill(&mut pair.cloud, Lane::Delivery).await;
        let refused = pair.cloud.send(Lane::Delivery, Frame::Ping { id: 1 });
        assert!(matches!(refused, Err(LinkError::LaneFull(Lane::Delivery))), "{refused:?}");
        assert!(pair.cloud.can_send(Lane::Control), "other lanes have their own queues");

        // As soon as the peer reads, there is space again.
        let reading = drive(pair.edge);
        let event = soon("room", pair.cloud.next()).await;
        assert!(matches!(event, LinkEvent::Writable), "{event:?}");
        assert!(pair.cloud.can_send(Lane::Delivery));
        drop(pair.cloud);
        soon("the reader's end", reading).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_quic_a_full_lane_leaves_the_others_free() {
    let mut pair = pair(tombolo_link::client::Choice::Quic).await;
    let alone = fill(&mut pair.cloud, Lane::Bulk).await;
    for lane in [Lane::Delivery, Lane::Control] {
        // A lane behind a full one would only fill its own queue.
        let what = format!("{lane:?} beside {alone} bytes of the bulk lane");
        soon(&what, send_more_than(&mut pair.cloud, lane, 2 * LANE_QUEUE_BYTES)).await;
    }
}

/// Sends more than this number of bytes.
async fn send_more_than(sender: &mut Link, lane: Lane, bytes: usize) {
    let mut sent = 0;
    while sent <= bytes {
        if sender.can_send(lane) {
            sender.send(lane, large(1, PIECE)).unwrap();
            sent += PIECE;
        } else {
            assert!(matches!(sender.next().await, LinkEvent::Writable));
        }
    }
}

#[tokio::test]
async fn a_frame_above_the_limit_is_refused_and_the_link_lives_on() {
    let (mut cloud, mut edge, _) = mem::pair(NodeId::parse("edge-1").unwrap());
    let refused = edge.send(Lane::Bulk, large(1, 33 * 1024 * 1024));
    assert!(matches!(refused, Err(LinkError::Package(_))), "{refused:?}");
    edge.send(Lane::Control, Frame::Ping { id: 2 }).unwrap();
    edge.flush().await.unwrap();
    assert_eq!(frame(&mut cloud).await.1, Frame::Ping { id: 2 });
}
