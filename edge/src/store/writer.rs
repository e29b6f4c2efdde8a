//! The writer thread, which executes waiting commands in one transaction, commits it, and publishes the result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use redb::Database;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tombolo_proto::ids::{CloudRevision, Epoch, SubscriptionId};
use tombolo_proto::object::ObjectKey;
use tracing::{error, warn};

use super::answers::{CachedReply, Question};
use super::batch::Batch;
use super::batch::offline_writes::{Accepted, OfflineWrite};
use super::error::{ReadError, WriteError, reading, storage};
use super::outbox::Report;
use super::publication::Published;
use super::selection::Selection;
use super::shared::Shared;
use super::view::{CommittedView, Left};
use super::{Delivery, Learned, Refused, Welcome};

/// Maximum number of commands queued for the writer; further senders wait.
pub(super) const QUEUE_MAX: usize = 256;

/// Maximum number of commands in one transaction.
const GROUP_MAX: usize = 64;

/// A command to the writer.
#[derive(Debug)]
pub(super) enum Command {
    Apply(Vec<Delivery>),
    Welcome(Welcome),
    CaughtUp {
        subscription: SubscriptionId,
        epoch: Epoch,
        revision: CloudRevision,
    },
    Report(Report),
    Settle {
        number: u64,
        learned: Option<Learned>,
    },
    Learn(Learned),
    OpenSubscription(Selection),
    ClearSubscription(SubscriptionId),
    DropSubscription(SubscriptionId),
    KeepAnswers(Vec<(Question, CachedReply)>),
    TrustLocally(Option<String>),
    KeepAbsent(ObjectKey),
    Forget(ObjectKey),
    Accept(Box<OfflineWrite>),
    /// Opens the file again after a reader found that the disk failed.
    Reopen,
    Close,
}

/// The result of a committed command.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    Applied(Vec<Result<(), Refused>>),
    Opened(SubscriptionId),
    Learned(Option<Bytes>),
    Accepted(Accepted),
}

/// A command and the channel for its result.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<Done, WriteError>>,
}

/// Owner of the database.
pub(super) struct DatabaseWriter {
    pub(super) db: Option<Database>,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Receiver<Job>,
}

impl DatabaseWriter {
    /// Runs until the store is closed, dropped or failed. A panic makes the whole store fail, not only its thread.
    /// Otherwise the agent would continue without writing anything.
    pub(super) fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv()
            && self.turn(first)
        {}
        self.end();
    }

    /// The same without a thread, for a simulation.
    pub(super) async fn run_in_task(mut self) {
        while let Some(first) = self.jobs.recv().await {
            sleep(self.shared.medium.delay()).await;
            if !self.turn(first) {
                break;
            }
        }
        self.end();
    }

    /// Executes waiting commands. Returns false if the store was closed, or fails.
    fn turn(&mut self, first: Job) -> bool {
        let worked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let closed = self.execute_waiting(first);
            if !closed {
                self.shared.settle();
            }
            !closed
        }));
        worked.unwrap_or_else(|_| {
            self.shared.fail("its writer has panicked");
            false
        })
    }

    fn end(mut self) {
        self.shared.close();
        // The database may panic again when it closes the file.
        let db = self.db.take();
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(db)));
        self.shared.unlock();
    }

    /// Executes all commands that wait. Returns true if the store was closed.
    fn execute_waiting(&mut self, first: Job) -> bool {
        let mut group = vec![first];
        while group.len() < GROUP_MAX
            && let Ok(job) = self.jobs.try_recv()
        {
            group.push(job);
        }
        self.execute(group)
    }

    /// Executes a group. Returns true if the store was closed.
    fn execute(&mut self, group: Vec<Job>) -> bool {
        let closing = group.iter().any(|job| matches!(job.command, Command::Close));
        if group.iter().any(|job| matches!(job.command, Command::Reopen)) {
            self.reopen();
        }
        match self.attempt(&group) {
            Ok(done) => {
                if closing {
                    self.shared.close();
                    self.db = None;
                    self.shared.unlock();
                }
                for (job, done) in group.into_iter().zip(done) {
                    // The caller may have been cancelled.
                    let _ = job.reply.send(Ok(done));
                }
            }
            Err(error) if group.len() == 1 => {
                for job in group {
                    let _ = job.reply.send(Err(error.clone()));
                }
            }
            // One command must not make others fail: each gets a transaction of its own.
            Err(_) => {
                for job in group {
                    let result = self.attempt(std::slice::from_ref(&job)).map(|mut done| done.pop());
                    let _ = job.reply.send(result.map(|done| done.unwrap_or(Done::Nothing)));
                }
            }
        }
        closing
    }

    fn attempt(&mut self, group: &[Job]) -> Result<Vec<Done>, WriteError> {
        if self.db.is_none() {
            self.reopen();
        }
        let db =
            self.db.as_ref().ok_or_else(|| WriteError::Storage("its file cannot be opened".to_owned()))?;
        let Some(base) = self.shared.view() else { return Err(WriteError::Closed) };
        match commit(db, &self.shared, &base, group) {
            Ok((done, published, left)) => {
                self.publish(published, left);
                Ok(done)
            }
            Err(error) => {
                if let WriteError::Damaged(why) = &error {
                    // The check at the next opening finds the damage and salvages what can be read.
                    self.shared.fail(why);
                } else if !matches!(error, WriteError::Rejected(_)) {
                    warn!(%error, "the store could not commit");
                    // After a failed write the database refuses all work until it is opened again.
                    self.reopen();
                }
                Err(error)
            }
        }
    }

    fn publish(&mut self, published: Published, left: Left) {
        let Some(db) = &self.db else { return };
        match CommittedView::after(db, Arc::clone(&self.shared.sealer), left) {
            Ok(view) => self.shared.publish(view, published),
            Err(error) => {
                warn!(%error, "the store could not read what it has committed");
                self.reopen();
            }
        }
    }

    /// Opens the file again and publishes its content to readers. It may include a commit that seemed to fail.
    fn reopen(&mut self) {
        self.db = None;
        drop(self.shared.medium.trouble());
        let opened = self.shared.open_database().map_err(reading).and_then(|db| {
            let view = CommittedView::read(&db, Arc::clone(&self.shared.sealer))?;
            let untold = self.shared.untold(&view)?;
            Ok((db, view, untold))
        });
        match opened {
            Ok((db, view, untold)) => {
                self.shared.publish(view, untold);
                self.db = Some(db);
            }
            // The disk reported no error, so another attempt would not help.
            Err(ReadError::Corrupted(why)) if self.shared.medium.trouble().is_none() => {
                self.shared.fail(&why);
            }
            Err(error) => {
                error!(%error, "cannot reopen the store; the next write will retry");
            }
        }
    }
}

