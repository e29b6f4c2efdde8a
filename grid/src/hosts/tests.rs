use super::*;

fn grid(name: &str) -> GridName {
    GridName { namespace: "default".to_owned(), name: name.to_owned() }
}

fn names(pairs: &[(&str, &[&str])]) -> Names {
    let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Names {
        service: "s".to_owned(),
        addresses: pairs.iter().map(|(name, texts)| ((*name).to_owned(), addresses(texts))).collect(),
    }
}

/// Rows H11, H16 and H17 of docs/reference/superedge.md#uniform-name-rows.
#[test]
fn status_of_one_grid_does_not_affect_others() {
    let mut hosts = Hosts::new("cluster.local");
    assert!(hosts.set(grid("my-demo"), Some(names(&[("my-demo-0", &["10.0.0.9"])]))));
    assert!(hosts.set(grid("demo"), Some(names(&[("demo-0", &["10.0.0.1"]), ("demo-1", &["10.0.0.2"])]))));
    assert!(hosts.set(grid("demo"), Some(names(&[("demo-0", &["10.0.0.3"])]))));
    assert_eq!(
        hosts.text(),
        "10.0.0.3 demo-0.s.default.svc.cluster.local\n10.0.0.9 my-demo-0.s.default.svc.cluster.local\n"
    );
    assert!(hosts.set(grid("demo"), None));
    assert_eq!(hosts.text(), "10.0.0.9 my-demo-0.s.default.svc.cluster.local\n");
}

/// Rows H18, H19, H23 and H26 of docs/reference/superedge.md#uniform-name-rows.
#[test]
fn equal_names_make_equal_text_and_no_change() {
    let all = [
        (grid("b"), names(&[("b-1", &["10.0.0.10", "10.0.0.9"])])),
        (
            grid("a"),
            names(&[("a-0", &["fd00::1", "10.0.0.1"]), ("a-10", &["10.0.0.2"]), ("a-2", &["10.0.0.3"])]),
        ),
    ];
    let mut hosts = Hosts::new("edge.local.");
    assert!(hosts.replace(all.clone()));
    assert!(!hosts.replace(all.iter().rev().cloned()));
    assert!(!hosts.set(all[0].0.clone(), Some(all[0].1.clone())));
    let mut other = Hosts::new("edge.local");
    for (grid, names) in all.iter().rev().cloned() {
        other.set(grid, Some(names));
    }
    assert_eq!(hosts.text(), other.text());
    let expected = "10.0.0.1 a-0\nfd00::1 a-0\n10.0.0.2 a-10\n10.0.0.3 a-2\n10.0.0.9 b-1\n10.0.0.10 b-1\n";
    assert_eq!(hosts.text(), expected.replace('\n', ".s.default.svc.edge.local\n"));
}

#[test]
fn grid_without_names_is_omitted() {
    let mut hosts = Hosts::new("cluster.local");
    assert!(!hosts.set(grid("a"), Some(Names::default())));
    assert!(!hosts.replace([(grid("a"), Names::default())]));
    assert!(hosts.is_empty() && hosts.text().is_empty());
}

#[test]
fn invalid_name_does_not_break_a_line() {
    let mut hosts = Hosts::new("cluster.local");
    let mut odd = names(&[("a-0", &["10.0.0.1"])]);
    odd.service = "s\n10.0.0.66 bank.example".to_owned();
    hosts.set(grid("a"), Some(odd));
    assert_eq!(hosts.text(), "");
}
