//! Recorded traffic of stock KubeEdge against a cloudcore of ours; and the proof that a replay can fail.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tombolo_cli::replay::{Run, Target, play_edge, read};
use tombolo_replay::{Event, Frame, Happening, Transcript, judge, with_api_lines};

/// Why a replay rightly does not see a change in this place of this frame; none when it must.
fn unseen(origin: &Transcript, frame: &Frame, place: &str) -> Option<&'static str> {
    let content = frame.content();
    let occurs_once = |name: &str, metadata: &Value| {
        let value = metadata[name].as_str().unwrap_or("none");
        origin.to_text().matches(&format!("\"{name}\":\"{value}\"")).count() == 1
    };
    match place {
        "/header/timestamp" => Some("the time of sending is that of the run"),
        "/header/msg_id" => Some("an id is a name: it means something where a later message repeats it"),
        _ if place.contains("/managedFields/") => {
            Some("bookkeeping of the API server, which deliveries leave out")
        }
        "/content/Err/ErrStatus/message" | "/content/Err/ErrStatus/details/kind" => Some("words for people"),
        _ if place.starts_with("/content/Object/") && !content["Err"].is_null() => {
            Some("of an object beside an error only the presence counts")
        }
        "/content/Object/metadata/resourceVersion"
            if occurs_once("resourceVersion", &content["Object"]["metadata"]) =>
        {
            Some("a version to which nothing refers")
        }
        "/content/metadata/uid" if occurs_once("uid", &content["metadata"]) => {
            Some("a uid to which nothing refers")
        }
        _ if content["kind"] == "TokenRequest" => match place {
            "/content/status/token"
            | "/content/status/expirationTimestamp"
            | "/content/metadata/creationTimestamp" => Some("a token is secret, and made anew in each run"),
            "/content/spec/audiences/0" => Some("the cluster chooses audiences when nobody asks for some"),
            _ => None,
        },
        "/content/Timestamp" if content["Timestamp"] != "0001-01-01T00:00:00Z" => Some("a moment of the run"),
        "/content/RespBody" => Some("documents about the cluster are those of the run's"),
        _ => None,
    }
}

fn transcript(name: &str) -> Transcript {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(name);
    with_api_lines(&read(&path).expect("a transcript"))
}

/// Plays a transcript against a cloudcore of its own.
async fn play(transcript: &Transcript) -> Run {
    play_against(transcript, Target::start().await.expect("an API server and a cloudcore")).await
}

