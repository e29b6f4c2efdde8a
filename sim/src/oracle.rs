//! Judges a run by what the harness observes. Without product code: no crate of this workspace is used here or in the
//! modules below, and the wire formats are read by a reader of its own ([`wire`]).
//!
//! Each rule is one file under `rules`, named after what it guards, and judges at every observation. The rules are
//! those of docs/consistency.md and docs/security.md; [`OracleLimits`] has the windows within which a late view excuses
//! something.

mod connections;
pub mod content;
mod context;
mod history;
mod limits;
mod needs;
mod rbac;
mod rules;
#[cfg(test)]
mod testing;
pub mod trace;
mod views;
mod violation;
pub mod wire;

use context::Context;
pub use limits::OracleLimits;
pub use needs::NodeShare;
pub use violation::Violation;

use crate::observation::Observation;

/// A rule, with what it remembers.
trait Judge: std::fmt::Debug + Send {
    /// Judges one observation, which the context already contains.
    fn observe(&mut self, context: &Context, observation: &Observation, found: &mut Vec<Violation>);

    /// Whether nothing is missing that has to come when the faults have ended.
    fn is_satisfied(&self, _context: &Context) -> bool {
        true
    }
}

/// All rules over one run.
#[derive(Debug)]
pub struct Oracle {
    context: Context,
    judges: Vec<Box<dyn Judge>>,
}

impl Oracle {
    /// `nodes`: the honest nodes, which have to hold in the end what they need.
    #[must_use]
    pub fn new(nodes: Vec<String>, limits: OracleLimits) -> Self {
        Self { context: Context::new(nodes, limits), judges: rules::all() }
    }

    /// Judges one observation. Observations come in the order of their times.
    pub fn observe(&mut self, observation: &Observation) -> Vec<Violation> {
        self.context.observe(observation);
        let mut found = Vec::new();
        for judge in &mut self.judges {
            judge.observe(&self.context, observation, &mut found);
        }
        found
    }

    /// Whether everything that has to come when the faults have ended has come. Then the simulation may end earlier.
    #[must_use]
    pub fn is_satisfied(&self) -> bool {
        self.judges.iter().all(|judge| judge.is_satisfied(&self.context))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// An oracle that uses the product's code shares its mistakes.
    #[test]
    fn no_product_code_is_used_here() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut folders = vec![root.join("oracle")];
        let mut files = vec![root.join("oracle.rs"), root.join("observation.rs")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        assert!(files.len() > 20, "{files:?}");
        let (crates, own) = (concat!("tombolo", "_"), concat!("crate", "::"));
        let allowed = ["crate::observation", "crate::oracle"];
        for file in files {
            for line in fs::read_to_string(&file).unwrap().lines() {
                let foreign = line.contains(own) && !allowed.iter().any(|path| line.contains(path));
                assert!(!line.contains(crates) && !foreign, "{}: {line}", file.display());
            }
        }
    }
}
