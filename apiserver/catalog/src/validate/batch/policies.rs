//! The policies of a Job: which failures count, when it succeeds, when pods are replaced.

use std::collections::HashSet;

use super::super::field::{Errors, Field};
use super::super::names;
use super::{indexes, is_indexed};
use tombolo_apicore::value::items;

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONDITIONS_MAX: usize = 20;
const INDEXES_LEN_MAX: usize = 64 * 1024;

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

/// A list of quoted strings as Go prints it.
fn valid_values(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

/// Reports a value that is missing or not supported; both errors list the supported values.
fn listed_word(at: &Field<'_, '_>, words: &[&str], errors: &mut Errors) {
    match at.text() {
        "" => errors.push(at.required(&valid_values(words))),
        _ => at.one_of(words, errors),
    }
}

/// Checks `podFailurePolicy`.
pub(super) fn failure(spec: &Field<'_, '_>, errors: &mut Errors) {
    let rules = spec.below("podFailurePolicy.rules");
    rules.overfull(RULES_MAX, errors);
    let pod = spec.below("template.spec");
    let containers: HashSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(pod.value(), &[list]))
        .filter_map(|container| container["name"].as_str())
        .collect();
    for rule in rules.items() {
        let action = rule.child("action");
        match action.text() {
            "FailIndex" if !spec.child("backoffLimitPerIndex").is_set() => {
                errors.push(action.invalid("requires the backoffLimitPerIndex to be set"));
            }
            _ => listed_word(&action, &ACTIONS, errors),
        }
        let (codes, conditions) = (rule.child("onExitCodes"), rule.child("onPodConditions"));
        if codes.is_set() {
            exit_codes(&codes, &containers, errors);
        }
        self::conditions(&conditions, errors);
        match (codes.is_set(), !conditions.is_empty()) {
            (true, true) => {
                errors.push(rule.broken("specifying both OnExitCodes and OnPodConditions is not supported"));
            }
            (false, false) => {
                errors.push(rule.broken("specifying one of OnExitCodes and OnPodConditions is required"));
            }
            _ => {}
        }
    }
}

fn conditions(conditions: &Field<'_, '_>, errors: &mut Errors) {
    conditions.overfull(CONDITIONS_MAX, errors);
    for condition in conditions.items() {
        condition.child("type").grammar(names::qualified_name, errors);
        listed_word(&condition.child("status"), &["False", "True", "Unknown"], errors);
    }
}

fn exit_codes(codes: &Field<'_, '_>, containers: &HashSet<&str>, errors: &mut Errors) {
    let operator = codes.child("operator");
    listed_word(&operator, &["In", "NotIn"], errors);
    let container = codes.child("containerName");
    if container.is_set() && !containers.contains(container.text()) {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(container.invalid(detail));
    }
    let values = codes.child("values");
    if values.is_empty() {
        errors.push(values.invalid("at least one value is required"));
    }
    values.overfull(EXIT_CODES_MAX, errors);
    let mut seen = HashSet::new();
    let mut is_ordered = true;
    let mut before = i64::MIN;
    for value in values.items() {
        let number = value.int();
        if operator.text() == "In" && number == 0 {
            errors.push(value.invalid("must not be 0 for the In operator"));
        }
        if !seen.insert(number) {
            errors.push(value.duplicate());
        }
        is_ordered &= before <= number;
        before = number;
    }
    if !is_ordered {
        errors.push(values.invalid("must be ordered"));
    }
}

/// Checks `successPolicy`.
pub(super) fn success(spec: &Field<'_, '_>, errors: &mut Errors) {
    let policy = spec.child("successPolicy");
    if !policy.is_set() {
        return;
    }
    if !is_indexed(spec) {
        errors.push(policy.invalid("requires indexed completion mode"));
        return;
    }
    let rules = policy.child("rules");
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(rules.required(detail));
    }
    rules.overfull(RULES_MAX, errors);
    // Missing completions are already reported; without them there is nothing to compare with.
    if let Some(completions) = spec.value()["completions"].as_i64() {
        rules.items().for_each(|rule| success_rule(&rule, completions, errors));
    }
}

fn success_rule(rule: &Field<'_, '_>, completions: i64, errors: &mut Errors) {
    let (indexes, count) = (rule.child("succeededIndexes"), rule.child("succeededCount"));
    if !indexes.is_set() && !count.is_set() {
        errors.push(rule.required("at least one of succeededCount or succeededIndexes must be specified"));
    }
    let mut total = 0;
    if indexes.is_set() {
        indexes.overlong(INDEXES_LEN_MAX, errors);
        match indexes::read(indexes.text(), completions) {
            Ok(intervals) => total = indexes::count(&intervals),
            Err(why) => errors.push(indexes.invalid(format!("error parsing succeededIndexes: {why}"))),
        }
    }
    if !count.is_set() {
        return;
    }
    count.non_negative(errors);
    if count.int() > completions {
        let detail =
            format!("must be less than or equal to {completions} (the number of specified completions)");
        errors.push(count.invalid(detail));
    }
    if indexes.is_set() && count.int() > total {
        errors.push(count.invalid(format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        )));
    }
}

/// Checks `podReplacementPolicy`.
pub(super) fn replacement(spec: &Field<'_, '_>, errors: &mut Errors) {
    let policy = spec.child("podReplacementPolicy");
    match spec.child("podFailurePolicy").is_set() {
        true => policy.one_of(&["Failed"], errors),
        false => policy.one_of(&["Failed", "TerminatingOrFailed"], errors),
    }
}
