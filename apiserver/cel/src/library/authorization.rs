//! Checks by the server's authorizer (`kubernetes.authorization`).

use std::fmt::Debug;
use std::sync::Arc;

use cel::common::types::{CelBool, CelString};
use cel::{DeclarationError, Env, ExecutionError};
use tombolo_apicore::auth::{Attributes, Decision, Identity};
use tombolo_apicore::names;

/// Group of all service accounts.
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
const AUTHENTICATED: &str = "system:authenticated";

/// Answers the authorization checks of expressions.
pub trait Authorize: Debug + Send + Sync {
    /// Whether a request would be allowed.
    fn decide(&self, asked: &Attributes) -> Decision;
}

mod authorizer {
    use std::sync::Arc;

    use tombolo_apicore::auth::Identity;

    use super::Authorize;
    use crate::opaque::opaque;

    /// The value of `authorizer` in an expression: the authorizer, and the user that it checks.
    #[derive(Debug, Clone)]
    pub struct Authorizer {
        pub(super) hook: Arc<dyn Authorize>,
        pub(super) identity: Identity,
    }

    impl PartialEq for Authorizer {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.hook, &other.hook) && self.identity == other.identity
        }
    }

    opaque!(Authorizer, "kubernetes.authorization.Authorizer");
}

mod path {
    use super::Authorizer;
    use crate::opaque::opaque;

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct PathCheck(pub(super) Authorizer, pub(super) String);

    opaque!(PathCheck, "kubernetes.authorization.PathCheck");
}

mod group {
    use super::Authorizer;
    use crate::opaque::opaque;

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct GroupCheck(pub(super) Authorizer, pub(super) String);

    opaque!(GroupCheck, "kubernetes.authorization.GroupCheck");
}

mod resource {
    use tombolo_apicore::auth::Attributes;

    use super::Authorizer;
    use crate::opaque::opaque;

    /// An authorization check for a resource, without its verb.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ResourceCheck(pub(super) Authorizer, pub(super) Attributes);

    opaque!(ResourceCheck, "kubernetes.authorization.ResourceCheck");
}

mod answer {
    use crate::opaque::opaque;

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct Answer {
        pub(super) allowed: bool,
        pub(super) reason: String,
    }

    opaque!(Answer, "kubernetes.authorization.Decision");
}

use answer::Answer;
pub use authorizer::Authorizer;
use group::GroupCheck;
use path::PathCheck;
pub use resource::ResourceCheck;

impl Authorizer {
    /// An authorizer that checks the rights of a user.
    #[must_use]
    pub fn new(hook: Arc<dyn Authorize>, identity: Identity) -> Self {
        Self { hook, identity }
    }

