//! The one writer: a thread that puts waiting commands into one transaction, commits, and publishes the result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use redb::Database;
use tokio::sync::{mpsc, oneshot};
use tombolo_proto::ids::{CloudRevision, Epoch, ScopeId};
use tombolo_proto::object::ObjectKey;
use tracing::{error, warn};

use super::answers::{Answer, Question};
use super::batch::{Batch, Published};
use super::error::{ReadError, WriteError, reading, storage};
use super::outbox::Report;
use super::own::{Accepted, OwnWrite};
use super::scope::Selection;
use super::shared::Shared;
use super::view::{Left, View};
use super::{Delivery, Learned, Refused, Welcome};

/// Commands that wait for the writer, at most; senders wait beyond it.
pub(super) const QUEUE_MAX: usize = 256;

/// Commands in one transaction, at most.
const GROUP_MAX: usize = 64;

/// What the writer does.
#[derive(Debug)]
pub(super) enum Command {
    Apply(Vec<Delivery>),
    Welcome(Welcome),
    CaughtUp {
        scope: ScopeId,
        epoch: Epoch,
        revision: CloudRevision,
    },
    Report(Report),
    Settle {
        number: u64,
        learned: Option<Learned>,
    },
    Learn(Learned),
    OpenScope(Selection),
    ClearScope(ScopeId),
    DropScope(ScopeId),
    KeepAnswers(Vec<(Question, Answer)>),
    TrustLocally(Option<String>),
    KeepAbsent(ObjectKey),
    Forget(ObjectKey),
    Accept(Box<OwnWrite>),
    /// Opens the file again: a reader has met a failed disk.
    Reopen,
    Close,
}

/// What a command that was committed has to say.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    Applied(Vec<Result<(), Refused>>),
    Opened(ScopeId),
    Learned(Option<Bytes>),
    Accepted(Accepted),
}

/// A command and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) reply: oneshot::Sender<Result<Done, WriteError>>,
}

/// Owner of the database.
pub(super) struct Writer {
    pub(super) db: Option<Database>,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Receiver<Job>,
}

impl Writer {
    /// Runs until the store is closed, dropped or failed. A panic ends the store, not only its thread: nothing would be written
    /// any more while everything else goes on.
    pub(super) fn run(mut self) {
        let worked = std::panic::catch_unwind(AssertUnwindSafe(|| self.work()));
        if worked.is_err() {
            self.shared.fail("its writer has panicked");
        }
        self.shared.close();
        // What the database's code does with a file on which it has panicked already is of no interest.
        let db = self.db.take();
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(db)));
        self.shared.unlock();
    }

    fn work(&mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let mut group = vec![first];
            while group.len() < GROUP_MAX
                && let Ok(job) = self.jobs.try_recv()
            {
                group.push(job);
            }
            if self.execute(group) {
                break;
            }
            self.shared.settle();
        }
    }

    /// Executes a group; true says that the store was closed.
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
                    // Nobody waits any more where the caller was cancelled.
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
                    // The check at the next opening finds it, and saves what can be read.
                    self.shared.fail(why);
                } else if !matches!(error, WriteError::Rejected(_)) {
                    warn!(%error, "the store could not commit");
                    // After a failed write the database refuses everything until it is opened again.
                    self.reopen();
                }
                Err(error)
            }
        }
    }

    fn publish(&mut self, published: Published, left: Left) {
        let Some(db) = &self.db else { return };
        match View::after(db, Arc::clone(&self.shared.sealer), left) {
            Ok(view) => self.shared.publish(view, published),
            Err(error) => {
                warn!(%error, "the store could not read what it has committed");
                self.reopen();
            }
        }
    }

    /// Opens the file again and shows readers what is in it. A commit that failed may be there all the same.
    fn reopen(&mut self) {
        self.db = None;
        drop(self.shared.medium.trouble());
        let opened = self.shared.open_database().map_err(reading).and_then(|db| {
            let view = View::read(&db, Arc::clone(&self.shared.sealer))?;
            let untold = self.shared.untold(&view)?;
            Ok((db, view, untold))
        });
        match opened {
            Ok((db, view, untold)) => {
                self.shared.publish(view, untold);
                self.db = Some(db);
            }
            // Without a word from the disk it will not be better the next time.
            Err(ReadError::Corrupted(why)) if self.shared.medium.trouble().is_none() => {
                self.shared.fail(&why);
            }
            Err(error) => {
                error!(%error, "the store could not be opened again; it will be tried with the next write");
            }
        }
    }
}

/// Executes commands in one transaction. Nothing is left of it when one fails.
fn commit(
    db: &Database,
    shared: &Shared,
    base: &View,
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
        Command::CaughtUp { scope, epoch, revision } => batch.caught_up(*scope, epoch, *revision)?,
        Command::Report(report) => batch.report(report)?,
        Command::Settle { number, learned } => {
            batch.settle(*number)?;
            if let Some(learned) = learned {
                batch.learn(learned)?;
            }
        }
        Command::Learn(learned) => return Ok(Done::Learned(batch.learn(learned)?)),
        Command::OpenScope(selection) => return Ok(Done::Opened(batch.open_scope(selection)?)),
        Command::ClearScope(scope) => batch.clear_scope(*scope)?,
        Command::DropScope(scope) => batch.drop_scope(*scope)?,
        // Known to the batch, and to all later ones.
        Command::TrustLocally(_) => batch.show_again()?,
        Command::KeepAnswers(answers) => batch.keep_answers(answers)?,
        Command::KeepAbsent(key) => batch.keep_absent(key)?,
        Command::Forget(key) => batch.forget(key)?,
        Command::Accept(write) => return Ok(Done::Accepted(batch.accept(write)?)),
        Command::Reopen | Command::Close => {}
    }
    Ok(Done::Nothing)
}
