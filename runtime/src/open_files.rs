//! How many files and connections a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Lets this process open as many files as the system grants it. Programs are started with 1,024 for the sake of old ones that
/// cannot count further (systemd, containerd since 2.0); a server that has run out of them accepts nobody and reaches nobody.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!(%error, "this process cannot have more files and connections open than it was started with");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_low_is_as_high_as_it_may_be() {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..before }).unwrap();
        raise_limit();
        let raised = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!((raised.current, raised.maximum), (before.maximum, before.maximum));
    }
}
