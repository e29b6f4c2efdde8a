use super::params::{ListParams, Match, OptionsKind, write_options};
use super::*;
use crate::status::ApiError;

fn parse(method: &str, url: &str) -> Query {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    Query::parse(&method.parse().unwrap(), path, query)
}

#[test]
fn paths_are_parsed_as_kubernetes_parses_them() {
    // method, URL; verb, group/version, namespace, resource, name, subresource.
    let table = [
        ("GET", "/api/v1/pods", "list /v1 - pods - -"),
        ("GET", "/api/v1/namespaces/a/pods", "list /v1 a pods - -"),
        ("GET", "/api/v1/namespaces/a/pods/b", "get /v1 a pods b -"),
        ("PUT", "/api/v1/namespaces/a/pods/b/status", "update /v1 a pods b status"),
        ("GET", "/api/v1/namespaces", "list /v1 - namespaces - -"),
        ("GET", "/api/v1/namespaces/a", "get /v1 - namespaces a -"),
        ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 - namespaces a finalize"),
        ("PATCH", "/api/v1/namespaces/a/status", "patch /v1 - namespaces a status"),
        ("POST", "/apis/apps/v1/namespaces/a/deployments", "create apps/v1 a deployments - -"),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 a deployments - -"),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments/d", "delete apps/v1 a deployments d -"),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
            "get rbac.authorization.k8s.io/v1 - clusterroles system:node -",
        ),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "get rbac.authorization.k8s.io/v1 - clusterroles system:node -",
        ),
        ("GET", "/api/v1/watch/pods", "watch /v1 - pods - -"),
        ("GET", "/api/v1/watch/namespaces/a/pods/b", "watch /v1 a pods b -"),
        ("GET", "/api/v1/watch/watch", "watch /v1 - watch - -"),
        ("GET", "/api/v1/proxy/pods", "proxy /v1 - pods - -"),
        ("POST", "/api/v1/proxy/namespaces/a/pods/b/status/x", "proxy /v1 a pods b -"),
        ("DELETE", "/apis/apps/v1/proxy/namespaces/a/status", "proxy apps/v1 - namespaces a -"),
        ("GET", "/api/v1/pods?watch", "watch /v1 - pods - -"),
        ("GET", "/api/v1/pods?watch=true", "watch /v1 - pods - -"),
        ("GET", "/api/v1/pods?watch=false", "list /v1 - pods - -"),
        ("GET", "/api/v1/pods?watch=0", "list /v1 - pods - -"),
        ("HEAD", "/api/v1/namespaces/a/pods/b", "get /v1 a pods b -"),
        ("GET", "/api/v1/namespaces/a/pods//", "list /v1 a pods - -"),
        ("GET", "/api/v1/namespaces//pods", "list /v1  pods - -"),
        ("GET", "/api/v1/namespaces//pods/b", "get /v1  pods b -"),
        ("GET", "/api/v1/namespaces/a//pods", "get /v1 a  pods -"),
        ("DELETE", "/api/v1/namespaces//status", "deletecollection /v1 - namespaces  status"),
        ("GET", "/api//v1/pods", "get / - v1 pods -"),
    ];
    for (method, url, wanted) in table {
        let query = parse(method, url);
        let Target::Resource(path) = &query.target else { panic!("{url} is a resource") };
        let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
        let found = format!(
            "{} {}/{} {} {} {} {}",
            query.verb,
            path.group,
            path.version,
            text(&path.namespace),
            path.resource,
            text(&path.name),
            text(&path.subresource)
        );
        assert_eq!(found, wanted, "{method} {url}");
    }
    let others =
        ["/", "/api", "/api/v1", "/apis/apps", "/apis/apps/v1", "/version", "/healthz", "/openapi/v3"];
    for url in others.into_iter().chain(["//api/v1/pods", "/api/v1//", "/apis//"]) {
        assert_eq!(parse("GET", url).target, Target::Other, "{url}");
    }
    for url in ["/api/v1/watch", "/api/v1/watch/", "/apis/apps/v1/proxy", "/api/v1/proxy//"] {
        assert_eq!(parse("GET", url).target, Target::Incomplete, "{url}");
    }
}

