//! What several runs of one measurement say together.

use std::fmt;

/// The median of one figure over all runs, and its range.
///
/// For two programs that are compared, the figure is the ratio of one run to the run beside it. The machine's speed
/// changes in minutes: a ratio of two medians would compare the minutes as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Median {
    /// The middle value; of an even number of values, the mean of the two in the middle.
    pub value: f64,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub greatest: f64,
}

impl Median {
    /// The median of these values; none if there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = upper - usize::from(sorted.len().is_multiple_of(2));
        Some(Self { value: f64::midpoint(sorted[lower], sorted[upper]), least, greatest })
    }

    /// The median of the ratios of values that were measured in turn, each to the one beside it. None if a pair is
    /// incomplete or a divisor is not positive: then there is no ratio.
    #[must_use]
    pub fn of_ratios(pairs: impl IntoIterator<Item = (Option<f64>, Option<f64>)>) -> Option<Self> {
        let ratio =
            |(value, base): (Option<f64>, Option<f64>)| Some(value? / base.filter(|base| *base > 0.0)?);
        Self::of(pairs.into_iter().map(ratio).collect::<Option<Vec<f64>>>()?)
    }
}

/// The median and, if the runs differ, the range in brackets, with as many digits as the format says (`{:.2}`).
impl fmt::Display for Median {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or_default();
        let Self { value, least, greatest } = self;
        write!(f, "{value:.digits$}")?;
        if least < greatest {
            write!(f, " ({least:.digits$}–{greatest:.digits$})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_has_as_many_values_below_as_above() {
        let of = |values: &[f64]| Median::of(values.iter().copied()).map(|median| median.value);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(3.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn ratios_are_those_of_neighbours() {
        // The machine is half as fast in the second run. The ratio of the medians would be 2.
        let pairs = [(10.0, 10.0), (30.0, 20.0), (20.0, 10.0)].map(|(own, base)| (Some(own), Some(base)));
        let ratios = Median::of_ratios(pairs).unwrap();
        assert_eq!(ratios, Median { value: 1.5, least: 1.0, greatest: 2.0 });
        assert_eq!(format!("{ratios:.1}"), "1.5 (1.0–2.0)");
        assert_eq!(format!("{:.2}", Median::of([1.0]).unwrap()), "1.00");
    }

    #[test]
    fn a_ratio_needs_both_sides_of_every_run() {
        assert_eq!(Median::of_ratios([(Some(1.0), Some(1.0)), (Some(1.0), None)]), None);
        assert_eq!(Median::of_ratios([(Some(1.0), Some(0.0))]), None);
    }
}
