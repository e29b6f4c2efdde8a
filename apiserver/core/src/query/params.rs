//! Query parameters, with kube-apiserver's error messages.

use http::StatusCode;

use super::options::{FieldValidation, WriteOptions};
use crate::gofmt;
use crate::revision::Revision;
use crate::status::{ApiError, Cause};

/// Maximum number of parameters read from one request; the rest is ignored.
pub const PARAMS_MAX: usize = 256;

/// Longest field manager (Kubernetes convention).
const FIELD_MANAGER_LEN_MAX: usize = 128;

/// Parameters in request order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Decodes a query string.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        Self(
            form_urlencoded::parse(query.as_bytes())
                .take(PARAMS_MAX)
                .map(|(k, v)| (k.into(), v.into()))
                .collect(),
        )
    }

    /// First value of a parameter.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// First value of a parameter; an empty one counts as none.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.first(name).filter(|value| !value.is_empty())
    }

    /// A flag: absent, `false` and `0` are false, everything else (including a bare name) is true.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.maybe_flag(name).unwrap_or(false)
    }

    fn maybe_flag(&self, name: &str) -> Option<bool> {
        self.first(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let refuse = |_| {
            let why = number_error(text.trim_start_matches(['-', '+']));
            ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        };
        text.parse().map(Some).map_err(refuse)
    }

    fn every(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// `resourceVersionMatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// The state at exactly this revision.
    Exact,
    /// The state at this revision or a later one.
    NotOlderThan,
}

/// Parameters of a list or watch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListParams {
    /// `resourceVersion`; `None` when absent or empty.
    pub revision: Option<Revision>,
    /// `resourceVersionMatch`.
    pub revision_match: Option<Match>,
    /// `limit`; 0 for none.
    pub limit: usize,
    /// `continue`; empty for none.
    pub continue_token: String,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// `sendInitialEvents`. A watch without this parameter and without a revision gets them, too.
    pub initial_events: Option<bool>,
    /// `timeoutSeconds`, unless it is 0. A negative timeout ends a watch at once.
    pub timeout_seconds: Option<u64>,
}

impl ListParams {
    /// Parses the parameters of a list (or, with `watch`, of a watch).
    ///
    /// # Errors
    /// 400 for invalid numbers or revisions, 422 for invalid combinations.
    pub fn parse(params: &Params, watch: bool) -> Result<Self, ApiError> {
        let limit = params.number("limit")?.unwrap_or(0);
        let timeout = params.number("timeoutSeconds")?;
        check_list(params, watch)?;
        let legacy =
            (watch && unset(params) && params.text("resourceVersionMatch").is_none()).then_some(true);
        Ok(Self {
            revision: revision(params).map_err(|error| match watch {
                // kube-apiserver parses it too late to blame the client.
                true => unreadable(error),
                false => ApiError::bad_request(format!("invalid resource version: {error}")),
            })?,
            revision_match: match params.text("resourceVersionMatch") {
                Some("Exact") => Some(Match::Exact),
                Some(_) => Some(Match::NotOlderThan),
                None => None,
            },
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token: params.first("continue").unwrap_or_default().to_owned(),
            bookmarks: params.flag("allowWatchBookmarks"),
            initial_events: params.maybe_flag("sendInitialEvents").or(legacy),
            timeout_seconds: timeout
                .filter(|seconds| *seconds != 0)
                .map(|seconds| u64::try_from(seconds).unwrap_or(0)),
        })
    }
}

/// `resourceVersion` of a get; `None` when absent or empty.
///
/// # Errors
/// 500, as in kube-apiserver, when it is not a number.
pub fn get_revision(params: &Params) -> Result<Option<Revision>, ApiError> {
    revision(params).map_err(unreadable)
}

fn unreadable(error: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", error)
}

fn revision(params: &Params) -> Result<Option<Revision>, String> {
    let Some(text) = params.text("resourceVersion") else { return Ok(None) };
    let refuse = |_| {
        let why = number_error(text);
        format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: {why}")
    };
    // Go accepts no sign before an unsigned number.
    let digits = if text.starts_with('+') { "" } else { text };
    digits.parse().map(|number| Some(Revision(number))).map_err(refuse)
}

/// Go's error about a text that is not a number of its type.
fn number_error(text: &str) -> &'static str {
    let numeric = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if numeric { "value out of range" } else { "invalid syntax" }
}

/// Whether any revision is accepted.
fn unset(params: &Params) -> bool {
    matches!(params.text("resourceVersion"), None | Some("0"))
}

const MATCH: &str = "resourceVersionMatch";

/// The rules on combinations (Kubernetes `ValidateListOptions`): 422 with all errors.
fn check_list(params: &Params, watch: bool) -> Result<(), ApiError> {
    let causes = if watch { wrong_watch(params) } else { wrong_list(params) };
    match causes.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", causes)),
    }
}

