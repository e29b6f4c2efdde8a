//! Validation of options of Windows pods.

use std::sync::LazyLock;

use regex::Regex;

use super::super::names;
use super::{Errors, Field, visit};

/// Maximum length of a credential specification in bytes.
const CREDENTIAL_LEN_MAX: usize = 64 * 1024;
const DOMAIN_LEN_MAX: usize = 256;
const USER_LEN_MAX: usize = 104;

static NET_BIOS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$"#).expect("the expression is right")
});

/// Checks the options of a pod or container.
pub(super) fn options(options: &Field<'_, '_>, errors: &mut Errors) {
    let name = options.child("gmsaCredentialSpecName");
    if name.is_set() {
        name.check_all(names::dns1123_subdomain(name.text()), errors);
    }
    let specification = options.child("gmsaCredentialSpec");
    match specification.text().len() {
        0 if specification.is_set() => {
            errors.push(specification.invalid("gmsaCredentialSpec cannot be an empty string"));
        }
        length if length > CREDENTIAL_LEN_MAX => {
            errors.push(specification.invalid("gmsaCredentialSpec size must be under 64 KiB"));
        }
        _ => {}
    }
    let user = options.child("runAsUserName");
    if user.is_set() {
        user_name(&user, errors);
    }
}

fn user_name(field: &Field<'_, '_>, errors: &mut Errors) {
    let text = field.text();
    let mut wrong = |problem: &str| errors.push(field.invalid(problem));
    let parts: Vec<&str> = text.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        _ if text.is_empty() => return wrong("runAsUserName cannot be an empty string"),
        _ if text.chars().any(|c| c.is_ascii_control()) => {
            return wrong("runAsUserName cannot contain control characters");
        }
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return wrong("runAsUserName cannot contain more than one backslash"),
    };
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN_LEN_MAX {
            wrong("runAsUserName's Domain length must be under 256 characters");
        }
        let known = NET_BIOS.is_match(domain) || names::dns1123_subdomain(&domain.to_lowercase()).is_none();
        if !known {
            wrong("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        wrong("runAsUserName's User cannot be empty");
    } else if user.len() > USER_LEN_MAX {
        wrong("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        wrong("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

/// Either all containers of a pod are host processes, or none.
pub(super) fn host_process(spec: &Field<'_, '_>, errors: &mut Errors) {
    let of =
        |field: &Field<'_, '_>| field.value()["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let pod = of(spec);
    let (mut all, mut hosted) = (0, 0);
    visit(spec, |container| {
        let own = of(container);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let text = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            let context = container.child("securityContext");
            let options = context.child("windowsOptions");
            errors.push(options.child("hostProcess").invalid(text));
        }
        all += 1;
        hosted += usize::from(own.or(pod) == Some(true));
    });
    if hosted == 0 {
        return;
    }
    if hosted != all {
        let text =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(spec.invalid_value("", text));
    }
    let network = spec.child("hostNetwork");
    if !network.is_true() {
        let text = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(network.invalid_value(false, text));
    }
}
