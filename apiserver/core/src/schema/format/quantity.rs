//! Resource quantities: `500m`, `1Gi`, `1e3`.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Sub};

/// Nano units per unit. This is the finest resolution of a quantity.
const NANO: i128 = 1_000_000_000;
/// Largest magnitude in nano units; greater values are capped, as the Go implementation caps them at 2^63-1.
const CAP: i128 = (i64::MAX as i128) * NANO;

/// A parsed quantity. Values finer than nano are rounded up; values above 2^63-1 are capped.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nano: i128,
    form: QuantityFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuantityFormat {
    Binary,
    Decimal,
    Exponent,
}

/// The text is not a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct NotAQuantity;

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nano: 0, form: QuantityFormat::Decimal };

    /// A whole number of units.
    #[must_use]
    pub fn whole(units: u32) -> Self {
        Self { nano: i128::from(units) * NANO, form: QuantityFormat::Decimal }
    }

    /// The whole units, without the fraction; none when they exceed 64 bits.
    #[must_use]
    pub fn units(self) -> Option<i64> {
        i64::try_from(self.nano / NANO).ok()
    }

    /// Rounds a fraction up to the next whole number of units.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        let rest = self.nano.rem_euclid(NANO);
        Self { nano: self.nano + if rest == 0 { 0 } else { NANO - rest }, ..self }
    }

    /// The ratio to another quantity; infinite if that is zero.
    #[must_use]
    pub fn ratio(self, other: Self) -> f64 {
        self.nano as f64 / other.nano as f64
    }

    /// Parses a quantity.
    ///
    /// # Errors
    /// [`NotAQuantity`].
    pub fn parse(text: &str) -> Result<Self, NotAQuantity> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(NotAQuantity);
        }
        let (form, scale) = parse_suffix(suffix).ok_or(NotAQuantity)?;
        let magnitude = scaled(whole, fraction, scale);
        let nano = if negative { -magnitude } else { magnitude };
        Ok(Self { nano, form })
    }

    /// Comparison with zero.
    #[must_use]
    pub fn sign(self) -> Ordering {
        self.nano.cmp(&0)
    }
}

/// What a suffix multiplies by: 1024^n or 10^n.
#[derive(Clone, Copy)]
enum Scale {
    Binary(u32),
    Ten(i32),
}

fn parse_suffix(suffix: &str) -> Option<(QuantityFormat, Scale)> {
    Some(match suffix {
        "" => (QuantityFormat::Decimal, Scale::Ten(0)),
        "n" => (QuantityFormat::Decimal, Scale::Ten(-9)),
        "u" => (QuantityFormat::Decimal, Scale::Ten(-6)),
        "m" => (QuantityFormat::Decimal, Scale::Ten(-3)),
        "k" => (QuantityFormat::Decimal, Scale::Ten(3)),
        "M" => (QuantityFormat::Decimal, Scale::Ten(6)),
        "G" => (QuantityFormat::Decimal, Scale::Ten(9)),
        "T" => (QuantityFormat::Decimal, Scale::Ten(12)),
        "P" => (QuantityFormat::Decimal, Scale::Ten(15)),
        "E" => (QuantityFormat::Decimal, Scale::Ten(18)),
        "Ki" => (QuantityFormat::Binary, Scale::Binary(1)),
        "Mi" => (QuantityFormat::Binary, Scale::Binary(2)),
        "Gi" => (QuantityFormat::Binary, Scale::Binary(3)),
        "Ti" => (QuantityFormat::Binary, Scale::Binary(4)),
        "Pi" => (QuantityFormat::Binary, Scale::Binary(5)),
        "Ei" => (QuantityFormat::Binary, Scale::Binary(6)),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let bare = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let exponent: i32 = exponent.parse().unwrap_or(i32::MAX).clamp(-1000, 1000);
            (QuantityFormat::Exponent, Scale::Ten(exponent))
        }
    })
}

/// The magnitude in nano units, rounded away from zero and capped.
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let mut mantissa: i128 = 0;
    let mut exponent: i32 = 9;
    for (digit, fractional) in whole.bytes().map(|b| (b, false)).chain(fraction.bytes().map(|b| (b, true))) {
        // Thirty digits exceed both the cap and nano; further ones can only round up.
        if mantissa >= 10_i128.pow(27) {
            if !fractional {
                return CAP;
            }
            mantissa += i128::from(digit != b'0' && mantissa % 10 == 0);
            continue;
        }
        mantissa = mantissa * 10 + i128::from(digit - b'0');
        exponent -= i32::from(fractional);
    }
    match scale {
        Scale::Binary(power) => {
            // Binary suffixes multiply first, so that fractions such as 0.5Ki stay exact.
            let factor = 1_i128 << (10 * power);
            shift(mantissa.checked_mul(factor).unwrap_or(i128::MAX), exponent)
        }
        Scale::Ten(power) => shift(mantissa, exponent.saturating_add(power)),
    }
}

fn shift(mantissa: i128, exponent: i32) -> i128 {
    let factor = 10_i128.checked_pow(exponent.unsigned_abs());
    let value = match factor {
        _ if mantissa == 0 => 0,
        None => return if exponent > 0 { CAP } else { 1 },
        Some(factor) if exponent >= 0 => mantissa.checked_mul(factor).unwrap_or(CAP),
        Some(factor) => mantissa / factor + i128::from(mantissa % factor != 0),
    };
    value.min(CAP)
}

impl From<i64> for Quantity {
    fn from(units: i64) -> Self {
        Self { nano: (i128::from(units) * NANO).clamp(-CAP, CAP), form: QuantityFormat::Decimal }
    }
}

/// Sums have the form of the first quantity, unless that is zero.
impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let form = if self.nano == 0 { other.form } else { self.form };
        Self { nano: (self.nano + other.nano).clamp(-CAP, CAP), form }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + Self { nano: -other.nano, ..other }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.nano.cmp(&other.nano))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        let small = self.nano.abs() < 1024 * NANO;
        if self.form == QuantityFormat::Binary && !small {
            return binary(self.nano, f);
        }
        decimal(self.nano, self.form == QuantityFormat::Exponent, f)
    }
}

fn binary(nano: i128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let up = i128::from(nano % NANO != 0) * nano.signum();
    let (mut value, mut power) = (nano / NANO + up, 0);
    while value % 1024 == 0 && power + 1 < SUFFIXES.len() {
        value /= 1024;
        power += 1;
    }
    write!(f, "{value}{}", SUFFIXES[power])
}

fn decimal(nano: i128, exponent_form: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut power) = (nano, 0);
    while value % 1000 == 0 && power + 1 < SUFFIXES.len() {
        value /= 1000;
        power += 1;
    }
    match (exponent_form, power) {
        (true, 3) => write!(f, "{value}"),
        (true, power) => write!(f, "{value}e{}", (i64::try_from(power).unwrap_or(3) - 3) * 3),
        (false, power) => write!(f, "{value}{}", SUFFIXES[power]),
    }
}
