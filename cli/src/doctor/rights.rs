//! Whether the API server grants what `deploy/` requires: one access review for every rule of every manifest.

mod manifest;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tombolo_cloud::Kube;
use tombolo_cloud::bootstrap::Inspection;
use tombolo_cloud::hub::LEDGER_LABEL;
use tombolo_cloud::kube::EDGE_NODES;
use tombolo_cloud::kube::ImpersonationForm;

use super::Report;
use super::api::Reached;
use manifest::{Manifest, Right};

/// The ServiceAccount of `deploy/cloudcore/10-rights.yaml`.
const ACCOUNT: &str = "tombolo-cloudcore";

/// A node that need not exist: the rights of nodes are checked for their group.
const ANY_NODE: &str = "system:node:tombolo-doctor";

/// Concurrent access reviews.
const QUESTIONS: usize = 8;

/// Maximum number of rights in one line.
const NAMED_MAX: usize = 3;

/// First minor version of Kubernetes 1 with constrained impersonation on by default
/// (docs/reference/kubernetes.md#impersonation).
const CONSTRAINED_SINCE: u32 = 36;

/// Whose rights are checked.
#[derive(Clone)]
enum Subject {
    /// The user of the kubeconfig.
    Own,
    /// Another user.
    Other { user: String, groups: Vec<String> },
}

impl Subject {
    fn name(&self) -> &str {
        match self {
            Self::Own => "the user of this kubeconfig",
            Self::Other { user, .. } => user,
        }
    }
}

/// Checks the rights of cloudcore and of nodes.
pub(super) async fn examine(api: &Reached, kept: &Inspection, report: &mut Report) {
    let Some(cloudcore) = cloudcore(api, report).await else { return };
    // The same groups that cloudcore uses for a connected node.
    let groups = ["system:nodes", "system:authenticated", EDGE_NODES].map(str::to_owned).to_vec();
    let nodes = Subject::Other { user: ANY_NODE.to_owned(), groups };
    let own = manifest::cloudcore(&api.namespace);
    let network = manifest::edge_network(&api.namespace);
    let grids = manifest::grids(&api.namespace);
    for (subject, manifest) in [(&cloudcore, &own), (&cloudcore, &network), (&nodes, &network)] {
        granted(api, subject, manifest, report, |report, check, text| {
            report.fail(check, text, format!("Apply {}", manifest.file));
        })
        .await;
    }
    granted(api, &cloudcore, &grids, report, |report, check, text| {
        let hint = format!("To use the application grid, apply {} and set grids: {{enable: true}}; otherwise set enable: false", grids.file);
        report.warn(check, text, hint);
    })
    .await;
    if serves_kubeedge_edges(api, kept).await {
        let kubeedge = manifest::kubeedge_edges(&api.namespace);
        granted(api, &cloudcore, &kubeedge, report, |report, check, text| {
            report.fail(check, text, format!("Apply {}: KubeEdge nodes connect here", kubeedge.file));
        })
        .await;
    }
    impersonation(api, &cloudcore, report).await;
    protections(api, report).await;
}

/// Whether KubeEdge nodes may connect: the shared token is on, or there is a record of deliveries to one of them.
async fn serves_kubeedge_edges(api: &Reached, kept: &Inspection) -> bool {
    if !matches!(kept.token, Ok(None)) {
        return true;
    }
    let maps: Api<ConfigMap> = Api::namespaced(api.client.clone(), &api.namespace);
    // A user who may not list them gets the missing rights reported elsewhere.
    let listed = maps.list_metadata(&ListParams::default().labels(LEDGER_LABEL).limit(1)).await;
    listed.is_ok_and(|listed| !listed.items.is_empty())
}

/// Checks that the API server isolates nodes from each other, by requests in the name of a node that change nothing.
async fn protections(api: &Reached, report: &mut Report) {
    const CHECK: &str = "Node authorizer and NodeRestriction";
    let asked = async {
        let kube = Kube::from_config(api.config.clone()).map_err(|error| error.to_string())?;
        kube.probe_impersonation().await.map_err(|error| error.to_string())?;
        kube.probe_protections().await.map_err(|error| error.to_string())
    };
    match asked.await {
        Ok(found) => match (found.problem(), found.node_restriction) {
            (None, _) => report.ok(CHECK, "isolate nodes from each other"),
            (Some(problem), None) if found.node_authorizer => {
                report.warn(CHECK, problem, "Run as an administrator");
            }
            (Some(problem), _) => report.fail(CHECK, problem, "Set the flags of kube-apiserver"),
        },
        Err(error) => report.warn(CHECK, format!("cannot be tested: {error}"), "Run as an administrator"),
    }
}

/// The identity that cloudcore uses: its ServiceAccount, or the user of this kubeconfig if there is none.
async fn cloudcore(api: &Reached, report: &mut Report) -> Option<Subject> {
    let check = format!("service account {}/{ACCOUNT}", api.namespace);
    let accounts: Api<ServiceAccount> = Api::namespaced(api.client.clone(), &api.namespace);
    match accounts.get_opt(ACCOUNT).await {
        Ok(Some(_)) => {
            report.ok(check, "exists");
            let groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", api.namespace),
                "system:authenticated".to_owned(),
            ];
            let user = format!("system:serviceaccount:{}:{ACCOUNT}", api.namespace);
            Some(Subject::Other { user, groups })
        }
        Ok(None) => {
            let text = "does not exist; the rights below are those of this kubeconfig";
            report.warn(
                check,
                text,
                "Apply deploy/cloudcore/10-rights.yaml where cloudcore runs in the cluster",
            );
            Some(Subject::Own)
        }
        Err(error) => {
            report.warn(check, format!("cannot be read: {error}"), "Run as an administrator");
            None
        }
    }
}

