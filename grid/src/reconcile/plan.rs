//! Computes what has to be done from a grid, the units and the existing children.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;
use thiserror::Error;

use super::Grid;
use super::child::{Child, Owner};
use super::manifest::manifest;
use crate::name::{ChildKind, NameError, child_name};
use crate::template::{TemplateError, choose_template};
use crate::unit::{KeyError, check_key};

/// What has to be done for one grid.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Children that are wanted.
    pub wanted: Vec<Wanted>,
    /// Children to delete.
    pub removals: Vec<Removal>,
    /// Units that cannot have a child now, and why. The unit of a ServiceGrid's one Service is empty.
    pub problems: BTreeMap<String, PlanProblem>,
    /// Objects that carry the label of this grid's children, have no owner and have a name that is not wanted: they
    /// are reported and left alone.
    pub strangers: Vec<String>,
}

/// A child that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Its unit; empty for a Service.
    pub unit: String,
    /// Its name.
    pub name: String,
    /// The object that exists under this name.
    pub found: Found,
    /// UID of that object.
    uid: Option<String>,
}

impl Wanted {
    /// The manifest to apply, made from the grid that the plan was made for. It is as large as its template, so make
    /// it for one unit at a time. It contains the UID of the existing object, as a precondition.
    #[must_use]
    pub fn manifest(&self, grid: &Grid) -> Value {
        let spec = &grid.spec;
        let template = choose_template(&self.unit, &spec.templates, &spec.default_name, &spec.pool);
        // The plan has no units without a template.
        let template = template.ok().flatten().unwrap_or(&spec.template);
        let mut manifest = manifest(grid, &self.name, &self.unit, template);
        if let Some(uid) = &self.uid {
            // If another object has taken its place since, the server refuses the manifest.
            manifest["metadata"]["uid"] = uid.as_str().into();
        }
        manifest
    }
}

/// The object that exists under the name of a wanted child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The grid's own child.
    Own,
    /// An object with the right label and without owner. It may be taken over if the grid itself, read again, still
    /// has its UID and is not being deleted.
    Orphan,
}

/// A child to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its name.
    pub name: String,
    /// Its UID: a precondition of the deletion.
    pub uid: String,
    /// Its resource version: another precondition.
    pub resource_version: String,
    /// Why it is deleted.
    pub reason: Reason,
}

/// Why a child is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its name is not wanted: its unit has no nodes any more, or the key has changed. A grace period may apply.
    Unwanted,
    /// It lost the label that identifies children. It is created again after the deletion.
    Released,
}

/// Why a unit has no child, or one that does not match what the grid wants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanProblem {
    /// The unit gives no valid name for a child.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The template is missing.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// An object with that name exists and is not the grid's.
    #[error("{kind} {name} {owner}")]
    Taken {
        /// Kind of the child.
        kind: &'static str,
        /// Name of the child.
        name: String,
        /// The owner of that object, as the end of a sentence.
        owner: String,
    },
    /// The child, or an object without owner that has its name, is being deleted; the child is created after that.
    #[error("{kind} {name} is being deleted; it is recreated after the deletion")]
    Leaving {
        /// Kind of the child.
        kind: &'static str,
        /// Name of the child.
        name: String,
    },
}

impl PlanProblem {
    /// The reason for events and conditions.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) => "InvalidUnitName",
            Self::Template(_) => "TemplateNotFound",
            Self::Taken { .. } => "ChildNameConflict",
            Self::Leaving { .. } => "ChildBeingDeleted",
        }
    }
}