fn wrong_list(params: &Params) -> Vec<Cause> {
    let mut causes = Vec::new();
    let revision = params.text("resourceVersion");
    if let Some(mode) = params.text(MATCH) {
        if revision.is_none() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            causes.push(forbidden(MATCH, why));
        }
        if params.text("continue").is_some() {
            causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(mode, "Exact" | "NotOlderThan") {
            causes.push(unsupported(mode, "\"Exact\", \"NotOlderThan\", \"\""));
        }
        if mode == "Exact" && revision == Some("0") {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            causes.push(forbidden(MATCH, why));
        }
    }
    if params.maybe_flag("sendInitialEvents").is_some() {
        causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    causes
}

fn wrong_watch(params: &Params) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (mode, initial) = (params.text(MATCH), params.maybe_flag("sendInitialEvents"));
    if initial.is_some() && mode != Some("NotOlderThan") {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        causes.push(forbidden(MATCH, why));
    }
    // A watch that gives neither a mode nor a revision means "not older than anything".
    if mode.is_none() && (initial.is_some() || !unset(params)) {
        return causes;
    }
    if let Some(mode) = mode {
        if initial.is_none() {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.push(forbidden(MATCH, why));
        }
        if mode != "NotOlderThan" {
            causes.push(unsupported(mode, "\"NotOlderThan\""));
        }
    }
    if params.text("continue").is_some() {
        causes.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
    }
    causes
}

fn forbidden(field: &str, why: &str) -> Cause {
    Cause::new("FieldValueForbidden", field, &format!("Forbidden: {why}"))
}

fn unsupported(mode: &str, supported: &str) -> Cause {
    let message = format!("Unsupported value: {mode:?}: supported values: {supported}");
    Cause::new("FieldValueNotSupported", MATCH, &message)
}

/// The options type that the parameters of a write represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionsKind {
    /// `CreateOptions`.
    Create,
    /// `UpdateOptions`.
    Update,
    /// `PatchOptions` of a patch that is not an apply.
    Patch,
    /// `PatchOptions` of a server-side apply.
    Apply,
    /// `DeleteOptions`.
    Delete,
}

impl OptionsKind {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch | Self::Apply => "PatchOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

/// Parses the parameters of a write. `user_agent` replaces a missing field manager.
///
/// # Errors
/// 422 for values that are not allowed.
pub fn write_options(params: &Params, kind: OptionsKind, user_agent: &str) -> Result<WriteOptions, ApiError> {
    let mut causes = Vec::new();
    let dry_run = dry_run(&params.every("dryRun"), &mut causes);
    let manager = params.first("fieldManager").unwrap_or_default();
    if manager.is_empty() && kind == OptionsKind::Apply {
        causes.push(Cause::new(
            "FieldValueRequired",
            "fieldManager",
            "Required value: is required for apply patch",
        ));
    }
    check_manager(manager, &mut causes);
    if params.first("force").is_some() && kind == OptionsKind::Patch {
        causes.push(forbidden("force", "may not be specified for non-apply patch"));
    }
    let field_validation = match params.text("fieldValidation") {
        None | Some("Warn") => FieldValidation::Warn,
        Some("Ignore") => FieldValidation::Ignore,
        Some("Strict") => FieldValidation::Strict,
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            );
            causes.push(Cause::new("FieldValueNotSupported", "fieldValidation", &message));
            FieldValidation::Warn
        }
    };
    if !causes.is_empty() {
        return Err(ApiError::invalid("meta.k8s.io", kind.name(), "", causes));
    }
    Ok(WriteOptions {
        dry_run,
        field_manager: if manager.is_empty() { manager_of(user_agent) } else { manager.to_owned() },
        field_manager_given: !manager.is_empty(),
        force: params.flag("force"),
        field_validation,
        label_selector: params.first("labelSelector").unwrap_or_default().to_owned(),
        field_selector: params.first("fieldSelector").unwrap_or_default().to_owned(),
    })
}

/// Parses `dryRun` values of parameters or bodies.
pub fn dry_run(values: &[&str], causes: &mut Vec<Cause>) -> bool {
    if values.iter().any(|value| *value != "All") {
        let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: [{}]: supported values: \"All\"", values.join(","));
        causes.push(Cause::new("FieldValueNotSupported", "dryRun", &message));
    }
    !values.is_empty()
}

fn check_manager(manager: &str, causes: &mut Vec<Cause>) {
    if manager.len() > FIELD_MANAGER_LEN_MAX {
        let message = format!("Too long: may not be more than {FIELD_MANAGER_LEN_MAX} bytes");
        causes.push(Cause::new("FieldValueTooLong", "fieldManager", &message));
        // Each further error would repeat all of it.
        return;
    }
    for (at, odd) in manager.char_indices().filter(|(_, c)| c.is_control()) {
        let shown = gofmt::quoted(manager);
        let number = u32::from(odd);
        let message = format!("Invalid value: {shown}: invalid character U+{number:04X} (at position {at})");
        causes.push(Cause::new("FieldValueInvalid", "fieldManager", &message));
    }
}

/// The manager derived from a user agent: its product name, cut to the maximum length.
fn manager_of(user_agent: &str) -> String {
    let product = user_agent.split('/').next().unwrap_or_default();
    let printable = product.chars().filter(|c| !c.is_control());
    let mut manager = String::new();
    for next in printable {
        if manager.len() + next.len_utf8() > FIELD_MANAGER_LEN_MAX {
            break;
        }
        manager.push(next);
    }
    if manager.is_empty() { "unknown".to_owned() } else { manager }
}
