//! The application grid as pure functions.
//!
//! A grid runs one copy of a workload in each unit. Nodes belong to the same unit when a label, the grid's key, has
//! the same value on them. This crate determines the units, the name and labels of each unit's child, the endpoints of
//! a Service that a node may use, the objects that a change affects, and the names by which every unit knows the pods
//! of its own copy of a StatefulSet. It does no IO and uses no clock.
//!
//! Bodies of objects are JSON text. They are read through small views, and removed parts are cut out of the text:
//! every member that this crate does not know is preserved.

pub mod body;
pub mod dns;
pub mod endpoints;
pub mod graph;
pub mod hosts;
pub mod labels;
pub mod local_api;
pub mod name;
pub mod node;
pub mod own_pods;
pub mod prune;
pub mod reach;
pub mod reconcile;
mod syntax;
pub mod template;
pub mod uniform;
pub mod unit;

pub use body::{BodyError, ObjectMetadata};
pub use endpoints::{Carrier, Link, ServiceName};
pub use graph::Graph;
pub use hosts::{GridName, Hosts, Names};
pub use labels::{child_annotations, child_labels};
pub use local_api::{Lead, LocalApi, NotRedirected};
pub use name::{ChildKind, NameError, child_name, key_label_value, uniform_name};
pub use node::{Node, Nodes};
pub use own_pods::{OwnPod, OwnPods};
pub use prune::{Verdict, prune};
pub use reach::Reach;
pub use template::{TemplateError, choose_template, unused_templates};
pub use uniform::{PodAddress, StatefulSetGrid, pod_addresses};
pub use unit::{KeyError, units};
