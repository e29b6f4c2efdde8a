use super::*;

#[test]
fn versions_are_ordered_by_stability_then_number() {
    let mut versions =
        vec!["v1alpha1", "foo10", "v10", "v2beta1", "v2", "v1beta2", "v11", "v1", "foo1", "v2alpha1"];
    versions.sort_by_key(|version| Reverse(priority(version)));
    let wanted = ["v11", "v10", "v2", "v1", "v2beta1", "v1beta2", "v2alpha1", "v1alpha1", "foo1", "foo10"];
    assert_eq!(versions, wanted);
}
