//! Sends the reports in the outbox, oldest first, and retries until the cloud has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::time::Instant;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_runtime::time::sleep_until;
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{debug, warn};

use super::{CALL_TIMEOUT, Upstream, is_temporary};
use crate::hub::CallError;
use crate::paths;
use crate::store::{Learned, ReportKind, Waiting};

/// Maximum number of reports in flight.
const IN_FLIGHT_MAX: usize = 8;

/// Number of reports read from the store at once.
const ROUND_MAX: usize = 64;

/// Delays before a report is sent again.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(60), factor: 2.0 };

/// Delays before a report that the cloud refused is sent again. They are longer, because people grant rights.
const REFUSED_RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(15 * 60), factor: 2.0 };

/// How long the cloud may refuse a report, as seen by this process, before the report is dropped. Rights may arrive
/// late: an authorizer may learn of a pod after its node does, and an operator of a missing role after a weekend. This
/// is measured in elapsed time, because the clock of a device may jump.
const REFUSED_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The consequence of an answer for a report.
#[derive(Debug, PartialEq, Eq)]
enum ReportOutcome {
    /// Done, or obsolete.
    Settled,
    /// Permanently refused.
    Dropped,
    /// Try again.
    Again,
    /// Try again for up to [`REFUSED_MAX`].
    Refused,
    /// Another client has written: try again if the object still has the UID of the report.
    Overtaken,
}

/// A report that failed.
struct FailedReport {
    backoff: Backoff,
    /// Earliest time of the next attempt.
    due: Instant,
    /// When the cloud began to refuse it; `None` if the last failure was no refusal.
    refused_since: Option<Instant>,
}

/// Failed reports, by number.
#[derive(Default)]
struct Failures(HashMap<u64, FailedReport>);

pub(super) async fn run(upstream: Arc<Upstream>) {
    let mut rng = StdRng::seed_from_u64(upstream.seed);
    let mut failures = Failures::default();
    let mut state = upstream.hub.state();
    let mut waiting = upstream.store.reports_changed();
    loop {
        // An error means that the agent stops.
        if state.wait_for(crate::hub::HubState::online).await.is_err() {
            return;
        }
        waiting.borrow_and_update();
        let due = round(&upstream, &mut failures, &mut rng).await;
        tokio::select! {
            changed = waiting.changed() => if changed.is_err() { return },
            changed = state.changed() => if changed.is_err() { return },
            () = sleep_until(due) => {}
        }
    }
}

/// Sends every report that is due. Returns when the next one is due.
async fn round(upstream: &Upstream, failures: &mut Failures, rng: &mut StdRng) -> Option<Instant> {
    let mut after = 0;
    let mut seen = Vec::new();
    loop {
        let waiting = match upstream.store.reports(after, ROUND_MAX) {
            Ok(waiting) => waiting,
            Err(error) => {
                warn!(%error, "the outbox cannot be read");
                return Some(Instant::now() + RETRY.max);
            }
        };
        let Some(last) = waiting.last() else { break };
        after = last.number;
        seen.extend(waiting.iter().map(|report| report.number));
        let due: Vec<Waiting> = waiting.into_iter().filter(|report| failures.is_due(report.number)).collect();
        let mut answers =
            stream::iter(due).map(|report| send(upstream, report)).buffer_unordered(IN_FLIGHT_MAX);
        while let Some((report, answer)) = answers.next().await {
            if matches!(answer, Err(CallError::Offline)) {
                return None;
            }
            conclude(upstream, failures, rng, report, answer).await;
        }
    }
    failures.forget_others(&seen);
    failures.next()
}

async fn send(upstream: &Upstream, report: Waiting) -> (Waiting, Result<ApiReply, CallError>) {
    let call = ApiRequest {
        content_type: report.call.content_type.clone(),
        body: report.call.body.clone().into(),
        ..ApiRequest::new(&report.call.method, report.call.path_and_query.clone())
    };
    let answer = upstream.hub.api(call, CALL_TIMEOUT, None).await;
    (report, answer)
}

async fn conclude(
    upstream: &Upstream,
    failures: &mut Failures,
    rng: &mut StdRng,
    report: Waiting,
    answer: Result<ApiReply, CallError>,
) {
    if matches!(&answer, Ok(reply) if reply.code == 404) && report.key == upstream.node_key() {
        upstream.node_gone.notify_one();
    }
    let outcome = match &answer {
        Ok(reply) => outcome(&report.call.method, reply.code),
        Err(_) => ReportOutcome::Again,
    };
    let outcome = match outcome {
        ReportOutcome::Overtaken => overtaken(upstream, &report).await,
        ReportOutcome::Refused if failures.is_given_up(report.number) => ReportOutcome::Dropped,
        other => other,
    };
    let text = match &answer {
        Ok(reply) => format!("{}: {}", reply.code, String::from_utf8_lossy(&reply.body)),
        Err(error) => error.to_string(),
    };
    let text: String = text.chars().take(300).collect();
    match outcome {
        ReportOutcome::Again | ReportOutcome::Refused | ReportOutcome::Overtaken => {
            debug!(key = %report.key, answer = %text, "a report will be sent again later");
            failures.failed(report.number, outcome == ReportOutcome::Refused, rng);
            return;
        }
        ReportOutcome::Dropped => {
            warn!(key = %report.key, answer = %text, "the cloud permanently refuses a report; it is dropped");
            upstream.metrics.reports_dropped.inc();
        }
        ReportOutcome::Settled => {
            upstream.metrics.reports_settled.inc();
        }
    }
    let learned = answer.ok().filter(|reply| reply.code / 100 == 2 && report.kind != ReportKind::Removal);
    let keep = report.kind.keeps_answer();
    let learned = learned.map(|reply| Learned { key: report.key.clone(), body: reply.body, keep });
    if let Err(error) = upstream.store.settle(report.number, learned).await {
        warn!(%error, "cannot remove an answered report from the outbox; it will be sent again");
        failures.failed(report.number, false, rng);
    }
}