    /// The check for the resource of a request.
    #[must_use]
    pub fn about(&self, asked: &Attributes) -> ResourceCheck {
        let asked = Attributes { identity: self.identity.clone(), verb: String::new(), ..asked.clone() };
        ResourceCheck(self.clone(), asked)
    }
}

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_member_overload!(env, fn path: (Authorizer, CelString<'_>) -> Result<PathCheck>)?;
    cel::add_member_overload!(env, fn group: (Authorizer, CelString<'_>) -> GroupCheck)?;
    cel::add_member_overload!(
        env,
        fn service_account: (Authorizer, CelString<'_>, CelString<'_>) -> Result<Authorizer>
    )?;
    cel::add_member_overload!(env, fn resource: (GroupCheck, CelString<'_>) -> Result<ResourceCheck>)?;
    cel::add_member_overload!(env, fn subresource: (ResourceCheck, CelString<'_>) -> ResourceCheck)?;
    cel::add_member_overload!(env, fn namespace: (ResourceCheck, CelString<'_>) -> ResourceCheck)?;
    cel::add_member_overload!(env, fn name: (ResourceCheck, CelString<'_>) -> ResourceCheck)?;
    cel::add_member_overload!(env, fn field_selector: (ResourceCheck, CelString<'_>) -> ResourceCheck)?;
    cel::add_member_overload!(env, fn label_selector: (ResourceCheck, CelString<'_>) -> ResourceCheck)?;
    cel::add_member_overload!(env, fn check_path: (PathCheck, CelString<'_>) -> Answer, name = "check")?;
    cel::add_member_overload!(env, fn check_resource: (ResourceCheck, CelString<'_>) -> Answer, name = "check")?;
    cel::add_member_overload!(env, fn allowed: (Answer) -> CelBool)?;
    cel::add_member_overload!(env, fn reason: (Answer) -> CelString<'static>)?;
    cel::add_member_overload!(env, fn errored: (Answer) -> CelBool)?;
    cel::add_member_overload!(env, fn error: (Answer) -> CelString<'static>)
}

fn path(authorizer: &Authorizer, path: &CelString<'_>) -> Result<PathCheck, ExecutionError> {
    let path = not_empty("path", path)?;
    Ok(PathCheck(authorizer.clone(), path))
}

fn group(authorizer: &Authorizer, group: &CelString<'_>) -> GroupCheck {
    GroupCheck(authorizer.clone(), group.inner().to_owned())
}

fn service_account(
    authorizer: &Authorizer,
    namespace: &CelString<'_>,
    name: &CelString<'_>,
) -> Result<Authorizer, ExecutionError> {
    let (namespace, name) = (namespace.inner(), name.inner());
    if let Some(why) = names::dns1123_subdomain(name) {
        return Err(ExecutionError::function_error(
            "serviceAccount",
            format!("Invalid service account name: {why}"),
        ));
    }
    if let Some(why) = names::dns1123_label(namespace) {
        return Err(ExecutionError::function_error(
            "serviceAccount",
            format!("Invalid service account namespace: {why}"),
        ));
    }
    let own = format!("{SERVICE_ACCOUNTS}:{namespace}");
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let identity = Identity::new(&user, &[SERVICE_ACCOUNTS, &own, AUTHENTICATED]);
    Ok(Authorizer { identity, ..authorizer.clone() })
}

fn resource(check: &GroupCheck, resource: &CelString<'_>) -> Result<ResourceCheck, ExecutionError> {
    let GroupCheck(authorizer, group) = check;
    let asked = Attributes {
        identity: authorizer.identity.clone(),
        group: group.clone(),
        version: "*".to_owned(),
        resource: not_empty("resource", resource)?,
        is_resource: true,
        ..Attributes::default()
    };
    Ok(ResourceCheck(authorizer.clone(), asked))
}

fn subresource(check: &ResourceCheck, text: &CelString<'_>) -> ResourceCheck {
    with(check, |asked| text.inner().clone_into(&mut asked.subresource))
}

fn namespace(check: &ResourceCheck, text: &CelString<'_>) -> ResourceCheck {
    with(check, |asked| text.inner().clone_into(&mut asked.namespace))
}

fn name(check: &ResourceCheck, text: &CelString<'_>) -> ResourceCheck {
    with(check, |asked| text.inner().clone_into(&mut asked.name))
}

fn field_selector(check: &ResourceCheck, text: &CelString<'_>) -> ResourceCheck {
    with(check, |asked| text.inner().clone_into(&mut asked.field_selector))
}

fn label_selector(check: &ResourceCheck, text: &CelString<'_>) -> ResourceCheck {
    with(check, |asked| text.inner().clone_into(&mut asked.label_selector))
}

fn with(check: &ResourceCheck, change: impl FnOnce(&mut Attributes)) -> ResourceCheck {
    let mut changed = check.clone();
    change(&mut changed.1);
    changed
}

fn check_path(check: &PathCheck, verb: &CelString<'_>) -> Answer {
    let PathCheck(authorizer, path) = check;
    let identity = authorizer.identity.clone();
    let verb = verb.inner().to_owned();
    ask(authorizer, &Attributes { identity, verb, path: path.clone(), ..Attributes::default() })
}

fn check_resource(check: &ResourceCheck, verb: &CelString<'_>) -> Answer {
    let ResourceCheck(authorizer, asked) = check;
    ask(authorizer, &Attributes { verb: verb.inner().to_owned(), ..asked.clone() })
}

fn ask(authorizer: &Authorizer, asked: &Attributes) -> Answer {
    match authorizer.hook.decide(asked) {
        Decision::Allow => Answer { allowed: true, reason: String::new() },
        Decision::Deny(reason) | Decision::NoOpinion(reason) | Decision::Undecided(reason) => {
            Answer { allowed: false, reason }
        }
    }
}

fn allowed(answer: &Answer) -> CelBool {
    answer.allowed.into()
}

fn reason(answer: &Answer) -> CelString<'static> {
    answer.reason.clone().into()
}

/// The authorizer of this server never fails.
fn errored(_: &Answer) -> CelBool {
    false.into()
}

fn error(_: &Answer) -> CelString<'static> {
    String::new().into()
}

fn not_empty(what: &str, text: &CelString<'_>) -> Result<String, ExecutionError> {
    match text.inner().trim() {
        "" => Err(ExecutionError::function_error(what, format!("{what} must not be empty"))),
        _ => Ok(text.inner().to_owned()),
    }
}
