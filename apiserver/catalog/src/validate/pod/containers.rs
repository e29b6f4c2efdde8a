//! Validation of containers, init containers and ephemeral containers.

use std::collections::HashSet;

use serde_json::Value;

use super::super::names;
use super::{Errors, Field, PodSpecContext, environment, handlers, mounts, port_number, resources, security};

/// Checks the containers of the pod.
pub(super) fn regular(list: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    if list.is_empty() {
        errors.push(list.required(""));
        return;
    }
    let mut names = HashSet::new();
    for container in list.items() {
        common(&container, context, errors);
        let name = container.child("name");
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        handlers::lifecycle(&container.child("lifecycle"), context.grace, errors);
        probes(&container, errors);
        restart_policy(&container, errors);
    }
    let mut taken = HashSet::new();
    list.items().for_each(|container| host_ports(&container, &mut taken, errors));
}

fn probes(container: &Field<'_, '_>, errors: &mut Errors) {
    for probe in PROBES {
        handlers::probe(&container.child(probe), probe != "readinessProbe", errors);
    }
}

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Checks the init containers. Those that always restart run beside the others (sidecars).
pub(super) fn init(spec: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    let (regular, list) = (spec.child("containers"), spec.child("initContainers"));
    let mut names: HashSet<&str> = regular.items().map(|container| container.child("name").text()).collect();
    for container in list.items() {
        common(&container, context, errors);
        restart_policy(&container, errors);
        let name = container.child("name");
        if !name.text().is_empty() && !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        host_ports(&container, &mut HashSet::new(), errors);
        let sidecar = container.child("restartPolicy").text() == "Always";
        if sidecar {
            handlers::lifecycle(&container.child("lifecycle"), context.grace, errors);
            probes(&container, errors);
        } else {
            not_for_init(&container, errors);
        }
    }
}

fn not_for_init(container: &Field<'_, '_>, errors: &mut Errors) {
    for field in ["lifecycle"].into_iter().chain(PROBES) {
        let field = container.child(field);
        if field.is_set() {
            errors.push(field.forbidden("may not be set for init containers without restartPolicy=Always"));
        }
    }
    let policies = container.child("resizePolicy");
    for policy in policies.items() {
        let restart = policy.child("restartPolicy");
        if restart.text() == "RestartContainer" {
            let text = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.push(restart.invalid(text));
        }
    }
}

const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;

/// Checks the restart policy of a container.
fn restart_policy(container: &Field<'_, '_>, errors: &mut Errors) {
    let (policy, rules) = (container.child("restartPolicy"), container.child("restartPolicyRules"));
    if !policy.is_set() && !rules.is_empty() {
        errors.push(policy.required("must specify restartPolicy when restart rules are used"));
    }
    policy.one_of(&["Always", "Never", "OnFailure"], errors);
    if rules.list().len() > RULES_MAX {
        errors.push(super::FieldError::too_many(rules.path(), rules.list().len(), RULES_MAX));
    }
    for rule in rules.items() {
        let action = rule.child("action");
        let actions = ["Restart", "RestartAllContainers"];
        if !actions.contains(&action.text()) {
            errors.push(action.not_supported(&actions));
        }
        let codes = rule.child("exitCodes");
        if !codes.is_set() {
            errors.push(codes.required("must be specified"));
            continue;
        }
        let operator = codes.child("operator");
        if !["In", "NotIn"].contains(&operator.text()) {
            errors.push(operator.not_supported(&["In", "NotIn"]));
        }
        let values = codes.child("values");
        if values.list().len() > EXIT_CODES_MAX {
            errors.push(super::FieldError::too_many(values.path(), values.list().len(), EXIT_CODES_MAX));
        }
    }
}

/// Fields that an ephemeral container may not have.
const NOT_FOR_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Checks the ephemeral containers.
pub(super) fn ephemeral(spec: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    const WHY: &str = "cannot be set for an Ephemeral Container";
    let (regular, init) = (spec.child("containers"), spec.child("initContainers"));
    let others: HashSet<&str> =
        regular.items().chain(init.items()).map(|container| container.child("name").text()).collect();
    let mut names = others.clone();
    for container in spec.child("ephemeralContainers").items() {
        common(&container, context, errors);
        image_padding(&container, errors);
        let name = container.child("name");
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let target = container.child("targetContainerName");
        if !target.is_empty() && !others.contains(target.text()) {
            errors.push(target.not_found(""));
        }
        for field in NOT_FOR_EPHEMERAL {
            let field = container.child(field);
            if !field.is_empty() {
                errors.push(field.forbidden(WHY));
            }
        }
        for mount in container.child("volumeMounts").items() {
            for field in ["subPath", "subPathExpr"] {
                if !mount.child(field).is_empty() {
                    errors.push(mount.child(field).forbidden(WHY));
                }
            }
        }
    }
}

/// Checks what all containers have in common.
fn common(container: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    container.child("name").check_required(names::dns1123_label, errors);
    container.child("image").demand(errors);
    let policies = ["File", "FallbackToLogsOnError"];
    container.child("terminationMessagePolicy").one_of_required(&policies, errors);
    ports(&container.child("ports"), errors);
    environment::variables(&container.child("env"), errors);
    environment::sources(&container.child("envFrom"), errors);
    mounts::mounts(container, context, errors);
    mounts::devices(container, context, errors);
    container.child("imagePullPolicy").one_of_required(&PULL_POLICIES, errors);
    resources::of_container(&container.child("resources"), &context.claims, errors);
    resources::resize_policy(&container.child("resizePolicy"), context.restart, errors);
    security::of_container(&container.child("securityContext"), context.host_users, errors);
}

/// When an image is pulled.
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// Reports white space around an image name.
pub(super) fn image_padding(container: &Field<'_, '_>, errors: &mut Errors) {
    let image = container.child("image");
    if image.text().trim() != image.text() {
        errors.push(image.invalid("must not have leading or trailing whitespace"));
    }
}

fn ports(ports: &Field<'_, '_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for port in ports.items() {
        let name = port.child("name");
        if !name.is_empty() {
            let problems = names::port_name(name.text());
            if problems.is_empty() && !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
            name.check_all(problems, errors);
        }
        let number = port.child("containerPort");
        match number.int() {
            0 => errors.push(number.required("")),
            given => port_number(given, &number.path(), errors),
        }
        let host = port.child("hostPort");
        if host.int() != 0 {
            port_number(host.int(), &host.path(), errors);
        }
        port.child("protocol").one_of_required(&["SCTP", "TCP", "UDP"], errors);
    }
}

/// Reports host ports that are used twice.
fn host_ports(container: &Field<'_, '_>, taken: &mut HashSet<String>, errors: &mut Errors) {
    for port in container.child("ports").items() {
        let host = port.child("hostPort");
        if host.int() == 0 {
            continue;
        }
        let text = |name: &str| port.child(name).text().to_owned();
        let key = format!("{}/{}/{}", text("protocol"), text("hostIP"), host.int());
        if !taken.insert(key.clone()) {
            errors.push(super::FieldError::duplicate(host.path(), Value::from(key)));
        }
    }
}
