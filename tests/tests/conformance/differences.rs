//! Answers that differ, and why: between kube-apiserver and the embedded server or the library, and between an edge and
//! its cloud. A list names single requests and says what may differ in their answers; everything else is compared.

pub(crate) mod at_edge;
pub(crate) mod beside_real;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::line::Answer;
use crate::lines::definitions::Case;

/// The servers whose answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Where {
    /// The embedded server and the library.
    Both,
    /// Only the embedded server.
    Embedded,
    /// Only the library.
    Library,
    /// The local API of an edge.
    Edge,
}

impl Where {
    /// The single servers.
    fn servers(self) -> &'static [Self] {
        match self {
            Self::Both => &[Self::Embedded, Self::Library],
            Self::Embedded => &[Self::Embedded],
            Self::Library => &[Self::Library],
            Self::Edge => &[Self::Edge],
        }
    }
}

/// What may differ in an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Texts for people. Code, reason, fields and the form of the body are compared.
    Text,
    /// Members of the body with these names, and events of a watch in which nothing else changes.
    Members(&'static [&'static str]),
    /// Code, reason and fields, which have exactly these values: those of the model, and those of the server under test.
    Verdicts(&'static str, &'static str),
    /// Everything, because a controller is faster or slower than the request: the object exists or not. Each answer is a
    /// success or says that it is not found.
    Answer,
}

/// Answers that differ for the same reason.
pub(crate) struct Difference {
    of: Where,
    part: Part,
    /// Whether they always differ; a controller may be faster or slower than the request.
    sure: bool,
    /// Labels of the requests.
    lines: &'static [&'static str],
    /// The reason, for readers of the list.
    _why: &'static str,
}

impl Part {
    fn covers(self, model: &Answer, found: &Answer) -> bool {
        let verdicts = (model.verdict(), found.verdict());
        match self {
            Self::Text => verdicts.0 == verdicts.1 && model.written == found.written,
            Self::Members(names) => {
                let rest = |answer: &Answer| Answer { body: without(&answer.body, names), ..answer.clone() };
                rest(model) == rest(found)
            }
            Self::Verdicts(of_model, of_found) => {
                (verdicts.0.to_string().as_str(), verdicts.1.to_string().as_str()) == (of_model, of_found)
            }
            Self::Answer => [model.code, found.code].iter().all(|code| matches!(code, 200 | 404)),
        }
    }
}

/// A body without some members. Events of a watch that change nothing else are left out.
fn without(body: &Value, names: &[&str]) -> Value {
    match body {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| !names.contains(&name.as_str()));
            kept.map(|(name, member)| (name.clone(), without(member, names))).collect()
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(|item| without(item, names)).collect();
            items
                .dedup_by(|event, before| event["type"] == "MODIFIED" && event["object"] == before["object"]);
            Value::Array(items)
        }
        other => other.clone(),
    }
}

