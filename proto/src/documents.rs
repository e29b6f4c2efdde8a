//! Documents of the API server that an agent asks for in every session, in the form in which it asks.
//!
//! They are the same for all nodes, so a hub answers them from one copy. It keeps copies of forms that it knows and of no
//! others, because a peer must not make copies as it likes: both ends name a form by what stands here.

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
