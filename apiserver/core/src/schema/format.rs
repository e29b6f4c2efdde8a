//! String formats: quantities, times, and the `format` values of OpenAPI that structural schemas may use.

mod named;
mod quantity;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

pub use self::named::{is_known as is_known_format, matches as matches_format};
pub use self::quantity::{NotAQuantity, Quantity};

/// RFC 3339 in UTC with whole seconds, as `metav1.Time` is written.
pub fn time(text: &str) -> Option<String> {
    let time: Timestamp = text.parse().ok()?;
    Some(seconds(time))
}

/// RFC 3339 in UTC with six decimals, as `metav1.MicroTime` is written.
pub fn micro_time(text: &str) -> Option<String> {
    let time: Timestamp = text.parse().ok()?;
    Some(micros(time))
}

/// A time as `metav1.MicroTime` writes it.
pub fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// A time as `metav1.Time` writes it.
pub fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
