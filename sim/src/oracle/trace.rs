//! Observations as text, one line each: time, who, what.

use std::fmt;

use crate::observation::{Observation, Seen, SeenChange, SeenFrame, SeenRow, SeenVersion};

/// Longest line, in characters.
const LINE_LEN_MAX: usize = 240;

/// One line, without its end.
#[must_use]
pub fn line(observation: &Observation) -> String {
    time_and(observation.at, &Described(&observation.seen))
}

/// A line about something else, such as an operation of the plan.
#[must_use]
pub fn time_and(at: u64, what: &dyn fmt::Display) -> String {
    let text = format!("{:>7}.{:03} {what}", at / 1000, at % 1000).replace(['\n', '\r'], " ");
    match text.char_indices().nth(LINE_LEN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

struct Described<'a>(&'a Seen);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Seen::Wrote(write) => {
                let what = if write.body.is_some() { "writes" } else { "deletes" };
                let position = write.position;
                write!(
                    f,
                    "api        {} {what} {} @{}:{}",
                    write.caller, write.object, position.history, position.revision
                )
            }
            Seen::Restored { position } => {
                write!(
                    f,
                    "api        restored to revision {}, history {}",
                    position.revision, position.history
                )
            }
            Seen::ViewMoved { replica, resource, position } => {
                write!(
                    f,
                    "replica-{replica}  knows {resource} up to {}:{}",
                    position.history, position.revision
                )
            }
            Seen::ReplicaDown { replica } => write!(f, "replica-{replica}  ends"),
            Seen::TokenIssued { account, .. } => write!(f, "api        token for {account}"),
            Seen::Connected { connection, machine, replica, .. } => {
                write!(f, "{machine}     connects to replica-{replica}: connection {connection}")
            }
            Seen::Closed { connection, why } => write!(f, "connection {connection} closed: {why}"),
            Seen::Sent { connection, up, lane, bytes, frame } => {
                let arrow = if *up { "^" } else { "v" };
                write!(f, "{connection}{arrow} lane {lane} {bytes} B  {}", DescribedFrame(frame))
            }
            Seen::Shown { node, reader, object, version } => match version {
                Some(version) => {
                    write!(f, "{node}     shows {reader} {object} {}", DescribedVersion(version))
                }
                None => write!(f, "{node}     shows {reader} {object} gone"),
            },
            Seen::Following { node, reader, selection, .. } => {
                let labels = &selection.labels;
                write!(
                    f,
                    "{node}     {reader} follows {}/{} {labels}",
                    selection.resource, selection.namespace
                )
            }
            Seen::Unfollowed { node, reader } => write!(f, "{node}     {reader} follows nothing"),
            Seen::OnDisk { node, rows } => {
                let present = rows.iter().filter(|(_, row)| matches!(row, SeenRow::Present(_))).count();
                write!(f, "{node}     crashed; on disk: {} rows, {present} objects", rows.len())
            }
            Seen::DiskReplaced { node } => write!(f, "{node}     has an empty disk"),
            Seen::PodStopped { node, object, uid } => write!(f, "{node}     stops {object} {uid}"),
            Seen::ReportAccepted { node, object, marker, .. } => {
                write!(f, "{node}     accepts report {marker:?} about {object}")
            }
            Seen::Usage { host, budget, peer, used, limit } => {
                write!(f, "{host} {budget} {peer}: {used} of {limit}")
            }
            Seen::FaultBegan { scope } => write!(f, "fault      begins for {scope:?}"),
            Seen::FaultOver { scope } => write!(f, "fault      is over for {scope:?}"),
            Seen::FaultsEnded => f.write_str("faults have ended"),
            Seen::Settled => f.write_str("everything has converged"),
            Seen::Finished => f.write_str("end"),
        }
    }
}

struct DescribedVersion<'a>(&'a SeenVersion);

impl fmt::Display for DescribedVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SeenVersion { uid, revision, content, .. } = self.0;
        write!(f, "r{revision} {} {content:?}", uid.get(..8).unwrap_or(uid))
    }
}

struct DescribedFrame<'a>(&'a SeenFrame);

impl fmt::Display for DescribedFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SeenFrame::Deliver(delivery) => {
                write!(f, "deliver #{} s{} {} ", delivery.seq, delivery.subscription, delivery.object)?;
                match &delivery.change {
                    SeenChange::Upsert(version) => write!(f, "{}", DescribedVersion(version)),
                    SeenChange::Adopt { revision, .. } => write!(f, "adopt r{revision}"),
                    SeenChange::Delete => f.write_str("delete"),
                    SeenChange::Absent => f.write_str("absent"),
                    SeenChange::Unreadable => f.write_str("unreadable"),
                }
            }
            SeenFrame::Hello { inventory } => match inventory {
                Some(objects) => write!(f, "hello, holds {}", objects.len()),
                None => f.write_str("hello with a digest"),
            },
            SeenFrame::InventoryPart { subscription, objects, last } => {
                write!(f, "inventory s{subscription} {} objects, last {last}", objects.len())
            }
            SeenFrame::Reply { id, code, objects } => {
                write!(f, "reply {id} {code}, {} objects", objects.len())
            }
            SeenFrame::Request { id, what, token } => {
                let who = if token.is_some() { "an account" } else { "the node" };
                write!(f, "request {id} {what} for {who}")
            }
            SeenFrame::Document { operation, resource, objects } => {
                write!(f, "document {operation} {resource}, {} objects", objects.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::{Api, shown};

    #[test]
    fn each_observation_is_one_line_of_bounded_length() {
        let mut api = Api::default();
        api.config("c", "1");
        let version = api.version("configmaps/d/c");
        let at = 61_007;
        let seen = shown("configmaps/d/c", Some(version));
        let text = line(&Observation { at, seen });
        assert!(text.starts_with("     61.007 n     shows pushed configmaps/d/c r0 uid-1 "), "{text}");
        let why = "a\nb".repeat(500);
        let text = line(&Observation { at, seen: Seen::Closed { connection: 3, why } });
        assert!(!text.contains('\n') && text.chars().count() == LINE_LEN_MAX + 1, "{text}");
    }
}
