//! Maps the identifiers of a recording to those of the run.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// What an identifier identifies. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sort {
    /// Uid of an object: one to one.
    Uid,
    /// Version of one incarnation: one to one.
    Version,
    /// Generation of one incarnation.
    Generation,
    /// A time that the API server set in one incarnation.
    Time,
    /// Network address of the cloud.
    Address,
    /// Generation of an epoch of one cluster: one to one.
    Epoch,
    /// Address or port that the cluster allocated to a Service: one to one.
    Allotted,
}

impl Sort {
    fn is_one_to_one(self) -> bool {
        matches!(self, Self::Uid | Self::Version | Self::Epoch | Self::Allotted)
    }
}

/// Pairs that are known to mean the same. Bounded by the transcript.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identifiers {
    forward: HashMap<(Sort, String, String), String>,
    backward: HashMap<(Sort, String, String), String>,
    /// The uids again, for searches within longer texts.
    uids: HashMap<String, String>,
}

impl Identifiers {
    /// Records that both mean the same. `scope` is the recorded uid of the object that contains them; for times,
    /// it also contains the member's name.
    ///
    /// # Errors
    /// Returns the known pair that contradicts this one.
    pub(crate) fn pair(&mut self, sort: Sort, scope: &str, recorded: &str, live: &str) -> Result<(), String> {
        let mut draft = Draft::new(self);
        draft.pair(sort, scope, recorded, live)?;
        let learned = draft.learned();
        self.keep(learned);
        Ok(())
    }

    /// Keeps what a comparison learned.
    pub(crate) fn keep(&mut self, learned: Self) {
        self.forward.extend(learned.forward);
        self.backward.extend(learned.backward);
        self.uids.extend(learned.uids);
    }

    fn insert(&mut self, sort: Sort, scope: &str, recorded: &str, live: &str) {
        self.forward.insert((sort, scope.to_owned(), recorded.to_owned()), live.to_owned());
        if sort.is_one_to_one() {
            self.backward.insert((sort, scope.to_owned(), live.to_owned()), recorded.to_owned());
        }
        if sort == Sort::Uid {
            self.uids.insert(recorded.to_owned(), live.to_owned());
        }
    }

    /// The run's identifier for a recorded one.
    pub(crate) fn live(&self, sort: Sort, scope: &str, recorded: &str) -> Option<&str> {
        self.forward.get(&(sort, scope.to_owned(), recorded.to_owned())).map(String::as_str)
    }

    /// The recorded identifier for one of the run.
    pub(crate) fn recorded(&self, sort: Sort, scope: &str, live: &str) -> Option<&str> {
        self.backward.get(&(sort, scope.to_owned(), live.to_owned())).map(String::as_str)
    }

    /// The text with all known uids replaced, including those inside longer texts.
    pub(crate) fn translate(&self, text: &str) -> String {
        match self.uids.get(text) {
            Some(live) => live.clone(),
            None => self.translate_parts(text),
        }
    }

    /// Inside longer texts, only whole words are uids: a word that only begins or ends like a uid is something else,
    /// for example a name.
    fn translate_parts(&self, text: &str) -> String {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let mut translated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            let (before, word) = rest.split_at(start);
            let end = word.find(|letter| !is_part(letter)).unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            translated.push_str(before);
            translated.push_str(self.uids.get(word).map_or(word, String::as_str));
            rest = after;
        }
        translated.push_str(rest);
        translated
    }

    /// Translates the content of a request to what the edge of the run would write.
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
                self.translate_epoch(members);
                members.values_mut().for_each(|value| self.translate_content(value));
            }
            _ => {}
        }
    }

    /// Translates the generation of an epoch, which counts within its own cluster.
    fn translate_epoch(&self, members: &mut Map<String, Value>) {
        let cluster = members.get("cluster").and_then(Value::as_str).unwrap_or_default();
        let generation = members.get("generation").and_then(Value::as_u64).unwrap_or_default().to_string();
        let live = self.live(Sort::Epoch, cluster, &generation).and_then(|live| live.parse::<u64>().ok());
        if let Some(live) = live {
            members.insert("generation".to_owned(), live.into());
        }
    }
}

