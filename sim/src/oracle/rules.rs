//! The rules.

mod acknowledged;
mod budgets;
mod converged;
mod forward;
mod late;
mod missing;
mod quiet;
mod repeated;
mod reports;
mod rights;
mod stopped;

use super::Judge;

/// All rules, each with an empty memory.
pub(super) fn all() -> Vec<Box<dyn Judge>> {
    vec![
        Box::<forward::Forward>::default(),
        Box::<acknowledged::Acknowledged>::default(),
        Box::<missing::Missing>::default(),
        Box::<stopped::Stopped>::default(),
        Box::<rights::Rights>::default(),
        Box::<reports::Reports>::default(),
        Box::<repeated::Repeated>::default(),
        Box::<budgets::Budgets>::default(),
        Box::<late::Late>::default(),
        Box::<converged::Converged>::default(),
        Box::<quiet::Quiet>::default(),
    ]
}
