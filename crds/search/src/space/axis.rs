//! A numeric domain as an interval of coordinates in which the samplers measure distances: the logarithm for
//! [`Scale::Log`].

use super::{Domain, Scale, Value};

/// The interval of a numeric domain. A discrete value owns the coordinates up to halfway to its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// Smallest coordinate.
    pub low: f64,
    /// Largest coordinate.
    pub high: f64,
    smallest: f64,
    largest: f64,
    log: bool,
    step: Option<f64>,
    whole: bool,
}

impl Axis {
    /// The axis of a numeric domain.
    pub(crate) fn of(domain: &Domain) -> Option<Self> {
        let (low, high, scale, whole) = match domain {
            Domain::Float { low, high, scale } => (*low, *high, *scale, false),
            Domain::Int { low, high, scale } => (*low as f64, *high as f64, *scale, true),
            Domain::Categorical { .. } => return None,
        };
        let step = match scale {
            Scale::Step(step) => Some(step),
            Scale::Linear | Scale::Log => whole.then_some(1.0),
        };
        let largest = step.map_or(high, |step| low + libm::floor((high - low) / step + 1e-9) * step);
        let half = step.unwrap_or(0.0) / 2.0;
        let log = scale == Scale::Log;
        let coordinate = |value: f64| if log { libm::log(value) } else { value };
        Some(Self {
            low: coordinate(low - half),
            high: coordinate(largest + half),
            smallest: low,
            largest,
            log,
            step,
            whole,
        })
    }

    /// Number of values, or `None` for a continuous range.
    pub(crate) fn count(&self) -> Option<usize> {
        self.step.map(|step| ((self.largest - self.smallest) / step).round() as usize + 1)
    }

    /// The coordinate of a number; a number outside of the range counts as the nearest in it.
    pub(crate) fn coordinate(&self, number: f64) -> f64 {
        let number = number.clamp(self.smallest, self.largest);
        if self.log { libm::log(number) } else { number }
    }

    /// The value nearest to a coordinate.
    pub(crate) fn value(&self, coordinate: f64) -> Value {
        self.typed(self.number(coordinate))
    }

    /// The number of the domain nearest to a coordinate.
    pub(crate) fn number(&self, coordinate: f64) -> f64 {
        let number = if self.log { libm::exp(coordinate) } else { coordinate };
        let number = match self.step {
            Some(step) => self.smallest + ((number - self.smallest) / step).round() * step,
            None => number,
        };
        number.clamp(self.smallest, self.largest)
    }

    /// The coordinates that the discrete value nearest to `coordinate` owns; `None` on a continuous range.
    pub(crate) fn cell(&self, coordinate: f64) -> Option<(f64, f64)> {
        let half = self.step? / 2.0;
        let number = self.number(coordinate);
        let edge = |number: f64| if self.log { libm::log(number) } else { number };
        Some((edge(number - half), edge(number + half)))
    }

    /// The value with `index`, of a discrete axis.
    pub(crate) fn nth(&self, index: usize) -> Value {
        self.typed((self.smallest + index as f64 * self.step.unwrap_or(0.0)).min(self.largest))
    }

    /// The value at `share` of the axis, from 0 to 1.
    pub(crate) fn at(&self, share: f64) -> Value {
        self.value(self.low + share * (self.high - self.low))
    }

    /// Where a number lies on the axis, from 0 to 1.
    pub(crate) fn share(&self, number: f64) -> f64 {
        (self.coordinate(number) - self.low) / (self.high - self.low)
    }

    fn typed(&self, number: f64) -> Value {
        if self.whole { Value::Int(number as i64) } else { Value::Float(number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_values_and_every_discrete_value_owns_its_cell() {
        let log = Axis::of(&Domain::Float { low: 1e-5, high: 1e-1, scale: Scale::Log }).unwrap();
        assert_eq!((log.at(0.0), log.at(1.0), log.count()), (Value::Float(1e-5), Value::Float(1e-1), None));
        let Value::Float(middle) = log.at(0.5) else { unreachable!() };
        assert!((middle - 1e-3).abs() < 1e-12);

        let stepped = Axis::of(&Domain::Float { low: 0.0, high: 1.0, scale: Scale::Step(0.3) }).unwrap();
        assert_eq!(stepped.count(), Some(4));
        assert_eq!(stepped.nth(3), stepped.at(1.0), "0.9: the last multiple in the range");

        let whole = Axis::of(&Domain::Int { low: 1, high: 4, scale: Scale::Log }).unwrap();
        assert_eq!([0.0, 0.6, 0.8, 1.0].map(|share| whole.at(share)), [1, 2, 3, 4].map(Value::Int));
        let (low, high) = whole.cell(libm::log(2.0)).unwrap();
        assert_eq!((low, high), (libm::log(1.5), libm::log(2.5)));
        assert_eq!(whole.share(99.0), whole.share(4.0), "outside of the range");
    }
}