/// Reports whether a subject has every right of a manifest; the caller decides how missing rights are reported.
async fn granted(
    api: &Reached,
    subject: &Subject,
    manifest: &Manifest,
    report: &mut Report,
    refuse: impl FnOnce(&mut Report, String, String),
) {
    let check = format!("rights of {} ({})", subject.name(), manifest.file);
    match missing(api, subject, &manifest.rights).await {
        Err(error) => report.warn(check, format!("cannot be checked: {error}"), "Run as an administrator"),
        Ok(missing) if missing.is_empty() => {
            report.ok(check, format!("all {} are granted", manifest.rights.len()));
        }
        Ok(missing) => refuse(report, check, refused(&missing)),
    }
}

fn refused(missing: &[Right]) -> String {
    let named: Vec<String> = missing.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = missing.len().saturating_sub(named.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("may not {}{more}", named.join(", "))
}

/// Checks how cloudcore can impersonate nodes, in the form that the server supports.
async fn impersonation(api: &Reached, cloudcore: &Subject, report: &mut Report) {
    const CHECK: &str = "impersonation of nodes";
    let (constrained, legacy) = (manifest::constrained(&api.namespace), manifest::legacy(&api.namespace));
    let asked = async {
        let constrained_missing = missing(api, cloudcore, &constrained.rights).await?;
        let legacy_missing = missing(api, cloudcore, &legacy.rights).await?;
        Ok::<_, kube::Error>((constrained_missing, legacy_missing))
    };
    let (constrained_missing, legacy_missing) = match asked.await {
        Ok(missing) => missing,
        Err(error) => {
            return report.warn(CHECK, format!("cannot be checked: {error}"), "Run as an administrator");
        }
    };
    let has_legacy = legacy_missing.is_empty();
    match (form(api).await, constrained_missing.is_empty()) {
        (ImpersonationForm::Constrained, true)
            if has_legacy && matches!(cloudcore, Subject::Other { .. }) =>
        {
            let text = "constrained, but the role for older servers still allows impersonating any user";
            report.warn(CHECK, text, format!("Delete the objects of {}", legacy.file));
        }
        (ImpersonationForm::Constrained, true) => report.ok(CHECK, "constrained to nodes"),
        (ImpersonationForm::Constrained, false) if has_legacy => {
            let text = "works through the role for older servers, which allows impersonating any user";
            report.warn(CHECK, text, format!("Apply {} instead", constrained.file));
        }
        (ImpersonationForm::Constrained, false) => {
            report.fail(CHECK, refused(&constrained_missing), format!("Apply {}", constrained.file));
        }
        (ImpersonationForm::Legacy, _) if has_legacy => {
            report.ok(CHECK, "through verb impersonate: this server has no constrained impersonation");
        }
        (ImpersonationForm::Legacy, _) => {
            let refused = refused(&legacy_missing);
            let text = format!("the server has no constrained impersonation, and cloudcore {refused}");
            report.fail(CHECK, text, format!("Apply {}", legacy.file));
        }
    }
}

/// The form that the server supports: tested if this user may impersonate, otherwise derived from its version.
async fn form(api: &Reached) -> ImpersonationForm {
    let by_version = match api.minor {
        Some(minor) if minor < CONSTRAINED_SINCE => ImpersonationForm::Legacy,
        _ => ImpersonationForm::Constrained,
    };
    let Ok(kube) = Kube::from_config(api.config.clone()) else { return by_version };
    match kube.probe_impersonation().await {
        Ok(()) => kube.impersonation().form().unwrap_or(by_version),
        Err(_) => by_version,
    }
}

/// The rights that a subject lacks, in the order of the manifest.
async fn missing(api: &Reached, subject: &Subject, rights: &[Right]) -> Result<Vec<Right>, kube::Error> {
    let questions = rights.iter().map(|right| async move {
        Ok::<_, kube::Error>((right, allowed(&api.client, subject, right).await?))
    });
    let answers: Vec<_> = stream::iter(questions).buffered(QUESTIONS).collect().await;
    let mut missing = Vec::new();
    for answer in answers {
        if let (right, false) = answer? {
            missing.push(right.clone());
        }
    }
    Ok(missing)
}

async fn allowed(client: &Client, subject: &Subject, right: &Right) -> Result<bool, kube::Error> {
    let resource_attributes = Some(attributes(right));
    let parameters = PostParams::default();
    match subject {
        Subject::Own => {
            let spec = SelfSubjectAccessReviewSpec { resource_attributes, ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            let answer = Api::all(client.clone()).create(&parameters, &review).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
        Subject::Other { user, groups } => {
            let (user, groups) = (Some(user.clone()), Some(groups.clone()));
            let spec = SubjectAccessReviewSpec { resource_attributes, user, groups, ..Default::default() };
            let review = SubjectAccessReview { spec, ..Default::default() };
            let answer = Api::all(client.clone()).create(&parameters, &review).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
    }
}

fn attributes(right: &Right) -> ResourceAttributes {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((&right.resource, ""));
    ResourceAttributes {
        verb: some(&right.verb),
        group: some(&right.group),
        resource: some(resource),
        subresource: some(subresource),
        namespace: some(&right.namespace),
        name: some(&right.name),
        ..ResourceAttributes::default()
    }
}
