//! The rules of version 1 for the values in a frame.

use serde::de::IgnoredAny;

use crate::frame::Kind;
use crate::{
    Ack, ApiReply, ApiRequest, ChangeKind, Deliver, Epoch, Hello, InventoryDigest, InventoryEntry, Message,
    ObjectKey, ObjectVersion, Reply, Request, Subscribe, reply, request,
};

const LANES: usize = 3;
const NAME_LEN_MAX: usize = 253;
const WORD_LEN_MAX: usize = 256;
const IDENTITY_LEN_MAX: usize = 128;
const RESOURCE_LEN_MAX: usize = 2048;
const SELECTOR_LEN_MAX: usize = 4096;
const ACCEPT_LEN_MAX: usize = 1024;
const TEXT_LEN_MAX: usize = 16 * 1024;
const ATTESTATION_LEN_MAX: usize = 128;
const DEPENDENCIES_MAX: usize = 4096;
const HELLO_INVENTORY_MAX: usize = 512;
const INVENTORY_PART_MAX: usize = 2048;

type Checked = Result<(), String>;

/// Refuses what version 1 refuses.
pub(crate) fn check(kind: &Kind) -> Checked {
    match kind {
        Kind::Hello(hello) => check_hello(hello),
        Kind::Welcome(welcome) => epoch("welcome.epoch", welcome.epoch.as_ref()),
        Kind::CaughtUp(caught_up) => epoch("caught_up.epoch", caught_up.epoch.as_ref()),
        Kind::InventoryPart(part) => entries(&part.entries, INVENTORY_PART_MAX),
        Kind::Deliver(deliver) => check_deliver(deliver),
        Kind::Ack(ack) => check_ack(ack),
        Kind::Refuse(refusal) => lane(refusal.lane),
        Kind::Request(request) => check_request(request),
        Kind::Reply(reply) => check_reply(reply),
        Kind::Subscribe(subscribe) => check_subscribe(subscribe),
        Kind::SubscriptionClosed(closed) => code(closed.code),
        Kind::LeaseRenewed(renewed) => code(renewed.code),
        Kind::Attestation(attestation) => at_most("proof", attestation.proof.len(), ATTESTATION_LEN_MAX),
        Kind::InventoryRequest(_)
        | Kind::Unsubscribe(_)
        | Kind::LeaseRenew(_)
        | Kind::Ping(_)
        | Kind::Pong(_)
        | Kind::Goodbye(_) => Ok(()),
    }
}

fn at_most(what: &str, size: usize, max: usize) -> Checked {
    if size <= max { Ok(()) } else { Err(format!("{what}: {size}, at most {max}")) }
}

fn present(what: &str, is_there: bool) -> Checked {
    if is_there { Ok(()) } else { Err(format!("{what} is missing")) }
}

fn sixteen(what: &str, bytes: &[u8]) -> Checked {
    if bytes.len() == 16 { Ok(()) } else { Err(format!("{what} of {} bytes, not 16", bytes.len())) }
}

fn lane(number: u32) -> Checked {
    if (number as usize) < LANES { Ok(()) } else { Err(format!("lane {number}")) }
}

fn code(code: u32) -> Checked {
    if (100..1000).contains(&code) { Ok(()) } else { Err(format!("code {code}")) }
}

fn identity(text: &str) -> Checked {
    if text.is_empty() || text.len() > IDENTITY_LEN_MAX || text.chars().any(char::is_control) {
        return Err(format!("identity {text:?}"));
    }
    Ok(())
}

fn uid(uuid: &[u8], text: &str) -> Checked {
    if uuid.is_empty() { identity(text) } else { sixteen("uid", uuid) }
}

/// A DNS-1123 subdomain.
fn node(name: &str) -> Checked {
    let is_label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        edge(label.as_bytes().first())
            && edge(label.as_bytes().last())
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if name.len() > NAME_LEN_MAX || !name.split('.').all(is_label) {
        return Err(format!("node {name:?}"));
    }
    Ok(())
}

fn epoch(what: &str, epoch: Option<&Epoch>) -> Checked {
    let cluster =
        epoch.and_then(|epoch| epoch.cluster.as_ref()).ok_or_else(|| format!("{what} is missing"))?;
    uid(&cluster.uuid, &cluster.text)
}

fn segment(text: &str) -> Checked {
    let bad = |c: char| c == '/' || c == '%' || c.is_control();
    if text.len() > NAME_LEN_MAX || text.contains(bad) || text == "." || text == ".." {
        return Err(format!("path segment {text:?}"));
    }
    Ok(())
}

fn key(key: Option<&ObjectKey>) -> Checked {
    let key = key.ok_or("key is missing")?;
    for text in [&key.group, &key.version, &key.resource, &key.namespace, &key.name] {
        segment(text)?;
    }
    present(
        "version, resource or name",
        !(key.version.is_empty() || key.resource.is_empty() || key.name.is_empty()),
    )
}

