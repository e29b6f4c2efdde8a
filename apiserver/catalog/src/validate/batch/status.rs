//! Validation of a Job's status: how Jobs end, and their counts. A rule is applied only if the update changes what it
//! is about, so that a Job that broke it before the rule existed can still be written.

use std::collections::HashSet;

use serde_json::Value;

use super::super::field::{Errors, Field};
use super::{indexes, is_indexed};
use tombolo_apicore::value::items;

/// A status with values that the rules look up.
struct JobStatus<'a> {
    at: Field<'a, 'a>,
}

impl<'a> JobStatus<'a> {
    fn new(job: &'a Value) -> Self {
        Self { at: Field::root("status", &job["status"]) }
    }

    fn is(&self, condition: &str, status: &str) -> bool {
        let wanted = |found: &Value| found["type"] == condition && found["status"] == status;
        items(self.at.value(), &["conditions"]).iter().any(wanted)
    }

    fn has(&self, condition: &str) -> bool {
        self.is(condition, "True")
    }

    fn is_finished(&self) -> bool {
        self.has("Complete") || self.has("Failed")
    }

    fn child<'c>(&'c self, name: &'c str) -> Field<'c, 'a> {
        self.at.child(name)
    }
}

/// An update of a status.
struct StatusUpdate<'a> {
    spec: Field<'a, 'a>,
    new: JobStatus<'a>,
    old: JobStatus<'a>,
}

/// Checks an update of the status.
pub(in super::super) fn check(new: &Value, old: &Value, errors: &mut Errors) {
    let change = StatusUpdate {
        spec: Field::root("spec", &new["spec"]),
        new: JobStatus::new(new),
        old: JobStatus::new(old),
    };
    let counts = ["active", "succeeded", "failed", "ready", "terminating"];
    change.new.at.none_negative(&counts, errors);
    change.uncounted(errors);
    change.conditions(errors);
    change.times(errors);
    change.finished(errors);
    change.indexes(errors);
    change.progress(errors);
}

