//! Validation of a pod's DNS settings, host names and host ports.

use super::super::{addresses, names};
use super::{Errors, Field, PodSpecContext};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
/// Maximum total length of the search domains, with a space between two.
const SEARCHES_LEN_MAX: usize = 2048;

/// On the host's network, a container port must equal the host port.
pub(super) fn host_ports(spec: &Field<'_, '_>, context: &PodSpecContext<'_>, errors: &mut Errors) {
    if !spec.child("hostNetwork").is_true() {
        return;
    }
    for container in spec.child("containers").items() {
        for port in container.child("ports").items() {
            let (host, own) = (port.child("hostPort"), port.child("containerPort"));
            if (context.is_pod || host.int() != 0) && host.int() != own.int() {
                let text = "must match `containerPort` when `hostNetwork` is true";
                errors.push(host.invalid_value(host.int(), text));
            }
        }
    }
}

/// Checks the DNS settings of a pod.
pub(super) fn dns(spec: &Field<'_, '_>, errors: &mut Errors) {
    let config = spec.child("dnsConfig");
    let servers = config.child("nameservers");
    if spec.child("dnsPolicy").text() == "None" {
        if !config.is_set() {
            errors.push(config.required("must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let text = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(servers.required(text));
            return;
        }
    }
    if servers.list().len() > NAMESERVERS_MAX {
        errors.push(servers.invalid(format!("must not have more than {NAMESERVERS_MAX} nameservers")));
    }
    servers.items().for_each(|server| addresses::address(&server, server.text(), errors));
    searches(&config.child("searches"), errors);
    for option in config.child("options").items() {
        if option.child("name").is_empty() {
            errors.push(option.required("must not be empty"));
        }
    }
}

fn searches(list: &Field<'_, '_>, errors: &mut Errors) {
    let domains = list.list();
    if domains.len() > SEARCHES_MAX {
        errors.push(list.invalid(format!("must not have more than {SEARCHES_MAX} search paths")));
    }
    let texts = domains.iter().map(|domain| domain.as_str().map_or(0, str::len));
    if texts.sum::<usize>() + domains.len().saturating_sub(1) > SEARCHES_LEN_MAX {
        let text = format!(
            "must not have more than {SEARCHES_LEN_MAX} characters (including spaces) in the search list"
        );
        errors.push(list.invalid(text));
    }
    for domain in list.items() {
        let name = domain.text().strip_suffix('.').unwrap_or(domain.text());
        if domain.text() != "." {
            let problem = names::dns1123_subdomain_underscore(name);
            errors.extend(problem.map(|problem| domain.invalid_value(name, problem)));
        }
    }
}

/// Checks the host aliases of a pod.
pub(super) fn host_aliases(list: &Field<'_, '_>, errors: &mut Errors) {
    for alias in list.items() {
        let address = alias.child("ip");
        addresses::address(&address, address.text(), errors);
        for name in alias.child("hostnames").items() {
            name.check_all(names::dns1123_subdomain(name.text()), errors);
        }
    }
}

/// Maximum length of a host name in bytes.
const HOST_NAME_LEN_MAX: usize = 64;

/// Checks the host name override.
pub(super) fn host_name(spec: &Field<'_, '_>, errors: &mut Errors) {
    let name = spec.child("hostnameOverride");
    if !name.is_set() {
        return;
    }
    for other in ["setHostnameAsFQDN", "hostNetwork"] {
        if spec.child(other).is_true() {
            errors.push(name.forbidden(&format!("may not be specified when {other} is true")));
        }
    }
    if name.text().len() > HOST_NAME_LEN_MAX {
        errors.push(super::FieldError::too_long(name.path(), HOST_NAME_LEN_MAX));
    }
    name.check_all(names::dns1123_subdomain(name.text()), errors);
}
