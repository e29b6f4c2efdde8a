//! Proves that a replay can fail: every expected frame is altered in every place, and removed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tombolo_replay::{Event, Frame, Happening, Transcript, judge};

use crate::has_api_lines;

/// The reason why a replay need not detect a change in this place of this frame; none if it must.
fn unseen(origin: &Transcript, frame: &Frame, pointer: &str) -> Option<&'static str> {
    let content = frame.content();
    if frame.is_tombolo()
        && let Some(reason) = unseen_in_frame(frame, pointer)
    {
        return Some(reason);
    }
    let occurs_once = |name: &str, metadata: &Value| {
        let value = metadata[name].as_str().unwrap_or("none");
        origin.to_text().matches(&format!("\"{name}\":\"{value}\"")).count() == 1
    };
    if pointer.ends_with("/lastHeartbeatTime") && origin.to_text().contains("/nodestatus/") {
        return Some("heartbeats of older edges get the time of the run");
    }
    if frame.group() == "twin" {
        return Some("a KubeEdge cloud need not confirm the reports of a twin");
    }
    if pointer == "/content/Object/metadata/resourceVersion" && has_api_lines(origin) {
        return Some("a later frame that shows this version is compared, unless a rule excuses it");
    }
    if pointer == "/header/resourceversion" && content == "OK" {
        return Some("nothing refers to this version");
    }
    if frame.is_hub_notice() {
        return Some("a KubeEdge cloud sends this to itself, and to the edge only by mistake");
    }
    if frame.is_elsewhere() {
        return Some("only controllers that this project does not have send this");
    }
    // The custom kind of `typed.jsonl`, if its definition was removed with the lines of the API.
    let is_goose = frame.is_push() && frame.key().is_some_and(|key| key.kind == "goose");
    if pointer == "/content/metadata/uid"
        && is_goose
        && !origin.to_text().contains("CustomResourceDefinition")
    {
        return Some("the run's cluster does not serve this kind, so that nothing is compared");
    }
    match pointer {
        "/content/ErrStatus/message" | "/content/ErrStatus/details/kind" => Some("text for people"),
        "/header/timestamp" => Some("the time of sending differs in each run"),
        "/header/msg_id" => Some("an id only matters where a later message repeats it"),
        _ if pointer.contains("/managedFields/") => {
            Some("bookkeeping of the API server, which deliveries leave out")
        }
        "/content/Err/ErrStatus/message" | "/content/Err/ErrStatus/details/kind" => Some("text for people"),
        "/content/Error/ErrStatus/message" | "/content/Error/ErrStatus/details/kind" => {
            Some("text for people")
        }
        "/content/Reason" if content.pointer("/Error/ErrStatus/status").is_none() => Some("text for people"),
        _ if frame.resource().contains("/certificatesigningrequest/")
            && ["/spec/username", "/spec/uid", "/spec/groups/", "/spec/extra/"]
                .iter()
                .any(|part| pointer.contains(part)) =>
        {
            Some("certificates are requested in the name of the node")
        }
        _ if pointer.contains("/ErrStatus/details/causes/") => Some("text for people"),
        _ if describes_cluster(&content["body"])
            && pointer.starts_with("/content/body/")
            && pointer != "/content/body/kind" =>
        {
            Some("documents about the cluster describe the run's cluster")
        }
        "/content" if frame.resource() == "k8s/ca.crt" => {
            Some("documents about the cluster describe the run's cluster")
        }
        _ if pointer.starts_with("/content/Object/") && !content["Err"].is_null() => {
            Some("only the presence of an object beside an error matters")
        }
        "/content/Object/metadata/resourceVersion"
            if occurs_once("resourceVersion", &content["Object"]["metadata"]) =>
        {
            Some("nothing refers to this version")
        }
        "/content/metadata/uid" if occurs_once("uid", &content["metadata"]) => {
            Some("nothing refers to this UID")
        }
        _ if content["kind"] == "TokenRequest" => match pointer {
            "/content/status/token"
            | "/content/status/expirationTimestamp"
            | "/content/metadata/creationTimestamp" => Some("a token is secret and new in each run"),
            "/content/spec/audiences/0" => Some("the cluster chooses the audiences if none are requested"),
            _ => None,
        },
        "/content/Timestamp" if content["Timestamp"] != "0001-01-01T00:00:00Z" => Some("a time of the run"),
        "/content/RespBody" => Some("documents about the cluster describe the run's cluster"),
        _ => None,
    }
}