impl StatusUpdate<'_> {
    fn differs(&self, field: &str) -> bool {
        self.new.child(field).value() != self.old.child(field).value()
    }

    fn turned(&self, condition: &str) -> bool {
        self.new.has(condition) != self.old.has(condition)
    }

    /// Pods that ended and are not counted yet are listed only once.
    fn uncounted(&self, errors: &mut Errors) {
        let mut seen = HashSet::new();
        let uncounted = self.new.child("uncountedTerminatedPods");
        for list in ["succeeded", "failed"] {
            for uid in uncounted.child(list).items() {
                match uid.text() {
                    "" => errors.push(uid.invalid("must not be empty")),
                    text if !seen.insert(text) => errors.push(uid.duplicate()),
                    _ => {}
                }
            }
        }
    }

    /// Checks which conditions a Job can have together.
    fn conditions(&self, errors: &mut Errors) {
        let Self { spec, new, .. } = self;
        let [complete, failed, target, met] =
            ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"].map(|name| new.has(name));
        let turned = |name: &str| self.turned(name);
        let is_wrong = [
            (
                complete && failed && (turned("Complete") || turned("Failed")),
                "cannot set Complete=True and Failed=true conditions",
            ),
            (
                complete && target && (turned("Complete") || turned("FailureTarget")),
                "cannot set Complete=True and FailureTarget=true conditions",
            ),
            (
                failed && !target && (turned("Failed") || self.differs("failedIndexes")),
                "cannot set Failed=True condition without the FailureTarget=true condition",
            ),
            (
                complete && !met && (turned("Complete") || turned("SuccessCriteriaMet")),
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ),
            (met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
            (met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
            (
                spec.child("successPolicy").is_set() && !met && complete,
                "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
            ),
        ];
        let conditions = new.child("conditions");
        let wrong = is_wrong.into_iter().filter(|(wrong, _)| *wrong);
        errors.extend(wrong.map(|(_, detail)| conditions.broken(detail)));
    }

    /// A Job has a completion time only if it is complete, and it is not before the start time.
    fn times(&self, errors: &mut Errors) {
        let (start, end) = (self.new.child("startTime"), self.new.child("completionTime"));
        let complete = self.new.has("Complete");
        if self.turned("Complete") || self.differs("completionTime") {
            if end.is_set() && !complete {
                errors
                    .push(end.invalid("cannot set completionTime when there is no Complete=True condition"));
            }
            if complete && !end.is_set() {
                errors.push(end.required("completionTime is required for Complete jobs"));
            }
        }
        // Both are in UTC with seconds, so the texts compare like the times.
        let is_early = start.is_set() && end.is_set() && end.text() < start.text();
        if is_early && (self.differs("startTime") || self.differs("completionTime")) {
            errors.push(end.invalid("must be equal to or after `startTime`"));
        }
    }

    /// A finished Job has no running pods.
    fn finished(&self, errors: &mut Errors) {
        let Self { spec, new, old } = self;
        let ended = new.is_finished();
        let turned = ended != old.is_finished();
        for (field, detail) in [
            ("active", "active>0 is invalid for finished job"),
            ("terminating", "terminating>0 is invalid for finished job"),
        ] {
            let count = new.child(field);
            if ended && count.int() > 0 && (turned || self.differs(field)) {
                errors.push(count.invalid(detail));
            }
        }
        let never_began = spec.value()["suspend"] == true && spec.value()["completions"] == 0;
        let start = new.child("startTime");
        if ended && !start.is_set() && (turned || self.differs("startTime")) && !never_began {
            errors.push(start.required("startTime is required for finished job"));
        }
        let uncounted = new.child("uncountedTerminatedPods");
        let left = uncounted.child("succeeded").len() + uncounted.child("failed").len();
        if ended && left > 0 && (turned || self.differs("uncountedTerminatedPods")) {
            errors.push(uncounted.invalid("must be empty for finished job"));
        }
        let (ready, active) = (new.child("ready"), new.child("active"));
        if ready.is_set() && ready.int() > active.int() && (self.differs("ready") || self.differs("active")) {
            errors.push(ready.invalid("cannot set more ready pods than active"));
        }
    }

    fn indexes(&self, errors: &mut Errors) {
        let (done, failed) = (self.new.child("completedIndexes"), self.new.child("failedIndexes"));
        let (done_differs, failed_differs) =
            (self.differs("completedIndexes"), self.differs("failedIndexes"));
        let completions = self.spec.value()["completions"].as_i64();
        let limited = self.spec.child("backoffLimitPerIndex").is_set();
        let mut read = |set: &Field<'_, '_>, name: &str, applies: bool| {
            let Some(completions) = completions.filter(|_| applies && set.is_set()) else { return };
            if let Err(why) = indexes::read(set.text(), completions) {
                errors.push(set.invalid(format!("error parsing {name}: {why}")));
            }
        };
        read(&done, "completedIndexes", done_differs);
        read(&failed, "failedIndexes", failed_differs && limited);
        if done_differs && !done.text().is_empty() && !is_indexed(&self.spec) {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.push(done.invalid(detail));
        }
        if failed_differs && failed.is_set() && !limited {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.push(failed.invalid(detail));
        }
        let shared = completions
            .filter(|_| done_differs || failed_differs)
            .and_then(|completions| indexes::shared(done.text(), failed.text(), completions));
        if let Some(index) = shared {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
            errors.push(failed.invalid(detail));
        }
    }

    /// A finished Job stays finished, and counts do not go back.
    fn progress(&self, errors: &mut Errors) {
        let Self { spec, new, old } = self;
        let conditions = new.child("conditions");
        for name in ["Failed", "Complete", "FailureTarget"] {
            if old.has(name) && !new.has(name) {
                errors.push(conditions.broken(format!("cannot disable the terminal {name}=True condition")));
            }
        }
        // The number of indexes of an elastic Job may shrink.
        let elastic = is_indexed(spec) && spec.value()["completions"] == spec.value()["parallelism"];
        for (field, applies) in [("failed", true), ("succeeded", !elastic)] {
            let (now, before) = (new.child(field), old.child(field));
            if applies && now.int() < before.int() {
                let detail = format!("cannot decrease the {field} counter");
                errors.push(now.invalid_value(now.int(), detail));
            }
        }
        let end = new.child("completionTime");
        if end.is_set() && old.child("completionTime").is_set() && self.differs("completionTime") {
            errors.push(end.invalid(super::super::IMMUTABLE));
        }
        let resumes = old.has("Suspended") && new.is("Suspended", "False");
        let runs = spec.value()["suspend"] != true;
        if old.child("startTime").is_set() && self.differs("startTime") && runs && !resumes {
            let start = new.child("startTime");
            errors.push(start.invalid("field is immutable for unsuspended job once set"));
        }
        let (met, was_met) = (new.has("SuccessCriteriaMet"), old.has("SuccessCriteriaMet"));
        if was_met && !met {
            errors.push(conditions.broken("cannot disable the SuccessCriteriaMet=True condition"));
        }
        if old.has("Complete") && !was_met && met {
            let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            errors.push(conditions.broken(detail));
        }
    }
}
