//! Which identifier of a recording stands for which one of the run.

use std::collections::HashMap;

use serde_json::Value;

/// What an identifier identifies. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sort {
    /// Uid of an object: one to one.
    Uid,
    /// Version of one incarnation: one to one.
    Version,
    /// Generation of one incarnation.
    Generation,
    /// A time that the API server has set in one incarnation.
    Time,
    /// Network address of the cloud.
    Address,
}

/// Pairs of identifiers, learned from what is the same on both sides. Grows with the transcript, which is bounded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identifiers {
    forward: HashMap<(Sort, String, String), String>,
    backward: HashMap<(Sort, String, String), String>,
}

impl Identifiers {
    /// Says that both mean the same. `scope` is the recorded uid of the object in which they stand, and for times the
    /// member's name too.
    ///
    /// # Errors
    /// What was known before and contradicts it.
    pub(crate) fn pair(&mut self, sort: Sort, scope: &str, recorded: &str, live: &str) -> Result<(), String> {
        let forward = (sort, scope.to_owned(), recorded.to_owned());
        if let Some(known) = self.forward.get(&forward) {
            return if known == live {
                Ok(())
            } else {
                Err(format!("{recorded} has stood for {known} before"))
            };
        }
        if matches!(sort, Sort::Uid | Sort::Version) {
            let backward = (sort, scope.to_owned(), live.to_owned());
            if let Some(known) = self.backward.get(&backward) {
                return Err(format!("{live} has stood for {known} before"));
            }
            self.backward.insert(backward, recorded.to_owned());
        }
        self.forward.insert(forward, live.to_owned());
        Ok(())
    }

    /// The run's word for a recorded one.
    pub(crate) fn live(&self, sort: Sort, scope: &str, recorded: &str) -> Option<&str> {
        self.forward.get(&(sort, scope.to_owned(), recorded.to_owned())).map(String::as_str)
    }

    /// The recording's word for one of the run.
    pub(crate) fn recorded(&self, sort: Sort, scope: &str, live: &str) -> Option<&str> {
        self.backward.get(&(sort, scope.to_owned(), live.to_owned())).map(String::as_str)
    }

    /// The text with all known uids replaced, those inside of longer texts too.
    pub(crate) fn translate(&self, text: &str) -> String {
        let mut translated = text.to_owned();
        for ((sort, _, recorded), live) in &self.forward {
            if *sort == Sort::Uid && translated.contains(recorded.as_str()) {
                translated = translated.replace(recorded.as_str(), live);
            }
        }
        translated
    }

    /// Content of a request, as the edge of the run would write it.
    pub(crate) fn translate_content(&self, content: &mut Value) {
        match content {
            Value::String(text) => *text = self.translate(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.translate_content(item)),
            Value::Object(members) => {
                let uid = members.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
                let version = members.get("resourceVersion").and_then(Value::as_str).map(str::to_owned);
                let version =
                    version.and_then(|version| self.live(Sort::Version, &uid, &version).map(str::to_owned));
                if let Some(version) = version {
                    members.insert("resourceVersion".to_owned(), version.into());
                }
                members.values_mut().for_each(|value| self.translate_content(value));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_kept() {
        let mut identifiers = Identifiers::default();
        assert_eq!(identifiers.pair(Sort::Uid, "", "r1", "l1"), Ok(()));
        assert_eq!(identifiers.pair(Sort::Uid, "", "r1", "l1"), Ok(()));
        assert!(identifiers.pair(Sort::Uid, "", "r1", "l2").is_err());
        assert!(identifiers.pair(Sort::Uid, "", "r2", "l1").is_err());
        assert_eq!(identifiers.pair(Sort::Version, "r1", "5", "70"), Ok(()));
        assert_eq!(identifiers.pair(Sort::Version, "r2", "5", "71"), Ok(()));
        assert_eq!(identifiers.recorded(Sort::Version, "r2", "71"), Some("5"));
        assert_eq!(identifiers.pair(Sort::Time, "r1", "a", "x"), Ok(()));
        assert_eq!(identifiers.pair(Sort::Time, "r1", "b", "x"), Ok(()));
        let mut content = serde_json::json!({"metadata": {"uid": "r1", "resourceVersion": "5"}, "text": "{\"uid\":\"r1\"}"});
        identifiers.translate_content(&mut content);
        assert_eq!(content["metadata"]["resourceVersion"], "70");
        assert_eq!(content["text"], "{\"uid\":\"l1\"}");
    }
}
