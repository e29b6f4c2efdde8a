//! The version of Kubernetes whose API is served.

/// Contents of `apiserver/KUBERNETES_VERSION`, the only place that states the version (`apiserver/README.md` describes
/// how to update it).
const TEXT: &str = include_str!("../../KUBERNETES_VERSION");

/// The version as Kubernetes writes it, for example `v1.36.3`.
#[must_use]
pub fn kubernetes() -> &'static str {
    TEXT.trim_ascii()
}

/// Its major and minor numbers.
#[must_use]
pub fn numbers() -> (u32, u32) {
    let mut parts =
        kubernetes().trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_has_three_numbers() {
        let version = super::kubernetes();
        let (major, minor) = super::numbers();
        let rest = version.strip_prefix(&format!("v{major}.{minor}.")).expect("it begins with the numbers");
        assert!(major == 1 && minor >= 36 && rest.parse::<u32>().is_ok(), "{version}");
    }
}
