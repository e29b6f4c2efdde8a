//! Answers that differ from those of kube-apiserver, and why.

use std::collections::BTreeSet;

use crate::line::Answer;
use crate::lines::definitions::Case;

/// The servers whose answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// The embedded server and the library.
    Both,
    /// Only the embedded server.
    Embedded,
    /// Only the library.
    Library,
}

/// An answer that differs.
pub(crate) struct Difference {
    of: Where,
    /// Label of the line; a `*` at its beginning or end matches anything.
    line: &'static str,
    /// Whether even the codes differ.
    code: bool,
    /// Whether it always differs; a controller may be faster or slower than the next line.
    sure: bool,
    /// The reason, for readers of the list.
    _why: &'static str,
}

const fn body(of: Where, line: &'static str, why: &'static str) -> Difference {
    Difference { of, line, code: false, sure: true, _why: why }
}

const fn raced(line: &'static str, why: &'static str) -> Difference {
    Difference { of: Where::Embedded, line, code: true, sure: false, _why: why }
}

const COLLECTED: &str = "the embedded server collects garbage itself, where the real one needs a controller";

/// Differences that no longer occur fail the test too.
const DIFFERENCES: &[Difference] = &[
    body(
        Where::Both,
        r#"POST /api/v1/namespaces/default/configmaps {"kind":"Secret","apiVersion":"v1","metadata":{"name":"b"}}"#,
        "the real text names internal Go packages",
    ),
    body(
        Where::Both,
        r#"POST /api/v1/namespaces/default/configmaps {"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"b"}}"#,
        "the real text names a Go source file",
    ),
    body(Where::Both, "POST /api/v1/namespaces/default/configmaps {bad", "the JSON parser's messages differ"),
    body(Where::Both, "PATCH /api/v1/namespaces/default/configmaps/a {", "the JSON parser's messages differ"),
    body(
        Where::Both,
        "GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1 as application/yaml",
        "the real server also offers protobuf",
    ),
    body(Where::Both, "GET /version from kubectl/1", "each reports its own build"),
    body(
        Where::Embedded,
        "GET /api/v1/componentstatuses/none",
        "the real text names the resource in the singular",
    ),
    body(
        Where::Embedded,
        r#"PUT /apis/coordination.k8s.io/v1/namespaces/default/leases/unknown {"metadata":{"name":"unknown","uid":"3f919656-38aa-43f2-97b2-20c4744f83e2"},"spec":{}}"#,
        "the real text names the key in etcd",
    ),
    body(
        Where::Both,
        r#"PATCH /api/v1/namespaces/default/configmaps/fv {"data":{"b":1}}"#,
        "for a strategic merge patch the real decoder has other messages",
    ),
    body(
        Where::Both,
        r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=s {"op":"add"}"#,
        "the JSON parser's messages differ",
    ),
    body(
        Where::Both,
        r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=s&dryRun=All {"metadata":{"ownerReferences":[{"uid":"u2","controller":true}],"$setElementOrder/ownerReferences":[{"uid":"u2"},{"uid":"u1"}]}}"#,
        "errors about owner references name the item and occur once",
    ),
    body(
        Where::Both,
        r#"PATCH /api/v1/namespaces/default/configmaps/set?fieldManager=a&dryRun=All {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"set","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"m"}]}}"#,
        "errors about owner references name the item and occur once",
    ),
    body(
        Where::Both,
        r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=b {"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"lm"},"spec":{"strategy":{"rollingUpdate":{"maxSurge":{}}}}}"#,
        "the real server finds it one step later, with another message",
    ),
    body(
        Where::Both,
        r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=s {"spec":{"template":{"spec":{"containers":{"name":"r"}}}}}"#,
        "for a strategic merge patch the real decoder has other messages",
    ),
    raced(
        r#"PATCH /api/v1/namespaces/default/configmaps/a?fieldManager=m {"metadata":{"finalizers":null}}"#,
        COLLECTED,
    ),
    Difference {
        of: Where::Both,
        line: r#"PATCH /apis/apps/v1/namespaces/default/deployments/lm?fieldManager=s {"spec":{"template":{"spec":{"volumes":[{"name":"v","$retainKeys":["name","configMap"],"configMap":{"name":"x"}}],"containers":[{"name":"r","volumeMounts":[{"name":"v","mountPath":"/v"}]}]}}}}"#,
        code: false,
        sure: false,
        _why: "the real server sometimes warns of an unknown directive",
    },
    raced("GET /api/v1/namespaces/default/replicationcontrollers/round", COLLECTED),
    raced("GET /apis/batch/v1/namespaces/default/jobs/round", COLLECTED),
    raced("GET /api/v1/namespaces/default/replicationcontrollers?watch=1*", COLLECTED),
    raced("GET /apis/batch/v1/namespaces/default/jobs?watch=1*", COLLECTED),
    raced("GET /api/v1/namespaces?watch=1*", COLLECTED),
    raced("GET /api/v1/namespaces/round", COLLECTED),
    Difference {
        of: Where::Both,
        line: "GET /api/v1/namespaces/default/events",
        code: false,
        sure: false,
        _why: "the real server may report an event about the address of its own Service",
    },
    raced(
        "* /api/v1/namespaces/default/resourcequotas*",
        "the embedded server sets the status of a quota itself, where the real one needs a controller",
    ),
    raced(
        "* /apis/flowcontrol.apiserver.k8s.io/v1/flowschemas*",
        "the real server checks flow schemas and writes their status",
    ),
    raced(
        "* /apis/apiextensions.k8s.io/v1/customresourcedefinitions*",
        "the controllers of definitions write at other times",
    ),
    raced("DELETE /api/v1/namespaces/default/configmaps/a", COLLECTED),
    body(
        Where::Embedded,
        "* /api/v1/nodes*",
        "a new node is tainted only where kube-controller-manager removes the taint",
    ),
    body(
        Where::Embedded,
        "PUT /api/v1/namespaces/default/persistentvolumeclaims/round?fieldManager=put json",
        "the real text shows the difference as Go structs",
    ),
];

/// Collects what is wrong.
#[derive(Default)]
pub(crate) struct Judge {
    wrong: Vec<String>,
    /// The differences that occurred.
    seen: BTreeSet<usize>,
}

impl Judge {
    /// Records an answer that differs without a listed reason.
    pub(crate) fn compare(&mut self, of: Where, label: &str, real: &Answer, ours: &Answer) {
        if real == ours {
            return;
        }
        let applies = |difference: &&Difference| {
            (difference.of == of || difference.of == Where::Both)
                && (difference.code || real.code == ours.code)
                && matches(difference.line, label)
        };
        let known: Vec<usize> =
            DIFFERENCES.iter().enumerate().filter(|(_, one)| applies(one)).map(|(index, _)| index).collect();
        if known.is_empty() {
            let shown = |answer: &Answer| {
                format!("{} {} {:?} {}", answer.code, answer.body, answer.warnings, answer.written)
            };
            self.wrong.push(format!("{of:?} {label}\n  real {}\n  ours {}", shown(real), shown(ours)));
        }
        self.seen.extend(known);
    }

    /// The same for a line that contains the reason why it differs.
    pub(crate) fn compare_case(&mut self, case: &Case, real: &Answer, ours: &Answer) {
        let label = &case.line.label;
        match &case.differs {
            None => self.compare(Where::Embedded, label, real, ours),
            Some(_) if real == ours => {
                self.wrong.push(format!("no longer differs; remove the reason from the line: {label}"));
            }
            Some(_) => {}
        }
    }

    /// Everything that is wrong; empty if nothing is.
    pub(crate) fn verdict(mut self) -> Vec<String> {
        for (index, difference) in DIFFERENCES.iter().enumerate() {
            if difference.sure && !self.seen.contains(&index) {
                self.wrong.push(format!("no longer differs; remove it from the list: {}", difference.line));
            }
        }
        self.wrong
    }
}

/// Whether a pattern matches a line.
pub(crate) fn matches(pattern: &str, label: &str) -> bool {
    let (open_start, open_end) = (pattern.starts_with('*'), pattern.ends_with('*'));
    let inner = pattern.trim_matches('*');
    match (open_start, open_end) {
        (false, false) => label == inner,
        (true, false) => label.ends_with(inner),
        (false, true) => label.starts_with(inner),
        (true, true) => label.contains(inner),
    }
}
