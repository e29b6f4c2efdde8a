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

    /// Applies deliveries in one transaction, in order. When this is done, those that were not refused are on disk.
    /// There is one inner result for each delivery.
    ///
    /// # Errors
    /// [`WriteError`] when none of them could be written.
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

    /// Records the start of a session with the cloud's answer to the hello.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written; nothing may be applied then.
    pub(crate) fn welcome(
        self,
        welcome: Welcome,
    ) -> impl Future<Output = Result<(), WriteError>> + Send + use<> {
        let done = self.run(Command::Welcome(welcome));
        async { done.await.map(drop) }
    }

    /// A subscription is complete as of a revision of the cloud.
    ///
    /// # Errors
    /// [`WriteError`] when that could not be written.
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
