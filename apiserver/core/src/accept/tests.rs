use http::HeaderValue;

use super::*;

fn negotiate(accept: &str, kind: Kind) -> Result<(Syntax, Form), u16> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_str(accept).unwrap());
    let accepted = Accepted::negotiate(&headers, &Params::default(), kind);
    accepted.map(|accepted| (accepted.syntax, accepted.form)).map_err(|error| error.code.as_u16())
}

#[test]
fn the_first_form_that_can_be_written_is_chosen() {
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                   application/json";
    let json = Ok((Syntax::Json, Form::Object));
    let table = [
        (kubectl, Kind::Collection, Ok((Syntax::Json, Form::Table("v1")))),
        (kubectl, Kind::Watch, Ok((Syntax::Json, Form::Table("v1")))),
        (kubectl, Kind::Document, json),
        (kubectl, Kind::Virtual, json),
        ("application/json;as=Table;g=meta.k8s.io;v=v1", Kind::Virtual, Err(406)),
        ("application/yaml", Kind::Watch, Err(406)),
        ("application/vnd.kubernetes.protobuf, */*", Kind::Collection, json),
        ("application/cbor, application/json", Kind::Object, json),
        ("application/vnd.kubernetes.protobuf", Kind::Object, Err(406)),
        ("application/json;stream=watch", Kind::Watch, json),
        ("application/yaml", Kind::Object, Ok((Syntax::Yaml, Form::Object))),
        ("application/yaml;q=0.5,application/json", Kind::Object, json),
        ("application/json;q=0,*/*;q=0.1", Kind::Object, json),
        ("text/html", Kind::Object, Err(406)),
        ("", Kind::Object, json),
        (
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Kind::Collection,
            Ok((Syntax::Json, Form::Metadata("v1"))),
        ),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Kind::Collection,
            Ok((Syntax::Json, Form::Misfit("PartialObjectMetadata"))),
        ),
        ("application/*", Kind::Object, Err(406)),
        ("application/*, application/json;q=0.1", Kind::Object, json),
        ("application/json;g=meta.k8s.io", Kind::Object, Err(406)),
        ("application/json;as=Table;g=meta.k8s.io;v=v9", Kind::Collection, Err(406)),
        (
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
            Kind::DiscoveryRoot,
            Ok((Syntax::Json, Form::Discovery)),
        ),
        (
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            Kind::DiscoveryRoot,
            Err(406),
        ),
    ];
    for (accept, kind, wanted) in table {
        assert_eq!(negotiate(accept, kind), wanted, "{accept} {kind:?}");
    }
}

#[test]
fn interactive_clients_get_indented_json() {
    let pretty = |agent: &'static str, accept: &'static str, query: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        Accepted::of_refusal(&headers, &Params::parse(query)).pretty
    };
    assert!(pretty("curl/8", "", "") && pretty("curl/8", "", "pretty=") && pretty("Mozilla/5.0 (X)", "", ""));
    assert!(
        !pretty("curl/8", "", "pretty=0") && !pretty("kubectl/1", "", "") && !pretty("Mozilla/4", "", "")
    );
    assert!(pretty("kubectl/1", "", "pretty=true") && pretty("kubectl/1", "application/json;pretty=1", ""));
    assert!(pretty("kubectl/1", "text/html", "") && !pretty("kubectl/1", "application/*", ""));
}
