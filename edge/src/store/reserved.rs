//! Places in the writer's queue.

use tokio::sync::{mpsc, oneshot};
use tombolo_proto::ids::{CloudRevision, Epoch, SubscriptionId};

use super::writer::{Command, Done, Job};
use super::{Delivery, Refused, Welcome, WriteError};

/// Room for one command in the writer's queue. Each method submits the command before it returns; the future waits for
/// the result.
#[derive(Debug)]
pub(crate) struct Reserved(mpsc::OwnedPermit<Job>);

impl Reserved {
    pub(super) fn new(permit: mpsc::OwnedPermit<Job>) -> Self {
        Self(permit)
    }

    /// See [`Store::apply`](super::Store::apply).
    pub(crate) fn apply(
        self,
        deliveries: Vec<Delivery>,
    ) -> impl Future<Output = Result<Vec<Result<(), Refused>>, WriteError>> + Send + use<> {
        let done = self.run(Command::Apply(deliveries));
        async {
            match done.await? {
                Done::Applied(outcomes) => Ok(outcomes),
                _ => Ok(Vec::new()),
            }
        }
    }

    /// See [`Store::welcome`](super::Store::welcome).
    pub(crate) fn welcome(
        self,
        welcome: Welcome,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
        let done = self.run(Command::Welcome(welcome));
        async { done.await.map(drop) }
    }

    /// See [`Store::caught_up`](super::Store::caught_up).
    pub(crate) fn caught_up(
        self,
        subscription: SubscriptionId,
        epoch: Epoch,
        revision: CloudRevision,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
        let done = self.run(Command::CaughtUp { subscription, epoch, revision });
        async { done.await.map(drop) }
    }

    pub(super) fn run(
        self,
        command: Command,
    ) -> impl Future<Output = Result<Done, WriteError>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Job { command, reply });
        async { answer.await.map_err(|_| WriteError::Closed)? }
    }
}
