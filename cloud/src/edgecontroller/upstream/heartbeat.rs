//! Heartbeats in node reports that were delayed (docs/reference/kubeedge.md#older-edges).

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;

/// Sets the heartbeat of conditions to the present time if it is older than `age_max`. An older edge sends stored
/// reports, and the arrival of the report itself proves that the node lives.
pub(super) fn refresh(status: &mut Value, age_max: Duration, now: SystemTime) {
    let Ok(now) = Timestamp::try_from(now) else { return };
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let Some(condition) = condition.as_object_mut() else { continue };
        let heartbeat = condition.get("lastHeartbeatTime").and_then(Value::as_str);
        let heartbeat = heartbeat.and_then(|time| time.parse::<Timestamp>().ok());
        let age = heartbeat.and_then(|heartbeat| Duration::try_from(now.duration_since(heartbeat)).ok());
        if heartbeat.is_none() || age.is_some_and(|age| age > age_max) {
            condition.insert("lastHeartbeatTime".to_owned(), format!("{now:.0}").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    #[test]
    fn only_stale_heartbeats_change() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "lastHeartbeatTime": "2023-11-14T22:13:09Z", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "DiskPressure", "lastHeartbeatTime": "2023-11-14T22:13:10Z"},
            {"type": "Clock ahead", "lastHeartbeatTime": "2023-11-14T23:13:10Z"},
            {"type": "Never", "lastHeartbeatTime": null},
            "no condition",
        ]});
        refresh(&mut status, Duration::from_secs(10), now);
        let times: Vec<_> = (0..4).map(|i| status["conditions"][i]["lastHeartbeatTime"].clone()).collect();
        let (now, kept) = ("2023-11-14T22:13:20Z", "2023-11-14T22:13:10Z");
        assert_eq!(times, [now, kept, "2023-11-14T23:13:10Z", now]);
        assert_eq!(status["conditions"][0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        refresh(&mut json!("no status"), Duration::ZERO, SystemTime::now());
    }
}
