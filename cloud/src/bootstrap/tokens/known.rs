//! The join tokens as they were read last. Whoever reaches the join port can show one, so what that costs is bounded whatever is
//! shown: one read serves all who wait for it, and there are [`READ_PAUSE`] between two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;
use tombolo_proto::NodeId;

use super::{Grant, Refused, StoredToken, judge, list, parts, unix_seconds};
use crate::bootstrap::secrets::{SecretError, SecretStore};
use crate::kube::{Common, Got, Wanted};

/// Time between two reads. Who shows a token that was made a moment ago waits for the next one.
const READ_PAUSE: Duration = Duration::from_millis(250);

/// How long what was read lets somebody go on. A use is counted with a read of its own.
const READ_LIFE: Duration = Duration::from_secs(2);

type Read = Result<Arc<BTreeMap<String, StoredToken>>, SecretError>;

/// The tokens that are known.
#[derive(Debug)]
pub(in crate::bootstrap) struct KnownTokens {
    reads: Common<Read>,
    /// When the last read has begun: whoever hangs up in the middle of one brings the next no sooner.
    begun: Mutex<Option<Instant>>,
}

impl Default for KnownTokens {
    fn default() -> Self {
        Self { reads: Common::with_pause(READ_PAUSE), begun: Mutex::default() }
    }
}

impl KnownTokens {
    /// What a token would allow, without using it. It is refused only by what was read after the question.
    pub(in crate::bootstrap) async fn look(
        &self,
        store: &dyn SecretStore,
        bearer: &str,
        node: &NodeId,
        now: SystemTime,
    ) -> Result<Grant, Refused> {
        let (id, secret) = parts(bearer)?;
        let judged = |read: Read| judge(&*read?, id, secret, node, unix_seconds(now));
        match self.read(store, Wanted::Younger(READ_LIFE)).await {
            Got::Own(read) => judged(read),
            Got::Common(read) => match judged(read) {
                Ok(grant) => Ok(grant),
                Err(_) => match self.read(store, Wanted::New).await {
                    Got::Own(read) | Got::Common(read) => judged(read),
                },
            },
        }
    }

    async fn read(&self, store: &dyn SecretStore, wanted: Wanted) -> Got<Read, Read> {
        let ask = || async {
            // Nobody else asks meanwhile.
            let begun = *self.begun.lock();
            if let Some(begun) = begun {
                tokio::time::sleep_until(begun + READ_PAUSE).await;
            }
            *self.begun.lock() = Some(Instant::now());
            list(store).await.map(Arc::new)
        };
        self.reads.ask(wanted, ask, |read| Some(read.clone())).await
    }
}
