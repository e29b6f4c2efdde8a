//! Kubernetes expressions in the Common Expression Language: rules of custom resources and admission policies.
//!
//! The crate `cel` parses and evaluates. This crate adds what Kubernetes requires beyond that: types from schemas, type
//! checking of expressions, function libraries, the cost estimate, and metering, which bounds every evaluation
//! (`docs/decisions/0005-cel.md`).

mod arguments;
mod check;
mod escape;
mod estimate;
mod expression;
mod library;
pub mod limits;
mod meter;
mod opaque;
mod pairs;
mod parse;
pub mod rules;
mod schema;
mod signatures;
#[cfg(test)]
mod tests;
mod threads;
mod time;
pub mod types;
mod value;

pub use crate::check::{AUTHORIZER, OWN_REQUEST};
pub use crate::expression::{Environment, Evaluation, EvaluationError, Expression, Variable, Variables};
pub use crate::library::authorization::{Authorize, Authorizer, ResourceCheck};
pub use crate::rules::CelRules;
