//! Named formats (`kubernetes.NamedFormat`).

use base64::Engine as _;
use cel::common::types::{CelList, CelOptional, CelString};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use tombolo_apicore::names;

use crate::opaque::opaque;

/// A format by its name.
#[derive(Debug, Clone, PartialEq)]
struct Format(&'static str);

opaque!(Format, "kubernetes.NamedFormat");

macro_rules! formats {
    ($($name:literal),* $(,)?) => {
        const NAMES: &[&str] = &[$($name),*];

        fn register_constants(env: &mut Env) -> Result<(), DeclarationError> {
            $(env.add_overload(concat!("format.", $name), concat!("format.", $name), vec![], |_| {
                Ok(CowVal::owned(Format($name)))
            })?;)*
            Ok(())
        }
    };
}

formats!(
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
);

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    use cel::common::types::STRING_TYPE;
    register_constants(env)?;
    env.add_overload("format.named", "format-named", vec![STRING_TYPE], named)?;
    env.add_member_overload(
        "validate",
        "format-validate",
        Format::cel_type().to_owned(),
        vec![STRING_TYPE],
        validate,
    )
}

fn named<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let wanted = crate::arguments::text("format.named", &arguments, 0)?;
    let found = NAMES.iter().find(|name| **name == wanted);
    let format = found.map(|name| Box::new(Format(name)) as Box<dyn Val + 'v>);
    Ok(CowVal::owned(CelOptional::from(format)))
}

fn validate<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let format = arguments.first().and_then(|format| format.downcast_ref::<Format>());
    let format = format.ok_or_else(|| crate::arguments::no_overload("validate"))?;
    let problems = problems(format.0, crate::arguments::text("validate", &arguments, 1)?);
    if problems.is_empty() {
        return Ok(CowVal::owned(CelOptional::none()));
    }
    let list: Vec<Box<dyn Val + 'v>> =
        problems.into_iter().map(|text| Box::new(CelString::from(text)) as Box<dyn Val + 'v>).collect();
    Ok(CowVal::owned(CelOptional::of(Box::new(CelList::from(list)))))
}

/// Problems of a text that should have a format.
fn problems(format: &str, text: &str) -> Vec<String> {
    // A name prefix may end with a dash, because generated characters follow it.
    let prefix = || format!("{}a", text.strip_suffix('-').unwrap_or(text));
    let unless = |fine: bool, problem: &str| if fine { Vec::new() } else { vec![problem.to_owned()] };
    match format {
        "dns1123Label" => names::dns1123_label(text).into_iter().collect(),
        "dns1123Subdomain" => names::dns1123_subdomain(text).into_iter().collect(),
        "dns1035Label" => names::dns1035_label(text).into_iter().collect(),
        "dns1123LabelPrefix" => names::dns1123_label(&prefix()).into_iter().collect(),
        "dns1123SubdomainPrefix" => names::dns1123_subdomain(&prefix()).into_iter().collect(),
        "dns1035LabelPrefix" => names::dns1035_label(&prefix()).into_iter().collect(),
        "qualifiedName" => names::qualified_name(text),
        "labelValue" => names::label_value(text),
        "uri" => unless(super::url::is_valid(text), "invalid URI for request"),
        "uuid" => unless(is_uuid(text), "does not match the UUID format"),
        "byte" => unless(base64::engine::general_purpose::STANDARD.decode(text).is_ok(), "invalid base64"),
        "date" => unless(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
        _ => unless(text.parse::<jiff::Timestamp>().is_ok(), "invalid datetime"),
    }
}

/// Whether a text is a UUID: groups of hexadecimal digits, with or without dashes between them.
fn is_uuid(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    digits == 32 && digits + dashes.len() == text.len() && (dashes.is_empty() || dashes == [8, 13, 18, 23])
}