#[test]
fn selectors_count_only_for_list_watch_and_deletecollection() {
    let name = "fieldSelector=metadata.name%3Dfoo&labelSelector=a";
    // Method and path; verb, namespace, name and whether the selectors apply.
    for (method, path, wanted) in [
        ("GET", "/api/v1/namespaces?", "list - foo true"),
        ("GET", "/api/v1/nodes?watch=1&", "watch - foo true"),
        ("HEAD", "/api/v1/namespaces/a/pods?", "list a foo true"),
        ("GET", "/api/v1/namespaces/a/pods/b?", "get a b false"),
        ("GET", "/api/v1/namespaces/a/pods/b?watch=1&", "get a b false"),
        ("DELETE", "/api/v1/namespaces/a/pods?", "deletecollection a - true"),
        ("DELETE", "/api/v1/namespaces/a/pods/b?", "delete a b false"),
        ("POST", "/api/v1/namespaces?", "create - - false"),
        ("POST", "/api/v1/namespaces/a/pods?", "create a - false"),
        ("POST", "/api/v1/namespaces/a/pods/b/eviction?", "create a b false"),
        ("PUT", "/api/v1/namespaces/a/pods?", "update a - false"),
        ("PATCH", "/api/v1/namespaces/a/pods?", "patch a - false"),
        ("GET", "/api/v1/watch/namespaces/a/pods?", "watch a - false"),
        ("POST", "/api/v1/watch/namespaces/a/pods?", "watch a - false"),
        ("GET", "/api/v1/proxy/namespaces/a/pods?", "proxy a - false"),
        ("GET", "/api/v1/namespaces/x?", "get x x false"),
        ("DELETE", "/api/v1/namespaces/x?", "delete x x false"),
        ("OPTIONS", "/api/v1/namespaces/x/pods?", " x - false"),
        ("GET", "/api/v1/namespaces/x/namespaces/y?", "get x y false"),
        ("GET", "/api/v1/nodes?limit=abc&", "list - - true"),
        ("GET", "/version?", "get - - false"),
    ] {
        let asked = parse(method, &format!("{path}{name}")).attributes(Identity::anonymous());
        let text = |part: &str| if part.is_empty() { "-".to_owned() } else { part.to_owned() };
        let selects = !asked.field_selector.is_empty() && !asked.label_selector.is_empty();
        let found = format!("{} {} {} {selects}", asked.verb, text(&asked.namespace), text(&asked.name));
        assert_eq!(found, wanted, "{method} {path}");
    }
    for (selector, wanted) in [
        ("metadata.name=a,spec.x=b", "a"),
        ("metadata.name=b,metadata.name=a", "a"),
        ("metadata.name!=a", ""),
        ("metadata.name=a/b", ""),
        ("metadata.name=..", ""),
        ("metadata.name=a,!", ""),
    ] {
        let query = Query::parse(&Method::GET, "/api/v1/nodes", &format!("fieldSelector={selector}"));
        assert_eq!(query.attributes(Identity::anonymous()).name, wanted, "{selector}");
    }
}

fn list(query: &str, watch: bool) -> Result<ListParams, ApiError> {
    ListParams::parse(&Params::parse(query), watch)
}

#[test]
fn list_parameters_are_refused_in_the_words_of_the_real_server() {
    let invalid = |field: &str, why: &str| {
        (422, format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {why}"))
    };
    let table = [
        ("limit=abc", false, (400, "strconv.ParseInt: parsing \"abc\": invalid syntax".to_owned())),
        ("timeoutSeconds=x", true, (400, "strconv.ParseInt: parsing \"x\": invalid syntax".to_owned())),
        ("limit=99999999999999999999", false, (400, "strconv.ParseInt: parsing \"99999999999999999999\": value out of range".to_owned())),
        (
            "resourceVersion=abc",
            false,
            (400, "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax".to_owned()),
        ),
        (
            "resourceVersionMatch=Exact",
            false,
            invalid("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            false,
            invalid("resourceVersionMatch", "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""),
        ),
        (
            "sendInitialEvents=true",
            true,
            invalid("resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ),
        ("sendInitialEvents=true", false, invalid("sendInitialEvents", "sendInitialEvents is forbidden for list")),
        (
            "resourceVersionMatch=NotOlderThan",
            true,
            invalid("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"),
        ),
    ];
    for (query, watch, (code, message)) in table {
        let error = list(query, watch).unwrap_err();
        assert_eq!((error.code.as_u16(), error.message), (code, message), "{query}");
    }
}

#[test]
fn list_parameters_are_read() {
    let params = list("limit=5&continue=x&resourceVersion=7&resourceVersionMatch=NotOlderThan", false);
    assert!(params.is_err(), "no match with a continue token");
    let params =
        list("limit=5&resourceVersion=7&resourceVersionMatch=Exact&timeoutSeconds=-1", false).unwrap();
    assert_eq!(params.revision, Some(crate::store::Revision(7)));
    assert_eq!(
        (params.limit, params.revision_match, params.timeout_seconds),
        (5, Some(Match::Exact), Some(0))
    );
    let watch =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=9";
    let params = list(watch, true).unwrap();
    assert!(params.initial_events == Some(true) && params.bookmarks);
    assert_eq!((params.revision, params.timeout_seconds), (None, Some(9)));
    assert_eq!(list("limit=-1&resourceVersion=", false).unwrap(), ListParams::default());
}

proptest::proptest! {
    #[test]
    fn no_request_line_makes_the_parsers_panic(path in "/[a-z0-9%/._~:-]{0,60}", query in "[a-zA-Z0-9=&%,!()+-]{0,60}") {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let parsed = Query::parse(&method.parse().unwrap(), &path, &query);
            let _ = parsed.attributes(Identity::anonymous());
            let _ = ListParams::parse(&parsed.params, parsed.verb == "watch");
            let _ = write_options(&parsed.params, OptionsKind::Apply, &path);
        }
    }
}

#[test]
fn write_parameters_are_read_and_refused() {
    let read = |query: &str, kind| write_options(&Params::parse(query), kind, "kubectl/v1.36 (linux)");
    let options = read("dryRun=All&fieldManager=me&fieldValidation=Strict", OptionsKind::Create).unwrap();
    assert!(options.dry_run && options.field_manager_given);
    assert_eq!(options.field_manager, "me");
    assert_eq!(read("", OptionsKind::Update).unwrap().field_manager, "kubectl");
    let refused = [
        (
            "dryRun=foo",
            OptionsKind::Create,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"foo\"]: supported values: \"All\"",
        ),
        (
            "",
            OptionsKind::Apply,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            "force=true",
            OptionsKind::Patch,
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
        ),
    ];
    for (query, kind, wanted) in refused {
        assert_eq!(read(query, kind).unwrap_err().message, wanted, "{query}");
    }
    let long = format!("fieldManager={}", "m".repeat(129));
    assert!(read(&long, OptionsKind::Create).is_err());
}
