//! The Kubernetes API itself: reachable, its clock, cloudcore's namespace, edge nodes.

use std::time::{Duration, Instant, SystemTime};

use http::{Request, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;
use tombolo_runtime::sentence;
use tombolo_runtime::time::http_date;

use super::Report;
use crate::cluster;
use crate::operate::ClusterOptions;

/// Clock difference that causes a warning.
const SKEW_WARN: Duration = Duration::from_secs(30);

/// Clock difference from which certificates and tokens are refused.
pub(super) const SKEW_FAIL: Duration = Duration::from_secs(5 * 60);

/// Maximum number of node names in one line.
const NAMED_MAX: usize = 5;

/// A Kubernetes API that answers.
pub(super) struct Reached {
    pub(super) config: kube::Config,
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Minor version; `None` when it is unreadable.
    pub(super) minor: Option<u32>,
}

/// Connects; `None` if the other checks cannot run without the connection.
pub(super) async fn reach(options: &ClusterOptions, now: SystemTime, report: &mut Report) -> Option<Reached> {
    const CHECK: &str = "api server";
    let (advice, began) = ("Check --kubeconfig and KUBECONFIG", Instant::now());
    let connected = options.config().await.and_then(|mut config| {
        // Report errors at once instead of retrying.
        config.default_retry = false;
        Ok((config.clone(), Client::try_from(config)?))
    });
    let (config, client) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            report.fail(CHECK, format!("{error:#}"), advice);
            return None;
        }
    };
    let at = config.cluster_url.to_string();
    let (code, date, version) = match version(&client).await {
        Ok(answer) => answer,
        Err(error) => {
            report.fail(CHECK, format!("{at} does not answer: {}", sentence(&error)), advice);
            return None;
        }
    };
    if code != 200 {
        report.fail(CHECK, format!("{at} answers with code {code}"), "Check the user of the kubeconfig");
        return None;
    }
    let name = version["gitVersion"].as_str().unwrap_or("an unknown version");
    match who(&client).await {
        Ok(user) => report.ok(CHECK, format!("{at} runs {name}; authenticated as {user}")),
        Err(error) => {
            report.fail(
                CHECK,
                format!("{at} ({name}) refuses the request: {error}"),
                "Check the user of the kubeconfig",
            );
            return None;
        }
    }
    clock("clock of the api server", date, now + began.elapsed(), report);
    let minor = version["minor"].as_str().and_then(|text| text.trim_end_matches('+').parse().ok());
    Some(Reached { config, client, namespace: options.namespace.clone(), minor })
}

/// Status code, clock and body of `/version`.
async fn version(client: &Client) -> Result<(u16, Option<SystemTime>, Value), kube::Error> {
    let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let date = response.headers().get(header::DATE).and_then(|date| http_date(date.to_str().ok()?));
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await.unwrap_or_default();
    Ok((code, date, serde_json::from_slice(&body).unwrap_or_default()))
}

async fn who(client: &Client) -> Result<String, kube::Error> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = review.status.and_then(|status| status.user_info).and_then(|info| info.username);
    Ok(user.unwrap_or_default())
}

/// Compares a peer's clock with this machine's.
pub(super) fn clock(check: &str, there: Option<SystemTime>, here: SystemTime, report: &mut Report) {
    let Some(there) = there else {
        return report.warn(check, "the response has no valid Date header", "");
    };
    let (skew, side) = match there.duration_since(here) {
        Ok(ahead) => (ahead, "behind it"),
        Err(error) => (error.duration(), "ahead of it"),
    };
    let text = format!("this machine is {} s {side}", skew.as_secs());
    let advice = "Synchronize the clocks: certificates, tokens and leases depend on them";
    if skew >= SKEW_FAIL {
        report.fail(check, text, advice);
    } else if skew >= SKEW_WARN {
        report.warn(check, text, advice);
    } else {
        report.ok(check, text);
    }
}

/// Checks that cloudcore's namespace exists.
pub(super) async fn namespace(api: &Reached, report: &mut Report) {
    let check = format!("namespace {}", api.namespace);
    match Api::<Namespace>::all(api.client.clone()).get_opt(&api.namespace).await {
        Ok(Some(_)) => report.ok(check, "exists"),
        Ok(None) => {
            report.fail(check, "does not exist", "Apply deploy/cloudcore, or pass the correct --namespace");
        }
        Err(error) => report.warn(check, format!("cannot be read: {error}"), "Run as an administrator"),
    }
}

/// Reports edge nodes that are not Ready.
pub(super) async fn nodes(api: &Reached, report: &mut Report) {
    const CHECK: &str = "edge nodes";
    let nodes = match cluster::edge_nodes(api.client.clone()).await {
        Ok(nodes) => nodes,
        Err(error) => return report.warn(CHECK, format!("{error:#}"), "Run as an administrator"),
    };
    for node in nodes.iter().filter(|node| node.problem.is_some()) {
        let problem = node.problem.as_deref().unwrap_or_default();
        report.warn(
            format!("node {}", node.name),
            problem,
            "The node receives no update of this object until it is corrected",
        );
    }
    let missing: Vec<_> = nodes.iter().filter(|node| node.ready != "True").collect();
    if missing.is_empty() {
        return report.ok(CHECK, format!("{} registered, all Ready", nodes.len()));
    }
    let named: Vec<String> = missing
        .iter()
        .take(NAMED_MAX)
        .map(|node| format!("{} (last heartbeat {})", node.name, node.heard))
        .collect();
    let more = missing.len().saturating_sub(named.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let text = format!("{} of {} are not Ready: {}{more}", missing.len(), nodes.len(), named.join(", "));
    report.warn(CHECK, text, "Run on the node: tombolo doctor --edge /etc/tombolo/edgecore.yaml");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn clocks_are_judged_in_both_directions() {
        let here = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let judge = |there: Option<SystemTime>| {
            let mut report = Report::new(|_| ());
            clock("clock", there, here, &mut report);
            (report.findings()[0].level, report.findings()[0].text.clone())
        };
        assert_eq!(judge(Some(here + Duration::from_secs(2))).0, Level::Ok);
        assert_eq!(judge(Some(here - Duration::from_secs(60))).0, Level::Warn);
        let day = Duration::from_secs(86_400);
        assert_eq!(judge(Some(here + day)), (Level::Fail, "this machine is 86400 s behind it".into()));
        assert_eq!(judge(Some(here - day)), (Level::Fail, "this machine is 86400 s ahead of it".into()));
        assert_eq!(judge(None).0, Level::Warn);
    }
}
