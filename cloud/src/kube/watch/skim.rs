//! Extracts the kept fields of an event that is too long to be read: its type, the identity of its object, whether the
//! object is being deleted, and for a pod its node.

use super::super::object::IDENTITY;

/// Maximum length of a kept value in bytes. Names have at most 253.
const VALUE_LEN_MAX: usize = 1024;

/// Maximum number of bytes kept of each part: event, object, metadata and spec.
const KEPT_LEN_MAX: usize = 8 * VALUE_LEN_MAX;

/// The kept field of a pod's spec: its node.
const PLACE: &str = "nodeName";

/// Reads an event piece by piece and keeps `type`, and from `object` its identity and node. It uses the same few bytes
/// for any event.
#[derive(Default)]
pub(super) struct Skim {
    /// Kept fields as JSON, of the event, the object, its metadata and its spec.
    kept: [Vec<u8>; 4],
    /// Nesting depth of the current position, counting only those objects.
    level: usize,
    /// Whether the innermost of them is the spec.
    in_spec: bool,
    /// Nesting depth within objects and lists that are skipped.
    left_out: usize,
    in_string: bool,
    is_escaped: bool,
    /// The name of the current field, as it is written.
    name: Vec<u8>,
    /// The string or number that is being read.
    value: Vec<u8>,
}

impl Skim {
    /// Processes the next piece.
    pub(super) fn read(&mut self, piece: &[u8]) {
        for byte in piece {
            self.byte(*byte);
        }
    }

    /// The event, with only its kept fields.
    pub(super) fn text(&self) -> Vec<u8> {
        let [event, object, metadata, spec] = &self.kept;
        let (begin, end): (&[u8], &[u8]) = if spec.is_empty() { (b"", b"") } else { (br#","spec":{"#, b"}") };
        let object = [&object[..], begin, spec, end].concat();
        [br#"{"object":{"metadata":{"#, &metadata[..], b"}", &object[..], b"}", &event[..], b"}"].concat()
    }

    fn byte(&mut self, byte: u8) {
        if self.in_string {
            self.keep(byte);
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'{' | b'[' if self.left_out > 0 || !self.is_followed(byte) => self.left_out += 1,
            b'{' => {
                self.level += 1;
                self.in_spec = self.name == br#""spec""#;
                self.name.clear();
            }
            b'}' | b']' if self.left_out > 0 => self.left_out -= 1,
            b'}' | b']' => {
                self.end_member();
                self.level = self.level.saturating_sub(1);
            }
            b',' if self.left_out == 0 => self.end_member(),
            b':' if self.left_out == 0 => self.name = std::mem::take(&mut self.value),
            b' ' | b'\t' | b'\r' => {}
            _ => {
                self.in_string = byte == b'"';
                self.keep(byte);
            }
        }
    }

    /// Whether the object or list that begins here has fields to keep.
    fn is_followed(&self, byte: u8) -> bool {
        let name: &[u8] = &self.name;
        let is_expected = match self.level {
            0 => name.is_empty(),
            1 => name == br#""object""#,
            2 => [&br#""metadata""#[..], br#""spec""#].contains(&name),
            _ => false,
        };
        byte == b'{' && is_expected
    }

    fn keep(&mut self, byte: u8) {
        // One byte beyond the limit marks the value as too long.
        if self.left_out == 0 && self.value.len() <= VALUE_LEN_MAX {
            self.value.push(byte);
        }
    }

    fn end_member(&mut self) {
        let (name, value) = (std::mem::take(&mut self.name), std::mem::take(&mut self.value));
        let plain = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\""));
        let plain = plain.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default();
        let is_wanted = match self.level {
            1 => plain == "type",
            2 => matches!(plain, "kind" | "apiVersion"),
            3 if self.in_spec => plain == PLACE,
            3 => IDENTITY.contains(&plain),
            _ => false,
        };
        let index = self.level + usize::from(self.level == 3 && self.in_spec);
        let Some(kept) = index.checked_sub(1).and_then(|index| self.kept.get_mut(index)) else { return };
        let fits = value.len() <= VALUE_LEN_MAX && kept.len() + value.len() <= KEPT_LEN_MAX;
        if is_wanted && fits && !value.is_empty() {
            // Metadata and spec have no text before them; the other parts follow something.
            if self.level < 3 || !kept.is_empty() {
                kept.push(b',');
            }
            kept.extend_from_slice(&name);
            kept.push(b':');
            kept.extend_from_slice(&value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn skimmed(event: &str, step: usize) -> Value {
        let mut skim = Skim::default();
        event.as_bytes().chunks(step).for_each(|piece| skim.read(piece));
        serde_json::from_slice(&skim.text()).expect("JSON")
    }

    #[test]
    fn identity_of_a_skimmed_object_is_kept_at_any_position() {
        let metadata = json!({
            "annotations": {"name": "no", "a": "}{][\",\\"}, "deletionGracePeriodSeconds": 30,
            "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {}, "managedFields": [{"uid": "no"}, [1, "]"]],
            "name": "a\"b,{", "namespace": "d", "resourceVersion": "7", "uid": "u", "generation": 4
        });
        let object = json!({"apiVersion": "v1", "data": {"metadata": {"name": "no"}, "object": 1}, "kind": "Pod",
            "metadata": metadata, "status": {"type": "no", "n": [{}, [], null, 1.5, true], "nodeName": "no"}});
        let event = json!({"object": object, "type": "MODIFIED"});
        let identity = json!({"deletionGracePeriodSeconds": 30, "deletionTimestamp": "2026-01-01T00:00:00Z",
            "name": "a\"b,{", "namespace": "d", "resourceVersion": "7", "uid": "u"});
        let expected =
            json!({"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "Pod", "metadata": identity}});
        let [mut bound, mut of_bound] = [event.clone(), expected.clone()];
        let containers = json!([{"name": "c", "spec": {"nodeName": "no"}}]);
        bound["object"]["spec"] =
            json!({"containers": containers, "nodeName": "n", "volumes": [], "name": "no"});
        of_bound["object"]["spec"] = json!({"nodeName": "n"});
        for (event, expected) in [(event, expected), (bound, of_bound)] {
            for step in [1, 2, 7, 4096] {
                assert_eq!(skimmed(&event.to_string(), step), expected);
                assert_eq!(skimmed(&format!("{event:#}").replace('\n', " "), step), expected);
            }
        }
    }

    #[test]
    fn skimming_uses_bounded_memory() {
        let mut skim = Skim::default();
        for piece in [r#"{"type":"A","object":{"metadata":{"name":""#, &"x".repeat(1 << 20), r#"","uid":"u""#]
        {
            skim.read(piece.as_bytes());
        }
        for _ in 0..10_000 {
            skim.read(br#","uid":"u","y":"z""#);
        }
        let held = |skim: &Skim| skim.value.capacity() + skim.name.capacity() + skim.text().len();
        assert!(held(&skim) <= 2 * KEPT_LEN_MAX, "{}", held(&skim));
        for junk in ["{", "[", "]", "}", ":", ",", "\"", "\\"] {
            let mut skim = Skim::default();
            skim.read(junk.repeat(100_000).as_bytes());
            assert!(held(&skim) <= KEPT_LEN_MAX, "{junk}");
        }
    }
}