/// Collects what is wrong.
pub(crate) struct Judge {
    differences: Vec<&'static Difference>,
    wrong: Vec<String>,
    same: usize,
    /// The requests that were compared.
    asked: BTreeSet<(Where, String)>,
    /// The listed requests whose answers did differ, each with its server and the number of its list.
    seen: BTreeSet<(Where, usize, &'static str)>,
}

impl Judge {
    pub(crate) fn new(lists: &[&'static [Difference]]) -> Self {
        let differences = lists.iter().flat_map(|list| list.iter()).collect();
        let (wrong, same, asked, seen) = (Vec::new(), 0, BTreeSet::new(), BTreeSet::new());
        Self { differences, wrong, same, asked, seen }
    }

    /// The listed differences that two answers show, with their numbers.
    fn listed(&self, of: Where, label: &str, model: &Answer, found: &Answer) -> Vec<(usize, &'static str)> {
        let numbered = self.differences.iter().enumerate();
        let of_server = numbered.filter(|(_, one)| one.of.servers().contains(&of));
        let with_line = of_server.filter_map(|(number, one)| {
            let line = one.lines.iter().find(|line| **line == label)?;
            one.part.covers(model, found).then_some((number, *line))
        });
        with_line.collect()
    }

    /// Whether two answers are equal, or differ as listed.
    pub(crate) fn accepts(&self, of: Where, label: &str, model: &Answer, found: &Answer) -> bool {
        model == found || !self.listed(of, label, model, found).is_empty()
    }

    /// Records an answer that differs without a listed reason.
    pub(crate) fn compare(&mut self, of: Where, label: &str, model: &Answer, found: &Answer) {
        self.asked.insert((of, label.to_owned()));
        if model == found {
            self.same += 1;
            return;
        }
        let listed = self.listed(of, label, model, found);
        if listed.is_empty() {
            self.wrong.push(format!("{of:?} {label}\n  model {}\n  found {}", shown(model), shown(found)));
        }
        self.seen.extend(listed.into_iter().map(|(number, line)| (of, number, line)));
    }

    /// The same for a line that contains the reason why its texts differ. Code, reason and fields are compared; if they
    /// differ too, the line contains both.
    pub(crate) fn compare_case(&mut self, case: &Case, model: &Answer, found: &Answer) {
        let label = &case.line.label;
        if case.differs.is_none() {
            return self.compare(Where::Embedded, label, model, found);
        }
        let verdicts = [model.verdict().to_string(), found.verdict().to_string()];
        let is_listed = match &case.verdicts {
            Some(listed) => verdicts == *listed,
            None => verdicts[0] == verdicts[1],
        };
        if model == found {
            self.wrong.push(format!("no longer differs; remove the reason from the line: {label}"));
        } else if !is_listed {
            self.wrong.push(format!("more than texts differs, {verdicts:?}: {label}"));
        } else if case.verdicts.is_some() && verdicts[0] == verdicts[1] {
            self.wrong.push(format!("only texts differ; remove the verdicts from the line: {label}"));
        }
    }

    /// Everything that is wrong; empty if nothing is. A list has only requests that are sent, and that differ if they
    /// always should.
    pub(crate) fn verdict(mut self) -> Vec<String> {
        for (number, one) in self.differences.iter().enumerate() {
            for (of, line) in
                one.of.servers().iter().flat_map(|of| one.lines.iter().map(move |line| (*of, *line)))
            {
                if !self.asked.contains(&(of, line.to_owned())) {
                    self.wrong.push(format!("no such request; remove it from the list of {of:?}: {line}"));
                } else if one.sure && !self.seen.contains(&(of, number, line)) {
                    self.wrong
                        .push(format!("no longer differs as listed for {of:?}; correct the list: {line}"));
                }
            }
        }
        println!("{} answers are the same, {} differ as listed", self.same, self.seen.len());
        self.wrong
    }
}

fn shown(answer: &Answer) -> String {
    format!("{} {} {:?} {}", answer.verdict(), answer.body, answer.warnings, answer.written)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LISTED: &[Difference] = &[
        Difference {
            of: Where::Embedded,
            part: Part::Text,
            sure: true,
            lines: &["GET /text"],
            _why: "a test",
        },
        Difference {
            of: Where::Embedded,
            part: Part::Members(&["status"]),
            sure: false,
            lines: &["GET /status"],
            _why: "a test",
        },
        Difference {
            of: Where::Edge,
            part: Part::Verdicts("404 NotFound", "405 MethodNotAllowed"),
            sure: true,
            lines: &["POST /code"],
            _why: "a test",
        },
    ];

    fn answer(code: u16, body: Value) -> Answer {
        Answer { code, warnings: Vec::new(), written: "JSON".to_owned(), body }
    }

    fn refusal(code: u16, reason: &str, message: &str) -> Answer {
        answer(code, json!({"kind": "Status", "reason": reason, "message": message}))
    }

    fn accepts(of: Where, label: &str, model: &Answer, found: &Answer) -> bool {
        Judge::new(&[LISTED]).accepts(of, label, model, found)
    }

    #[test]
    fn listed_difference_excuses_only_itself() {
        let invalid = refusal(422, "Invalid", "one");
        assert!(accepts(Where::Embedded, "GET /text", &invalid, &refusal(422, "Invalid", "two")));
        assert!(!accepts(Where::Embedded, "GET /text", &invalid, &refusal(422, "BadRequest", "one")));
        assert!(!accepts(Where::Embedded, "GET /text", &invalid, &refusal(400, "Invalid", "one")));
        assert!(!accepts(Where::Embedded, "GET /text2", &invalid, &refusal(422, "Invalid", "two")));
        assert!(!accepts(Where::Library, "GET /text", &invalid, &refusal(422, "Invalid", "two")));

        let object = |status: i32, data: i32| answer(200, json!({"status": status, "data": {"a": data}}));
        assert!(accepts(Where::Embedded, "GET /status", &object(1, 1), &object(2, 1)));
        assert!(!accepts(Where::Embedded, "GET /status", &object(1, 1), &object(2, 2)));

        let (model, found) = (refusal(404, "NotFound", "a"), refusal(405, "MethodNotAllowed", "b"));
        assert!(accepts(Where::Edge, "POST /code", &model, &found));
        assert!(!accepts(Where::Edge, "POST /code", &model, &refusal(403, "Forbidden", "b")));
        assert!(!accepts(Where::Edge, "POST /code", &found, &model));
    }

    #[test]
    fn events_with_only_excused_changes_are_left_out() {
        let event = |sort: &str, status: i32, data: i32| json!({"type": sort, "object": {"status": status, "data": data}});
        let watch = |events: Vec<Value>| answer(200, Value::Array(events));
        let quiet = watch(vec![event("ADDED", 0, 1), event("MODIFIED", 0, 2), event("DELETED", 0, 2)]);
        let busy = watch(vec![
            event("ADDED", 0, 1),
            event("MODIFIED", 5, 1),
            event("MODIFIED", 5, 2),
            event("DELETED", 5, 2),
        ]);
        assert!(accepts(Where::Embedded, "GET /status", &quiet, &busy));
        let missed = watch(vec![event("ADDED", 0, 1), event("DELETED", 0, 2)]);
        assert!(!accepts(Where::Embedded, "GET /status", &quiet, &missed));
    }

    #[test]
    fn a_list_expires() {
        let mut judge = Judge::new(&[LISTED]);
        let same = refusal(422, "Invalid", "one");
        judge.compare(Where::Embedded, "GET /text", &same, &same);
        judge.compare(Where::Embedded, "GET /status", &same, &same);
        let wrong = judge.verdict();
        assert_eq!(wrong.len(), 2, "{wrong:#?}");
        assert!(wrong[0].starts_with("no longer differs") && wrong[0].ends_with("GET /text"), "{wrong:#?}");
        assert!(wrong[1].starts_with("no such request") && wrong[1].ends_with("POST /code"), "{wrong:#?}");
    }
}
