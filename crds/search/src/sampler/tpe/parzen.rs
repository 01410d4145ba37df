//! A density of points: a mixture of one kernel for each observation, and of the prior.

use crate::normal;
use crate::random::Draws;
use crate::space::{Axis, Domain, Point, Space, Value};

/// Newest observations with full weight; older ones weigh less, down to the reciprocal of their number.
const RECENT: usize = 25;

/// A mixture of products over the parameters. The last kernel is the prior.
pub(super) struct Parzen {
    weights: Vec<f64>,
    columns: Vec<Column>,
}

/// The kernels of one parameter.
enum Column {
    Numeric { axis: Axis, centers: Vec<f64>, widths: Vec<f64>, log_masses: Vec<f64> },
    Categorical { probabilities: Vec<Vec<f64>> },
}

impl Parzen {
    pub(super) fn new(space: &Space, points: &[&Point]) -> Self {
        let mut weights = ages(points.len());
        weights.push(1.0);
        let columns = space
            .parameters
            .iter()
            .map(|parameter| {
                let values: Vec<_> = points.iter().map(|point| point.get(&parameter.name)).collect();
                match Axis::of(&parameter.domain) {
                    Some(axis) => Column::numeric(axis, &values),
                    None => Column::categorical(&parameter.domain, &values),
                }
            })
            .collect();
        Self { weights, columns }
    }

    /// The weights of the kernels, given the values of `point`.
    pub(super) fn weights_given(&self, space: &Space, point: &Point) -> Vec<f64> {
        let logs = self.logs(space, point);
        let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| libm::exp(log - highest)).collect()
    }

    /// `point` with values for the parameters of `group`, drawn from the kernels with these weights.
    pub(super) fn draw(
        &self,
        space: &Space,
        weights: &[f64],
        group: &[usize],
        point: &Point,
        draws: &mut Draws,
    ) -> Point {
        let kernel = draws.weighted(weights.iter().copied());
        let mut point = point.clone();
        for &index in group {
            let parameter = &space.parameters[index];
            let value = self.columns[index].draw(&parameter.domain, kernel, draws);
            point.insert(parameter.name.clone(), value);
        }
        point
    }

    /// Logarithm of the density at a point, over the parameters that it has.
    pub(super) fn log_density(&self, space: &Space, point: &Point) -> f64 {
        let logs = self.logs(space, point);
        let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        highest + libm::log(logs.iter().map(|log| libm::exp(log - highest)).sum())
    }

    /// Logarithm of each kernel's weight and density at a point.
    fn logs(&self, space: &Space, point: &Point) -> Vec<f64> {
        let total: f64 = self.weights.iter().sum();
        let mut logs: Vec<f64> = self.weights.iter().map(|weight| libm::log(weight / total)).collect();
        for (parameter, column) in space.parameters.iter().zip(&self.columns) {
            if let Some(value) = point.get(&parameter.name) {
                column.add(&parameter.domain, value, &mut logs);
            }
        }
        logs
    }
}

impl Column {
    /// Kernels of the width of the larger gap to a neighbour, within bounds.
    fn numeric(axis: Axis, values: &[Option<&Value>]) -> Self {
        let range = axis.high - axis.low;
        let middle = f64::midpoint(axis.low, axis.high);
        let known: Vec<Option<f64>> =
            values.iter().map(|value| value.and_then(Value::number).map(|number| axis.coordinate(number))).collect();
        let mut sorted: Vec<f64> = known.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let narrowest = range / (2.0 + sorted.len() as f64).min(100.0);
        let mut centers: Vec<f64> = known.iter().map(|center| center.unwrap_or(middle)).collect();
        let mut widths: Vec<f64> = known
            .iter()
            .map(|center| center.map_or(range, |at| gap(&sorted, &axis, at).clamp(narrowest, range)))
            .collect();
        centers.push(middle);
        widths.push(range);
        let log_masses = centers
            .iter()
            .zip(&widths)
            .map(|(center, width)| normal::log_mass((axis.low - center) / width, (axis.high - center) / width))
            .collect();
        Self::Numeric { axis, centers, widths, log_masses }
    }

