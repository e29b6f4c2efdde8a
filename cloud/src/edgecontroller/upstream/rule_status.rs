//! Results of rules (docs/reference/kubeedge.md#rule-status), which are counted in the Rule's status.

use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_proto::NodeId;
use tombolo_proto::message::{Content, StatusError};

use super::Upstream;
use super::message::{NamespacedName, ReplyContent, into_result};
use crate::kube::{ApiCall, Caller, read_tree};

/// API group and version of Rules.
const API: &str = "rules.kubeedge.io/v1";

/// Maximum number of errors that a Rule keeps; the oldest are dropped first.
const ERRORS_MAX: usize = 32;

/// Maximum length of one error that a Rule keeps, in bytes; the rest is cut off. With [`ERRORS_MAX`] a status stays
/// below 64 KiB.
const ERROR_LEN_MAX: usize = 1024;

/// Attempts to write a status that others write at the same time.
const ATTEMPTS: usize = 5;

/// Status code of a write that lost against another writer.
const CONFLICT: u16 = 409;

/// The result of one message of a rule, with the names that Go gives its fields.
#[derive(Debug, Deserialize)]
struct ExecResult {
    #[serde(rename = "Status")]
    status: ExecStatus,
    #[serde(rename = "Error", default)]
    error: ExecError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum ExecStatus {
    Success,
    Fail,
}

#[derive(Debug, Default, Deserialize)]
struct ExecError {
    #[serde(rename = "Detail", default)]
    detail: String,
}

impl Upstream {
    /// Counts a result. Nodes have no permission on rules, so this runs as cloudcore, and only for rules that name this
    /// node: results of all other rules come from the cloud.
    pub(super) async fn rule_status(
        &self,
        node: &NodeId,
        target: NamespacedName<'_>,
        content: &Content,
    ) -> ReplyContent {
        let result: ExecResult = match content.read() {
            Ok(result) => result,
            Err(error) => {
                return ReplyContent::Refused(format!("the content is not a result of a rule: {error}"));
            }
        };
        if target.name.is_empty() || target.namespace.is_empty() {
            return ReplyContent::Refused(
                "a result must name its rule as NAMESPACE/rulestatus/RULE".to_owned(),
            );
        }
        let path = format!("/apis/{API}/namespaces/{}/rules/{}", target.namespace, target.name);
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match self.count(node, &path, &result).await {
                Ok(said) => return said,
                Err(error) if error.code == CONFLICT => last = Some(error),
                Err(error) => return ReplyContent::Refused(error.message),
            }
        }
        ReplyContent::Refused(last.map_or_else(String::new, |error| error.message))
    }

    async fn count(
        &self,
        node: &NodeId,
        path: &str,
        result: &ExecResult,
    ) -> Result<ReplyContent, Box<StatusError>> {
        let rule = into_result(self.kube.call(Caller::OwnFor(node), ApiCall::get(path)).await)?;
        let patch = match counting(node, &rule, result) {
            Ok(patch) => patch,
            Err(sentence) => return Ok(ReplyContent::Refused(sentence)),
        };
        let call = ApiCall::patch(path, "application/merge-patch+json", patch.into());
        into_result(self.kube.call(Caller::OwnFor(node), call).await)?;
        Ok(ReplyContent::Done(String::new()))
    }
}

/// The patch that counts a result in a rule of this node. The rule's parsed tree is dropped before any wait.
fn counting(node: &NodeId, rule: &[u8], result: &ExecResult) -> Result<String, String> {
    let rule = read_tree(rule).map_err(|error| format!("the rule cannot be read: {error}"))?;
    let named = rule.pointer("/spec/sourceResource/node_name").and_then(Value::as_str);
    if named != Some(node.as_str()) {
        return Err(format!(
            "the rule does not belong to {node}: its sourceResource.node_name is different or missing"
        ));
    }
    let version = rule.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    // The version makes it a compare-and-swap: two concurrent results are both counted.
    let patch = json!({"metadata": {"resourceVersion": version}, "status": counted(&rule["status"], result)});
    Ok(patch.to_string())
}

fn counted(status: &Value, result: &ExecResult) -> Value {
    let count = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or_default();
    let known = status.get("errors").and_then(Value::as_array).into_iter().flatten();
    // Errors stored earlier are cut as well: they count against the size of the object.
    let mut errors: Vec<&str> = known.filter_map(Value::as_str).map(bounded).collect();
    let (mut success, mut fail) = (count("successMessages"), count("failMessages"));
    match result.status {
        ExecStatus::Success => success = success.saturating_add(1),
        ExecStatus::Fail => {
            fail = fail.saturating_add(1);
            errors.push(bounded(&result.error.detail));
        }
    }
    let surplus = errors.len().saturating_sub(ERRORS_MAX);
    json!({"successMessages": success, "failMessages": fail, "errors": &errors[surplus..]})
}

/// The start of a text, up to the length that is kept.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_LEN_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_size_is_bounded() {
        let long = "ä".repeat(ERROR_LEN_MAX);
        let result = ExecResult { status: ExecStatus::Fail, error: ExecError { detail: long.clone() } };
        let mut status = json!({ "errors": [long, 7, {}] });
        for _ in 0..2 * ERRORS_MAX {
            status = counted(&status, &result);
        }
        let len = status.to_string().len();
        assert!(len <= ERRORS_MAX * (ERROR_LEN_MAX + 3) + 100, "{len} bytes");
        assert_eq!(
            counted(&status, &result)["errors"][0],
            "ä".repeat(ERROR_LEN_MAX / 2),
            "cut between characters"
        );
    }

    #[test]
    fn results_are_counted_and_only_the_newest_errors_are_kept() {
        let fail = |detail: &str| ExecResult {
            status: ExecStatus::Fail,
            error: ExecError { detail: detail.to_owned() },
        };
        let success = ExecResult { status: ExecStatus::Success, error: ExecError::default() };
        let mut status = counted(&Value::Null, &success);
        assert_eq!(status, json!({"successMessages": 1, "failMessages": 0, "errors": []}));
        for number in 0..=ERRORS_MAX {
            status = counted(&status, &fail(&number.to_string()));
        }
        assert_eq!(
            (&status["successMessages"], &status["failMessages"]),
            (&json!(1), &json!(ERRORS_MAX + 1))
        );
        let errors = status["errors"].as_array().expect("a list");
        assert_eq!((errors.len(), &errors[0]), (ERRORS_MAX, &json!("1")), "the oldest went first");
    }
}
