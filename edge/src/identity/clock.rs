//! This node's clock, and how far it may differ from the cloud's.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{JoinError, certificate};
use tombolo_apicore::schema::format::seconds;

/// Smallest difference of the clocks that is mentioned in errors.
const WORTH_A_WORD: Duration = Duration::from_secs(5 * 60);

/// Largest difference of the clocks with which a node can join: the cloud's certificates are valid from this long
/// before their creation.
const SKEW_MAX: Duration = Duration::from_secs(3600);

/// The wall clock with which certificates and tokens are checked.
#[derive(Clone)]
pub(crate) struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// The system's clock.
    pub(crate) fn system() -> Self {
        Self::new(SystemTime::now)
    }

    /// Another clock.
    pub(crate) fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// Seconds since the Unix epoch.
    pub(crate) fn unix_seconds(&self) -> u64 {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({})", text(self.now()))
    }
}

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        let elapsed = self.now().duration_since(UNIX_EPOCH).ok()?;
        Some(UnixTime::since_unix_epoch(elapsed))
    }
}

/// Refuses to join when the clock differs from the cloud's by more than the cloud's certificates allow for.
///
/// # Errors
/// [`JoinError::Clock`] names both times.
pub(super) fn check(endpoint: &str, cloud: Option<SystemTime>, here: SystemTime) -> Result<(), JoinError> {
    let Some((skew, side)) = cloud.and_then(|cloud| difference(cloud, here)) else { return Ok(()) };
    let Some(cloud) = cloud.filter(|_| skew > SKEW_MAX) else { return Ok(()) };
    let effect = if here < cloud {
        "by this clock the cloud's certificates are not yet valid"
    } else {
        "by this clock the cloud's certificates have expired, or will expire too early"
    };
    Err(JoinError::Clock {
        endpoint: endpoint.to_owned(),
        minutes: skew.as_secs() / 60,
        side,
        here: text(here),
        cloud: text(cloud),
        effect,
    })
}

/// The hint to add to an error when the clocks of cloud and node differ.
pub(super) fn hint(cloud: Option<SystemTime>, here: SystemTime) -> String {
    match cloud.and_then(|cloud| difference(cloud, here)) {
        Some((skew, side)) if skew >= WORTH_A_WORD => {
            format!(
                " (this node's clock is {} minutes {side} the cloud's: set it first)",
                skew.as_secs() / 60
            )
        }
        _ => String::new(),
    }
}

/// Checks that a certificate is valid at this time.
///
/// # Errors
/// A message that names the times.
pub(super) fn within_life(certificate: &CertificateDer<'_>, here: SystemTime) -> Result<(), String> {
    let (begin, end) = certificate::validity(certificate).map_err(|error| error.to_string())?;
    let problem = match here {
        _ if here < begin => "not yet valid",
        _ if here > end => "expired",
        _ => return Ok(()),
    };
    Err(format!(
        "the certificate is {problem}: it is valid from {} to {}, and this node's clock says {}; set the clock",
        text(begin),
        text(end),
        text(here)
    ))
}

/// How far apart the clocks are, and whether this node's is behind or ahead.
fn difference(cloud: SystemTime, here: SystemTime) -> Option<(Duration, &'static str)> {
    match cloud.duration_since(here) {
        Ok(ahead) => Some((ahead, "behind")),
        Err(error) => Some((error.duration(), "ahead of")),
    }
}

/// A time in the format of Kubernetes.
pub(super) fn text(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| "a time out of range".to_owned(), seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn differences_are_mentioned_and_large_ones_refused() {
        let here = at(1_000_000);
        assert_eq!(hint(None, here), "");
        assert_eq!(hint(Some(at(1_000_010)), here), "");
        assert!(hint(Some(at(1_086_400)), here).contains("1440 minutes behind"));
        for cloud in [None, Some(at(1_003_600)), Some(at(996_400))] {
            check("hub:1", cloud, here).unwrap();
        }
        let behind = check("hub:1", Some(at(1_086_400)), here).unwrap_err().to_string();
        for part in
            ["1440 minutes behind", "1970-01-12T13:46:40Z", "hub:1", "1970-01-13T13:46:40Z", "not yet valid"]
        {
            assert!(behind.contains(part), "{behind} lacks {part}");
        }
        let ahead = check("hub:1", Some(at(913_600)), here).unwrap_err().to_string();
        assert!(ahead.contains("1440 minutes ahead of") && ahead.contains("expired"), "{ahead}");
    }
}
