//! How the owners of both sessions react to their events.

use tombolo_proto::frame::{
    ApiReply, Goodbye, GoodbyeReason, Refusal, RefusalReason, Reply, ReplyBody, RequestBody,
};
use tombolo_proto::session::{CloudEvent, EdgeEvent};
use tombolo_proto::{Epoch, SubscriptionId};

use super::cloud::AREAS;
use super::edge::Pending;
use super::oracle::Oracle;
use super::world::World;

impl World {
    pub(super) fn drain_cloud_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.connection.as_mut().and_then(|connection| connection.cloud.poll_event())
        {
            any = true;
            if self.keep_events {
                self.cloud_events.push(event.clone());
            }
            self.on_cloud_event(event);
        }
        any
    }

    fn on_cloud_event(&mut self, event: CloudEvent) {
        let Some(connection) = &mut self.connection else { return };
        match event {
            CloudEvent::Subscribe(subscribe) => {
                let area =
                    subscribe.namespace.trim_start_matches("area").parse().expect("made by `subscribe`");
                self.cloud.subscriptions.insert(subscribe.subscription, area);
                self.undecided.push(subscribe.subscription);
                if self.accept_at_once {
                    self.accept_subscriptions();
                }
            }
            CloudEvent::Unsubscribe { subscription } | CloudEvent::Ended { subscription, .. } => {
                self.cloud.subscriptions.remove(&subscription);
            }
            CloudEvent::Acked { subscription, key, version, .. } => {
                // Deliveries for a subscription that the edge no longer follows are acknowledged and dropped.
                if let Some(area) = self.store.subscriptions.get(&subscription) {
                    Oracle::check_acked(&self.store, *area, &key, version.as_ref());
                }
            }
            CloudEvent::Request(request) if !self.mute => {
                let (content_type, body) = ("application/json".to_owned(), request_body(&request.body));
                let body = ReplyBody::Api(ApiReply { code: 201, content_type, body });
                connection.cloud.reply(Reply { id: request.id, body });
            }
            CloudEvent::LeaseRenew { renew_time_micros } => {
                self.oracle.lease(renew_time_micros);
                connection.cloud.lease_renewed(renew_time_micros, 200);
            }
            CloudEvent::Closed(goodbye) => check_goodbye(&goodbye),
            CloudEvent::Ready { .. }
            | CloudEvent::CaughtUp { .. }
            | CloudEvent::Refused { .. }
            | CloudEvent::Request(_)
            | CloudEvent::DeviceReport { .. }
            | CloudEvent::RoundTrip(_) => {}
        }
    }

    pub(super) fn drain_edge_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.connection.as_mut().and_then(|connection| connection.edge.poll_event()) {
            any = true;
            if self.keep_events {
                self.edge_events.push(event.clone());
            }
            self.on_edge_event(event);
        }
        any
    }

    fn on_edge_event(&mut self, event: EdgeEvent) {
        match event {
            EdgeEvent::Welcomed { epoch, resumed, trim_version, .. } => {
                self.on_welcome(&epoch, resumed, trim_version);
            }
            EdgeEvent::Deliver { lane, seq, subscription, change } => {
                // If the subscription was left after the session passed this on, nothing is stored, and only an answer
                // is needed.
                let Some(area) = self.store.subscriptions.get(&subscription).copied() else {
                    let message = "followed no longer".to_owned();
                    let refusal = Refusal { lane, seq, reason: RefusalReason::Other, message };
                    self.connection.as_mut().expect("the event came from a connection").edge.refused(refusal);
                    return;
                };
                Oracle::check_arrival(&self.store, area, &change);
                let due = self.now + self.settings.commit_delay;
                self.store.pending.push_back(Pending { due, lane, seq, area, change });
            }
            EdgeEvent::CaughtUp { subscription, epoch, .. } => self.on_caught_up(subscription, &epoch),
            EdgeEvent::Reply(reply) => {
                self.oracle.coverage.answers += 1;
                self.oracle.answered(reply.id);
            }
            EdgeEvent::RequestTimedOut(id) => {
                self.oracle.coverage.timeouts += 1;
                self.oracle.answered(id);
            }
            EdgeEvent::SubscriptionClosed { subscription, .. } => {
                if let Some(area) = self.store.subscriptions.remove(&subscription) {
                    self.followed[area] = false;
                }
            }
            EdgeEvent::Closed(goodbye) => {
                check_goodbye(&goodbye);
                self.oracle.session_over();
            }
            EdgeEvent::LeaseRenewed { .. } | EdgeEvent::Attested(_) | EdgeEvent::RoundTrip(_) => {}
        }
    }

    fn on_welcome(&mut self, epoch: &Epoch, resumed: bool, trim_version: u32) {
        self.store.welcome(epoch);
        if !resumed {
            for area in &mut self.store.areas {
                area.epoch = area.rows.is_empty().then(|| epoch.clone());
            }
            self.store.trim_version = trim_version;
        }
        for area in 1..AREAS {
            let subscribed = self.store.subscriptions.values().any(|of| *of == area);
            if self.followed[area] && !subscribed {
                self.subscribe(area);
            }
        }
    }

    fn on_caught_up(&mut self, subscription: SubscriptionId, epoch: &Epoch) {
        self.oracle.coverage.caught_up += 1;
        if let Some(area) = self.store.subscriptions.get(&subscription) {
            self.store.areas[*area].epoch = Some(epoch.clone());
            self.store.areas[*area].caught_up = true;
        }
    }
}

fn request_body(body: &RequestBody) -> bytes::Bytes {
    match body {
        RequestBody::Api(request) => request.body.clone(),
        RequestBody::Message(_) => bytes::Bytes::new(),
    }
}

/// Correct sessions end only for these reasons.
fn check_goodbye(goodbye: &Goodbye) {
    assert!(
        matches!(goodbye.reason, GoodbyeReason::Draining | GoodbyeReason::Timeout),
        "a session between two correct ends ended by {goodbye:?}"
    );
}
