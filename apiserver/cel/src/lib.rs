//! Expressions of Kubernetes in the Common Expression Language: rules of custom resources and admission policies.
//!
//! The crate `cel` parses and evaluates. This crate adds what Kubernetes asks for beside that: the types of schemas
//! and the check of expressions against them, the libraries of functions, the estimate of costs, and the metering
//! that ends every evaluation (`docs/decisions/0005-cel.md`).

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
