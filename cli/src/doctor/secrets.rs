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
    let start = "Start cloudcore with this namespace, or pass the correct --namespace";
    match &kept.authority {
        Ok(facts) => {
            let advice = "Move secret casecret away and restart cloudcore; then every node must join again";
            validity("certificate authority", facts, now, advice, report);
        }
        Err(reason) => report.fail("certificate authority", reason, start),
    }
    match &kept.server {
        Ok(facts) => {
            let check = format!("certificate of the hub ({})", facts.names.join(", "));
            validity(&check, facts, now, "A running cloudcore renews it: check that it runs", report);
        }
        Err(reason) => {
            report.fail("certificate of the hub", reason, "Restart cloudcore, which creates a new one");
        }
    }
    match &kept.token {
        Ok(Some(token)) => {
            let text = format!("valid for {} more hours", token.left.as_secs() / 3600);
            report.ok("shared join token", text);
        }
        Ok(None) => report.ok("shared join token", "off: nodes join with tokens from `tombolo token create`"),
        Err(reason) => {
            let advice = "A running cloudcore with sharedToken renews it: check that it runs. If sharedToken is off, delete secret tokensecret";
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
        let text = format!("not valid for another {} s", early.as_secs());
        return report.fail(check, text, "Set the clock of this machine");
    }
    match end.duration_since(now) {
        Ok(left) if left >= SOON => report.ok(check, format!("valid for {} more days", days(left))),
        Ok(left) => report.warn(check, format!("expires in {} days", days(left)), advice),
        Err(ended) => report.fail(check, format!("expired {} days ago", days(ended.duration())), advice),
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
        assert_eq!(judge(begin + day * 340).to_string(), "warn  c: expires in 25 days. Renew it");
        assert_eq!(judge(begin + day * 367).to_string(), "FAIL  c: expired 2 days ago. Renew it");
        assert!(judge(begin - day).to_string().contains("Set the clock"));
    }
}
