use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::testing::identity_valid;
use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LIFE: Duration = DAY.saturating_mul(100);

/// A cloud on tokio's virtual clock.
#[derive(Clone)]
struct Virtual {
    start: Instant,
    /// How far the wall clock was set ahead.
    ahead: Arc<Mutex<Duration>>,
    /// How far the wall clock is ahead of the cloud's.
    before_cloud: Duration,
    /// When renewal was requested, on the virtual clock.
    asked: Arc<Mutex<Vec<Duration>>>,
    /// How many attempts fail before one succeeds.
    failures: Arc<Mutex<u32>>,
}

impl Virtual {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            start,
            ahead: Arc::default(),
            before_cloud: Duration::ZERO,
            asked: Arc::default(),
            failures: Arc::default(),
        }
    }

    fn certificate(&self) -> Identity {
        let now = self.now() - self.before_cloud;
        identity_valid(&NodeId::parse("edge-a").unwrap(), now, now + LIFE)
    }

    /// Runs the rotation for a while, with a certificate that begins now; returns whether a new one was published.
    async fn run(&self, seed: u64, time: Duration) -> bool {
        self.run_with(self.certificate(), seed, time).await
    }

    async fn run_with(&self, identity: Identity, seed: u64, time: Duration) -> bool {
        let first = identity.certificate.clone();
        let (sender, receiver) = watch::channel(Arc::new(identity));
        let rotation = rotate(self.clone(), sender, seed);
        tokio::time::timeout(time, rotation).await.expect_err("it never stops");
        let last = receiver.borrow();
        last.certificate != first
    }
}

impl Renewal for Virtual {
    fn renew(&self, _: Arc<Identity>) -> BoxFuture<'_, Result<Identity, JoinError>> {
        async move {
            let times = {
                let mut asked = self.asked.lock();
                asked.push(self.start.elapsed());
                asked.len()
            };
            assert!(times < 10_000, "renewed without a pause");
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                return Err(JoinError::Answer("not now".to_owned()));
            }
            Ok(self.certificate())
        }
        .boxed()
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + DAY * 10_000 + self.start.elapsed() + *self.ahead.lock()
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_is_at_a_jittered_fraction_of_the_life() {
    let mut moments = Vec::new();
    for seed in 0..20 {
        let cloud = Virtual::new();
        assert!(cloud.run(seed, LIFE).await, "the new one is published");
        let asked = cloud.asked.lock().clone();
        assert_eq!(asked.len(), 1, "once in a certificate's life: {asked:?}");
        let fraction = asked[0].as_secs_f64() / LIFE.as_secs_f64();
        assert!(DUE.contains(&fraction), "{fraction}");
        moments.push(asked[0]);
    }
    moments.sort();
    moments.dedup();
    assert_eq!(moments.len(), 20, "no two nodes renew at the same moment");
    assert!(moments[19] - moments[0] > LIFE / 10, "spread over the range: {moments:?}");
}

#[tokio::test(start_paused = true)]
async fn every_certificate_has_its_own_renewal_time() {
    let cloud = Virtual::new();
    cloud.run(1, LIFE * 5).await;
    let asked = cloud.asked.lock().clone();
    let mut last = Duration::ZERO;
    let fractions: Vec<f64> = asked
        .iter()
        .map(|at| (*at - std::mem::replace(&mut last, *at)).as_secs_f64() / LIFE.as_secs_f64())
        .collect();
    assert!((5..=7).contains(&fractions.len()), "{fractions:?}");
    assert!(fractions.iter().all(|fraction| DUE.contains(fraction)), "{fractions:?}");
    assert!(fractions.windows(2).all(|pair| pair[0].to_bits() != pair[1].to_bits()), "{fractions:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_are_repeated_with_growing_waits_until_it_works() {
    let cloud = Virtual::new();
    *cloud.failures.lock() = 14;
    assert!(cloud.run(2, LIFE).await);
    let asked = cloud.asked.lock().clone();
    assert_eq!(asked.len(), 15);
    let waits: Vec<Duration> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] <= BACKOFF.first && waits[0] >= BACKOFF.first / 2, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= BACKOFF.max), "{waits:?}");
    assert!(waits[9..].iter().all(|wait| *wait >= BACKOFF.max / 2), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn certificate_that_expired_while_the_node_was_off_is_renewed_at_start() {
    let cloud = Virtual::new();
    let now = cloud.now();
    let ended = identity_valid(&NodeId::parse("edge-a").unwrap(), now - DAY * 20, now - DAY);
    assert!(cloud.run_with(ended, 3, DAY).await);
    assert_eq!(*cloud.asked.lock(), [Duration::ZERO]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_is_noticed_within_an_hour() {
    let cloud = Virtual::new();
    let (sender, _receiver) = watch::channel(Arc::new(cloud.certificate()));
    let rotation = tokio::spawn(rotate(cloud.clone(), sender, 4));
    tokio::time::sleep(DAY).await;
    *cloud.ahead.lock() = DAY * 95;
    let set = cloud.start.elapsed();
    tokio::time::sleep(NAP_MAX + Duration::from_secs(1)).await;
    rotation.abort();
    let asked = cloud.asked.lock().clone();
    assert_eq!(asked.len(), 1);
    assert!(asked[0] >= set && asked[0] - set <= NAP_MAX, "{asked:?} after {set:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_of_the_cloud_does_not_renew_without_pause() {
    let cloud = Virtual { before_cloud: LIFE, ..Virtual::new() };
    assert!(cloud.run(5, DAY).await);
    let asked = cloud.asked.lock().len();
    assert!((2..300).contains(&asked), "{asked} attempts in a day");
}

#[test]
fn renewal_is_due_before_the_end() {
    let life = (UNIX_EPOCH + DAY, UNIX_EPOCH + DAY * 11);
    assert_eq!(remaining(life, 0.8, UNIX_EPOCH + DAY), DAY * 8);
    assert_eq!(remaining(life, 0.8, UNIX_EPOCH + DAY * 9), Duration::ZERO);
    assert_eq!(remaining(life, 0.8, UNIX_EPOCH + DAY * 100), Duration::ZERO, "expired while away");
    assert_eq!(remaining(life, 0.8, UNIX_EPOCH), DAY * 9, "a clock that is behind");
}

#[test]
fn error_names_the_remedy() {
    let node = NodeId::parse("edge-a").unwrap();
    let refused =
        |code| JoinError::Refused { node: node.clone(), code, message: String::new(), hint: String::new() };
    assert!(refused(401).advice().contains("edgecore join"));
    assert!(refused(403).advice().contains("edgecore join"));
    assert!(!refused(503).advice().contains("edgecore join"));
    let (endpoint, problem, hint) = ("hub:10002".to_owned(), "refused".to_owned(), String::new());
    assert!(JoinError::Connect { endpoint, problem, hint }.advice().contains("cloud.join"));
}
