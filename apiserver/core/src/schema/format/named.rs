//! The values of `format` that apiextensions checks for strings; others are annotations without effect.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;

use crate::names;

const KNOWN: &[&str] = &[
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

/// Whether the format is checked. Dashes in its name are ignored.
pub fn is_known(format: &str) -> bool {
    KNOWN.contains(&format) || KNOWN.contains(&format.replace('-', "").as_str())
}

/// Whether a string has a format. Formats that are not checked accept everything.
pub fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "k8s-short-name" => names::dns1123_label(text).is_none(),
        "k8s-long-name" => names::dns1123_subdomain(text).is_none(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "uri" => text.split_once(':').is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty()),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        }
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "duration" => is_duration(text),
        "ssn" => is_pattern(text, "ddd-dd-dddd"),
        "isbn10" => is_isbn(text, 10),
        "isbn13" => is_isbn(text, 13),
        "isbn" => is_isbn(text, 10) || is_isbn(text, 13),
        "creditcard" => is_credit_card(text),
        "rgbcolor" => is_rgb(text),
        _ => true,
    }
}

pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let plain = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|b| b.is_ascii_digit());
    let bits: u8 = if plain { bits.parse().unwrap_or(u8::MAX) } else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let bare: String = text.chars().filter(|c| *c != '-').collect();
    bare.len() == 32
        && bare.bytes().all(|b| b.is_ascii_hexdigit())
        && version.is_none_or(|version| bare.chars().nth(12) == Some(version))
}

fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else { return false };
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '@';
    !local.is_empty() && local.chars().all(plain) && is_hostname(domain)
}

fn is_hostname(text: &str) -> bool {
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    !text.is_empty() && text.len() <= 255 && text.trim_end_matches('.').split('.').all(label)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Go durations such as `1h30m`, and phrases such as `3 days`.
fn is_duration(text: &str) -> bool {
    const UNITS: &[&str] = &[
        "ns",
        "us",
        "µs",
        "μs",
        "ms",
        "s",
        "m",
        "h",
        "d",
        "w",
        "nano",
        "nanos",
        "nanosecond",
        "nanoseconds",
        "micro",
        "micros",
        "microsecond",
        "microseconds",
        "milli",
        "millis",
        "millisecond",
        "milliseconds",
        "sec",
        "secs",
        "second",
        "seconds",
        "min",
        "mins",
        "minute",
        "minutes",
        "hr",
        "hrs",
        "hour",
        "hours",
        "day",
        "days",
        "wk",
        "week",
        "weeks",
    ];
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 {
            return false;
        }
        let after = rest[digits..].trim_start();
        let unit = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        if !UNITS.contains(&&after[..unit]) {
            return false;
        }
        rest = after[unit..].trim_start();
    }
    true
}

/// Matches a pattern in which `d` stands for a digit.
fn is_pattern(text: &str, pattern: &str) -> bool {
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(c, p)| if p == b'd' { c.is_ascii_digit() } else { c == p })
}

fn is_isbn(text: &str, length: usize) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    if digits.len() != length {
        return false;
    }
    let mut sum = 0;
    for (at, c) in digits.iter().enumerate() {
        let value = match c {
            'X' | 'x' if length == 10 && at == 9 => 10,
            c => match c.to_digit(10) {
                Some(value) => value as usize,
                None => return false,
            },
        };
        sum += if length == 10 { value * (10 - at) } else { value * (1 + 2 * (at % 2)) };
    }
    sum % if length == 10 { 11 } else { 10 } == 0
}

fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    if !(12..=19).contains(&digits.len()) {
        return false;
    }
    let doubled = |(at, digit): (usize, &u32)| match (at % 2, digit * 2) {
        (0, _) => *digit,
        (_, double) if double > 9 => double - 9,
        (_, double) => double,
    };
    digits.iter().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

fn is_rgb(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')) else { return false };
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    parts.len() == 3 && parts.iter().all(|part| part.parse::<u8>().is_ok())
}
