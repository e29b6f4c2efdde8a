//! Kubernetes users.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// User name of a request without credentials (Kubernetes convention).
pub const ANONYMOUS: &str = "system:anonymous";

/// Group of every authenticated user (Kubernetes convention).
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";

/// Group of every request without credentials (Kubernetes convention).
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";

/// A Kubernetes user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// UID of the user, if any.
    pub uid: Option<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes; keys are lower-case.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A user with only a name and groups.
    #[must_use]
    pub fn new(user: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { user: user.to_owned(), groups, ..Self::default() }
    }

    /// The identity of a request without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[UNAUTHENTICATED_GROUP])
    }

    /// The form of `authentication.k8s.io/v1` `UserInfo`.
    #[must_use]
    pub fn user_info(&self) -> Value {
        let mut info = json!({"username": self.user, "groups": self.groups});
        if let Some(uid) = &self.uid {
            info["uid"] = json!(uid);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }

    /// Reads what [`Self::user_info`] writes; missing fields are empty.
    #[must_use]
    pub fn from_user_info(info: &Value) -> Self {
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let extra = info["extra"].as_object().into_iter().flatten();
        Self {
            user: info["username"].as_str().unwrap_or_default().to_owned(),
            uid: info["uid"].as_str().filter(|uid| !uid.is_empty()).map(str::to_owned),
            groups: texts(&info["groups"]),
            extra: extra.map(|(key, values)| (key.to_lowercase(), texts(values))).collect(),
        }
    }

    /// Whether the user is in a group.
    #[must_use]
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