/// Executes commands in one transaction. If one fails, none has any effect.
fn commit(
    db: &Database,
    shared: &Shared,
    base: &CommittedView,
    group: &[Job],
) -> Result<(Vec<Done>, Published, Left), WriteError> {
    for job in group {
        if let Command::TrustLocally(ca) = &job.command {
            shared.trusted.store(ca.clone().map(Arc::new));
        }
    }
    let txn = db.begin_write().map_err(storage)?;
    let mut batch = Batch::open(&txn, shared, base)?;
    let mut done = Vec::with_capacity(group.len());
    for job in group {
        done.push(run(&mut batch, &job.command)?);
    }
    let (published, left) = batch.finish(&txn)?;
    txn.commit().map_err(storage)?;
    Ok((done, published, left))
}

fn run(batch: &mut Batch<'_>, command: &Command) -> Result<Done, WriteError> {
    match command {
        Command::Apply(deliveries) => {
            let outcomes = deliveries.iter().map(|delivery| batch.apply(delivery));
            return Ok(Done::Applied(outcomes.collect::<Result<_, _>>()?));
        }
        Command::Welcome(welcome) => batch.welcome(welcome)?,
        Command::CaughtUp { subscription, epoch, revision } => {
            batch.caught_up(*subscription, epoch, *revision)?;
        }
        Command::Report(report) => batch.report(report)?,
        Command::Settle { number, learned } => batch.settle(*number, learned.as_ref())?,
        Command::Learn(learned) => return Ok(Done::Learned(batch.learn(learned)?)),
        Command::OpenSubscription(selection) => return Ok(Done::Opened(batch.open_subscription(selection)?)),
        Command::ClearSubscription(subscription) => batch.clear_subscription(*subscription)?,
        Command::DropSubscription(subscription) => batch.drop_subscription(*subscription)?,
        // The CA itself is known to this and all later batches.
        Command::TrustLocally(_) => batch.show_again()?,
        Command::KeepAnswers(answers) => batch.keep_answers(answers)?,
        Command::KeepAbsent(key) => batch.keep_absent(key)?,
        Command::Forget(key) => batch.forget(key)?,
        Command::Accept(write) => return Ok(Done::Accepted(batch.accept(write)?)),
        Command::Reopen | Command::Close => {}
    }
    Ok(Done::Nothing)
}
