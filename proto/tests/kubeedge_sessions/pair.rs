//! Both of our ends against each other: our edge with our cloud, which speaks KubeEdge's dialect.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tombolo_proto::frame::{Change, Refusal, RefusalReason, Reply, ReplyBody};
use tombolo_proto::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
use tombolo_proto::session::kubeedge::{CloudConfig, CloudSession, EdgeConfig, EdgeSession, Ledger};
use tombolo_proto::session::{CloudEvent, EdgeEvent, RequestError};
use tombolo_proto::{Lane, Moment, ObjectKey, RequestId, Seq, SubscriptionId};

use super::cluster::{Cluster, epoch, key, node, node_key};

struct Pair {
    now: Moment,
    cluster: Cluster,
    cloud: CloudSession,
    edge: EdgeSession,
    held: BTreeMap<ObjectKey, u64>,
    /// Deliveries that are not stored yet.
    open: Vec<Seq>,
    /// The edge stores nothing.
    slow: bool,
    refusing: bool,
    /// Each document of this direction arrives twice.
    doubled: (bool, bool),
    delivered: u64,
    replies: Vec<(RequestId, Message)>,
    timed_out: Vec<RequestId>,
    asked: Vec<Message>,
    mute: bool,
}

impl Pair {
    fn new(objects: usize) -> Self {
        Self::seeded(objects, [1; 16])
    }

    fn seeded(objects: usize, seed: [u8; 16]) -> Self {
        let mut cluster = Cluster::default();
        cluster.put(&node_key());
        cluster.want(&node_key(), true);
        for number in 0..objects {
            let key = key("configmaps", &format!("c{number}"));
            cluster.put(&key);
            cluster.want(&key, true);
        }
        let now = Moment::default();
        let config = CloudConfig::new(node(), epoch(), 1_700_000_000_000, seed);
        let cloud = CloudSession::new(config, Ledger::default(), now, &cluster);
        let edge = EdgeSession::new(EdgeConfig::new(node(), 1_700_000_000_000, [2; 16]), now);
        Self {
            now,
            cluster,
            cloud,
            edge,
            held: BTreeMap::new(),
            open: Vec::new(),
            slow: false,
            refusing: false,
            doubled: (false, false),
            delivered: 0,
            replies: Vec::new(),
            timed_out: Vec::new(),
            asked: Vec::new(),
            mute: false,
        }
    }

    fn pump(&mut self) {
        loop {
            let now = self.now;
            let mut moved = false;
            if let Some(write) = self.cloud.poll_ledger(now, &self.cluster) {
                self.cloud.ledger_saved(write.number);
            }
            while let Some(document) = self.cloud.poll_transmit(now, &self.cluster) {
                moved = true;
                self.cloud.transmitted(now, document.number);
                for _ in 0..=usize::from(self.doubled.0) {
                    self.edge.handle_document(now, &document.to_bytes()).expect("a good cloud");
                }
            }
            while let Some(document) = self.edge.poll_transmit(now) {
                moved = true;
                for _ in 0..=usize::from(self.doubled.1) {
                    self.cloud.handle_document(now, &document.to_bytes()).expect("a good edge");
                }
            }
            moved |= self.edge_events() | self.cloud_events();
            if !moved {
                return;
            }
        }
    }

