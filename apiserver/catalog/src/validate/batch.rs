//! Validation of Jobs and CronJobs (pkg/apis/batch/validation).

mod indexes;
mod policies;
mod schedule;
mod status;
mod update;

use serde_json::Value;

use super::field::{Errors, Field};
use super::selectors::matches;
use super::walk::top;
use super::{FieldError, domains, names, pod};
use tombolo_apicore::value::text;

pub(super) use self::status::check as status;
pub(super) use self::update::check as update;

/// Maximum parallelism of an indexed Job; also the maximum number of failed indexes.
const INDEXED_MAX: i64 = 100_000;
/// Above this number of indexes, a Job with `backoffLimitPerIndex` has stricter limits.
const COMPLETIONS_SOFT_MAX: i64 = 100_000;
/// Maximum parallelism and maximum failed indexes of such a Job.
const MANY_INDEXES_MAX: i64 = 10_000;
const MANAGER_LEN_MAX: usize = 63;
/// The names of a CronJob's Jobs get a suffix of eleven characters and must be valid labels.
const CRON_JOB_NAME_LEN_MAX: usize = 52;

/// Checks a Job or a CronJob.
pub(super) fn check(kind: &str, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    match kind {
        "Job" => job(object, errors),
        "CronJob" => cron_job(object, old, errors),
        _ => {}
    }
}

fn job(object: &Value, errors: &mut Errors) {
    let spec = top(object, "spec");
    generated_selector(object, errors);
    job_spec(&spec, errors);
    let selector = spec.child("selector");
    let before = errors.len();
    selector.required_selector(errors);
    let labels = spec.below("template.metadata.labels");
    let selects = errors.len() == before && matches(selector.value(), labels.value());
    if !selector.is_set() || (errors.len() == before && !selects) {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
    let completions = spec.child("completions").int();
    if is_indexed(&spec) && completions > 0 {
        let name = top(object, "metadata.name");
        let host = format!("{}-{}", name.text(), completions - 1);
        if names::dns1123_label(&host).is_some() {
            errors.push(name.invalid(format!("will not able to create pod with invalid DNS label: {host}")));
        }
    }
}

fn is_indexed(spec: &Field<'_, '_>) -> bool {
    spec.child("completionMode").text() == "Indexed"
}

/// Checks the selector and the labels that the server generates, unless `manualSelector` is set.
fn generated_selector(object: &Value, errors: &mut Errors) {
    let spec = top(object, "spec");
    let selector = spec.child("selector");
    if spec.value()["manualSelector"] == true || !selector.is_set() {
        return;
    }
    let own = |key: &str| text(object, &["metadata", key]);
    let wanted = [
        ("controller-uid", own("uid")),
        ("job-name", own("name")),
        ("batch.kubernetes.io/controller-uid", own("uid")),
        ("batch.kubernetes.io/job-name", own("name")),
    ];
    let labels = spec.below("template.metadata.labels");
    for (key, value) in wanted {
        let path = format!("{}[{key}]", labels.path());
        let detail = format!("must be '{value}'");
        match labels.value()[key].as_str() {
            None => errors.push(FieldError::required(path, detail)),
            Some(found) if found != value => {
                errors.push(FieldError::invalid(path, labels.value().clone(), detail));
            }
            Some(_) => {}
        }
    }
    let generated: Value =
        wanted.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
    if !matches(selector.value(), &generated) {
        errors.push(selector.invalid("`selector` not auto-generated"));
    }
}

/// Checks the spec of a Job, also in the template of a CronJob.
fn job_spec(spec: &Field<'_, '_>, errors: &mut Errors) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    spec.none_negative(&counts, errors);
    let per_index = spec.child("backoffLimitPerIndex");
    if spec.child("maxFailedIndexes").is_set() && !per_index.is_set() {
        errors.push(per_index.required("when maxFailedIndexes is specified"));
    }
    let manager = spec.child("managedBy");
    if manager.is_set() {
        domains::prefixed_path(&manager, errors);
        manager.overlong(MANAGER_LEN_MAX, errors);
    }
    let mode = spec.child("completionMode");
    mode.one_of(&["NonIndexed", "Indexed"], errors);
    match mode.text() {
        "Indexed" => indexed(spec, errors),
        "NonIndexed" => {
            for field in [&per_index, &spec.child("maxFailedIndexes")] {
                if field.is_set() {
                    errors.push(field.invalid("requires indexed completion mode"));
                }
            }
        }
        _ => {}
    }
    policies::failure(spec, errors);
    policies::success(spec, errors);
    policies::replacement(spec, errors);
    pod::template(&spec.value()["template"], &format!("{}.template", spec.path()), errors);
    restart(spec, errors);
}

