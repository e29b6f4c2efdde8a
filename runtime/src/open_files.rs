//! The limit on the files and connections that a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit of open files to the maximum that the system grants. Programs start with 1,024 for compatibility
/// with old ones that cannot handle more (systemd, containerd since 2.0). A server that runs out of them can neither
/// accept nor open connections.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!(%error, "cannot raise the limit of open files and connections");
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