/// The same for fields that only frames of dialect `tombolo` have.
fn unseen_in_frame(frame: &Frame, pointer: &str) -> Option<&'static str> {
    let failed = frame.content()["code"].as_u64().is_some_and(|code| code >= 400);
    match pointer {
        "/deliver/hash" => Some("a hash of the bytes of the run"),
        "/header/resourceversion" if frame.operation() == "adopt" => {
            Some("a copy of the version in the content, which is compared")
        }
        "/content/agent" | "/content/unix_millis" => Some("the software and the clock of the run"),
        "/content/revision" => Some("the revision of the run's cluster"),
        "/request/msg_id" | "/request/parent_msg_id" => {
            Some("an id of the edge's own, which the answer repeats")
        }
        "/content/reason" if frame.operation() == "closed" => Some("text for people"),
        "/content/message" | "/content/retry_after_millis" => Some("text for people, and a random delay"),
        "/content/body/metadata/resourceVersion" => Some("a later frame that shows this version is compared"),
        "/content/body/message" | "/content/body/details/kind" if failed => Some("text for people"),
        "/content/body/metadata/deletionTimestamp" | "/content/body/metadata/generation" => {
            Some("a deletion has the time of the run, and no later version has its generation")
        }
        _ if frame.operation() == "ping" => Some("a ping has its own time"),
        _ => None,
    }
}

/// Set to `all` to alter every frame, instead of one of each form: `cargo xtask mutations`.
const MUTATIONS_VARIABLE: &str = "TOMBOLO_MUTATIONS";

/// Alters expected frames in every place, and removes them: a replay must detect it.
pub(crate) fn every_change_is_seen(origin: &Transcript, run: &[Happening]) {
    judge(origin, origin, run).expect("the run itself has no difference");
    let mut cases = cases(origin);
    assert!(cases.len() > 100, "only {} changes", cases.len());
    if std::env::var(MUTATIONS_VARIABLE).as_deref() != Ok("all") {
        let mut forms = BTreeSet::new();
        cases.retain(|(index, pointer)| forms.insert(form(origin, *index, pointer.as_deref())));
    }
    let next = AtomicUsize::new(0);
    let missed: Vec<&(usize, Option<String>)> = std::thread::scope(|scope| {
        let work = || {
            let mut missed = Vec::new();
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                if !is_seen(origin, run, case.0, case.1.as_deref()) {
                    missed.push(case);
                }
            }
            missed
        };
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    let mut wrong = Vec::new();
    for (index, pointer) in missed {
        let line = &origin.lines[*index];
        let Event::Down(frame) = &line.event else { continue };
        let pointer = pointer.as_deref().unwrap_or(TAKEN_AWAY);
        let reason = (pointer == TAKEN_AWAY).then(|| unmissed(origin, *index)).flatten();
        match reason.or_else(|| unseen(origin, frame, pointer)).or_else(|| held(run, frame)) {
            Some(reason) => println!("line {}: {pointer}: {reason}", line.number),
            None => wrong.push(format!(
                "line {}: {pointer} of {} {}",
                line.number,
                frame.operation(),
                frame.resource()
            )),
        }
    }
    assert!(wrong.is_empty(), "of {} changes a replay does not see: {wrong:#?}", cases.len());
}

/// The reason why a version that an edge holds is not compared: the edge of the run may have received this version, or
/// a newer one.
fn held(run: &[Happening], frame: &Frame) -> Option<&'static str> {
    let adopts = |frame: &Frame| frame.is_tombolo() && frame.operation() == "adopt";
    let came = |happening: &Happening| match happening {
        Happening::Received(_, came) => adopts(came) && came.resource() == frame.resource(),
        _ => false,
    };
    (adopts(frame) && !run.iter().any(came)).then_some("the edge of the run did not receive this frame")
}

/// The name of a case in which a whole frame is missing.
const TAKEN_AWAY: &str = "the frame was taken away";

/// The reason why a whole frame may be missing.
fn unmissed(origin: &Transcript, index: usize) -> Option<&'static str> {
    let line = &origin.lines[index];
    let Event::Down(frame) = &line.event else { return None };
    if frame.is_hub_notice() {
        return Some("a KubeEdge cloud sends this to itself, and to the edge only by mistake");
    }
    let copy = |other: &Frame| {
        let same = |member: &str| other.as_json().get(member) == frame.as_json().get(member);
        let answers = !frame.parent().is_empty() && other.parent() == frame.parent();
        (other.id() == frame.id() || answers) && same("route") && same("content")
    };
    let others =
        || origin.lines.iter().enumerate().filter(|(other, line)| *other != index && line.conn.is_some());
    if others().any(|(_, line)| matches!(&line.event, Event::Down(other) if copy(other))) {
        return Some("it was recorded more than once, and a run has it once");
    }
    is_last(origin, index).then_some("the last frame on a connection may be lost with it")
}

/// Whether this is the last frame of its kind on a connection. Deliveries of dialect `tombolo` are numbered, so a gap
/// is detected unless nothing follows the last one. The loss of a frame that a KubeEdge edge acknowledges is always
/// detected.
fn is_last(origin: &Transcript, index: usize) -> bool {
    let line = &origin.lines[index];
    let Event::Down(frame) = &line.event else { return false };
    let follows = |later: &tombolo_replay::Line| match &later.event {
        Event::Down(other) => {
            later.conn == line.conn && other.is_push() == frame.is_push() && !other.is_notice()
        }
        Event::Up(other) => !frame.is_tombolo() && other.parent() == frame.id(),
        Event::Api(..) => false,
    };
    !origin.lines[index + 1..].iter().any(follows)
}

