//! Ages as kubectl shows them: two or three significant parts.

use jiff::Timestamp;

/// The age of something created at `created`; `<unknown>` when the time is missing.
pub(crate) fn age(created: &str, now: Timestamp) -> String {
    match created.parse::<Timestamp>() {
        Ok(created) => human(now.as_second().saturating_sub(created.as_second())),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// A duration in seconds, shortened for people.
pub(crate) fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn two(first: i64, unit: &str, second: i64, second_unit: &str) -> String {
    match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{second_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_lose_precision_as_they_grow() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (3599, "59m"),
            (10_799, "179m"),
            (10_860, "3h1m"),
            (30_000, "8h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (700_000, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (300_000_000, "9y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
        assert_eq!(age("", Timestamp::UNIX_EPOCH), "<unknown>");
    }
}
