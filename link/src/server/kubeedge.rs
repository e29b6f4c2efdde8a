//! Decides which upgrade requests of KubeEdge edges are accepted (docs/reference/kubeedge.md#websocket).
//!
//! A KubeEdge cloud trusts the header `node_id`; here the certificate decides, and a header or path that names another
//! node is refused before the upgrade. Some proxies drop headers with an underscore, so missing ones are not an error.

use http::{HeaderMap, StatusCode};
use thiserror::Error;
use tombolo_proto::NodeId;

/// Header with the node's name.
const NODE_ID: &str = "node_id";

/// Header with the purpose of a connection.
const CONNECTION_USE: &str = "connectionuse";

/// Its value for connections that carry messages. `str` and `shr` are for streams, which are not supported here.
const MESSAGES: &str = "msg";

/// Bytes of a peer's text that an error repeats.
const SHOWN_MAX: usize = 64;

/// Why a KubeEdge edge is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum KubeEdgeRefusal {
    /// Header or path name another node than the certificate.
    #[error("the certificate belongs to node {certified}, but the {part} of the request names {claimed:?}")]
    OtherNode { certified: NodeId, part: &'static str, claimed: String },
    /// The connection would not carry messages.
    #[error(
        "header ConnectionUse is {found:?}, but only \"msg\" is supported here; clients other than KubeEdge use WebSocket subprotocol tombolo.v1"
    )]
    OtherUse { found: String },
}

impl KubeEdgeRefusal {
    /// HTTP status of the answer.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::OtherNode { .. } => StatusCode::FORBIDDEN,
            Self::OtherUse { .. } => StatusCode::BAD_REQUEST,
        }
    }
}

/// Checks a request of the node that the certificate names.
pub(super) fn judge(node: &NodeId, path: &str, headers: &HeaderMap) -> Result<(), KubeEdgeRefusal> {
    let other = |part, claimed: &str| KubeEdgeRefusal::OtherNode {
        certified: node.clone(),
        part,
        claimed: claimed.chars().take(SHOWN_MAX).collect(),
    };
    for value in headers.get_all(NODE_ID) {
        if value.as_bytes() != node.as_str().as_bytes() {
            return Err(other("header node_id", &String::from_utf8_lossy(value.as_bytes())));
        }
    }
    if let Some(claimed) = node_of_path(path)
        && claimed != node.as_str()
    {
        return Err(other("path", claimed));
    }
    let found = headers.get(CONNECTION_USE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    match found.as_deref() {
        Some(MESSAGES) => Ok(()),
        found => Err(KubeEdgeRefusal::OtherUse {
            found: found.unwrap_or_default().chars().take(SHOWN_MAX).collect(),
        }),
    }
}

/// The node in `/PROJECT/NODE/events`; none for other paths, which KubeEdge clouds accept as well.
fn node_of_path(path: &str) -> Option<&str> {
    let mut segments = path.strip_prefix('/')?.split('/');
    let (_project, node) = (segments.next()?, segments.next()?);
    (segments.next() == Some("events") && segments.next().is_none()).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/e632aba927ea4ac2b575ec1603d56f10/edge-1/events";

    fn judged(path: &str, headers: &[(&'static str, &'static str)]) -> Result<(), StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a value"));
        }
        let node = NodeId::parse("edge-1").expect("a name");
        judge(&node, path, &map).map_err(|refusal| refusal.status())
    }

    #[test]
    fn kubeedge_requests_pass() {
        for headers in [
            &[("node_id", "edge-1"), ("project_id", "p"), ("connectionuse", "msg")][..],
            &[("connectionuse", "msg")],
        ] {
            assert_eq!(judged(PATH, headers), Ok(()));
            assert_eq!(judged("/", headers), Ok(()));
        }
    }

    #[test]
    fn request_with_another_name_or_use_is_refused() {
        let msg = ("connectionuse", "msg");
        for (path, headers, status) in [
            (PATH, &[("node_id", "edge-2"), msg][..], 403),
            (PATH, &[("node_id", "edge-1"), ("node_id", "edge-2"), msg], 403),
            (PATH, &[("node_id", ""), msg], 403),
            ("/p/edge-2/events", &[("node_id", "edge-1"), msg], 403),
            ("/p/edge-2/events", &[msg], 403),
            (PATH, &[("node_id", "edge-2")], 403),
            (PATH, &[("node_id", "edge-1")], 400),
            (PATH, &[("node_id", "edge-1"), ("connectionuse", "str")], 400),
        ] {
            assert_eq!(
                judged(path, headers).map_err(|status| status.as_u16()),
                Err(status),
                "{path} {headers:?}"
            );
        }
    }
}
