//! What an agent asks of the API server in every session: documents, in the form in which it asks, and what it follows.
//!
//! They are the same for all nodes, so a hub asks once for many. It does so for what it knows and for nothing else, because
//! a peer must not make copies as it likes: both ends name it by what stands here.

/// All kinds in one document (aggregated discovery).
pub const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The keys of the token issuer. kube-apiserver has them in their own media type alone (RFC 7517), and 406 for whoever does
/// not name it.
pub const KEY_SET: &str = "application/jwk-set+json, application/json";

/// Where the groups of the API are.
pub const GROUPS_PATH: &str = "/apis";

/// Where the index of the OpenAPI documents is.
pub const OPENAPI_PATH: &str = "/openapi/v3";

/// Where the token issuer is described (OpenID Connect discovery).
pub const ISSUER_PATH: &str = "/.well-known/openid-configuration";

/// Where the issuer's keys are.
pub const KEYS_PATH: &str = "/openid/v1/jwks";

/// Path and form of what an agent asks for when it is connected again.
pub const IN_EVERY_SESSION: [(&str, &str); 4] = [
    (GROUPS_PATH, DISCOVERY),
    (OPENAPI_PATH, "application/json"),
    (ISSUER_PATH, KEY_SET),
    (KEYS_PATH, KEY_SET),
];

/// The warm set, which every agent follows: group, version and plural of each resource, all objects of it
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
