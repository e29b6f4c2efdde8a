//! Reads the join tokens once for all concurrent callers. Any client that reaches the join port can present a token, so
//! the cost is bounded whatever is presented: one read serves all callers that wait for it, and there are
//! [`READ_PAUSE`] between two reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;
use tombolo_proto::NodeId;

use super::{Grant, Refused, StoredToken, judge, list, parts, unix_seconds};
use crate::bootstrap::secrets::{SecretError, SecretStore};
use crate::kube::{Common, Got, Wanted};

/// Time between two reads. A client that presents a token meanwhile waits for the next one.
const READ_PAUSE: Duration = Duration::from_millis(250);

type TokensReadResult = Result<Arc<BTreeMap<String, StoredToken>>, SecretError>;

/// Reads of the tokens.
#[derive(Debug)]
pub(in crate::bootstrap) struct KnownTokens {
    reads: Common<TokensReadResult>,
    /// Start of the last read. A client that hangs up during a read does not make the next one start earlier.
    begun: Mutex<Option<Instant>>,
}

impl Default for KnownTokens {
    fn default() -> Self {
        Self { reads: Common::with_pause(READ_PAUSE), begun: Mutex::default() }
    }
}

impl KnownTokens {
    /// What a token would grant, without using it, according to a read that begins after this call.
    pub(in crate::bootstrap) async fn look(
        &self,
        store: &dyn SecretStore,
        bearer: &str,
        node: &NodeId,
        now: SystemTime,
    ) -> Result<Grant, Refused> {
        let (id, secret) = parts(bearer)?;
        let ask = || async {
            // No other caller reads meanwhile.
            let begun = *self.begun.lock();
            if let Some(begun) = begun {
                tokio::time::sleep_until(begun + READ_PAUSE).await;
            }
            *self.begun.lock() = Some(Instant::now());
            list(store).await.map(Arc::new)
        };
        let keep = |read: &TokensReadResult| Some(read.clone());
        let (Got::Own(read) | Got::Common(read)) = self.reads.ask(Wanted::New, ask, keep).await;
        judge(&*read?, id, secret, node, unix_seconds(now))
    }
}
