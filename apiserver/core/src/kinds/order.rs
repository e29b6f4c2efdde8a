//! The order of groups and versions in discovery: by priority, then by name.

use std::cmp::Reverse;

/// Priorities of a group and of a version within it. The greater one sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priorities {
    /// Of the group among groups.
    pub group: i32,
    /// Of the version within its group.
    pub version: i32,
}

/// Priorities of custom resources (`crdregistration` of kube-apiserver).
pub const CUSTOM: Priorities = Priorities { group: 1000, version: 100 };

/// Group, version, priority of the group, priority of the version: those of kube-apiserver 1.36.
const BUILTIN: &[(&str, &str, i32, i32)] = &[
    ("", "v1", 18_000, 1),
    ("apps", "v1", 17_800, 15),
    ("events.k8s.io", "v1", 17_750, 15),
    ("authentication.k8s.io", "v1", 17_700, 15),
    ("authorization.k8s.io", "v1", 17_600, 15),
    ("autoscaling", "v1", 17_500, 15),
    ("autoscaling", "v2", 17_500, 30),
    ("batch", "v1", 17_400, 15),
    ("certificates.k8s.io", "v1", 17_300, 15),
    ("networking.k8s.io", "v1", 17_200, 15),
    ("policy", "v1", 17_100, 15),
    ("rbac.authorization.k8s.io", "v1", 17_000, 15),
    ("storage.k8s.io", "v1", 16_800, 15),
    ("admissionregistration.k8s.io", "v1", 16_700, 15),
    ("apiextensions.k8s.io", "v1", 16_700, 15),
    ("scheduling.k8s.io", "v1", 16_600, 15),
    ("coordination.k8s.io", "v1", 16_500, 15),
    ("node.k8s.io", "v1", 16_300, 15),
    ("discovery.k8s.io", "v1", 16_200, 15),
    ("resource.k8s.io", "v1", 16_200, 21),
    ("flowcontrol.apiserver.k8s.io", "v1", 16_100, 21),
];

/// The group that kube-apiserver's aggregation layer serves itself. It sorts before all others and has no APIService.
const OUTERMOST: &str = "apiregistration.k8s.io";

/// The priorities of a built-in group and version; `None` for others, and for the group of APIServices itself.
#[must_use]
pub fn builtin(group: &str, version: &str) -> Option<Priorities> {
    let own = BUILTIN.iter().find(|own| (own.0, own.1) == (group, version));
    own.map(|(_, _, group, version)| Priorities { group: *group, version: *version })
}

/// Sort key of groups: first the one of APIServices, then by the greatest priority among their versions.
pub(crate) fn group_key<'a>(group: &'a str, versions: &[&str]) -> (Reverse<i32>, &'a str) {
    let priority = |version: &&str| builtin(group, version).unwrap_or(CUSTOM).group;
    let greatest =
        if group == OUTERMOST { i32::MAX } else { versions.iter().map(priority).max().unwrap_or_default() };
    (Reverse(greatest), group)
}

/// Sort key of the versions of a group.
pub(crate) fn version_key(group: &str, version: &str) -> impl Ord + use<> {
    Reverse((builtin(group, version).unwrap_or(CUSTOM).version, stability(version)))
}

/// Kubernetes' order of versions: stable before beta before alpha, then the larger number first; other names last,
/// sorted by name.
pub(crate) fn stability(version: &str) -> (u8, u32, u32, Reverse<String>) {
    let other = (0, 0, 0, Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let split = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, stage) = rest.split_at(split);
    let Ok(major) = major.parse() else { return other };
    let (rank, minor) = match stage {
        "" => (3, ""),
        _ if stage.starts_with("beta") => (2, &stage["beta".len()..]),
        _ if stage.starts_with("alpha") => (1, &stage["alpha".len()..]),
        _ => return other,
    };
    match minor.parse() {
        Ok(minor) => (rank, major, minor, Reverse(String::new())),
        Err(_) if minor.is_empty() => (rank, major, 0, Reverse(String::new())),
        Err(_) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability_then_number() {
        let mut versions =
            vec!["v1alpha1", "foo10", "v10", "v2beta1", "v2", "v1beta2", "v11", "v1", "foo1", "v2alpha1"];
        versions.sort_by_key(|version| version_key("a.example", version));
        let wanted =
            ["v11", "v10", "v2", "v1", "v2beta1", "v1beta2", "v2alpha1", "v1alpha1", "foo1", "foo10"];
        assert_eq!(versions, wanted);
    }

    #[test]
    fn groups_are_ordered_by_priority_then_name() {
        let mut groups = [
            ("b.example", ["v1"]),
            ("a.example", ["v1"]),
            ("apps", ["v1"]),
            (OUTERMOST, ["v1"]),
            ("", ["v1"]),
        ];
        groups.sort_by(|a, b| group_key(a.0, &a.1).cmp(&group_key(b.0, &b.1)));
        let names: Vec<&str> = groups.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [OUTERMOST, "", "apps", "a.example", "b.example"]);
    }
}