/// The verdict on a change that conflicted with another one. The report has the changes made here without a
/// resourceVersion, so sending it again applies them to the newest version. It is obsolete only if the object was
/// deleted or recreated.
async fn overtaken(upstream: &Upstream, report: &Waiting) -> ReportOutcome {
    let meant = serde_json::from_str::<Value>(&report.call.body).unwrap_or_default();
    let call = ApiRequest::new("GET", paths::object(&report.key));
    let Ok(reply) = upstream.hub.api(call, CALL_TIMEOUT, None).await else { return ReportOutcome::Again };
    match reply.code {
        404 | 410 => ReportOutcome::Settled,
        200..=299 => {
            let found = serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
            let (meant, found) = (&meant["metadata"]["uid"], &found["metadata"]["uid"]);
            let another = meant.is_string() && found.is_string() && meant != found;
            if another { ReportOutcome::Settled } else { ReportOutcome::Refused }
        }
        code if is_temporary(code) => ReportOutcome::Again,
        _ => ReportOutcome::Refused,
    }
}

fn outcome(method: &str, code: u16) -> ReportOutcome {
    match code {
        // The parent of the object does not exist.
        404 if method == "POST" => ReportOutcome::Dropped,
        409 if method == "PATCH" || method == "PUT" => ReportOutcome::Overtaken,
        // Deleted, recreated with another UID, or created already.
        200..=299 | 404 | 409 | 410 => ReportOutcome::Settled,
        403 => ReportOutcome::Refused,
        code if is_temporary(code) => ReportOutcome::Again,
        _ => ReportOutcome::Dropped,
    }
}

impl Failures {
    fn is_due(&self, number: u64) -> bool {
        self.0.get(&number).is_none_or(|failure| failure.due <= Instant::now())
    }

    /// Whether the cloud has refused a report for too long.
    fn is_given_up(&self, number: u64) -> bool {
        let since = self.0.get(&number).and_then(|failure| failure.refused_since);
        since.is_some_and(|since| since.elapsed() >= REFUSED_MAX)
    }

    fn failed(&mut self, number: u64, refused: bool, rng: &mut StdRng) {
        let now = Instant::now();
        let failure = self.0.entry(number).or_insert_with(|| FailedReport {
            backoff: Backoff::new(if refused { REFUSED_RETRY } else { RETRY }),
            due: now,
            refused_since: None,
        });
        if refused != failure.refused_since.is_some() {
            failure.backoff = Backoff::new(if refused { REFUSED_RETRY } else { RETRY });
            failure.refused_since = refused.then_some(now);
        }
        failure.due = now + failure.backoff.next_delay(rng);
    }

    /// Forgets reports that no longer wait, so that the outbox bounds the map.
    fn forget_others(&mut self, waiting: &[u64]) {
        self.0.retain(|number, _| waiting.binary_search(number).is_ok());
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|failure| failure.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_settle_drop_or_repeat() {
        assert_eq!(outcome("POST", 404), ReportOutcome::Dropped);
        assert_eq!(outcome("POST", 409), ReportOutcome::Settled);
        assert_eq!(outcome("DELETE", 409), ReportOutcome::Settled);
        for (code, expected) in [
            (200, ReportOutcome::Settled),
            (201, ReportOutcome::Settled),
            (404, ReportOutcome::Settled),
            (409, ReportOutcome::Overtaken),
            (403, ReportOutcome::Refused),
            (422, ReportOutcome::Dropped),
            (400, ReportOutcome::Dropped),
            (429, ReportOutcome::Again),
            (503, ReportOutcome::Again),
        ] {
            assert_eq!(outcome("PATCH", code), expected, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_report_is_dropped_only_after_days_of_refusals() {
        let (mut failures, mut rng) = (Failures::default(), StdRng::seed_from_u64(1));
        let mut attempts = 0;
        let began = Instant::now();
        while !failures.is_given_up(1) {
            failures.failed(1, true, &mut rng);
            attempts += 1;
            tokio::time::sleep_until(failures.next().unwrap()).await;
        }
        let day = Duration::from_secs(24 * 3600);
        assert!((REFUSED_MAX..REFUSED_MAX + day).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!((7 * 24 * 4..7 * 24 * 10).contains(&attempts), "{attempts} attempts");
        // An unreachable cloud has not refused anything.
        failures.failed(1, false, &mut rng);
        failures.failed(1, true, &mut rng);
        assert!(!failures.is_given_up(1));
    }
}
