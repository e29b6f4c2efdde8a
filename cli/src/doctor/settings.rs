//! cloudcore's settings: reports modules that they enable and that do not exist, and finds out which transports are on.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tombolo_cloud::{Config, Listeners};

use super::api::Reached;
use super::{DoctorOptions, Report};

/// ConfigMap with the settings of a cloudcore that runs in the cluster, and its key.
const CONFIG_MAP: (&str, &str) = ("tombolo-cloudcore", "cloudcore.yaml");

/// Advice about modules that do not exist.
const ADVICE: &str = "Disable them in the file, or keep workloads that need them on KubeEdge: see docs/migrating-from-kubeedge.md";

/// Examines the given file, or else the settings in the cluster; reports nothing if there are none. Returns the
/// listeners that they configure.
pub(super) async fn examine(
    options: &DoctorOptions,
    api: &Reached,
    report: &mut Report,
) -> Option<Listeners> {
    let (check, text) = match &options.config {
        Some(path) => (
            format!("settings {}", path.display()),
            std::fs::read_to_string(path).map_err(|error| error.to_string()),
        ),
        None => {
            let (name, key) = CONFIG_MAP;
            let maps: Api<ConfigMap> = Api::namespaced(api.client.clone(), &api.namespace);
            let text = match maps.get_opt(name).await {
                Ok(map) => map.and_then(|map| map.data?.remove(key)),
                // A user who may not read it gets that reported where it matters more.
                Err(_) => None,
            };
            (format!("settings in ConfigMap {}/{name}", api.namespace), Ok(text?))
        }
    };
    match text {
        Ok(text) => judge(check, &text, report),
        Err(error) => {
            let advice = "Pass the path of cloudcore's settings file to --config";
            report.fail(check, format!("cannot be read: {error}"), advice);
            None
        }
    }
}

fn judge(check: String, text: &str, report: &mut Report) -> Option<Listeners> {
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => {
            report.fail(check, error.to_string(), "cloudcore does not start with this file: fix it");
            return None;
        }
    };
    if config.missing.is_empty() {
        report.ok(check, "enable only supported modules");
    } else {
        let named: Vec<String> = config.missing.iter().map(ToString::to_string).collect();
        report.warn(check, format!("enable unsupported modules: {}", named.join("; ")), ADVICE);
    }
    Some(config.listen)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn found(text: &str) -> (Level, String) {
        let mut report = Report::new(|_| ());
        judge("settings".to_owned(), text, &mut report);
        let [finding] = report.findings() else { panic!("{report:?}") };
        (finding.level, finding.to_string())
    }

    #[test]
    fn modules_that_do_not_exist_are_named_when_they_are_enabled() {
        let (level, line) = found("modules: {router: {enable: true}, cloudStream: {enable: false}}");
        assert_eq!(level, Level::Warn);
        assert!(line.contains("router (") && line.contains("deviceController ("), "on by default: {line}");
        assert!(!line.contains("cloudStream"), "{line}");
        assert_eq!(found("modules: {deviceController: {enable: false}}").0, Level::Ok);
        assert_eq!(found("nodeLimit: 10").0, Level::Ok, "a file of our own");
        let (level, line) = found("modules: {cloudHub: {websocket: {enable: false}, quic: {enable: true}}}");
        assert!(level == Level::Fail && line.contains("modules.cloudHub.websocket.enable"), "{line}");
    }
}
