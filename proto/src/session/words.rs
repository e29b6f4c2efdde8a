//! Names of frames, for error texts.

use crate::frame::Frame;

/// The name of a frame in a sentence.
pub(super) fn name(frame: &Frame) -> &'static str {
    match frame {
        Frame::Hello(_) => "a hello",
        Frame::Welcome(_) => "a welcome",
        Frame::InventoryRequest { .. } => "an inventory request",
        Frame::InventoryPart(_) => "an inventory part",
        Frame::Deliver(_) => "a delivery",
        Frame::Undecodable(_) => "a delivery that cannot be decoded",
        Frame::Ack { .. } => "an acknowledgement",
        Frame::Refuse(_) => "a refusal",
        Frame::CaughtUp { .. } => "a caught-up mark",
        Frame::Request(_) => "a request",
        Frame::Reply(_) => "a reply",
        Frame::Subscribe(_) => "a subscription",
        Frame::Unsubscribe { .. } => "the end of a subscription",
        Frame::SubscriptionClosed { .. } => "the closing of a subscription",
        Frame::LeaseRenew { .. } => "a lease renewal",
        Frame::LeaseRenewed { .. } => "the answer to a lease renewal",
        Frame::Attestation { .. } => "an attestation",
        Frame::Ping { .. } => "a ping",
        Frame::Pong { .. } => "a pong",
        Frame::Goodbye(_) => "a goodbye",
    }
}
