//! Schedules of CronJobs: five fields, or a keyword such as `@daily` or `@every 1h`. Accepts what the real server's
//! parser (robfig/cron) accepts, and refuses with its messages.

use serde_json::Value;

use super::super::field::{Errors, Field};

/// One of the five fields.
struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
    /// The number that the first name stands for.
    first: u32,
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[], first: 0 },
    Bounds { min: 0, max: 23, names: &[], first: 0 },
    Bounds { min: 1, max: 31, names: &[], first: 0 },
    Bounds { min: 1, max: 12, names: &MONTHS, first: 1 },
    Bounds { min: 0, max: 6, names: &DAYS, first: 0 },
];

/// Checks `schedule` of a CronJob. A time zone in it is only accepted if the stored schedule has one.
pub(super) fn check(spec: &Field<'_, '_>, before: Option<&Value>, errors: &mut Errors) {
    let schedule = spec.child("schedule");
    let text = schedule.text();
    if text.is_empty() {
        errors.push(schedule.required(""));
        return;
    }
    if let Err(why) = read(text) {
        errors.push(schedule.invalid(why));
    }
    let had_zone = before.is_some_and(|old| old["schedule"].as_str().is_some_and(|old| old.contains("TZ")));
    if text.contains("TZ") && !had_zone {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(schedule.invalid(detail));
    } else if text.contains("TZ") && spec.child("timeZone").is_set() {
        let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.push(schedule.invalid(detail));
    }
}

fn read(text: &str) -> Result<(), String> {
    let mut rest = text;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        let Some((zone, after)) = text.split_once(' ') else {
            return Err("invalid schedule: the time zone is followed by nothing".to_owned());
        };
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if super::time_zone_problem(zone).is_some() && !matches!(zone, "" | "UTC" | "Local") {
            return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        rest = after.trim();
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let (wanted, found) = (FIELDS.len(), fields.len());
        return Err(format!("expected exactly {wanted} fields, found {found}: [{}]", fields.join(" ")));
    }
    let mut parts = FIELDS.iter().zip(fields).flat_map(|(bounds, field)| {
        field.split(',').filter(|part| !part.is_empty()).map(move |part| (bounds, part))
    });
    parts.try_for_each(|(bounds, part)| bounds.range(part))
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_duration(duration) => Ok(()),
            Some(duration) => {
                Err(format!("failed to parse duration {text}: time: invalid duration {duration:?}"))
            }
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// Whether Go parses the text as a duration, for example `1h30m`.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let mut is_read = !rest.is_empty();
    while is_read && !rest.is_empty() {
        let unit = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(unit);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let digits = number.bytes().any(|b| b.is_ascii_digit());
        is_read = digits && number.matches('.').count() < 2 && UNITS.contains(&&after[..end]);
        rest = &after[end..];
    }
    is_read
}

impl Bounds {
    /// Checks `*`, `5` or `1-3`, each optionally with a step (`*/2`).
    fn range(&self, text: &str) -> Result<(), String> {
        let (range, step) = match text.split('/').collect::<Vec<_>>()[..] {
            [range] => (range, None),
            [range, step] => (range, Some(step)),
            _ => return Err(format!("too many slashes: {text}")),
        };
        let (start, end) = match range.split('-').collect::<Vec<_>>()[..] {
            ["*" | "?", ..] => (self.min, self.max),
            [one] => (self.number(one)?, if step.is_some() { self.max } else { self.number(one)? }),
            [from, to] => (self.number(from)?, self.number(to)?),
            _ => return Err(format!("too many hyphens: {text}")),
        };
        let step = step.map_or(Ok(1), number)?;
        let Self { min, max, .. } = self;
        if start < *min {
            return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
        }
        if end > *max {
            return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
        }
        if start > end {
            return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
        }
        match step {
            0 => Err(format!("step of range should be a positive number: {text}")),
            _ => Ok(()),
        }
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        match (self.first..).zip(self.names).find(|(_, name)| name.eq_ignore_ascii_case(text)) {
            Some((number, _)) => Ok(number),
            None => number(text),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    let failed =
        |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    let number: i64 = text.parse().map_err(|_| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        failed(if is_number { "value out of range" } else { "invalid syntax" })
    })?;
    match u32::try_from(number) {
        Ok(number) => Ok(number),
        Err(_) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Err(_) => Err(failed("value out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_five_fields_within_their_bounds() {
        for good in
            ["* * * * *", "*/5 0-3,7 ? jan-MAR sun", "1/2 1 1 1 0-6", "@daily", "@every 1h30m", "0 0 1,2 * 6"]
        {
            assert_eq!(read(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("3-1 * * * *", "beginning of range (3) beyond end of range (1): 3-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("@never", "unrecognized descriptor: @never"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("TZ=Mars/X * * * * *", "provided bad location Mars/X: unknown time zone Mars/X"),
        ] {
            assert_eq!(read(bad), Err(why.to_owned()), "{bad}");
        }
    }
}
