//! Match conditions of webhooks: expressions over a request, which must all hold for the webhook to be called.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_apicore::admission::AdmissionRequest;
use tombolo_apicore::blocking::run_blocking;
use tombolo_apicore::field_error::FieldError;
use tombolo_apicore::names;
use tombolo_apicore::status::ApiError;
use tombolo_cel::Authorize;

use super::compiled::{Compiled, Mode};
use super::request::{Asking, RequestVariables};
use crate::objects::{Objects, text};

/// Maximum number of conditions of one webhook (Kubernetes convention).
const CONDITIONS_MAX: usize = 64;

/// The conditions of one webhook. They are compiled when a request first matches the webhook.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Vec<Value>")]
pub(in crate::admission) struct Conditions {
    list: Vec<Value>,
    compiled: OnceLock<Result<Compiled, Vec<FieldError>>>,
}

impl From<Vec<Value>> for Conditions {
    fn from(list: Vec<Value>) -> Self {
        Self { list, compiled: OnceLock::new() }
    }
}

impl Conditions {
    /// Whether all conditions hold for a request.
    ///
    /// # Errors
    /// The outer error is that of [`run_blocking`]. The inner one is the first condition that could not be evaluated,
    /// unless another condition is false.
    pub(in crate::admission) async fn hold(
        &self,
        request: &AdmissionRequest<'_>,
        objects: &Objects,
        rights: &Arc<dyn Authorize>,
    ) -> Result<Result<bool, String>, ApiError> {
        if self.list.is_empty() {
            return Ok(Ok(true));
        }
        let judge = || {
            let compiled = self.compiled.get_or_init(|| compile(&self.list)).as_ref();
            let compiled =
                compiled.map_err(|errors| errors.first().map(ToString::to_string).unwrap_or_default())?;
            Asking::new(&RequestVariables::of(request, objects, rights), None, compiled).matches()
        };
        run_blocking(&request.attributes.payer, judge).await
    }
}

fn compile(list: &[Value]) -> Result<Compiled, Vec<FieldError>> {
    Compiled::read(&json!({"spec": {"matchConditions": list}}), Mode::Validating)
}

/// All errors in the conditions at a field path.
pub(in crate::admission) fn wrong(list: &[Value], at: &str) -> Vec<FieldError> {
    if list.len() > CONDITIONS_MAX {
        return vec![FieldError::too_many(at, list.len(), CONDITIONS_MAX)];
    }
    let mut errors = compile(list).err().unwrap_or_default();
    for error in &mut errors {
        error.field = error.field.replacen("spec.matchConditions", at, 1);
    }
    let mut known = HashSet::new();
    for (index, condition) in list.iter().enumerate() {
        let (name, field) = (text(condition, "/name"), format!("{at}[{index}].name"));
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
            continue;
        }
        let problems = names::qualified_name(name);
        errors.extend(problems.into_iter().map(|problem| FieldError::invalid(&field, name, problem)));
        if !known.insert(name) {
            errors.push(FieldError::duplicate(field, name));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_cannot_be_evaluated_are_named() {
        let condition = |name: &str, expression: &str| json!({"name": name, "expression": expression});
        let fields = |list: &[Value]| -> Vec<String> {
            wrong(list, "webhooks[0].matchConditions").into_iter().map(|error| error.field).collect()
        };
        assert!(
            fields(&[condition("a", "request.userInfo.username != 'x' && object.kind == 'Pod'")]).is_empty()
        );
        assert_eq!(fields(&[condition("a", "1")]), ["webhooks[0].matchConditions[0].expression"]);
        assert_eq!(fields(&[condition("a", " ")]), ["webhooks[0].matchConditions[0].expression"]);
        assert_eq!(fields(&[condition("", "true")]), ["webhooks[0].matchConditions[0].name"]);
        let twice = [condition("a", "true"), condition("a", "true")];
        assert_eq!(fields(&twice), ["webhooks[0].matchConditions[1].name"]);
    }
}
