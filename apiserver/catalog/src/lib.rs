//! Behaviour of the built-in kinds of Kubernetes: defaults, fields that the server writes, validation and warnings, as
//! in kube-apiserver. Everything here is a pure function over JSON values. The names, types and columns of the kinds
//! are a table in the core.

mod defaults;
mod prepare;
mod qos;
mod strategy;

mod validate;

use std::sync::{Arc, LazyLock};

use tombolo_apicore::kinds::Kinds;
use tombolo_apicore::schema::rules::{NoRules, RuleEngine};

use crate::strategy::Builtin;

/// The built-in kinds as in kube-apiserver. The tables are read once, and all servers of a process share the result.
#[must_use]
pub fn kinds() -> Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| kinds_with(Arc::new(NoRules)));
    KINDS.clone()
}

/// The same, with an engine for the validation rules of custom kinds that are added later.
#[must_use]
pub fn kinds_with(engine: Arc<dyn RuleEngine>) -> Kinds {
    Kinds::builtin_with(&Builtin, engine)
}
