//! Defaults of device claims (`resource.k8s.io`): one device, unless the claim requests another number or all devices.

use serde_json::{Map, Value, json};

use tombolo_apicore::value::{items_mut, or_insert, or_number};

/// The `spec` of a ResourceClaim.
pub(super) fn claim(spec: &mut Value) {
    for request in items_mut(spec, &["devices", "requests"]) {
        if let Some(Value::Object(exactly)) = request.get_mut("exactly") {
            choice(exactly);
        }
        for alternative in items_mut(request, &["firstAvailable"]) {
            if let Value::Object(alternative) = alternative {
                choice(alternative);
            }
        }
    }
}

fn choice(choice: &mut Map<String, Value>) {
    or_insert(choice, "allocationMode", "ExactCount");
    if choice.get("allocationMode") == Some(&json!("ExactCount")) {
        or_number(choice, "count", 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_requests_default_to_one() {
        let mut spec = json!({"devices": {"requests": [
            {"exactly": {"deviceClassName": "gpu"}},
            {"exactly": {"deviceClassName": "gpu", "count": 0}},
            {"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
            {"firstAvailable": [{"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3}]}]}});
        claim(&mut spec);
        let expected = json!([
            {"exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}},
            {"exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}},
            {"exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
            {"firstAvailable": [{"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3}]}]);
        assert_eq!(spec["devices"]["requests"], expected);
    }
}
