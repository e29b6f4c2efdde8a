//! Answers to a message (docs/reference/kubeedge.md#replies).

use super::content::Content;
use super::id::MessageId;
use super::path::ResourcePath;
use super::words::{Group, Operation, Source};
use super::{Message, Route};

impl Message {
    /// The standard reply: source, group and resource of the request, operation `response`.
    #[must_use]
    pub fn reply(&self, id: MessageId, timestamp_millis: i64, content: Content) -> Self {
        let route = Route {
            destination: String::new(),
            operation: Operation::Response,
            source: self.route.source.clone(),
            group: self.route.group.clone(),
            resource: self.route.resource.clone(),
        };
        self.answer(id, timestamp_millis, route, content)
    }

    /// The acknowledgement of a delivery: a standard reply with content `OK`. The acknowledgement of an inserted or
    /// deleted device or device model has the route that a KubeEdge edge gives it when it passes the message on
    /// (docs/reference/kubeedge.md#devices-and-node-tasks).
    #[must_use]
    pub fn ack(&self, id: MessageId, timestamp_millis: i64) -> Self {
        let mut ack = self.reply(id, timestamp_millis, Content::ok());
        let comes_or_goes = matches!(self.route.operation, Operation::Insert | Operation::Delete);
        if comes_or_goes && self.route.source == Source::DeviceController {
            (ack.route.source, ack.route.group) = (Source::Meta, Group::Twin);
        }
        ack
    }

    /// The standard error reply: operation `error` with a sentence, and the request's route, without which a KubeEdge
    /// edge would not match it.
    #[must_use]
    pub fn error_reply(&self, id: MessageId, timestamp_millis: i64, sentence: &str) -> Self {
        let mut message = self.reply(id, timestamp_millis, Content::text(sentence));
        message.route.operation = Operation::Error;
        message
    }

    /// A reply of the edge controller: source `edgecontroller`, group `resource`, without which a KubeEdge edge waits
    /// forever (docs/reference/kubeedge.md#replies). `resource` is the request's own path or a rebuilt one.
    #[must_use]
    pub fn controller_reply(
        &self,
        id: MessageId,
        timestamp_millis: i64,
        resource: ResourcePath,
        content: Content,
    ) -> Self {
        let route = Route::new(Source::EdgeController, Group::Resource, Operation::Response, resource);
        self.answer(id, timestamp_millis, route, content)
    }

    /// An error reply of the edge controller: a KubeEdge edge returns it to the caller and stores nothing
    /// (docs/reference/kubeedge.md#safe-answers).
    #[must_use]
    pub fn controller_error(&self, id: MessageId, timestamp_millis: i64, sentence: &str) -> Self {
        let resource = self.route.resource.clone();
        let mut message = self.controller_reply(id, timestamp_millis, resource, Content::text(sentence));
        message.route.operation = Operation::Error;
        message
    }

    fn answer(&self, id: MessageId, timestamp_millis: i64, route: Route, content: Content) -> Self {
        let mut message = Self::new(id, timestamp_millis, route, content);
        message.header.parent = Some(self.header.id.clone());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::parse(text).expect(text)
    }

    fn request() -> Message {
        let resource = ResourcePath::parse_wire("default/configmap/web").expect("a path");
        let route = Route::new(Source::Edged, Group::Meta, Operation::Query, resource);
        Message::new(id("G"), 1, route, Content::null()).with_resource_version("7")
    }

    #[test]
    fn standard_replies_copy_the_route_without_the_version() {
        let ack = request().ack(id("I"), 2);
        assert_eq!(ack.header.parent, Some(id("G")));
        assert_eq!(ack.header.resource_version, "");
        assert_eq!(ack.route, Route { operation: Operation::Response, ..request().route });
        assert!(ack.content.is_ok());
    }

    #[test]
    fn device_insertions_and_deletions_are_acknowledged_by_the_twin_route() {
        let resource = ResourcePath::parse_wire("default/device/lamp").expect("a path");
        for (source, operation, expected) in [
            (Source::DeviceController, Operation::Insert, ("meta", "twin")),
            (Source::DeviceController, Operation::Delete, ("meta", "twin")),
            (Source::DeviceController, Operation::Update, ("devicecontroller", "resource")),
            (Source::EdgeController, Operation::Insert, ("edgecontroller", "resource")),
        ] {
            let route = Route::new(source, Group::Resource, operation, resource.clone());
            let ack = Message::new(id("G"), 1, route, Content::null()).ack(id("I"), 2);
            assert_eq!((&*ack.route.source.to_string(), &*ack.route.group.to_string()), expected);
            assert_eq!(ack.route.operation, Operation::Response);
        }
    }

    #[test]
    fn controller_replies_have_the_route_that_kubeedge_edges_match() {
        let request = request();
        let resource = request.route.resource.clone();
        let reply = request.controller_reply(id("H"), 2, resource.clone(), Content::ok());
        let expected = Route::new(Source::EdgeController, Group::Resource, Operation::Response, resource);
        assert_eq!(reply.route, expected);
        let error = request.controller_error(id("H"), 2, "no such configmap");
        assert_eq!(error.route, Route { operation: Operation::Error, ..expected });
        assert_eq!(error.content.as_text().as_deref(), Some("no such configmap"));
    }

    #[test]
    fn error_replies_name_the_request() {
        let error = request().error_reply(id("H"), 2, "unknown operation");
        assert_eq!((error.header.parent, error.route.operation), (Some(id("G")), Operation::Error));
    }
}