    /// Kernels that prefer the observed choice, the more the more there are.
    fn categorical(domain: &Domain, values: &[Option<&Value>]) -> Self {
        let size = domain.size().unwrap_or(1);
        let smoothing = 1.0 / (values.len() + 1) as f64;
        let uniform = vec![1.0 / size as f64; size];
        let mut probabilities: Vec<Vec<f64>> = values
            .iter()
            .map(|value| match value.and_then(|value| domain.choice(value)) {
                Some(observed) => {
                    let total = 1.0 + smoothing * size as f64;
                    (0..size).map(|choice| (smoothing + f64::from(u8::from(choice == observed))) / total).collect()
                }
                None => uniform.clone(),
            })
            .collect();
        probabilities.push(uniform);
        Self::Categorical { probabilities }
    }

    /// A value drawn from a kernel.
    fn draw(&self, domain: &Domain, kernel: usize, draws: &mut Draws) -> Value {
        match self {
            Self::Numeric { axis, centers, widths, .. } => {
                let (center, width) = (centers[kernel], widths[kernel]);
                let (from, to) = (normal::cdf((axis.low - center) / width), normal::cdf((axis.high - center) / width));
                let share = (from + draws.uniform() * (to - from)).clamp(1e-300, 1.0 - f64::EPSILON / 2.0);
                axis.value(center + width * normal::quantile(share))
            }
            Self::Categorical { probabilities } => {
                let choice = draws.weighted(probabilities[kernel].iter().copied());
                domain.nth(choice).unwrap_or_else(|| domain.at(0.0))
            }
        }
    }

    /// Adds the logarithm of each kernel's density at `value` to `logs`.
    fn add(&self, domain: &Domain, value: &Value, logs: &mut [f64]) {
        match self {
            Self::Numeric { axis, centers, widths, log_masses } => {
                let Some(at) = value.number().map(|number| axis.coordinate(number)) else { return };
                let cell = axis.cell(at);
                for (index, log) in logs.iter_mut().enumerate() {
                    let (center, width) = (centers[index], widths[index]);
                    let density = match cell {
                        Some((low, high)) => normal::log_mass((low - center) / width, (high - center) / width),
                        None => {
                            let distance = (at - center) / width;
                            -0.5 * distance * distance - normal::LOG_SQRT_2PI - libm::log(width)
                        }
                    };
                    *log += density - log_masses[index];
                }
            }
            Self::Categorical { probabilities } => {
                let Some(choice) = domain.choice(value) else { return };
                for (log, probabilities) in logs.iter_mut().zip(probabilities) {
                    *log += libm::log(probabilities[choice]);
                }
            }
        }
    }
}

/// Weights of observations, oldest first.
fn ages(count: usize) -> Vec<f64> {
    let old = count.saturating_sub(RECENT);
    let ramp = |index: usize| {
        let lowest = 1.0 / count as f64;
        lowest + (1.0 - lowest) * index as f64 / old.max(2).saturating_sub(1) as f64
    };
    (0..count).map(|index| if index < old { ramp(index) } else { 1.0 }).collect()
}

/// The larger of the gaps between `at` and its neighbours; at the ends, the gap to the only neighbour.
fn gap(sorted: &[f64], axis: &Axis, at: f64) -> f64 {
    let position = sorted.partition_point(|other| *other < at);
    let before = position.checked_sub(1).map(|index| at - sorted[index]);
    let after = sorted.get(position + 1).map(|next| next - at);
    match (before, after) {
        (Some(before), Some(after)) => before.max(after),
        (Some(gap), None) | (None, Some(gap)) => gap,
        (None, None) => (at - axis.low).max(axis.high - at),
    }
}