async fn play_against(transcript: &Transcript, target: Target) -> Run {
    let run = play_edge(transcript, &target).await.expect("a run");
    target.stop().await;
    if let Err(difference) = &run.outcome {
        panic!("{difference}");
    }
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_joins_runs_goes_away_and_converges() {
    let transcript = transcript("kubeedge-join-run-offline.jsonl");
    let run = play(&transcript).await;
    assert!(run.preconditions.iter().any(|line| line.contains("node.kubernetes.io/not-ready")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_an_edge_read_and_watch() {
    let transcript = transcript("kubeedge-metaserver.jsonl");
    let run = play(&transcript).await;
    assert!(run.preconditions.iter().any(|line| line.ends_with("watch endpointslices.discovery.k8s.io")));
    every_change_is_seen(&transcript, &run.happenings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_recorded_replays_and_has_no_secret() {
    let origin = transcript("kubeedge-join-run-offline.jsonl");
    let folder = tempfile::tempdir().expect("a folder");
    play_against(&origin, Target::start_recording(folder.path()).await.expect("a cloudcore")).await;
    let path = folder.path().join("edge-a.jsonl");
    let text = std::fs::read_to_string(&path).expect("a recording");
    let secret = origin.lines.iter().find_map(|line| match &line.event {
        Event::Api(_, object) if object["kind"] == "Secret" => object["data"]["password"].as_str(),
        _ => None,
    });
    assert!(!text.contains(secret.expect("the transcript has a secret")));
    assert!(!text.contains("eyJhbGciOi"), "a token was recorded");
    let recorded = read(&path).expect("a transcript");
    assert!(recorded.has_api_lines());
    assert!(recorded.lines.len() > 100, "{} lines", recorded.lines.len());
    play(&recorded).await;
    tombolo_replay::play_cloud(&recorded).unwrap_or_else(|difference| panic!("{difference}"));
}

/// Alters every expected frame in every place, and takes it away: a replay must see it.
fn every_change_is_seen(origin: &Transcript, run: &[Happening]) {
    judge(origin, origin, run).expect("the run itself has no difference");
    let cases = cases(origin);
    assert!(cases.len() > 500, "only {} changes", cases.len());
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
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    let mut wrong = Vec::new();
    for (index, place) in missed {
        let line = &origin.lines[*index];
        let Event::Down(frame) = &line.event else { continue };
        let place = place.as_deref().unwrap_or("the frame was taken away");
        match unseen(origin, frame, place) {
            Some(reason) => println!("line {}: {place}: {reason}", line.number),
            None => wrong.push(format!("line {}: {place}", line.number)),
        }
    }
    assert!(wrong.is_empty(), "of {} changes a replay does not see: {wrong:#?}", cases.len());
}

/// Lines of expected frames with the places in them; no place: the frame as a whole.
fn cases(origin: &Transcript) -> Vec<(usize, Option<String>)> {
    let mut cases = Vec::new();
    for (index, line) in origin.lines.iter().enumerate() {
        if let Event::Down(frame) = &line.event {
            cases.push((index, None));
            let mut places = Vec::new();
            leaves("", frame.as_json(), &mut places);
            // A field of bookkeeping is as good as all of them.
            places.retain(|place| {
                !is_overtaken(frame) || !place.starts_with("/content/") || is_identity(place)
            });
            places.retain(|place| {
                !place.contains("/managedFields/") || place.ends_with("/managedFields/0/manager")
            });
            cases.extend(places.into_iter().map(|place| (index, Some(place))));
        }
    }
    cases
}

/// Whether a frame tells the end of an object: an edge reads only which object that is, and the last state before it may
/// be left out because the end is newer.
fn is_overtaken(frame: &Frame) -> bool {
    frame.is_push()
        && (frame.operation() == "delete" || frame.content()["metadata"]["deletionGracePeriodSeconds"] == 0)
}

fn is_identity(place: &str) -> bool {
    const IDENTITY: [&str; 5] =
        ["/kind", "/metadata/name", "/metadata/namespace", "/metadata/uid", "/metadata/resourceVersion"];
    IDENTITY.iter().any(|end| place.strip_prefix("/content") == Some(end))
}

fn leaves(place: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            leaves(&format!("{place}/{}", name.replace('~', "~0").replace('/', "~1")), value, found);
        }),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| leaves(&format!("{place}/{index}"), item, found));
        }
        _ => found.push(place.to_owned()),
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
            let place = frame.as_json_mut().pointer_mut(pointer).expect("a place of the frame");
            *place = match place.take() {
                Value::String(text) => Value::String(changed(&text)),
                Value::Number(number) => (number.as_i64().unwrap_or_default() + 1).into(),
                Value::Bool(value) => (!value).into(),
                _ => Value::String("changed".to_owned()),
            };
            judge(&altered, origin, run).is_err()
        }
    }
}

/// Another text of the same form: versions and codes stay numbers.
fn changed(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(number) => (number + 1).to_string(),
        Err(_) => format!("{text}x"),
    }
}

/// What happened, for a transcript that lacks a line.
fn without(happening: &Happening, lost: usize) -> Option<Happening> {
    let moved = |index: usize| if index > lost { index - 1 } else { index };
    Some(match happening {
        Happening::Settled(index) if *index == lost => return None,
        Happening::Settled(index) => Happening::Settled(moved(*index)),
        Happening::Sent(index, id) => Happening::Sent(moved(*index), id.clone()),
        Happening::Applied(index, states) => Happening::Applied(moved(*index), states.clone()),
        other => other.clone(),
    })
}