/// Lines of expected frames with the places in them; no place means the whole frame.
fn cases(origin: &Transcript) -> Vec<(usize, Option<String>)> {
    let mut cases = Vec::new();
    for (index, line) in origin.lines.iter().enumerate() {
        if let Event::Down(frame) = &line.event {
            cases.push((index, None));
            let mut pointers = Vec::new();
            leaves("", frame.as_json(), &mut pointers);
            // One bookkeeping field stands for all of them.
            let is_state = |pointer: &str| {
                (pointer.starts_with("/content/") && !is_identity(pointer))
                    || pointer.starts_with("/deliver/dependencies/")
            };
            pointers.retain(|pointer| !is_overtaken(frame) || !is_state(pointer));
            pointers.retain(|pointer| {
                !pointer.contains("/managedFields/") || pointer.ends_with("/managedFields/0/manager")
            });
            cases.extend(pointers.into_iter().map(|pointer| (index, Some(pointer))));
        }
    }
    cases
}

/// The common form of similar cases: the kind of the frame and the place in it, regardless of the object and of the
/// index in a list.
fn form(origin: &Transcript, index: usize, pointer: Option<&str>) -> String {
    let Event::Down(frame) = &origin.lines[index].event else { return String::new() };
    let resource = match frame.key() {
        Some(key) => key.kind,
        None => frame.resource().split('/').next().unwrap_or_default().to_owned(),
    };
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = pointer.unwrap_or(TAKEN_AWAY).split('/');
    let parts: Vec<&str> = parts.map(|part| if is_number(part) { "" } else { part }).collect();
    format!("{} {} {} {resource} {}", frame.is_push(), frame.group(), frame.operation(), parts.join("/"))
}

/// Whether a frame reports the deletion of an object. An edge only reads which object it is, and the object's last
/// state may be left out because the deletion is newer.
fn is_overtaken(frame: &Frame) -> bool {
    frame.is_push()
        && (frame.operation() == "delete" || frame.content()["metadata"]["deletionGracePeriodSeconds"] == 0)
}

fn is_identity(pointer: &str) -> bool {
    const IDENTITY: [&str; 5] =
        ["/kind", "/metadata/name", "/metadata/namespace", "/metadata/uid", "/metadata/resourceVersion"];
    IDENTITY.iter().any(|end| pointer.strip_prefix("/content") == Some(end))
}

fn leaves(pointer: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            leaves(&format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")), value, found);
        }),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| leaves(&format!("{pointer}/{index}"), item, found));
        }
        _ => found.push(pointer.to_owned()),
    }
}

fn is_seen(origin: &Transcript, run: &[Happening], index: usize, pointer: Option<&str>) -> bool {
    let mut altered = origin.clone();
    match pointer {
        None => {
            altered.lines.remove(index);
            let run: Vec<Happening> = run.iter().filter_map(|happening| without(happening, index)).collect();
            judge(&altered, origin, &run).is_err()
        }
        Some(pointer) => {
            let Event::Down(frame) = &mut altered.lines[index].event else { return true };
            let value = frame.as_json_mut().pointer_mut(pointer).expect("a path in the frame");
            *value = match value.take() {
                Value::String(text) => Value::String(changed(&text)),
                Value::Number(number) => (number.as_i64().unwrap_or_default() + 1).into(),
                Value::Bool(value) => (!value).into(),
                _ => Value::String("changed".to_owned()),
            };
            judge(&altered, origin, run).is_err()
        }
    }
}

/// Another text of the same form; versions and codes remain numbers.
fn changed(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(number) => (number + 1).to_string(),
        Err(_) => format!("{text}x"),
    }
}

/// The event, for a transcript without one of its lines.
fn without(happening: &Happening, lost: usize) -> Option<Happening> {
    let moved = |index: usize| if index > lost { index - 1 } else { index };
    Some(match happening {
        Happening::Settled(index) if *index == lost => return None,
        Happening::Settled(index) => Happening::Settled(moved(*index)),
        Happening::Sent(index, id) => Happening::Sent(moved(*index), id.clone()),
        Happening::Unsaid(index) => Happening::Unsaid(moved(*index)),
        Happening::Applied(index, states) => Happening::Applied(moved(*index), states.clone()),
        other => other.clone(),
    })
}

/// Whether a body is a document about the cluster: discovery, the version, schemas, the token issuer and its keys.
fn describes_cluster(body: &Value) -> bool {
    const KINDS: [&str; 6] =
        ["APIVersions", "APIGroupList", "APIGroup", "APIResourceList", "APIGroupDiscoveryList", "Table"];
    match body["kind"].as_str() {
        Some(kind) => KINDS.contains(&kind),
        None => {
            ["openapi", "paths", "gitVersion", "jwks_uri", "keys"].iter().any(|name| !body[*name].is_null())
        }
    }
}
