//! Timestamps and durations. The evaluator's own types are behind a feature that needs another time library than this
//! workspace uses.

use std::cmp::Ordering;

use cel::common::traits::{Adder, Comparer, Subtractor};
use cel::common::types::{CelInt, CelString, DURATION_TYPE, STRING_TYPE, TIMESTAMP_TYPE, Type as CelType};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Zoned};

static TIMESTAMP: CelType = TIMESTAMP_TYPE;
static DURATION: CelType = DURATION_TYPE;

/// A timestamp with nanosecond precision.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Timestamp(jiff::Timestamp);

/// A duration with nanosecond precision.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Duration(SignedDuration);

impl Timestamp {
    /// Parses RFC 3339, or a date without a time.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let date = || {
            text.parse::<jiff::civil::Date>()
                .ok()?
                .to_zoned(TimeZone::UTC)
                .ok()
                .map(|zoned| zoned.timestamp())
        };
        let full = text.len() > 10;
        if full { text.parse().ok().map(Self) } else { date().map(Self) }
    }
}

impl Duration {
    /// Parses `1h30m`, `1.5s` or `-2ms` (Go's `time.ParseDuration`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, mut rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Some(Self(SignedDuration::ZERO));
        }
        let mut nanos: i128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|end| *end > 0)?;
            let (number, after) = rest.split_at(end);
            let (unit, scale) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
            nanos = nanos.checked_add(scaled(number, *scale)?)?;
            rest = &after[unit.len()..];
        }
        let nanos = i64::try_from(if negative { -nanos } else { nanos }).ok()?;
        (!text.is_empty()).then(|| Self(SignedDuration::from_nanos(nanos)))
    }
}

/// Units with their nanoseconds. A unit comes before every unit that is a prefix of it.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

fn scaled(number: &str, scale: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 19 {
        return None;
    }
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let digits = &fraction[..fraction.len().min(18)];
    let part: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let below = 10_i128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    units.checked_mul(scale)?.checked_add(part.checked_mul(scale)? / below)
}

/// The text of a timestamp or a duration.
pub(crate) fn text(value: &dyn Val) -> Option<String> {
    if let Some(time) = value.downcast_ref::<Timestamp>() {
        return Some(time.0.to_string());
    }
    value.downcast_ref::<Duration>().map(seconds)
}

fn seconds(span: &Duration) -> String {
    let nanos = span.0.as_nanos();
    let (sign, nanos) = if nanos < 0 { ("-", -nanos) } else { ("", nanos) };
    let (whole, part) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    match part {
        0 => format!("{sign}{whole}s"),
        part => format!("{sign}{whole}.{}s", format!("{part:09}").trim_end_matches('0')),
    }
}

macro_rules! value {
    ($ty:ident, $static:ident) => {
        impl Val for $ty {
            fn get_type(&self) -> &CelType {
                &$static
            }

            fn cel_type() -> &'static CelType {
                &$static
            }

            fn as_adder<'b, 'v>(&'b self) -> Option<&'b (dyn Adder + 'v)>
            where
                Self: 'v,
            {
                Some(self)
            }

            fn as_subtractor<'b, 'v>(&'b self) -> Option<&'b (dyn Subtractor + 'v)>
            where
                Self: 'v,
            {
                Some(self)
            }

            fn as_comparer(&self) -> Option<&dyn Comparer> {
                Some(self)
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other.downcast_ref::<Self>().is_some_and(|other| self == other)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
                Box::new(*self)
            }

            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl StaticVal for $ty {}

        impl Comparer for $ty {
            fn compare(&self, other: &dyn Val) -> Result<Ordering, ExecutionError> {
                let other =
                    other.downcast_ref::<Self>().ok_or_else(|| crate::arguments::no_overload("compare"))?;
                self.partial_cmp(other).ok_or_else(|| crate::arguments::no_overload("compare"))
            }
        }
    };
}

value!(Timestamp, TIMESTAMP);
value!(Duration, DURATION);

fn overflow() -> ExecutionError {
    ExecutionError::function_error("time", "integer overflow")
}

fn moved(time: Timestamp, by: SignedDuration) -> Result<CowVal<'static, 'static>, ExecutionError> {
    time.0.checked_add(by).map(|time| CowVal::owned(Timestamp(time))).map_err(|_| overflow())
}

impl Adder for Timestamp {
    fn add<'b, 'v>(&'b self, other: &(dyn Val + 'v)) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let span = other.downcast_ref::<Duration>().ok_or_else(|| crate::arguments::no_overload("_+_"))?;
        Ok(CowVal::Owned(moved(*self, span.0)?.clone_as_boxed()))
    }
}

impl Adder for Duration {
    fn add<'b, 'v>(&'b self, other: &(dyn Val + 'v)) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        if let Some(time) = other.downcast_ref::<Timestamp>() {
            return Ok(CowVal::Owned(moved(*time, self.0)?.clone_as_boxed()));
        }
        let span = other.downcast_ref::<Self>().ok_or_else(|| crate::arguments::no_overload("_+_"))?;
        let sum = self.0.checked_add(span.0).ok_or_else(overflow)?;
        Ok(CowVal::owned(Self(sum)))
    }
}