/// Makes the plan for a grid that is not being deleted. Its cost is linear in the units and the children, not in their
/// product.
///
/// `children` are the objects of the children's kind in the grid's namespace that carry this grid's label or are owned
/// by it, and those that have the names of wanted children.
///
/// # Errors
/// [`KeyError`] when the grid's key is not valid: children are left exactly as they are.
pub fn plan(grid: &Grid, units: &[&str], children: &[Child<'_>]) -> Result<Plan, KeyError> {
    check_key(&grid.spec.key)?;
    let mut plan = Plan::default();
    if grid.deleting {
        return Ok(plan);
    }
    let one = [""];
    let units = if grid.kind == ChildKind::Service { &one[..] } else { units };
    let by_name: HashMap<&str, Child<'_>> = children.iter().map(|child| (child.name(), *child)).collect();
    let mut names = HashSet::with_capacity(units.len());
    for unit in units {
        let name = match child_name(grid.kind, &grid.name, unit) {
            Ok(name) => name,
            Err(error) => {
                plan.problems.insert((*unit).to_owned(), error.into());
                continue;
            }
        };
        match wanted(grid, unit, &name, by_name.get(name.as_str()).copied()) {
            Ok(PlanStep::Want(wanted)) => plan.wanted.push(wanted),
            Ok(PlanStep::Remove(removal, problem)) => {
                plan.removals.push(removal);
                plan.problems.insert((*unit).to_owned(), problem);
            }
            Err(problem) => {
                plan.problems.insert((*unit).to_owned(), problem);
            }
        }
        names.insert(name);
    }
    for (name, child) in by_name.into_iter().filter(|(name, _)| !names.contains(*name)) {
        if child.is_deleting() {
            continue;
        }
        if child.is_owned_by(&grid.uid) {
            plan.removals.push(removal(child, Reason::Unwanted));
        } else if child.owner() == Owner::Nobody && child.is_labelled_for(&grid.name) {
            plan.strangers.push(name.to_owned());
        }
    }
    plan.removals.sort_by(|one, other| one.name.cmp(&other.name));
    plan.strangers.sort_unstable();
    Ok(plan)
}

enum PlanStep {
    Want(Wanted),
    Remove(Removal, PlanProblem),
}

fn wanted(grid: &Grid, unit: &str, name: &str, seen: Option<Child<'_>>) -> Result<PlanStep, PlanProblem> {
    let spec = &grid.spec;
    choose_template(unit, &spec.templates, &spec.default_name, &spec.pool)?;
    let leaving = || PlanProblem::Leaving { kind: grid.kind.kind(), name: name.to_owned() };
    let found = match seen {
        None => Found::Nothing,
        Some(child) => match child.owner() {
            Owner::Controller { uid, .. } if uid == grid.uid && child.is_deleting() => return Err(leaving()),
            Owner::Controller { uid, .. } if uid == grid.uid && !child.is_labelled_for(&grid.name) => {
                return Ok(PlanStep::Remove(removal(child, Reason::Released), leaving()));
            }
            Owner::Controller { uid, .. } if uid == grid.uid => Found::Own,
            Owner::Nobody if child.is_deleting() => return Err(leaving()),
            Owner::Nobody if child.is_labelled_for(&grid.name) => Found::Orphan,
            other => return Err(taken(grid.kind, name, other)),
        },
    };
    let uid = seen.map(|child| child.uid().to_owned());
    Ok(PlanStep::Want(Wanted { unit: unit.to_owned(), name: name.to_owned(), found, uid }))
}

fn taken(kind: ChildKind, name: &str, owner: Owner<'_>) -> PlanProblem {
    let owner = match owner {
        Owner::Nobody => {
            "exists and belongs to no grid: delete it, or label it superedge.io/grid-selector to let the grid adopt it"
                .to_owned()
        }
        Owner::Controller { named: (kind, name), uid } => format!("belongs to {kind} {name} (uid {uid})"),
    };
    PlanProblem::Taken { kind: kind.kind(), name: name.to_owned(), owner }
}

fn removal(child: Child<'_>, reason: Reason) -> Removal {
    Removal {
        name: child.name().to_owned(),
        uid: child.uid().to_owned(),
        resource_version: child.resource_version().to_owned(),
        reason,
    }
}
