use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};
use tombolo_link::{DocumentEvent, LinkEvent};
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_proto::session::kubeedge::Outgoing;
use tombolo_proto::{Frame, Lane};

use super::*;
use crate::observation::SeenFrame;

const LATENCY: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

/// A network with one replica, and what was observed on it.
struct World {
    network: Network,
    arrivals: UnboundedReceiver<Arrival>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl World {
    fn new() -> Self {
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let feed = Arc::clone(&seen);
        let network = Network::new(LATENCY, move |what| feed.lock().push(what));
        let arrivals = network.listen(0);
        Self { network, arrivals, seen }
    }

    /// Both ends of a new connection: the cloud's and the edge's.
    async fn connect(&mut self) -> (Link, Link) {
        let edge = self.network.dial("edge-0", &node()).await.unwrap();
        let Ok(Arrival::Tombolo(accepted)) = self.arrivals.try_recv() else { panic!("no connection") };
        (accepted.link, edge)
    }

    /// What was observed, as text.
    fn seen(&self) -> Vec<String> {
        let what = |seen: &Seen| match seen {
            Seen::Connected { connection, replica, .. } => format!("{connection} to {replica}"),
            Seen::Sent { connection, up, lane, frame: SeenFrame::Keepalive, .. } => {
                format!("{connection} {} {lane}", if *up { "up" } else { "down" })
            }
            Seen::Closed { connection, why } => format!("{connection} closed {why}"),
            other => format!("{other:?}"),
        };
        self.seen.lock().iter().map(what).collect()
    }
}

fn node() -> NodeId {
    NodeId::parse("edge-0").unwrap()
}

async fn send(link: &mut Link, lane: Lane, id: u64) {
    link.send(lane, Frame::Ping { id }).unwrap();
    link.flush().await.unwrap();
}

/// The next ping, `None` if none arrives for a second; the end of the link as an error.
async fn ping(link: &mut Link) -> Result<Option<u64>, LinkError> {
    match timeout(SECOND, link.next()).await {
        Ok(LinkEvent::Frame(_, Frame::Ping { id })) => Ok(Some(id)),
        Ok(LinkEvent::Closed(error)) => Err(error),
        Ok(other) => panic!("{other:?}"),
        Err(_) => Ok(None),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_is_observed_when_it_is_sent_and_arrives_after_its_time() {
    let mut world = World::new();
    let (mut cloud, mut edge) = world.connect().await;
    let begin = Instant::now();
    send(&mut edge, Lane::Control, 1).await;
    send(&mut cloud, Lane::Bulk, 2).await;
    assert_eq!(world.seen(), ["1 to 0", "1 up 0", "1 down 2"]);
    assert_eq!(ping(&mut cloud).await.unwrap(), Some(1));
    assert_eq!(begin.elapsed(), LATENCY);
    world.network.delay("edge-0", LinkDirection::Up, 40, true);
    world.network.delay("edge-0", LinkDirection::Both, 20, true);
    let begin = Instant::now();
    send(&mut edge, Lane::Control, 3).await;
    assert_eq!(ping(&mut cloud).await.unwrap(), Some(3));
    assert_eq!(begin.elapsed(), LATENCY + Duration::from_millis(40));
    world.network.delay("edge-0", LinkDirection::Up, 40, false);
    let begin = Instant::now();
    send(&mut edge, Lane::Control, 4).await;
    assert_eq!(ping(&mut cloud).await.unwrap(), Some(4));
    assert_eq!(begin.elapsed(), LATENCY + Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn one_side_of_a_half_open_connection_believes_that_it_lives() {
    let mut world = World::new();
    let (mut cloud, mut edge) = world.connect().await;
    world.network.cut("edge-0", LinkDirection::Up, true);
    world.network.cut("edge-0", LinkDirection::Both, true);
    send(&mut edge, Lane::Control, 1).await;
    drop(edge);
    assert_eq!(ping(&mut cloud).await.unwrap(), None);
    send(&mut cloud, Lane::Control, 2).await;
    world.network.cut("edge-0", LinkDirection::Both, false);
    assert_eq!(ping(&mut cloud).await.unwrap(), None, "the first cut goes on");
    assert_eq!(world.network.living("edge-0"), Vec::<u64>::new());
    world.network.cut("edge-0", LinkDirection::Up, false);
    assert_eq!(ping(&mut cloud).await.unwrap(), Some(1));
    assert!(matches!(ping(&mut cloud).await, Err(LinkError::ClosedByPeer)));
    assert_eq!(world.seen(), ["1 to 0", "1 up 0", "1 closed by the edge", "1 down 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_held_lane_is_overtaken_by_others() {
    let mut world = World::new();
    world.network.hold("edge-0", 1, LinkDirection::Down, true);
    let (mut cloud, mut edge) = world.connect().await;
    send(&mut cloud, Lane::Delivery, 1).await;
    send(&mut cloud, Lane::Bulk, 2).await;
    assert_eq!(ping(&mut edge).await.unwrap(), Some(2));
    assert_eq!(ping(&mut edge).await.unwrap(), None);
    world.network.hold("edge-0", 1, LinkDirection::Down, false);
    assert_eq!(ping(&mut edge).await.unwrap(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_node_may_have_two_connections_and_a_reset_breaks_both() {
    let mut world = World::new();
    let mut first = world.connect().await;
    let mut second = world.connect().await;
    send(&mut first.1, Lane::Control, 1).await;
    assert_eq!(ping(&mut first.0).await.unwrap(), Some(1));
    assert_eq!(world.network.living("edge-0"), [1, 2]);
    world.network.reset("edge-1");
    world.network.reset("edge-0");
    for link in [&mut first.0, &mut first.1, &mut second.0, &mut second.1] {
        assert!(matches!(ping(link).await, Err(LinkError::Cut)));
    }
    assert_eq!(world.network.living("edge-0"), Vec::<u64>::new());
    assert_eq!(world.seen()[3..], ["1 closed broken", "2 closed broken"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_that_a_machine_lost_power_until_it_is_back() {
    let mut world = World::new();
    let (mut cloud, edge) = world.connect().await;
    world.network.power_lost("edge-0");
    drop(edge);
    assert_eq!(ping(&mut cloud).await.unwrap(), None);
    world.network.power_back("edge-0");
    assert!(matches!(ping(&mut cloud).await, Err(LinkError::Cut)));
    world.connect().await;
}

#[tokio::test(start_paused = true)]
async fn connections_lead_to_the_next_replica_that_runs() {
    let mut world = World::new();
    let mut third = world.network.listen(2);
    world.network.lead("edge-0", 1);
    let _link = world.network.dial("edge-0", &node()).await.unwrap();
    assert!(third.try_recv().is_ok());
    drop(third);
    world.connect().await;
    let made = world.seen().into_iter().filter(|line| line.contains(" to ")).collect::<Vec<_>>();
    assert_eq!(made, ["1 to 2", "2 to 0"]);
    drop(world.arrivals);
    let refused = world.network.dial("edge-0", &node()).await.unwrap_err();
    assert!(matches!(&refused, LinkError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused));
}

#[tokio::test(start_paused = true)]
async fn a_cable_that_carries_nothing_one_way_makes_no_connection() {
    let world = World::new();
    world.network.cut("edge-0", LinkDirection::Down, true);
    let begin = Instant::now();
    let late = world.network.dial("edge-0", &node()).await.unwrap_err();
    assert!(matches!(&late, LinkError::Io(error) if error.kind() == io::ErrorKind::TimedOut));
    assert_eq!(begin.elapsed(), STEP_TIMEOUT);
    let network = world.network.clone();
    let dialing = tokio::spawn(async move { network.dial("edge-0", &node()).await });
    tokio::time::sleep(SECOND).await;
    world.network.cut("edge-0", LinkDirection::Down, false);
    assert!(dialing.await.unwrap().is_ok());
}

fn document(number: u64) -> Outgoing {
    let id = MessageId::parse(&format!("m{number}")).unwrap();
    let (source, path) = (Source::EdgeController, ResourcePath::CaCertificate);
    let route = Route::new(source, Group::Resource, Operation::Query, path);
    Outgoing::message(number, &Message::new(id, 1, route, Content::text("x")))
}

/// What an end of a connection of documents sees for a second.
async fn documents(link: &mut DocumentLink) -> Vec<String> {
    let mut seen = Vec::new();
    while let Ok(event) = timeout(SECOND, link.next()).await {
        match event {
            DocumentEvent::Document(document) => seen.push(String::from_utf8_lossy(&document).into_owned()),
            DocumentEvent::Closed(_) => {
                seen.push("end".to_owned());
                break;
            }
            DocumentEvent::Heard | DocumentEvent::Transmitted(_) => {}
        }
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn a_cable_carries_documents_too() {
    let mut world = World::new();
    let mut edge = world.network.dial_documents("edge-0", &node()).await.unwrap();
    let Ok(Arrival::KubeEdge(AcceptedKubeEdge { link: mut cloud, .. })) = world.arrivals.try_recv() else {
        panic!("no connection")
    };
    edge.send(document(1)).unwrap();
    assert!(documents(&mut edge).await.is_empty());
    assert!(documents(&mut cloud).await[0].contains("m1"));
    world.network.cut("edge-0", LinkDirection::Down, true);
    cloud.send(document(2)).unwrap();
    assert!(documents(&mut cloud).await.is_empty());
    drop(cloud);
    assert!(documents(&mut edge).await.is_empty(), "neither the document nor the end");
    world.network.cut("edge-0", LinkDirection::Down, false);
    let seen = documents(&mut edge).await;
    assert!(seen[0].contains("m2") && seen[1] == "end", "{seen:?}");
    let mut edge = world.network.dial_documents("edge-0", &node()).await.unwrap();
    assert_eq!(world.network.living("edge-0"), [2]);
    world.network.reset("edge-0");
    assert_eq!(documents(&mut edge).await, ["end"]);
    let seen = world.seen();
    assert!(seen[1].contains("up: true") && seen[2].contains("up: false"), "{seen:?}");
    assert_eq!([&seen[3], &seen[4]], ["1 closed by the replica", "2 to 0"]);
}
