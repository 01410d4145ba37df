//! The allowed range of a measured value, and the position of a confidence interval relative to it.

use crate::statistics::sequential::Interval;
use pawl_contract::decimal::Decimal;
use std::fmt;

/// A closed range; an infinite limit means that this end is unbounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Band {
    low: f64,
    high: f64,
}

/// Position of a confidence interval relative to a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The whole interval lies in the band.
    Inside,
    /// The estimate lies inside, a bound of the interval does not.
    PartlyInside,
    /// The estimate lies outside, a part of the interval may not.
    Outside,
}

impl Band {
    /// Values of at most `high`.
    pub fn at_most(high: f64) -> Self {
        Self { low: f64::NEG_INFINITY, high }
    }

    /// Values of at most `reach` on either side of 0.
    pub fn within(reach: f64) -> Self {
        Self { low: -reach, high: reach }
    }

    /// Values from `low` to `high`; unbounded where `None`.
    pub fn between(low: Option<&Decimal>, high: Option<&Decimal>) -> Self {
        Self { low: low.map_or(f64::NEG_INFINITY, Decimal::value), high: high.map_or(f64::INFINITY, Decimal::value) }
    }

    /// This band without a lower limit.
    pub fn without_low(self) -> Self {
        Self { low: f64::NEG_INFINITY, ..self }
    }

    /// This band without an upper limit.
    pub fn without_high(self) -> Self {
        Self { high: f64::INFINITY, ..self }
    }

    /// Whether both ends have a limit.
    pub fn is_bounded(self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// The upper limit.
    pub fn high(self) -> f64 {
        self.high
    }

    /// Whether `value` lies in the band; false for NaN.
    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether the whole interval lies beyond one of the limits; false without bounds, which control no error.
    pub fn excludes(self, interval: &Interval) -> bool {
        interval.bounds.is_some_and(|(lower, upper)| lower > self.high || upper < self.low)
    }

    /// Position of `interval`; of the estimate when the interval has no bounds.
    pub fn judge(self, interval: &Interval) -> Position {
        let (lower, upper) = interval.bounds.unwrap_or((interval.mean, interval.mean));
        // The bound towards an unbounded end is irrelevant.
        let open = |bound: f64, end: f64| if end.is_infinite() { interval.mean } else { bound };
        if !self.contains(interval.mean) {
            Position::Outside
        } else if self.contains(open(lower, self.low)) && self.contains(open(upper, self.high)) {
            Position::Inside
        } else {
            Position::PartlyInside
        }
    }
}

/// A value with four significant digits: `0.001`, `-0.00308`, `2349`.
pub(super) fn significant(value: f64) -> String {
    format!("{value:.3e}").parse().unwrap_or(value).to_string()
}

/// `at most 0.001`, `at least 0.9`, `from -0.01 to 0.01`.
impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low.is_finite(), self.high.is_finite()) {
            (true, true) => write!(f, "from {} to {}", significant(self.low), significant(self.high)),
            (true, false) => write!(f, "at least {}", significant(self.low)),
            (false, true) => write!(f, "at most {}", significant(self.high)),
            (false, false) => f.write_str("any value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(mean: f64, reach: f64) -> Interval {
        Interval { mean, bounds: Some((mean - reach, mean + reach)), count: 3, repeated: 0, unrest: None }
    }

    #[test]
    fn an_open_end_admits_anything_and_a_closed_one_needs_the_whole_interval() {
        for (band, mean, reach, position) in [
            (Band::at_most(0.01), 0.005, 0.004, Position::Inside),
            (Band::at_most(0.01), 0.005, 0.006, Position::PartlyInside),
            (Band::at_most(0.01), 0.011, 0.1, Position::Outside),
            (Band::at_most(0.01), -5.0, 4.0, Position::Inside),
            (Band::within(0.01), -0.009, 0.0005, Position::Inside),
            (Band::within(0.01), -0.009, 0.002, Position::PartlyInside),
            (Band::within(0.01), -0.02, 0.001, Position::Outside),
            (Band::at_most(0.01), f64::NAN, 0.0, Position::Outside),
        ] {
            assert_eq!(band.judge(&interval(mean, reach)), position, "{band}: {mean} +- {reach}");
        }
        let single = Interval { mean: 0.01, bounds: None, count: 1, repeated: 0, unrest: None };
        assert_eq!(Band::within(0.01).judge(&single), Position::Inside, "the limit itself is allowed");
    }

    #[test]
    fn a_band_is_read_from_its_text() {
        let number = |text: &str| -> Decimal { text.parse().unwrap() };
        assert_eq!(Band::between(Some(&number("0.9")), None).to_string(), "at least 0.9");
        assert_eq!(Band::at_most(0.001).to_string(), "at most 0.001");
        assert_eq!(Band::within(0.01).to_string(), "from -0.01 to 0.01");
    }
}
