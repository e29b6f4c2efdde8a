//! Parts of received documents. A part that shares the bytes of the whole keeps all of them in memory, but memory
//! accounting counts only the part.

use bytes::Bytes;

/// Most bytes around a part that are kept with it, in addition to an eighth of the part, so that an honest peer never
/// causes a copy.
const AROUND_MAX: usize = 1024;

/// The part as it is, or a copy when the whole is much longer.
pub(crate) fn part(part: Bytes, whole: usize) -> Bytes {
    let around = whole.saturating_sub(part.len());
    if around <= AROUND_MAX.saturating_add(part.len() / 8) { part } else { Bytes::copy_from_slice(&part) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::frame::{ApiRequest, Frame, Request, RequestBody};
    use crate::message::{Content, Group, Message, MessageId, Operation, ResourcePath, Route, Source};
    use crate::{RequestId, codec, kubeedge};

    fn shares(whole: &Bytes, part: &Bytes) -> bool {
        whole.as_ptr_range().contains(&part.as_ptr())
    }

    /// Bytes that a peer adds around a request do not stay in memory uncounted.
    #[test]
    fn only_the_content_of_a_large_document_is_kept() {
        let document = |junk: usize, content: usize| {
            Bytes::from(format!(
                r#"{{"header":{{"msg_id":"m"}},"route":{{"source":"metaserver"}},"content":"{}","junk":"{}"}}"#,
                "c".repeat(content),
                "j".repeat(junk)
            ))
        };
        for (junk, content, shared) in
            [(0, 10, true), (1_000_000, 10, false), (1_000_000, 900_000, false), (1000, 900_000, true)]
        {
            let document = document(junk, content);
            let message = kubeedge::decode(&document).expect("a message");
            assert_eq!(message.content.as_json().len(), content + 2);
            assert_eq!(shares(&document, message.content.as_json()), shared, "{junk} around {content}");
        }
    }

    #[test]
    fn only_the_body_of_a_large_frame_is_kept() {
        let route = Route::new(Source::Edged, Group::Meta, Operation::Query, ResourcePath::Null);
        let content = Content::text(&"c".repeat(100));
        let id = MessageId::parse("m").expect("an id");
        let bodies = [
            RequestBody::Message(Box::new(Message::new(id, 1, route, content))),
            RequestBody::Api(ApiRequest {
                method: "POST".to_owned(),
                path_and_query: "/api/v1/namespaces".to_owned(),
                content_type: "application/json".to_owned(),
                accept: String::new(),
                body: Bytes::from(vec![b'b'; 100]),
            }),
        ];
        for body in bodies {
            let timeout = Duration::from_secs(1);
            let request = Request { id: RequestId(1), timeout, body, caller_token: None };
            let mut payload = codec::encode(&Frame::Request(request), false).to_vec();
            // Field 100 is not defined in any frame; later versions may use it.
            payload.extend_from_slice(&[0xa2, 0x06, 0xc0, 0x84, 0x3d]);
            payload.resize(payload.len() + 1_000_000, b'j');
            let payload = Bytes::from(payload);
            let Ok(Frame::Request(request)) = codec::decode(payload.clone()) else { panic!("a request") };
            let body = match &request.body {
                RequestBody::Api(api) => &api.body,
                RequestBody::Message(message) => message.content.as_json(),
            };
            assert!(body.len() >= 100 && !shares(&payload, body));
        }
    }
}