/// What a comparison learns, on top of what is known. It counts only if everything is equal.
pub(crate) struct Draft<'a> {
    known: &'a Identifiers,
    learned: Identifiers,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(known: &'a Identifiers) -> Self {
        Self { known, learned: Identifiers::default() }
    }

    pub(crate) fn learned(self) -> Identifiers {
        self.learned
    }

    /// What was learned so far, for [`Self::reset`].
    pub(crate) fn mark(&self) -> Identifiers {
        self.learned.clone()
    }

    /// Forgets what was learned since the mark.
    pub(crate) fn reset(&mut self, mark: Identifiers) {
        self.learned = mark;
    }

    /// As [`Identifiers::pair`].
    ///
    /// # Errors
    /// Returns the known pair that contradicts this one.
    pub(crate) fn pair(&mut self, sort: Sort, scope: &str, recorded: &str, live: &str) -> Result<(), String> {
        if let Some(known) = self.live(sort, scope, recorded) {
            return if known == live {
                Ok(())
            } else {
                Err(format!("{recorded} is already paired with {known}"))
            };
        }
        if sort.is_one_to_one() {
            let known =
                self.known.recorded(sort, scope, live).or_else(|| self.learned.recorded(sort, scope, live));
            if let Some(known) = known {
                return Err(format!("{live} is already paired with {known}"));
            }
        }
        self.learned.insert(sort, scope, recorded, live);
        Ok(())
    }

    /// Another client wrote to the object of the run meanwhile: from now on the recorded version stands for this newer
    /// one. Returns false if it is not newer, or stands for another recorded version.
    pub(crate) fn advance(&mut self, scope: &str, recorded: &str, live: &str) -> bool {
        let known = self.live(Sort::Version, scope, recorded);
        let number = |version: &str| version.parse::<u64>().ok();
        let newer = known.and_then(number).zip(number(live)).is_some_and(|(known, live)| live > known);
        let other = self.known.recorded(Sort::Version, scope, live);
        let other = other.or_else(|| self.learned.recorded(Sort::Version, scope, live));
        let free = other.is_none_or(|other| other == recorded);
        if newer && free {
            self.learned.insert(Sort::Version, scope, recorded, live);
        }
        newer && free
    }

    /// As [`Identifiers::live`].
    pub(crate) fn live(&self, sort: Sort, scope: &str, recorded: &str) -> Option<&str> {
        self.learned.live(sort, scope, recorded).or_else(|| self.known.live(sort, scope, recorded))
    }

    /// As [`Identifiers::translate`].
    pub(crate) fn translate(&self, text: &str) -> String {
        self.learned.translate(&self.known.translate(text))
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
        assert_eq!(identifiers.translate("pvc-r1 r10 _r1_"), "pvc-r1 r10 _l1_");
    }

    /// A hello names the epoch that the cloud of the run has, and the generation of an object is no epoch.
    #[test]
    fn hello_has_the_epoch_of_the_run() {
        let mut identifiers = Identifiers::default();
        identifiers.pair(Sort::Uid, "", "recorded", "live").expect("a new pair");
        identifiers.pair(Sort::Epoch, "recorded", "3", "1").expect("a new pair");
        identifiers.pair(Sort::Generation, "recorded", "4", "9").expect("a new pair");
        for (generation, wanted) in [(3, 1), (4, 4)] {
            let mut hello =
                serde_json::json!({"content": {"epoch": {"cluster": "recorded", "generation": generation}}});
            identifiers.translate_content(&mut hello);
            assert_eq!(
                hello["content"]["epoch"],
                serde_json::json!({"cluster": "live", "generation": wanted})
            );
        }
    }
}
