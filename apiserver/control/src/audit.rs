//! The audit log: one JSON line per request, at level Metadata (Kubernetes: `audit.k8s.io/v1`).
//!
//! A bounded queue passes the lines to a writer thread. A slow disk does not delay requests: lines are dropped and
//! counted, and the next written line has the count.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use serde_json::{Map, Value, json};
use tombolo_apicore::auth::{Attributes, Audit, AuditRecord};

use super::error::EmbeddedError;

/// Maximum number of lines that wait for the disk.
const QUEUE_MAX: usize = 16 * 1024;

/// Writes one line per request.
pub(super) struct AuditLog {
    lines: Option<SyncSender<String>>,
    dropped: Arc<AtomicU64>,
    writer: Option<JoinHandle<()>>,
}

impl AuditLog {
    /// Appends to a file that only its owner can read.
    ///
    /// # Errors
    /// [`EmbeddedError::File`] when the file cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, EmbeddedError> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = file.map_err(|e| EmbeddedError::file("open", path, e))?;
        let (lines, queue) = sync_channel(QUEUE_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        let writer = std::thread::Builder::new()
            .name("embedded-audit".into())
            .spawn(move || write(file, &queue, &count));
        let writer = writer.map_err(|e| EmbeddedError::file("start a writer for", path, e))?;
        Ok(Self { lines: Some(lines), dropped, writer: Some(writer) })
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // The writer ends when the queue is empty. A panic in it is ignored here.
            let _ = writer.join();
        }
    }
}

impl Audit for AuditLog {
    fn record(&self, record: &AuditRecord<'_>) {
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_)) = lines.try_send(line(record).to_string()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(file: File, queue: &Receiver<String>, dropped: &AtomicU64) {
    let mut file = BufWriter::new(file);
    let mut put = |line: &str| writeln!(file, "{line}").and_then(|()| file.flush());
    while let Ok(line) = queue.recv() {
        let lost = dropped.swap(0, Ordering::Relaxed);
        let mut written = put(&line);
        if lost > 0 {
            written =
                written
                    .and(put(&json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "dropped": lost})
                        .to_string()));
        }
        if let Err(error) = written {
            tracing::warn!(%error, "the audit log cannot be written");
        }
    }
}

fn line(record: &AuditRecord<'_>) -> Value {
    let asked = record.attributes;
    let now = jiff::Timestamp::now().to_string();
    let mut line = Map::from_iter([
        ("kind".to_owned(), json!("Event")),
        ("apiVersion".to_owned(), json!("audit.k8s.io/v1")),
        ("level".to_owned(), json!("Metadata")),
        ("auditID".to_owned(), json!(uuid::Uuid::new_v4().to_string())),
        ("stage".to_owned(), json!("ResponseComplete")),
        ("requestURI".to_owned(), json!(asked.path)),
        ("verb".to_owned(), json!(asked.verb)),
        ("responseStatus".to_owned(), json!({"metadata": {}, "code": record.code})),
        ("requestReceivedTimestamp".to_owned(), json!(now)),
        ("stageTimestamp".to_owned(), json!(now)),
    ]);
    let user = asked.identity.user_info();
    if let Some(impersonator) = record.impersonator {
        line.insert("user".into(), impersonator.user_info());
        line.insert("impersonatedUser".into(), user);
    } else {
        line.insert("user".into(), user);
    }
    if asked.is_resource {
        line.insert("objectRef".into(), object_reference(asked));
    }
    Value::Object(line)
}

fn object_reference(asked: &Attributes) -> Value {
    let parts = [
        ("resource", &asked.resource),
        ("namespace", &asked.namespace),
        ("name", &asked.name),
        ("apiGroup", &asked.group),
        ("apiVersion", &asked.version),
        ("subresource", &asked.subresource),
    ];
    let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(parts.map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

#[cfg(test)]
mod tests {
    use tombolo_apicore::auth::Identity;

    use super::*;

    #[test]
    fn audit_log_has_one_line_per_request_with_both_users() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = AuditLog::open(&path).unwrap();
        let attributes = Attributes {
            identity: Identity::new("system:node:a", &["system:nodes"]),
            verb: "patch".into(),
            resource: "nodes".into(),
            subresource: "status".into(),
            name: "a".into(),
            is_resource: true,
            path: "/api/v1/nodes/a/status".into(),
            ..Attributes::default()
        };
        let cloudcore = Identity::new("cloudcore", &[]);
        log.record(&AuditRecord { attributes: &attributes, impersonator: Some(&cloudcore), code: 200 });
        log.record(&AuditRecord { attributes: &attributes, impersonator: None, code: 403 });
        drop(log);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["user"]["username"], "cloudcore");
        assert_eq!(lines[0]["impersonatedUser"]["username"], "system:node:a");
        assert_eq!(lines[0]["objectRef"]["subresource"], "status");
        assert_eq!(lines[1]["user"]["username"], "system:node:a");
        assert_eq!(lines[1]["responseStatus"]["code"], 403);
    }
}