impl Subtractor for Timestamp {
    fn sub<'b, 'v>(&'b self, other: &(dyn Val + 'v)) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        if let Some(time) = other.downcast_ref::<Self>() {
            return Ok(CowVal::owned(Duration(self.0.duration_since(time.0))));
        }
        let span = other.downcast_ref::<Duration>().ok_or_else(|| crate::arguments::no_overload("_-_"))?;
        let back = span.0.checked_neg().ok_or_else(overflow)?;
        Ok(CowVal::Owned(moved(*self, back)?.clone_as_boxed()))
    }
}

impl Subtractor for Duration {
    fn sub<'b, 'v>(&'b self, other: &(dyn Val + 'v)) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let span = other.downcast_ref::<Self>().ok_or_else(|| crate::arguments::no_overload("_-_"))?;
        let rest = self.0.checked_sub(span.0).ok_or_else(overflow)?;
        Ok(CowVal::owned(Self(rest)))
    }
}

pub(crate) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TIMESTAMP_TYPE)?;
    env.add_type(DURATION_TYPE)?;
    cel::add_overload!(env, fn timestamp_of_text: (CelString<'_>) -> Result<Timestamp>, name = "timestamp")?;
    cel::add_overload!(env, fn timestamp_of_int: (CelInt) -> Result<Timestamp>, name = "timestamp")?;
    cel::add_overload!(env, fn same_timestamp: (Timestamp) -> Timestamp, name = "timestamp")?;
    cel::add_overload!(env, fn duration_of_text: (CelString<'_>) -> Result<Duration>, name = "duration")?;
    cel::add_overload!(env, fn duration_of_int: (CelInt) -> Duration, name = "duration")?;
    cel::add_overload!(env, fn same_duration: (Duration) -> Duration, name = "duration")?;
    cel::add_overload!(env, fn int_of_timestamp: (Timestamp) -> CelInt, name = "int")?;
    cel::add_overload!(env, fn int_of_duration: (Duration) -> CelInt, name = "int")?;
    cel::add_overload!(env, fn text_of_timestamp: (Timestamp) -> CelString<'static>, name = "string")?;
    cel::add_overload!(env, fn text_of_duration: (Duration) -> CelString<'static>, name = "string")?;
    cel::add_member_overload!(env, fn duration_hours: (Duration) -> CelInt, name = "getHours")?;
    cel::add_member_overload!(env, fn duration_minutes: (Duration) -> CelInt, name = "getMinutes")?;
    cel::add_member_overload!(env, fn duration_seconds: (Duration) -> CelInt, name = "getSeconds")?;
    cel::add_member_overload!(env, fn duration_milliseconds: (Duration) -> CelInt, name = "getMilliseconds")?;
    selectors(env)
}

macro_rules! parts {
    ($($name:literal => $read:expr),* $(,)?) => {
        /// Registers the accessors of a timestamp's parts, in UTC or in a named time zone.
        fn selectors(env: &mut Env) -> Result<(), DeclarationError> {
            $(
                env.add_member_overload($name, concat!($name, "/utc"), TIMESTAMP_TYPE, vec![], |arguments| {
                    part(&arguments, $read)
                })?;
                env.add_member_overload($name, concat!($name, "/tz"), TIMESTAMP_TYPE, vec![STRING_TYPE], |arguments| {
                    part(&arguments, $read)
                })?;
            )*
            Ok(())
        }
    };
}

parts! {
    "getFullYear" => |at| i64::from(at.year()),
    "getMonth" => |at| i64::from(at.month()) - 1,
    "getDayOfYear" => |at| i64::from(at.day_of_year()) - 1,
    "getDayOfMonth" => |at| i64::from(at.day()) - 1,
    "getDate" => |at| i64::from(at.day()),
    "getDayOfWeek" => |at| i64::from(at.weekday().to_sunday_zero_offset()),
    "getHours" => |at| i64::from(at.hour()),
    "getMinutes" => |at| i64::from(at.minute()),
    "getSeconds" => |at| i64::from(at.second()),
    "getMilliseconds" => |at| i64::from(at.millisecond()),
}

fn part<'b, 'v>(
    arguments: &[CowVal<'_, '_>],
    read: fn(&Zoned) -> i64,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let time = arguments.first().and_then(|time| time.downcast_ref::<Timestamp>());
    let time = time.ok_or_else(|| crate::arguments::no_overload("timestamp"))?;
    let zone = match arguments.len() > 1 {
        true => zone(crate::arguments::text("timestamp", arguments, 1)?)?,
        false => TimeZone::UTC,
    };
    Ok(CowVal::owned(CelInt::from(read(&time.0.to_zoned(zone)))))
}

/// A time zone by name, or by an offset such as `-08:00`.
fn zone(name: &str) -> Result<TimeZone, ExecutionError> {
    let unknown = || ExecutionError::function_error("timestamp", format!("unknown time zone {name}"));
    match name.split_once(':') {
        None => TimeZone::get(name).map_err(|_| unknown()),
        Some((hours, minutes)) => {
            let negative = hours.starts_with('-');
            let hours: i32 = hours.trim_start_matches(['+', '-']).parse().map_err(|_| unknown())?;
            let minutes: i32 = minutes.parse().map_err(|_| unknown())?;
            if !(0..=23).contains(&hours) || !(0..=59).contains(&minutes) {
                return Err(unknown());
            }
            let seconds = (hours * 60 + minutes) * 60;
            let offset =
                Offset::from_seconds(if negative { -seconds } else { seconds }).map_err(|_| unknown())?;
            Ok(TimeZone::fixed(offset))
        }
    }
}

fn timestamp_of_text(text: &CelString<'_>) -> Result<Timestamp, ExecutionError> {
    let parsed = text.inner().parse().ok().map(Timestamp);
    parsed.ok_or_else(|| {
        ExecutionError::function_error("timestamp", format!("parsing time {:?}", text.inner()))
    })
}

fn timestamp_of_int(seconds: &CelInt) -> Result<Timestamp, ExecutionError> {
    jiff::Timestamp::from_second(*seconds.inner()).map(Timestamp).map_err(|_| overflow())
}

fn same_timestamp(time: &Timestamp) -> Timestamp {
    *time
}

fn duration_of_text(text: &CelString<'_>) -> Result<Duration, ExecutionError> {
    let parsed = Duration::parse(text.inner());
    parsed.ok_or_else(|| {
        ExecutionError::function_error("duration", format!("time: invalid duration {:?}", text.inner()))
    })
}

fn duration_of_int(nanos: &CelInt) -> Duration {
    Duration(SignedDuration::from_nanos(*nanos.inner()))
}

fn same_duration(span: &Duration) -> Duration {
    *span
}

fn int_of_timestamp(time: &Timestamp) -> CelInt {
    time.0.as_second().into()
}

fn int_of_duration(span: &Duration) -> CelInt {
    i64::try_from(span.0.as_nanos()).unwrap_or(i64::MAX).into()
}

fn text_of_timestamp(time: &Timestamp) -> CelString<'static> {
    time.0.to_string().into()
}

fn text_of_duration(span: &Duration) -> CelString<'static> {
    seconds(span).into()
}

fn duration_hours(span: &Duration) -> CelInt {
    span.0.as_hours().into()
}

fn duration_minutes(span: &Duration) -> CelInt {
    span.0.as_mins().into()
}

fn duration_seconds(span: &Duration) -> CelInt {
    span.0.as_secs().into()
}

fn duration_milliseconds(span: &Duration) -> CelInt {
    i64::try_from(span.0.as_millis()).unwrap_or(i64::MAX).into()
}
