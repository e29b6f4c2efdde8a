//! Tests the test command on a machine without Go and without `KUBEBUILDER_ASSETS`.

use std::process::Command;

#[test]
fn says_in_one_line_which_tests_cannot_run_and_fails() {
    let empty = std::env::temp_dir().join(format!("tombolo-no-programs-{}", std::process::id()));
    std::fs::create_dir_all(&empty).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = command.arg("test").env_clear().env("PATH", &empty).output().expect("xtask runs");
    std::fs::remove_dir(&empty).expect("the folder is empty");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in ["Go", "KUBEBUILDER_ASSETS", "kube-apiserver", "--without-cluster"] {
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
}
