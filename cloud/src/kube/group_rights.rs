//! Rights that nodes have through the group [`EDGE_NODES`] and not by their names. They are the same for all nodes, and
//! a fleet that reconnects needs them in the same second.
//!
//! One question serves all callers that wait for its answer, but no later one: answers are never cached. Only questions
//! that all nodes ask are shared in this way, so their number is fixed and no node can add to it
//! (docs/security.md#rights-are-asked-for-never-remembered).

use std::sync::Arc;
use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tombolo_proto::documents::WARM_SET;
use tombolo_proto::{NodeId, Resource};

use super::call::class_of;
use super::coalesced::{Common, Got, Wanted};
use super::reviews::{self, may_follow};
use super::{Caller, EDGE_NODES, Kube, Right, Unanswered};
use crate::metrics::Label;

/// The verbs that are checked for all objects of a followed resource.
pub(crate) const VERBS: [&str; 2] = ["list", "watch"];

/// Number of questions that all nodes ask.
pub(crate) const QUESTIONS: usize = WARM_SET.len() * VERBS.len();

/// The questions that all nodes ask. A question must match one of these exactly; any difference makes it another
/// question.
static ASKED_BY_ALL: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let resources = WARM_SET.iter().map(|(group, version, name)| Resource::new(group, version, name));
    let questions =
        resources.flat_map(|resource| VERBS.map(|verb| question(&may_follow(verb, &resource, ""))));
    questions.collect()
});

/// The `spec` of a SubjectAccessReview about the group. It contains no user, because rights by name are not rights of
/// the group.
fn question(attributes: &Value) -> Value {
    json!({"groups": [EDGE_NODES], "resourceAttributes": attributes})
}

/// Questions about the group, with the callers that wait for each answer, by index in [`ASKED_BY_ALL`].
#[derive(Debug)]
pub(super) struct GroupRights {
    questions: [Common<Result<bool, Arc<str>>>; QUESTIONS],
    answers: Family<Label, Counter>,
}

impl Default for GroupRights {
    fn default() -> Self {
        Self { questions: std::array::from_fn(|_| Common::default()), answers: Family::default() }
    }
}

impl GroupRights {
    pub(super) fn register(&self, registry: &mut Registry) {
        let text =
            "Checks of the rights of nodes as edge nodes: asked, or shared with a node that waited as well";
        registry.register("group_rights", text, self.answers.clone());
    }

    fn count(&self, kind: &'static str) {
        self.answers.get_or_create(&Label { kind }).inc();
    }
}

