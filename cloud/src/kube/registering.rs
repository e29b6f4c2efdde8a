//! The call that creates a node's Node, and what has to be done around it.

use tombolo_proto::NodeId;

use super::call::class_of;
use super::gate::{Class, Place, Turn};
use super::{Answer, ApiCall, CallError, Caller, Kube, Room};

/// The one registration of a node that may be under way, with a place among those of all nodes.
pub(crate) struct Registering<'a> {
    kube: &'a Kube,
    node: &'a NodeId,
    _place: Place<'a>,
    _turn: Option<Turn>,
}

impl Kube {
    /// Waits for a place to register a node in, by this call. Whoever has it may do what belongs to a registration before the
    /// call and after it.
    ///
    /// # Errors
    /// [`CallError::Registering`] when another registration of this node has a place or waits for one; else what is wrong with
    /// the call.
    pub(crate) async fn register_as<'a>(
        &'a self,
        node: &'a NodeId,
        call: &ApiCall,
    ) -> Result<Registering<'a>, CallError> {
        class_of(call)?;
        let turn = self.gate.turn(Some(node), Class::Register).await?;
        let place = self.gate.enter(Class::Register, true).await;
        Ok(Registering { kube: self, node, _place: place, _turn: turn })
    }
}

impl Registering<'_> {
    /// Makes the call as the node. An answer with an error code is an answer.
    ///
    /// # Errors
    /// As [`Kube::call`].
    pub(crate) async fn call(&self, call: ApiCall) -> Result<Answer, CallError> {
        let (limit, room) = (call.timeout, Room::current());
        let answer = self.kube.attempt(Caller::Node(self.node), None, call, room.as_ref());
        let answer = tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut(limit))??;
        // Only what is asked with GET can be asked for a second time.
        answer.ok_or(CallError::NoRoom)
    }
}
