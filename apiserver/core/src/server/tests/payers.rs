//! Which sender is charged when a write waits for shared resources.

use futures::future::BoxFuture;
use http_body_util::Full;
use parking_lot::Mutex;

use super::shares::Named;
use super::*;
use crate::auth::{AUTHENTICATED_GROUP, Attributes, Identity, Impersonator};
use crate::backend::{WriteBackend, WriteReply, WriteRequest};
use crate::status::ApiError;

/// Allows the impersonation of any user.
struct Any;

impl Impersonator for Any {
    fn impersonate<'a>(
        &'a self,
        _: &'a Identity,
        headers: &'a http::HeaderMap,
        _: &'a Attributes,
    ) -> BoxFuture<'a, Result<Identity, ApiError>> {
        let name = headers["impersonate-user"].to_str().unwrap();
        Box::pin(std::future::ready(Ok(Identity::new(name, &[AUTHENTICATED_GROUP]))))
    }
}

/// Records the payers instead of writing.
#[derive(Default)]
struct Book(Mutex<Vec<String>>);

impl WriteBackend for Book {
    fn execute(&self, request: WriteRequest) -> BoxFuture<'_, Result<WriteReply, ApiError>> {
        self.0.lock().push(request.attributes.payer.name().to_owned());
        Box::pin(std::future::ready(Err(ApiError::internal("nothing is written"))))
    }
}

/// A cloudcore beside the server makes requests for its nodes with the rights of an administrator: each node has its
/// own share. Other callers that impersonate users get no additional shares.
#[tokio::test]
async fn only_an_administrator_sends_requests_on_the_shares_of_others() {
    let book = Arc::new(Book::default());
    let store = MemoryStore::new(MemoryStore::START, LogLimits::default());
    let api = ApiServer::builder(Arc::new(store), Registry::new(Kinds::builtin()))
        .authenticator(Arc::new(Named))
        .impersonator(Arc::new(Any))
        .writes(Arc::clone(&book) as Arc<dyn WriteBackend>)
        .shared_out()
        .build();
    for (user, acts_as) in
        [("eve", None), ("eve", Some("bob")), ("admin", None), ("admin", Some("system:node:n"))]
    {
        let mut request = http::Request::post("/api/v1/namespaces/default/configmaps")
            .header("user", user)
            .header("content-type", "application/json");
        if let Some(acts_as) = acts_as {
            request = request.header("impersonate-user", acts_as);
        }
        let request = request.body(Full::new(bytes::Bytes::from("{}"))).unwrap();
        assert_eq!(api.handle(request, &Peer::default()).await.status(), 500);
    }
    assert_eq!(*book.0.lock(), ["user eve", "user eve", "administrator admin", "user system:node:n"]);
}