impl Kube {
    /// Whether a node may do something because every edge node may. False says nothing about the node itself: either
    /// the group has no such right, or this is not a question that all nodes ask.
    ///
    /// # Errors
    /// [`Unanswered`], only for failures of the cluster.
    pub(crate) async fn may_as_edge_node(
        &self,
        node: &NodeId,
        attributes: &Value,
    ) -> Result<bool, Unanswered> {
        let spec = question(attributes);
        let index = ASKED_BY_ALL.iter().position(|known| *known == spec);
        let Some(common) = index.and_then(|index| self.group_rights.questions.get(index)) else {
            return Ok(false);
        };
        let call = reviews::of_right(&spec);
        let (limit, class) = (call.timeout, class_of(&call)?);
        // This needs no turn of the node: other nodes must not wait behind its requests, and there are few such
        // questions. It gets its own timeout, because its callers have waited already.
        let ask = || async {
            let answer = self.attempt(Caller::OwnFor(node), Some(class), call, None);
            let answer = tokio::time::timeout(limit, answer).await;
            let answer = answer.map_err(|_| super::CallError::TimedOut(limit))??;
            match reviews::right(&answer.ok_or(super::CallError::NoRoom)?) {
                // An API server that cannot answer questions about a group.
                Err(Unanswered::Unreadable(_)) => Ok(false),
                right => Ok(right? == Right::Allowed),
            }
        };
        // A failure is passed to all callers that waited: otherwise each of them would meet it, one after the other.
        let keep = |outcome: &Result<bool, Unanswered>| {
            Some(outcome.as_ref().copied().map_err(|error| Arc::<str>::from(error.to_string())))
        };
        let (kind, outcome) = match common.ask(Wanted::New, ask, keep).await {
            Got::Common(may) => ("shared", may.map_err(|error| Unanswered::Failed(error.to_string()))),
            Got::Own(outcome) => ("asked", outcome),
        };
        self.group_rights.count(kind);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join;
    use proptest::prelude::*;

    use super::*;
    use crate::kube::tests::double::answering;

    fn node(name: &str) -> NodeId {
        NodeId::parse(name).expect("a name")
    }

    /// Attributes, many of which differ from a common question in one part or not at all.
    fn attributes() -> impl Strategy<Value = Value> {
        let of = |texts: &'static [&'static str]| prop::sample::select(texts);
        let part = of(&[
            "",
            "verb",
            "group",
            "version",
            "resource",
            "namespace",
            "name",
            "labelSelector",
            "fieldSelector",
        ]);
        let other = prop::sample::select(vec![
            json!(null),
            json!(""),
            json!("secrets"),
            json!("*"),
            json!("get"),
            json!({"rawSelector": ""}),
            json!({"rawSelector": "a=b"}),
            json!([]),
        ]);
        (0..QUESTIONS, part, other, any::<bool>()).prop_map(|(index, part, other, absent)| {
            let mut attributes = ASKED_BY_ALL[index]["resourceAttributes"].clone();
            match part {
                "" => {}
                part if absent => drop(attributes.as_object_mut().expect("an object").remove(part)),
                part => attributes[part] = other,
            }
            attributes
        })
    }

    /// An API server that allows exactly one question.
    fn allowing(allowed: &Value) -> Kube {
        let allowed = question(allowed);
        let client = answering(move |_, body| {
            let review: Value = serde_json::from_slice(&body).unwrap_or_default();
            let status = json!({"allowed": review["spec"] == allowed});
            async move {
                // Other callers arrive meanwhile.
                tokio::task::yield_now().await;
                (201, json!({ "status": status }))
            }
        });
        client.into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(tombolo_testkit::cases(500)))]
        #[test]
        fn different_group_reviews_never_share_an_answer(allowed in attributes(), other in attributes(), second: bool) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.expect("a runtime").block_on(async {
                let kube = allowing(&allowed);
                let (first, next) = if second { (&other, &allowed) } else { (&allowed, &other) };
                let (n, m) = (node("n"), node("m"));
                let (one, two) = join(kube.may_as_edge_node(&n, first), kube.may_as_edge_node(&m, next)).await;
                let known = |attributes: &Value| ASKED_BY_ALL.contains(&question(attributes));
                for (asked, may) in [(first, one), (next, two)] {
                    prop_assert_eq!(may.expect("an answer"), *asked == allowed && known(asked), "{}", asked);
                }
                Ok::<(), TestCaseError>(())
            })?;
        }
    }

    #[test]
    fn group_reviews_cover_the_warm_set() {
        assert_eq!(ASKED_BY_ALL.len(), QUESTIONS);
        for (index, spec) in ASKED_BY_ALL.iter().enumerate() {
            assert_eq!(ASKED_BY_ALL.iter().position(|other| other == spec), Some(index), "{spec} twice");
            assert_eq!((spec.get("user"), &spec["groups"]), (None, &json!([EDGE_NODES])));
        }
    }

    #[tokio::test]
    async fn group_review_that_is_not_understood_allows_nothing() {
        for (code, trouble) in [(400, false), (422, false), (403, true), (429, true), (500, true)] {
            let client =
                answering(move |_, _| std::future::ready((code, json!({"status": {"allowed": true}}))));
            let attributes = &ASKED_BY_ALL[0]["resourceAttributes"];
            let may = Kube::from(client).may_as_edge_node(&node("n"), attributes).await;
            assert!(if trouble { may.is_err() } else { matches!(may, Ok(false)) }, "{code}: {may:?}");
        }
    }
}
