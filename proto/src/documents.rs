//! The documents that an agent requests from the API server in every session, with their media types, and the
//! resources that it follows.
//!
//! They are the same for all nodes, so a hub requests each once for many nodes. It does so only for the documents
//! listed here: a peer must not be able to create shared copies at will. Both ends identify a document by these
//! constants.

/// All kinds in one document (aggregated discovery).
pub const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Media types for the keys of the token issuer. kube-apiserver serves them only in their own media type (RFC 7517),
/// and answers 406 when a client does not accept it.
pub const KEY_SET: &str = "application/jwk-set+json, application/json";

/// Path of the list of API groups.
pub const GROUPS_PATH: &str = "/apis";

/// Path of the index of the OpenAPI documents.
pub const OPENAPI_PATH: &str = "/openapi/v3";

/// Path of the token issuer's description (OpenID Connect discovery).
pub const ISSUER_PATH: &str = "/.well-known/openid-configuration";

/// Path of the issuer's keys.
pub const KEYS_PATH: &str = "/openid/v1/jwks";

/// Path and media type of each document that an agent requests after it has reconnected.
pub const IN_EVERY_SESSION: [(&str, &str); 4] = [
    (GROUPS_PATH, DISCOVERY),
    (OPENAPI_PATH, "application/json"),
    (ISSUER_PATH, KEY_SET),
    (KEYS_PATH, KEY_SET),
];

/// The warm set, which every agent follows: group, version and plural of each resource, with all its objects
/// (docs/edge-node.md#what-the-local-api-answers).
pub const WARM_SET: [(&str, &str, &str); 9] = [
    ("", "v1", "services"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("", "v1", "nodes"),
    ("", "v1", "namespaces"),
    ("node.k8s.io", "v1", "runtimeclasses"),
    ("storage.k8s.io", "v1", "csidrivers"),
    ("storage.k8s.io", "v1", "csinodes"),
    ("networking.k8s.io", "v1", "servicecidrs"),
    ("superedge.io", "v1", "statefulsetgrids"),
];
