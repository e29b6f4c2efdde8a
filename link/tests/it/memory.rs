//! The in-memory pair treats packages as its script says, at the scripted times.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tombolo_link::mem::{self, Crossing, Faults, Way};
use tombolo_link::{Link, LinkError};
use tombolo_proto::package::Package;
use tombolo_proto::{Frame, Lane, NodeId};

use crate::world::{ending, frame, large};

fn pair() -> (Link, Link, Faults) {
    mem::pair(NodeId::parse("edge-1").unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_lane_has_its_own_delay() {
    let (mut cloud, mut edge, faults) = pair();
    faults.set_delay(Way::Down, Lane::Control, Duration::from_millis(300));
    faults.set_delay(Way::Down, Lane::Bulk, Duration::from_millis(100));
    let begin = Instant::now();
    for (lane, id) in [(Lane::Control, 1), (Lane::Delivery, 2), (Lane::Bulk, 3)] {
        cloud.send(lane, Frame::Ping { id }).unwrap();
    }
    cloud.flush().await.unwrap();
    for (after, id) in [(0, 2), (100, 3), (300, 1)] {
        assert_eq!(frame(&mut edge).await.1, Frame::Ping { id });
        assert_eq!(begin.elapsed().as_millis(), after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_lane_delivers_once_released() {
    let (mut cloud, mut edge, faults) = pair();
    faults.hold(Way::Up, Lane::Control, true);
    edge.send(Lane::Control, Frame::Ping { id: 1 }).unwrap();
    edge.flush().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(1), cloud.next()).await;
    assert!(waiting.is_err());
    faults.hold(Way::Up, Lane::Control, false);
    assert_eq!(frame(&mut cloud).await.1, Frame::Ping { id: 1 });
}

#[tokio::test(start_paused = true)]
async fn back_pressure_reaches_the_sender_and_ends() {
    let (mut cloud, mut edge, faults) = pair();
    faults.set_capacity(Way::Down, Lane::Delivery, 1);
    let mut sent = 0;
    while cloud.can_send(Lane::Delivery) {
        cloud.send(Lane::Delivery, large(sent, 10_000)).unwrap();
        sent += 1;
    }
    let blocked = tokio::time::timeout(Duration::from_secs(1), cloud.flush()).await;
    assert!(blocked.is_err(), "one package fills the lane");
    let sending = crate::world::drive(cloud);
    for id in 0..sent {
        assert_eq!(frame(&mut edge).await.1, large(id, 10_000));
    }
    drop(edge);
    assert!(matches!(sending.await.unwrap(), LinkError::ClosedByPeer));
}

#[tokio::test(start_paused = true)]
async fn cut_is_seen_by_both_ends_and_loses_frames_in_transit() {
    let (mut cloud, mut edge, faults) = pair();
    cloud.send(Lane::Control, Frame::Ping { id: 1 }).unwrap();
    cloud.flush().await.unwrap();
    faults.cut();
    assert!(matches!(ending(&mut edge).await, LinkError::Cut));
    assert!(matches!(ending(&mut cloud).await, LinkError::Cut));
    assert!(matches!(cloud.send(Lane::Control, Frame::Ping { id: 2 }), Err(LinkError::Cut)));
    assert!(!cloud.can_send(Lane::Control));
}

#[tokio::test(start_paused = true)]
async fn a_cut_after_some_packages_may_fall_inside_a_frame() {
    let (mut cloud, mut edge, faults) = pair();
    faults.cut_after(Way::Down, 3);
    cloud.send(Lane::Control, Frame::Ping { id: 1 }).unwrap();
    cloud.send(Lane::Bulk, large(1, 100_000)).unwrap();
    cloud.flush().await.unwrap();
    assert_eq!(frame(&mut edge).await.1, Frame::Ping { id: 1 });
    assert!(matches!(ending(&mut edge).await, LinkError::Cut));
}

#[tokio::test(start_paused = true)]
async fn a_closed_link_delivers_its_last_frames() {
    let (mut cloud, mut edge, faults) = pair();
    faults.set_delay(Way::Down, Lane::Control, Duration::from_secs(2));
    cloud.send(Lane::Control, Frame::Ping { id: 1 }).unwrap();
    cloud.close(Duration::from_secs(1)).await;
    assert_eq!(frame(&mut edge).await.1, Frame::Ping { id: 1 });
    assert!(matches!(ending(&mut edge).await, LinkError::ClosedByPeer));
}

#[tokio::test(start_paused = true)]
async fn a_silent_direction_hides_packages_and_the_end_until_it_speaks_again() {
    let (mut cloud, mut edge, faults) = pair();
    faults.silence(Way::Up, true);
    edge.send(Lane::Control, Frame::Ping { id: 1 }).unwrap();
    edge.flush().await.unwrap();
    cloud.send(Lane::Control, Frame::Ping { id: 2 }).unwrap();
    cloud.flush().await.unwrap();
    assert_eq!(frame(&mut edge).await.1, Frame::Ping { id: 2 }, "the other direction speaks");
    drop(edge);
    let waiting = tokio::time::timeout(Duration::from_secs(1), cloud.next()).await;
    assert!(waiting.is_err());
    faults.silence(Way::Up, false);
    assert_eq!(frame(&mut cloud).await.1, Frame::Ping { id: 1 });
    assert!(matches!(ending(&mut cloud).await, LinkError::ClosedByPeer));
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_packages_when_they_are_sent_and_each_end_once() {
    let (mut cloud, edge, faults) = pair();
    let seen = Arc::<Mutex<Vec<Crossing>>>::default();
    let feed = Arc::clone(&seen);
    faults.observe(move |crossing| feed.lock().unwrap().push(crossing));
    faults.hold(Way::Down, Lane::Bulk, true);
    cloud.send(Lane::Bulk, Frame::Ping { id: 7 }).unwrap();
    cloud.flush().await.unwrap();
    cloud.close(Duration::from_secs(1)).await;
    drop(edge);
    faults.cut();
    faults.cut();
    let seen = seen.lock().unwrap();
    let Crossing::Package(Way::Down, bytes) = &seen[0] else { panic!("{seen:?}") };
    assert_eq!(Package::parse(bytes).unwrap().lane, Lane::Bulk);
    assert_eq!(seen[1..], [Crossing::Finished(Way::Down), Crossing::Finished(Way::Up), Crossing::Cut]);
}
