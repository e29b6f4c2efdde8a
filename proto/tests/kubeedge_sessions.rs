//! The sessions of dialect `kubeedge` on a virtual clock: against models of KubeEdge peers, against each other, and
//! against recorded traffic.

#![allow(unreachable_pub)] // a test binary exports nothing

#[path = "kubeedge_sessions/cluster.rs"]
mod cluster;
#[path = "kubeedge_sessions/cut.rs"]
mod cut;
#[path = "kubeedge_sessions/edgecore.rs"]
mod edgecore;
#[path = "kubeedge_sessions/followed.rs"]
mod followed;
#[path = "kubeedge_sessions/pair.rs"]
mod pair;
#[path = "kubeedge_sessions/scenes.rs"]
mod scenes;
#[path = "kubeedge_sessions/schedules.rs"]
mod schedules;
#[path = "common/selection.rs"]
mod selection;
#[path = "kubeedge_sessions/transcripts.rs"]
mod transcripts;
#[path = "kubeedge_sessions/world.rs"]
mod world;
