//! Names that an API server stores, and references that it does not check.

use super::random::SeededRandom;

/// A few plain names, so that operations meet each other.
const PLAIN: [&str; 4] = ["web", "db", "a", "b-1"];

/// A name of an object with the rules of a DNS subdomain: most are plain, some are odd.
pub(super) fn object_name(random: &mut SeededRandom) -> String {
    match random.below(10) {
        0..=6 => (*random.pick(&PLAIN)).to_owned(),
        7 => (*random.pick(&["a.b.c", "0", "0.0", "xn--a", "null", "true", "web.db"])).to_owned(),
        8 => differing_late(random, 253),
        _ => differing_late(random, 63),
    }
}

/// A name of an object with the rules of a DNS label.
pub(super) fn label_name(random: &mut SeededRandom) -> String {
    match random.below(6) {
        0 => differing_late(random, 63),
        _ => (*random.pick(&PLAIN)).to_owned(),
    }
}

/// Names of RBAC objects are segments of a path.
pub(super) fn role_name(random: &mut SeededRandom) -> String {
    (*random.pick(&["reader", "system:odd", "Upper Case", "ü", "a%2Fb", "a:b:c"])).to_owned()
}

/// One of two long names that only their last letter tells apart.
fn differing_late(random: &mut SeededRandom, length: usize) -> String {
    let last = *random.pick(&['a', 'b']);
    let long = "long-name.".repeat(26);
    let long = if length > 63 { long } else { long.replace('.', "-") };
    format!("{}{last}", long[..length - 1].trim_end_matches(['.', '-']))
}

/// A text in the place of a name in a reference: mostly a name, sometimes none that can exist.
pub(super) fn reference_name(random: &mut SeededRandom) -> String {
    if random.percent(85) {
        return object_name(random);
    }
    let odd = ["a/b", "..", "Upper", "a b", "a_b", "-a", "ä", "a%2Fb", "a\nb"];
    match random.below(10) {
        0 => "x".repeat(300),
        _ => (*random.pick(&odd)).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_legal_and_include_the_odd_ones() {
        let mut random = SeededRandom::new(3);
        let names: BTreeSet<String> = (0..500).map(|_| object_name(&mut random)).collect();
        for name in &names {
            assert!(crate::oracle::content::is_name(name), "{name:?}");
        }
        assert!(names.iter().any(|name| name.len() > 250) && names.contains("a.b.c"));
        let labels: BTreeSet<String> = (0..100).map(|_| label_name(&mut random)).collect();
        assert!(labels.iter().all(|name| name.len() <= 63 && !name.contains('.')));
        let long: Vec<_> = names.iter().filter(|name| name.len() > 200).collect();
        assert_eq!(long.len(), 2, "they differ at their end: {long:?}");
        assert_eq!(long[0][..long[0].len() - 1], long[1][..long[1].len() - 1]);
    }

    #[test]
    fn references_include_what_can_be_no_name() {
        let mut random = SeededRandom::new(4);
        let names: Vec<String> = (0..300).map(|_| reference_name(&mut random)).collect();
        let is_name = |name: &&String| crate::oracle::content::is_name(name);
        assert!(names.iter().filter(is_name).count() > 200);
        assert!(names.iter().any(|name| name == "a/b") && names.iter().any(|name| name.len() == 300));
    }
}