    fn edge_events(&mut self) -> bool {
        let mut moved = false;
        while let Some(event) = self.edge.poll_event() {
            moved = true;
            match event {
                EdgeEvent::Deliver { seq, change, .. } => {
                    self.delivered += 1;
                    self.open.push(seq);
                    match change {
                        Change::Upsert(object) => {
                            self.held.insert(object.key.clone(), object.version.revision.0);
                        }
                        Change::Delete { key, .. } => {
                            self.held.remove(&key);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                EdgeEvent::Reply(Reply { id, body: ReplyBody::Message(message) }) => {
                    self.edge.reply_stored(self.now, id);
                    self.replies.push((id, *message));
                }
                EdgeEvent::RequestTimedOut(id) => self.timed_out.push(id),
                EdgeEvent::Closed(goodbye) => panic!("{goodbye:?}"),
                other => panic!("{other:?}"),
            }
        }
        if !self.slow {
            moved |= !self.open.is_empty();
            for seq in std::mem::take(&mut self.open) {
                if self.refusing {
                    let message = "no space left".to_owned();
                    let reason = RefusalReason::StorageFull;
                    self.edge.refused(self.now, &Refusal { lane: Lane::Delivery, seq, reason, message });
                } else {
                    self.edge.committed(self.now, seq);
                }
            }
        }
        moved
    }

    fn cloud_events(&mut self) -> bool {
        let mut moved = false;
        while let Some(event) = self.cloud.poll_event() {
            moved = true;
            let CloudEvent::Request(request) = event else { continue };
            let tombolo_proto::frame::RequestBody::Message(message) = request.body else {
                panic!("no message")
            };
            self.asked.push((*message).clone());
            if !self.mute {
                let json = self.cluster.json(&key("configmaps", "c0")).expect("there");
                let content = Content::from_json(&Bytes::from(json)).expect("JSON");
                let id = MessageId::parse("draft").expect("printable");
                let reply = message.controller_reply(id, 0, message.route.resource.clone(), content);
                self.cloud.reply(Reply { id: request.id, body: ReplyBody::Message(Box::new(reply)) });
            }
        }
        moved
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) =
            [self.cloud.next_timeout(), self.edge.next_timeout()].into_iter().flatten().min()
            && due <= end
        {
            self.now = self.now.max(due);
            self.cloud.handle_timeout(self.now);
            self.edge.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }

    fn query(&mut self, timeout: u64) -> Result<RequestId, RequestError> {
        let resource = ResourcePath::parse_wire("default/configmap/c0").expect("a path");
        let route = Route::new(Source::EdgeController, Group::Meta, Operation::Query, resource);
        let id = MessageId::parse("ignored").expect("printable");
        let asked = self.edge.request(
            self.now,
            Duration::from_secs(timeout),
            Message::new(id, 0, route, Content::null()),
        );
        self.pump();
        asked
    }

    fn truth(&self) -> BTreeMap<ObjectKey, u64> {
        let objects = self.cluster.objects.iter();
        objects.map(|(key, object)| (key.clone(), object.version.revision.0)).collect()
    }
}

/// A thousand writes within the second in which a fleet's acknowledgements were due delayed an update of all nodes by
/// seconds.
#[test]
fn nodes_that_connect_together_do_not_store_their_acknowledgements_together() {
    let mut minutes = [0; 21];
    for number in 0..200_u8 {
        let mut pair = Pair::seeded(3, [number; 16]);
        pair.pump();
        assert!(pair.cloud.final_ledger().is_some(), "acknowledgements are not stored at once");
        let minute = (0..1260).step_by(10).find_map(|second| {
            let now = pair.now + Duration::from_secs(second);
            pair.cloud.heard(now);
            pair.cloud.poll_ledger(now, &pair.cluster).map(|_| second / 60)
        });
        minutes[usize::try_from(minute.expect("stored at last")).expect("small")] += 1;
    }
    assert_eq!(minutes[..10], [0; 10], "writes for acknowledgements alone are rare");
    assert!(minutes[10..].iter().all(|writes| *writes < 50), "{minutes:?}");
}

#[test]
fn objects_are_delivered_updated_and_deleted() {
    let mut pair = Pair::new(40);
    pair.pump();
    assert_eq!(pair.held, pair.truth());
    assert_eq!(pair.delivered, 41);
    let (changed, gone) = (key("configmaps", "c3"), key("configmaps", "c4"));
    for _ in 0..10 {
        pair.cluster.put(&changed);
        pair.cloud.offer(SubscriptionId::NODE, changed.clone(), &pair.cluster);
    }
    pair.cluster.delete(&gone);
    pair.cloud.offer(SubscriptionId::NODE, gone, &pair.cluster);
    pair.pump();
    assert_eq!(pair.held, pair.truth());
    assert_eq!(pair.delivered, 43, "ten changes are one delivery");
    let stats = pair.cloud.stats();
    assert_eq!((stats.acked, stats.in_flight, stats.resent, stats.held), (43, 0, 0, 40));
}

#[test]
fn hours_of_silence_are_survived_by_keepalives_alone() {
    let mut pair = Pair::new(1);
    pair.pump();
    pair.wait(Duration::from_secs(7200));
    assert!(!pair.cloud.is_closed() && !pair.edge.is_closed());
}

#[test]
fn doubled_documents_are_delivered_once() {
    let mut pair = Pair::new(5);
    pair.doubled = (true, true);
    pair.pump();
    assert_eq!((pair.held.clone(), pair.delivered), (pair.truth(), 6));
    pair.query(10).expect("room");
    assert_eq!(pair.replies.len(), 1, "and so are answers");
}

#[test]
fn a_slow_store_gets_resends_and_one_object_at_a_time() {
    let mut pair = Pair::new(30);
    pair.slow = true;
    pair.pump();
    assert_eq!(pair.delivered, 16, "a full window");
    pair.wait(Duration::from_secs(11));
    assert_eq!(pair.delivered, 16, "resends are not counted as deliveries");
    let stats = pair.cloud.stats();
    assert_eq!((stats.resent, stats.window), (32, 1));
    pair.slow = false;
    pair.pump();
    pair.wait(Duration::from_secs(1));
    assert_eq!((pair.held.clone(), pair.delivered), (pair.truth(), 31));
    assert_eq!(pair.cloud.stats().in_flight, 0);
}

#[test]
fn a_refused_object_waits_and_others_pass() {
    let mut pair = Pair::new(3);
    pair.pump();
    pair.refusing = true;
    let (one, two) = (key("configmaps", "c1"), key("configmaps", "c2"));
    pair.cluster.put(&one);
    pair.cloud.offer(SubscriptionId::NODE, one.clone(), &pair.cluster);
    pair.pump();
    assert_eq!(pair.cloud.stats().parked, 1);
    pair.refusing = false;
    pair.cluster.put(&two);
    pair.cloud.offer(SubscriptionId::NODE, two, &pair.cluster);
    pair.pump();
    assert_eq!(pair.delivered, 6);
    pair.cluster.put(&one);
    pair.cloud.offer(SubscriptionId::NODE, one, &pair.cluster);
    pair.pump();
    assert_eq!((pair.delivered, pair.cloud.stats().parked), (7, 0), "a newer version does not wait");
    assert_eq!(pair.held, pair.truth());
}

#[test]
fn equal_queries_are_sent_once_and_late_answers_are_ignored() {
    let mut pair = Pair::new(1);
    pair.mute = true;
    pair.pump();
    let asked = [pair.query(10).expect("room"), pair.query(20).expect("room")];
    assert_eq!(pair.asked.len(), 1);
    assert_eq!(pair.asked[0].route.source, Source::Edged, "an edge never speaks as a module of the cloud");
    pair.wait(Duration::from_secs(15));
    assert_eq!(pair.timed_out, asked[..1]);
    pair.wait(Duration::from_secs(15));
    assert_eq!(pair.timed_out, asked);
    assert!(pair.replies.is_empty());
    pair.wait(Duration::from_secs(60));
    assert!(pair.replies.is_empty(), "the cloud's own refusal after 55 s is too late for this requester");
    pair.mute = false;
    let again = pair.query(10).expect("room");
    assert_eq!(pair.replies.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [again]);
}

#[test]
fn every_request_gets_an_answer() {
    let mut pair = Pair::new(1);
    pair.mute = true;
    pair.pump();
    let id = pair.query(100).expect("room");
    pair.wait(Duration::from_secs(56));
    let (answered, reply) = pair.replies.pop().expect("the cloud gives up before the edge does");
    assert_eq!((answered, reply.route.operation), (id, Operation::Error));
    assert_eq!(pair.held, pair.truth());
}

#[test]
fn excess_requests_are_refused_at_both_ends() {
    let mut pair = Pair::new(1);
    pair.mute = true;
    pair.pump();
    let taken = (0..300).filter(|_| pair.query(10).is_ok()).count();
    assert_eq!(taken, tombolo_proto::limits::REQUESTS_MAX);
    assert!(matches!(pair.query(10), Err(RequestError::Busy)));
    assert_eq!(pair.asked.len(), 1);
}
