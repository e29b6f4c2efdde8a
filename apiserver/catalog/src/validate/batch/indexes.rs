//! Sets of indexes in the notation of Jobs: `0-2,5,7-9`, in ascending order.

/// Parses a set of indexes below `completions` into intervals.
///
/// # Errors
/// The problem, in kube-apiserver's words.
pub(super) fn read(text: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut intervals: Vec<(i64, i64)> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = interval(part, completions)?;
        if let Some((_, before)) = intervals.last().filter(|(_, before)| *before >= first) {
            return Err(format!("non-increasing order, previous: {before}, current: {first}"));
        }
        intervals.push((first, last));
    }
    Ok(intervals)
}

fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = text.split('-').collect();
    if limits.len() > 2 {
        return Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let index = |text: &str| {
        let index: i64 =
            text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
        match index >= completions {
            true => Err(format!("too large index: {text:?}")),
            false => Ok(index),
        }
    };
    let first = index(limits[0])?;
    let Some(last) = limits.get(1) else { return Ok((first, first)) };
    let last = index(last)?;
    match first >= last {
        true => Err(format!("non-increasing order, previous: {first}, current: {last}")),
        false => Ok((first, last)),
    }
}

/// Number of indexes.
pub(super) fn count(intervals: &[(i64, i64)]) -> i64 {
    intervals.iter().map(|(first, last)| last - first + 1).sum()
}

/// The first index that is in both sets. Intervals that cannot be parsed are skipped.
pub(super) fn shared(left: &str, right: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (left, right) = (read(left), read(right));
    let (mut at, mut with) = (left.iter().peekable(), right.iter().peekable());
    while let (Some((first, last)), Some((other, end))) = (at.peek(), with.peek()) {
        if first <= end && other <= last {
            return Some(*first.max(other));
        }
        if first <= other {
            at.next()
        } else {
            with.next()
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_and_stay_below_the_completions() {
        assert_eq!(read("", 3), Ok(vec![]));
        assert_eq!(read("0-1,3", 4).map(|read| count(&read)), Ok(3));
        assert_eq!(read("0-1,1", 4), Err("non-increasing order, previous: 1, current: 1".to_owned()));
        assert_eq!(read("2-1", 4), Err("non-increasing order, previous: 2, current: 1".to_owned()));
        assert_eq!(read("4", 4), Err("too large index: \"4\"".to_owned()));
        assert_eq!(read("-1", 4), Err("cannot convert string to integer for index: \"\"".to_owned()));
        assert!(read("0-1-2", 4).unwrap_err().starts_with("the fragment \"0-1-2\""));
    }

    #[test]
    fn index_sets_intersect() {
        assert_eq!(shared("0-2,5", "3-4", 9), None);
        assert_eq!(shared("0-2,5", "3-6", 9), Some(5));
        assert_eq!(shared("1", "x,0-1", 9), Some(1));
        assert_eq!(shared("", "1", 9), None);
    }
}
