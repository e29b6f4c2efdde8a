//! What the built-in kinds of Kubernetes do with their objects: defaults, what the server itself writes, validation and
//! warnings, as kube-apiserver has them. Everything here is a pure function over JSON values. What the kinds are called and
//! what their types and columns look like is a table of the core.

mod defaults;
mod prepare;
mod qos;
mod strategy;

mod validate;

use std::sync::{Arc, LazyLock};

use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::schema::rules::{NoRules, RuleEngine};

use crate::strategy::Builtin;

/// The built-in kinds as kube-apiserver has them. The tables are read once; all servers of a process share the result.
#[must_use]
pub fn kinds() -> Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| kinds_with(Arc::new(NoRules)));
    KINDS.clone()
}

/// The same, with an engine for the rules of the custom kinds that come later.
#[must_use]
pub fn kinds_with(engine: Arc<dyn RuleEngine>) -> Kinds {
    Kinds::builtin_with(&Builtin, engine)
}
