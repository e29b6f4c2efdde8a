//! The call that creates a node's Node, and the work that belongs to it.

use tombolo_proto::NodeId;

use super::call::class_of;
use super::call_limits::{CallPermit, Class, Turn};
use super::{Answer, ApiCall, CallError, Caller, Kube, Room};

/// The one running registration of a node, with its slot among the registrations of all nodes.
pub(crate) struct Registering<'a> {
    kube: &'a Kube,
    node: &'a NodeId,
    _permit: CallPermit<'a>,
    _turn: Option<Turn>,
}

impl Kube {
    /// Waits for a slot to register a node with this call. The caller may then do what belongs to the registration
    /// before and after the call.
    ///
    /// # Errors
    /// [`CallError::Registering`] when another registration of this node has a slot or waits for one; otherwise what is
    /// wrong with the call.
    pub(crate) async fn register_as<'a>(
        &'a self,
        node: &'a NodeId,
        call: &ApiCall,
    ) -> Result<Registering<'a>, CallError> {
        class_of(call)?;
        let turn = self.gate.turn(Some(node), Class::Register).await?;
        let permit = self.gate.enter(Class::Register, true).await;
        Ok(Registering { kube: self, node, _permit: permit, _turn: turn })
    }
}

impl Registering<'_> {
    /// Makes the call as the node. An answer with an error code is also an answer.
    ///
    /// # Errors
    /// As [`Kube::call`].
    pub(crate) async fn call(&self, call: ApiCall) -> Result<Answer, CallError> {
        let (limit, room) = (call.timeout, Room::current());
        let answer = self.kube.attempt(Caller::Node(self.node), None, call, room.as_ref());
        let answer = tokio::time::timeout(limit, answer).await.map_err(|_| CallError::TimedOut(limit))??;
        // Only GET requests can be repeated.
        answer.ok_or(CallError::NoRoom)
    }
}
