//! client-go, kube-rs and the embedded API server: random writes while the connections of 200 watchers are cut at
//! random and the server restarts. At the end, every watcher must hold the stored objects.

mod go;
mod kube_rs;
mod server;
mod writes;

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use tombolo_testkit::{cluster_or_skip, go_clients, seed, wait_for};

use go::GoClients;
use kube_rs::Reflectors;
use server::Server;
use writes::Writes;

/// Revision of each object by "namespace/name".
type Revisions = BTreeMap<String, String>;

/// Informers of client-go in each of two processes: one process lists and watches, in the other the watch begins with
/// the list.
const GO_WATCHERS: usize = 54;

/// Watchers of kube-rs.
const KUBE_WATCHERS: usize = 96;

/// Number of changes; the server restarts after half of them.
const WRITES: usize = 1_500;

/// After each write, one in this many open connections is cut.
const CUT_ONE_IN: u32 = 40;

/// Time within which every watcher must hold the stored objects; client-go waits up to 30 s after several failures.
const WITHIN: Duration = Duration::from_secs(90);

/// Selectors of the watchers: everything, or objects with a label that the writes remove and add.
const SELECTORS: [&str; 2] = ["", "half=yes"];

/// What one watcher holds.
struct Held {
    watcher: String,
    resource: &'static str,
    selector: &'static str,
    objects: Revisions,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn randomly_disconnected_watchers_converge_to_the_stored_objects() {
    cluster_or_skip!("randomly_disconnected_watchers_converge_to_the_stored_objects");
    let program = go_clients().expect("no informers: run the tests with `cargo xtask test`");
    let seed = seed();
    let mut rng = seed.rng();
    let mut server = Server::start().await.unwrap();
    let mut writes = Writes::new(server.client().await.unwrap()).await.unwrap();
    let mut lists = GoClients::start(&program, &server.kubeconfig(), GO_WATCHERS, false).unwrap();
    let mut streams = GoClients::start(&program, &server.kubeconfig(), GO_WATCHERS, true).unwrap();
    let reflectors = Reflectors::start(server.kubeconfig(), KUBE_WATCHERS).await.unwrap();

    for number in 0..WRITES {
        writes.one(&mut rng).await.unwrap();
        if rng.random_range(0..5) == 0 {
            server.cut(CUT_ONE_IN, &mut rng);
        }
        if number == WRITES / 2 {
            server.restart().await.unwrap();
            writes = Writes::again(server.client().await.unwrap());
        }
    }
    assert!(server.cuts() > 200, "only {} connections were cut", server.cuts());

    wait_for("every watcher to hold what is stored", WITHIN, || {
        let (writes, reflectors) = (&writes, &reflectors);
        let held = lists.held().and_then(|mut held| {
            held.extend(streams.held()?);
            Ok(held)
        });
        async move {
            let mut held = held.map_err(|error| format!("{error:#}"))?;
            held.extend(reflectors.held());
            assert_eq!(held.len(), 2 * GO_WATCHERS + KUBE_WATCHERS);
            let stored = writes.stored().await.map_err(|error| format!("{error:#}"))?;
            let differing: Vec<String> = held
                .iter()
                .filter_map(|held| difference(held, &stored[&(held.resource, held.selector)]))
                .collect();
            let first = differing.first().cloned().unwrap_or_default();
            if differing.is_empty() { Ok(()) } else { Err(format!("{} differ: {first}", differing.len())) }
        }
    })
    .await;
}

/// The first object for which a watcher holds another revision than the server.
fn difference(held: &Held, stored: &Revisions) -> Option<String> {
    let names = held.objects.keys().chain(stored.keys());
    let name = names.into_iter().find(|name| held.objects.get(*name) != stored.get(*name))?;
    let (seen, is) = (held.objects.get(name), stored.get(name));
    Some(format!(
        "{} of {} {:?}: {name} at {seen:?}, stored at {is:?}",
        held.watcher, held.resource, held.selector
    ))
}