fn indexed(spec: &Field<'_, '_>, errors: &mut Errors) {
    let [completions, parallelism, failed] =
        ["completions", "parallelism", "maxFailedIndexes"].map(|name| spec.child(name));
    if !completions.is_set() {
        errors.push(completions.required("when completion mode is Indexed"));
    }
    if parallelism.int() > INDEXED_MAX {
        let detail = format!("must be less than or equal to {INDEXED_MAX} when completion mode is Indexed");
        errors.push(parallelism.invalid(detail));
    }
    if completions.is_set() && failed.is_set() && failed.int() > completions.int() {
        errors.push(failed.invalid("must be less than or equal to completions"));
    }
    if failed.int() > INDEXED_MAX {
        errors.push(failed.invalid(format!("must be less than or equal to {INDEXED_MAX}")));
    }
    if completions.int() <= COMPLETIONS_SOFT_MAX || !spec.child("backoffLimitPerIndex").is_set() {
        return;
    }
    if !failed.is_set() {
        let detail = format!("must be specified when completions is above {COMPLETIONS_SOFT_MAX}");
        errors.push(failed.required(&detail));
    }
    for count in [parallelism, failed] {
        if count.int() > MANY_INDEXES_MAX {
            errors.push(count.invalid(format!(
                "must be less than or equal to {MANY_INDEXES_MAX} when completions are above \
                 {COMPLETIONS_SOFT_MAX} and used with backoff limit per index"
            )));
        }
    }
}

/// Pods of a Job must end, so they are never always restarted.
fn restart(spec: &Field<'_, '_>, errors: &mut Errors) {
    let policy = spec.below("template.spec.restartPolicy");
    match policy.text() {
        "" | "Always" => errors.push(policy.required("valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if spec.child("podFailurePolicy").is_set() => {
            errors.push(policy.invalid("only \"Never\" is supported when podFailurePolicy is specified"));
        }
        "OnFailure" | "Never" => {}
        _ => errors.push(policy.not_supported(&["OnFailure", "Never"])),
    }
}

fn cron_job(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let spec = top(object, "spec");
    let before = old.map(|old| &old["spec"]);
    schedule::check(&spec, before, errors);
    spec.child("startingDeadlineSeconds").non_negative(errors);
    let zone = spec.child("timeZone");
    if zone.is_set() && before.is_none_or(|before| before["timeZone"] != *zone.value()) {
        zone.grammar(time_zone_problem, errors);
    }
    spec.child("concurrencyPolicy").one_of_required(&["Allow", "Forbid", "Replace"], errors);
    let template = spec.below("jobTemplate.spec");
    job_spec(&template, errors);
    let selector = template.child("selector");
    if selector.is_set() {
        errors.push(selector.invalid("`selector` will be auto-generated"));
    }
    let manual = template.child("manualSelector");
    if *manual.value() == true {
        errors.push(FieldError::not_supported(manual.path(), true, &["nil", "false"]));
    }
    spec.none_negative(&["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], errors);
    let name = top(object, "metadata.name");
    if old.is_none() && name.text().len() > CRON_JOB_NAME_LEN_MAX {
        errors.push(name.invalid(format!("must be no more than {CRON_JOB_NAME_LEN_MAX} characters")));
    }
}

/// Maximum length of a part of a time zone's name.
const ZONE_PART_LEN_MAX: usize = 14;

/// The problem with the name of a time zone. On a machine without time zone data, unknown names are not detected.
fn time_zone_problem(zone: &str) -> Option<String> {
    if zone.is_empty() {
        return Some("timeZone must be nil or non-empty string".to_owned());
    }
    let unknown = || Some(format!("unknown time zone {zone}"));
    let is_name = |part: &str| {
        !part.is_empty()
            && part.len() <= ZONE_PART_LEN_MAX
            && !part.starts_with('-')
            && !matches!(part, "." | "..")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
    };
    if !zone.split('/').all(is_name) {
        return unknown();
    }
    if zone.eq_ignore_ascii_case("Local") {
        let text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return Some(text.to_owned());
    }
    let known = jiff::tz::db();
    match !known.is_definitively_empty() && known.get(zone).is_err() {
        true => unknown(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::time_zone_problem;

    #[test]
    fn time_zones_are_those_that_exist() {
        assert!(time_zone_problem("").is_some() && time_zone_problem("local").is_some());
        assert_eq!(time_zone_problem("../zone").unwrap(), "unknown time zone ../zone");
        if !jiff::tz::db().is_definitively_empty() {
            assert_eq!(time_zone_problem("Europe/Berlin"), None);
            assert_eq!(time_zone_problem("bad-time-zone").unwrap(), "unknown time zone bad-time-zone");
        }
    }
}
