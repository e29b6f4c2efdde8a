use tombolo_proto::object::{ObjectKey, Resource};

use super::*;

#[test]
fn continue_tokens_carry_position_and_revision() {
    let key = ObjectKey::new(Resource::new("", "v1", "pods"), "default", "a");
    let token = Token::decode(&Token::new(Revision(7), &key).encode()).unwrap();
    assert_eq!((token.revision(), token.after()), (Some(Revision(7)), ("default", "a")));
    let later = Token::decode(&token.inconsistent().encode()).unwrap();
    assert_eq!((later.revision(), later.after()), (None, ("default", "a")));
}

#[test]
fn broken_tokens_are_refused() {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let long = "A".repeat(4096);
    for text in [
        "x".to_owned(),
        "!".to_owned(),
        long,
        encode("{}"),
        encode(r#"{"v":"other","rv":1,"start":"a/b"}"#),
        encode(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a/b"}"#),
        encode(r#"{"v":"meta.k8s.io/v1","rv":-2,"start":"a/b"}"#),
        encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../b"}"#),
        encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a/b/c"}"#),
    ] {
        assert_eq!(Token::decode(&text).unwrap_err().code.as_u16(), 400, "{text}");
    }
}
