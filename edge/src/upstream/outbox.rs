//! Sends what waits in the outbox, oldest first, again and again until the cloud has answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::Instant;
use tombolo_proto::frame::{ApiReply, ApiRequest};
use tombolo_runtime::time::sleep_until;
use tombolo_runtime::{Backoff, BackoffConfig};
use tracing::{debug, warn};

use super::{CALL_TIMEOUT, Upstream};
use crate::hub::CallError;
use crate::store::{Learned, ReportKind, Waiting};

/// Reports on the way at the same time.
const IN_FLIGHT_MAX: usize = 8;

/// Reports looked at in one round.
const ROUND_MAX: usize = 64;

/// Waits before a report is sent again.
const RETRY: BackoffConfig =
    BackoffConfig { first: Duration::from_millis(500), max: Duration::from_secs(60), factor: 2.0 };

/// How often a 403 is believed to be the authorizer's delay (design 9.4) before the report is given up.
const FORBIDDEN_MAX: u32 = 12;

/// What an answer means for a report.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Done, or pointless by now.
    Settled,
    /// Refused for good.
    Dropped,
    /// Try again.
    Again,
}

/// Reports that failed, and when they are sent again.
#[derive(Default)]
struct Failures(HashMap<u64, (Backoff, Instant)>);

pub(super) async fn run(upstream: Arc<Upstream>) {
    let mut rng = StdRng::seed_from_u64(upstream.seed);
    let mut failures = Failures::default();
    let mut state = upstream.hub.state();
    let mut waiting = upstream.store.reports_changed();
    loop {
        // An error says that the agent ends.
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

/// Sends every report that is due; tells when the next one is.
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
        method: report.call.method.clone(),
        path_and_query: report.call.path_and_query.clone(),
        content_type: report.call.content_type.clone(),
        accept: String::new(),
        body: report.call.body.clone().into(),
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
    let attempts = failures.attempts(report.number);
    let verdict = match &answer {
        Ok(reply) => verdict(&report.call.method, reply.code, attempts),
        Err(_) => Verdict::Again,
    };
    let text = match &answer {
        Ok(reply) => format!("{}: {}", reply.code, String::from_utf8_lossy(&reply.body)),
        Err(error) => error.to_string(),
    };
    let text: String = text.chars().take(300).collect();
    match verdict {
        Verdict::Again => {
            debug!(key = %report.key, answer = %text, "a report is sent again later");
            failures.failed(report.number, rng);
            return;
        }
        Verdict::Dropped => {
            warn!(key = %report.key, answer = %text, "the cloud refuses a report for good; it is dropped");
            upstream.metrics.reports_dropped.inc();
        }
        Verdict::Settled => {
            upstream.metrics.reports_settled.inc();
        }
    }
    let learned = answer.ok().filter(|reply| reply.code / 100 == 2 && report.kind != ReportKind::Removal);
    let keep = matches!(report.kind, ReportKind::Lease | ReportKind::Event);
    let learned = learned.map(|reply| Learned { key: report.key.clone(), body: reply.body, keep });
    if let Err(error) = upstream.store.settle(report.number, learned).await {
        warn!(%error, "an answered report stays in the outbox and is sent again");
        failures.failed(report.number, rng);
    }
}

fn verdict(method: &str, code: u16, attempts: u32) -> Verdict {
    match code {
        // What it was to be created in is not there.
        404 if method == "POST" => Verdict::Dropped,
        // Gone, replaced by another incarnation, or there already.
        200..=299 | 404 | 409 | 410 => Verdict::Settled,
        403 if attempts < FORBIDDEN_MAX => Verdict::Again,
        401 | 408 | 429 | 500..=599 => Verdict::Again,
        _ => Verdict::Dropped,
    }
}

impl Failures {
    fn is_due(&self, number: u64) -> bool {
        self.0.get(&number).is_none_or(|(_, at)| *at <= Instant::now())
    }

    fn attempts(&self, number: u64) -> u32 {
        self.0.get(&number).map_or(0, |(backoff, _)| backoff.attempts())
    }

    fn failed(&mut self, number: u64, rng: &mut StdRng) {
        let (backoff, at) = self.0.entry(number).or_insert_with(|| (Backoff::new(RETRY), Instant::now()));
        *at = Instant::now() + backoff.next_delay(rng);
    }

    /// Bounded by the outbox, whose numbers these are.
    fn forget_others(&mut self, waiting: &[u64]) {
        self.0.retain(|number, _| waiting.binary_search(number).is_ok());
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, at)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_settle_drop_or_repeat() {
        assert_eq!(verdict("POST", 404, 0), Verdict::Dropped);
        assert_eq!(verdict("POST", 409, 0), Verdict::Settled);
        for (code, attempts, expected) in [
            (200, 0, Verdict::Settled),
            (201, 0, Verdict::Settled),
            (404, 0, Verdict::Settled),
            (409, 0, Verdict::Settled),
            (403, 0, Verdict::Again),
            (403, FORBIDDEN_MAX, Verdict::Dropped),
            (422, 0, Verdict::Dropped),
            (400, 0, Verdict::Dropped),
            (429, 99, Verdict::Again),
            (503, 99, Verdict::Again),
        ] {
            assert_eq!(verdict("PATCH", code, attempts), expected, "{code} after {attempts}");
        }
    }
}