fn version(version: Option<&ObjectVersion>) -> Checked {
    version.map_or(Ok(()), |version| uid(&version.uuid, &version.uid))
}

fn entries(entries: &[InventoryEntry], max: usize) -> Checked {
    at_most("entries", entries.len(), max)?;
    entries
        .iter()
        .try_for_each(|entry| key(entry.key.as_ref()).and_then(|()| version(entry.version.as_ref())))
}

fn inventory(list: &[InventoryEntry], digest: Option<&InventoryDigest>) -> Checked {
    match digest {
        Some(digest) => sixteen("digest", &digest.digest),
        None => entries(list, HELLO_INVENTORY_MAX),
    }
}

fn check_hello(hello: &Hello) -> Checked {
    node(&hello.node)?;
    sixteen("store", &hello.store)?;
    if hello.epoch.is_some() {
        epoch("hello.epoch", hello.epoch.as_ref())?;
    }
    at_most("attestation", hello.attestation.len(), ATTESTATION_LEN_MAX)?;
    inventory(&hello.inventory, hello.inventory_digest.as_ref())
}

fn check_deliver(deliver: &Deliver) -> Checked {
    key(deliver.key.as_ref())?;
    version(deliver.version.as_ref())?;
    match ChangeKind::try_from(deliver.kind) {
        Ok(ChangeKind::Upsert) => {
            present("version", deliver.version.is_some())?;
            at_most("dependencies", deliver.dependencies.len(), DEPENDENCIES_MAX)?;
            deliver.dependencies.iter().try_for_each(|dependency| key(Some(dependency)))
        }
        Ok(ChangeKind::Adopt) => present("version", deliver.version.is_some()),
        Ok(ChangeKind::Delete | ChangeKind::Absent | ChangeKind::Unreadable) => Ok(()),
        Ok(ChangeKind::Unspecified) | Err(_) => Err(format!("change {}", deliver.kind)),
    }
}

fn check_ack(ack: &Ack) -> Checked {
    at_most("lanes", ack.lanes.len(), LANES)?;
    ack.lanes.iter().try_for_each(|position| lane(position.lane))
}

fn token(token: Option<&String>) -> Checked {
    at_most("token", token.map_or(0, String::len), TEXT_LEN_MAX)
}

fn check_request(request: &Request) -> Checked {
    token(request.caller_token.as_ref())?;
    match request.body.as_ref().ok_or("request without a body")? {
        request::Body::Message(message) => check_message(message),
        request::Body::Api(ApiRequest { method, path_and_query, content_type, accept, .. }) => {
            at_most("method", method.len(), WORD_LEN_MAX)?;
            at_most("path", path_and_query.len(), TEXT_LEN_MAX)?;
            at_most("content type", content_type.len(), WORD_LEN_MAX)?;
            at_most("accept", accept.len(), ACCEPT_LEN_MAX)
        }
    }
}

fn check_reply(reply: &Reply) -> Checked {
    match reply.body.as_ref().ok_or("reply without a body")? {
        reply::Body::Message(message) => check_message(message),
        reply::Body::Api(ApiReply { code: number, content_type, .. }) => {
            code(*number)?;
            at_most("content type", content_type.len(), WORD_LEN_MAX)
        }
    }
}

fn check_message(message: &Message) -> Checked {
    let header = message.header.as_ref().ok_or("message without a header")?;
    let router = message.router.as_ref().ok_or("message without a route")?;
    identity(&header.id)?;
    if !header.parent_id.is_empty() {
        identity(&header.parent_id)?;
    }
    let words = [&header.message_type, &header.resource_version, &router.source, &router.destination];
    for word in words.into_iter().chain([&router.group, &router.operation]) {
        at_most("keyword", word.len(), WORD_LEN_MAX)?;
    }
    at_most("resource", router.resouce.len(), RESOURCE_LEN_MAX)?;
    serde_json::from_slice::<IgnoredAny>(&message.content)
        .map(drop)
        .map_err(|error| format!("content: {error}"))
}

fn check_subscribe(subscribe: &Subscribe) -> Checked {
    let Subscribe { group, version, resource, namespace, label_selector, field_selector, .. } = subscribe;
    for text in [group, version, resource, namespace] {
        segment(text)?;
    }
    present("version or resource", !(version.is_empty() || resource.is_empty()))?;
    for selector in [label_selector, field_selector] {
        at_most("selector", selector.len(), SELECTOR_LEN_MAX)?;
    }
    token(subscribe.caller_token.as_ref())?;
    if subscribe.epoch.is_some() {
        epoch("subscribe.epoch", subscribe.epoch.as_ref())?;
    }
    inventory(&subscribe.inventory, subscribe.inventory_digest.as_ref())
}
