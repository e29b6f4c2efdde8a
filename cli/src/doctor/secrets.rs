//! Certificate authority, hub certificate and join token, as cloudcore stores them.

use std::time::{Duration, SystemTime};

use tombolo_cloud::bootstrap::{CertificateFacts, Inspection, inspect};

use super::Report;
use super::api::Reached;

/// A certificate that expires sooner than this should have been renewed.
const SOON: Duration = Duration::from_secs(30 * 86_400);

/// Examines the Secrets.
pub(super) async fn examine(api: &Reached, now: SystemTime, report: &mut Report) -> Inspection {
    let kept = inspect(api.client.clone(), &api.namespace, now).await;
    let start = "Start cloudcore with this namespace, or give the right --namespace";
    match &kept.authority {
        Ok(facts) => {
            let advice =
                "Every node must join again with a new one: move secret casecret away, restart cloudcore";
            validity("certificate authority", facts, now, advice, report);
        }
        Err(reason) => report.fail("certificate authority", reason, start),
    }
    match &kept.server {
        Ok(facts) => {
            let check = format!("certificate of the hub ({})", facts.names.join(", "));
            validity(&check, facts, now, "cloudcore renews it while it runs: is it running?", report);
        }
        Err(reason) => {
            report.fail("certificate of the hub", reason, "Restart cloudcore, which makes a new one");
        }
    }
    match &kept.token {
        Ok(Some(token)) => {
            let text = format!("good for {} more hours", token.left.as_secs() / 3600);
            report.ok("shared join token", text);
        }
        Ok(None) => report.ok("shared join token", "off: nodes join with tokens of `tombolo token create`"),
        Err(reason) => {
            let advice = "cloudcore renews it while it runs with sharedToken: is it running? Where that is off, delete secret tokensecret";
            report.fail("shared join token", reason, advice);
        }
    }
    kept
}

/// Checks that a certificate is valid and does not expire soon.
pub(super) fn validity(
    check: &str,
    facts: &CertificateFacts,
    now: SystemTime,
    advice: &str,
    report: &mut Report,
) {
    span(check, (facts.not_before, facts.not_after), now, advice, report);
}

/// As [`validity`], for the dates alone.
pub(super) fn span(
    check: &str,
    (begin, end): (SystemTime, SystemTime),
    now: SystemTime,
    advice: &str,
    report: &mut Report,
) {
    let days = |time: Duration| time.as_secs() / 86_400;
    if let Ok(early) = begin.duration_since(now)
        && !early.is_zero()
    {
        let text = format!("valid only in {} s", early.as_secs());
        return report.fail(check, text, "Set the clock of this machine");
    }
    match end.duration_since(now) {
        Ok(left) if left >= SOON => report.ok(check, format!("valid for {} more days", days(left))),
        Ok(left) => report.warn(check, format!("ends in {} days", days(left)), advice),
        Err(ended) => report.fail(check, format!("ended {} days ago", days(ended.duration())), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn dates_are_judged() {
        let day = Duration::from_secs(86_400);
        let begin = SystemTime::UNIX_EPOCH + day * 1000;
        let judge = |now: SystemTime| {
            let mut report = Report::new(|_| ());
            span("c", (begin, begin + day * 365), now, "Renew it", &mut report);
            report.findings()[0].clone()
        };
        assert_eq!(judge(begin + day).level, Level::Ok);
        assert_eq!(judge(begin + day * 340).to_string(), "warn  c: ends in 25 days. Renew it");
        assert_eq!(judge(begin + day * 367).to_string(), "FAIL  c: ended 2 days ago. Renew it");
        assert!(judge(begin - day).to_string().contains("Set the clock"));
    }
}
