//! The sessions of dialect `kubeedge` on a virtual clock: against models of KubeEdge peers, against each other, and
//! against recorded traffic.

#![allow(unreachable_pub)] // a test binary exports nothing

#[path = "kubeedge/cluster.rs"]
mod cluster;
#[path = "kubeedge/cut.rs"]
mod cut;
#[path = "kubeedge/edgecore.rs"]
mod edgecore;
#[path = "kubeedge/followed.rs"]
mod followed;
#[path = "kubeedge/pair.rs"]
mod pair;
#[path = "kubeedge/scenes.rs"]
mod scenes;
#[path = "kubeedge/schedules.rs"]
mod schedules;
#[path = "common/selection.rs"]
mod selection;
#[path = "kubeedge/transcripts.rs"]
mod transcripts;
#[path = "kubeedge/world.rs"]
mod world;
