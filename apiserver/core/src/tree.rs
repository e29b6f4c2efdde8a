//! Estimates the memory of a text that is parsed to a tree, which can be many times its length; the author of the text
//! determines the factor. A member of an object takes 90 times its text if it is itself an object with one member.

use serde_json::Value;

/// Maximum bytes of the tree beyond the text, for texts from users other than administrators. A Pod of 10 KiB takes
/// some 100 KiB, and so does the status of a Node with 50 images.
pub const TREE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The same for a pod: ten containers with ninety variables from Secrets each exceed [`TREE_BYTES_MAX`].
pub const POD_TREE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Maximum bytes of the tree of one body beyond its text: twenty times the longest body. Objects of built-in kinds take
/// about five to ten times their text.
pub const BODY_TREE_MAX: usize = 64 * 1024 * 1024;

/// A non-empty object, whose members are stored in blocks of eleven.
pub const OBJECT_BYTES: usize = 640;

/// Each further member: blocks are half full when names are inserted in order.
pub const MEMBER_BYTES: usize = 144;

/// The smallest non-empty array has a capacity of four.
pub(crate) const ARRAY_BYTES: usize = 4 * size_of::<Value>();

/// Each further item: a growing array has up to twice the capacity that it needs.
pub(crate) const ITEM_BYTES: usize = 2 * size_of::<Value>();

/// Nesting levels that serde_json accepts.
const LEVELS_MAX: u32 = 128;

/// Maximum number of nodes of a YAML text: each is parsed to a node with its position, and then to the tree.
pub(crate) const YAML_NODES_MAX: usize = 64 * 1024;

/// A YAML node, in both forms.
const YAML_NODE_BYTES: usize = OBJECT_BYTES + 256;

/// Memory in bytes, beyond the text itself, for a JSON or YAML text to be parsed or refused.
pub(crate) fn read_bytes(text: &[u8], is_yaml: bool) -> usize {
    let bytes = tree_bytes(text);
    if !is_yaml {
        return bytes;
    }
    let begins = |byte: &&u8| matches!(byte, b':' | b'-' | b'?' | b',' | b'[' | b'{' | b'\n' | b'*');
    let nodes = 2 * text.iter().filter(begins).count() + 1;
    bytes.max(nodes.min(YAML_NODES_MAX) * YAML_NODE_BYTES)
}

/// Maximum bytes of the tree of a JSON text beyond the text. A text that is nested too deep is parsed up to that depth.
#[must_use]
pub fn tree_bytes(text: &[u8]) -> usize {
    // One bit per level: whether it is an object.
    let (mut objects, mut level) = (0_u128, 0_u32);
    let (mut is_string, mut is_escaped, mut bytes) = (false, false, 0_usize);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' | b'[' if level == LEVELS_MAX => return bytes,
            b'{' => (objects, level, bytes) = (objects << 1 | 1, level + 1, bytes + OBJECT_BYTES),
            b'[' => (objects, level, bytes) = (objects << 1, level + 1, bytes + ARRAY_BYTES),
            b'}' | b']' => (objects, level) = (objects >> 1, level.saturating_sub(1)),
            b',' => bytes += if objects & 1 == 1 { MEMBER_BYTES } else { ITEM_BYTES },
            _ => {}
        }
    }
    bytes
}

/// Memory in bytes of a value, by the same estimate, including its strings.
#[must_use]
pub fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Array(items) if items.is_empty() => 0,
        Value::Object(map) if map.is_empty() => 0,
        Value::Array(items) => {
            let items = items.iter().map(|item| ITEM_BYTES + value_bytes(item));
            ARRAY_BYTES + items.sum::<usize>()
        }
        Value::Object(map) => {
            let members = map.iter().map(|(name, value)| MEMBER_BYTES + name.len() + value_bytes(value));
            OBJECT_BYTES + members.sum::<usize>()
        }
        Value::String(text) => text.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_estimate_counts_small_parts_many_times_and_strings_once() {
        for (part, times) in [(r#"{"":0},"#, 90), (r#"[0],"#, 40), (r#""","#, 20), ("0,", 30)] {
            let text = format!("[{}0]", part.repeat(10_000));
            assert!(tree_bytes(text.as_bytes()) > times * text.len(), "{part}");
        }
        let text = serde_json::json!({"data": {"a": "{[,".repeat(10_000), "b": "\\\",{".repeat(10_000)}});
        assert!(tree_bytes(text.to_string().as_bytes()) < 2_000);
        for open in ["[", r#"{"a":"#] {
            assert!(tree_bytes(open.repeat(1_000_000).as_bytes()) < 200 * 1024, "what is read of it");
        }
        assert_eq!(tree_bytes(b"]]]]}}}}"), 0);
    }

    #[test]
    fn yaml_memory_is_bounded_by_its_node_count() {
        let text = "- - {a: 0}\n".repeat(100);
        assert!(read_bytes(text.as_bytes(), true) > 100 * 4 * YAML_NODE_BYTES);
        let text = "- 0\n".repeat(500_000);
        assert_eq!(read_bytes(text.as_bytes(), true), YAML_NODES_MAX * YAML_NODE_BYTES);
        const { assert!(YAML_NODES_MAX * YAML_NODE_BYTES < BODY_TREE_MAX) }
        assert!(crate::input::parse_yaml(text.as_bytes()).is_err(), "more nodes than are read");
    }
}
