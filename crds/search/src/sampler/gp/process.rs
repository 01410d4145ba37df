//! The Gaussian process: its kernel, its hyperparameters by maximum a posteriori, its predictions.

use super::linear::Factor;
use super::minimize::{Evaluation, minimize};

/// A process fitted to observations.
pub(super) struct Process {
    discrete: Vec<bool>,
    inputs: Vec<Vec<f64>>,
    scores: Vec<f64>,
    hyper: Hyper,
    factor: Factor,
    /// The inverse covariance times the scores.
    coefficients: Vec<f64>,
}

/// Hyperparameters of the kernel.
#[derive(Clone, Debug)]
struct Hyper {
    /// Reciprocals of the squares of the length scales.
    precisions: Vec<f64>,
    variance: f64,
    noise: f64,
}

/// A prediction with its gradients.
pub(super) struct Prediction {
    pub mean: f64,
    pub variance: f64,
    pub mean_gradient: Vec<f64>,
    pub variance_gradient: Vec<f64>,
}

/// Bounds of the logarithms of precisions, variance and noise.
const PRECISION: (f64, f64) = (-9.0, 9.0);
const VARIANCE: (f64, f64) = (-3.0, 5.0);
const NOISE: (f64, f64) = (-13.8, 0.0);
/// The prior of a precision: density of its logarithm proportional to `exp(-EXTREMES (precision + 1 / precision))`.
const EXTREMES: f64 = 0.1;
/// The prior of the noise: density proportional to `noise^NOISE_SHAPE exp(-NOISE_RATE noise)`.
const NOISE_SHAPE: f64 = 0.1;
const NOISE_RATE: f64 = 30.0;

/// Matérn 5/2 of a squared distance, and its derivative with respect to that.
fn matern(square: f64) -> (f64, f64) {
    let scaled = libm::sqrt(5.0 * square);
    let decay = libm::exp(-scaled);
    ((1.0 + scaled + scaled * scaled / 3.0) * decay, -5.0 / 6.0 * (1.0 + scaled) * decay)
}

impl Hyper {
    /// From the logarithms: precisions, then variance and noise.
    fn new(logs: &[f64]) -> Self {
        let dimensions = logs.len() - 2;
        Self {
            precisions: logs[..dimensions].iter().map(|log| libm::exp(*log)).collect(),
            variance: libm::exp(logs[dimensions]),
            noise: libm::exp(logs[dimensions + 1]),
        }
    }
}

/// Squares of the differences by parameter.
fn squares(discrete: &[bool], a: &[f64], b: &[f64]) -> Vec<f64> {
    let square = |i: usize| if discrete[i] { f64::from(u8::from(a[i] != b[i])) } else { (a[i] - b[i]) * (a[i] - b[i]) };
    (0..a.len()).map(square).collect()
}

fn distance(precisions: &[f64], squares: &[f64]) -> f64 {
    precisions.iter().zip(squares).map(|(precision, square)| precision * square).sum()
}

/// Logarithm of a normal density without its constant, and the derivative.
fn normal_prior(value: f64, mean: f64, deviation: f64) -> (f64, f64) {
    let z = (value - mean) / deviation;
    (-0.5 * z * z, -z / deviation)
}

impl Process {
    /// Fits the hyperparameters, from a long and a short length scale.
    pub(super) fn fit(discrete: Vec<bool>, inputs: Vec<Vec<f64>>, scores: Vec<f64>) -> Option<Self> {
        let dimensions = discrete.len();
        let pairs: Vec<Vec<Vec<f64>>> =
            (0..inputs.len()).map(|i| (0..i).map(|j| squares(&discrete, &inputs[i], &inputs[j])).collect()).collect();
        let bounds: Vec<_> = vec![PRECISION; dimensions].into_iter().chain([VARIANCE, NOISE]).collect();
        let starts = [0.0, 3.0].map(|precision| {
            let mut start = vec![precision; dimensions];
            start.extend([0.0, -9.0]);
            start
        });
        let best = starts
            .iter()
            .filter_map(|start| minimize(start, &bounds, 60, |logs| objective(&pairs, &scores, logs)))
            .min_by(|a, b| a.1.total_cmp(&b.1))?;
        Self::with(discrete, inputs, scores, Hyper::new(&best.0))
    }

    fn with(discrete: Vec<bool>, inputs: Vec<Vec<f64>>, scores: Vec<f64>, hyper: Hyper) -> Option<Self> {
        let covariance: Vec<Vec<f64>> = (0..inputs.len())
            .map(|i| {
                let row = (0..i).map(|j| {
                    let square = distance(&hyper.precisions, &squares(&discrete, &inputs[i], &inputs[j]));
                    hyper.variance * matern(square).0
                });
                row.chain([hyper.variance + hyper.noise]).collect()
            })
            .collect();
        let factor = Factor::of(&covariance)?;
        let coefficients = factor.solve(&scores);
        Some(Self { discrete, inputs, scores, hyper, factor, coefficients })
    }

    /// The process that also observed its own prediction at `input`.
    pub(super) fn believe(mut self, input: Vec<f64>) -> Option<Self> {
        let mean = self.predict(&input).mean;
        self.inputs.push(input);
        self.scores.push(mean);
        Self::with(self.discrete, self.inputs, self.scores, self.hyper)
    }

    /// The largest score, above which an improvement begins.
    pub(super) fn incumbent(&self) -> f64 {
        self.scores.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The input with the largest score.
    pub(super) fn best_input(&self) -> Option<&Vec<f64>> {
        let best = (0..self.scores.len()).max_by(|&a, &b| self.scores[a].total_cmp(&self.scores[b]))?;
        self.inputs.get(best)
    }

    /// Mean and variance at `x`, with the gradients by `x`.
    pub(super) fn predict(&self, x: &[f64]) -> Prediction {
        let kernels: Vec<(f64, f64)> = self
            .inputs
            .iter()
            .map(|input| {
                let (value, slope) = matern(distance(&self.hyper.precisions, &squares(&self.discrete, x, input)));
                (self.hyper.variance * value, self.hyper.variance * slope)
            })
            .collect();
        let covariances: Vec<f64> = kernels.iter().map(|kernel| kernel.0).collect();
        let half = self.factor.forward(&covariances);
        let solved = self.factor.backward(&half);
        let mean = covariances.iter().zip(&self.coefficients).map(|(k, c)| k * c).sum();
        let variance = (self.hyper.variance - half.iter().map(|v| v * v).sum::<f64>()).max(1e-12);
        let gradient = |weights: &[f64]| -> Vec<f64> {
            let along = |d: usize| -> f64 {
                if self.discrete[d] {
                    return 0.0;
                }
                let by = |(i, input): (usize, &Vec<f64>)| weights[i] * kernels[i].1 * (x[d] - input[d]);
                2.0 * self.hyper.precisions[d] * self.inputs.iter().enumerate().map(by).sum::<f64>()
            };
            (0..x.len()).map(along).collect()
        };
        let mean_gradient = gradient(&self.coefficients);
        let variance_gradient = gradient(&solved).into_iter().map(|g| -2.0 * g).collect();
        Prediction { mean, variance, mean_gradient, variance_gradient }
    }
}

/// Negative logarithm of the posterior of the hyperparameters, and its gradient. `pairs[i][j]` holds the squared
/// differences.
fn objective(pairs: &[Vec<Vec<f64>>], scores: &[f64], logs: &[f64]) -> Option<Evaluation> {
    let hyper = Hyper::new(logs);
    let dimensions = hyper.precisions.len();
    let kernel = |i: usize, j: usize| matern(distance(&hyper.precisions, &pairs[i][j]));
    let kernels: Vec<Vec<(f64, f64)>> = (0..pairs.len()).map(|i| (0..i).map(|j| kernel(i, j)).collect()).collect();
    let covariance: Vec<Vec<f64>> = kernels
        .iter()
        .map(|row| row.iter().map(|k| hyper.variance * k.0).chain([hyper.variance + hyper.noise]).collect())
        .collect();
    let factor = Factor::of(&covariance)?;
    let coefficients = factor.solve(scores);
    let inverse = factor.inverse();
    let fit: f64 = coefficients.iter().zip(scores).map(|(c, s)| c * s).sum();
    let mut value = 0.5 * (fit + factor.log_determinant());
    // The derivative by the covariance of i and j, which is there twice for i != j.
    let mut gradient = vec![0.0; dimensions + 2];
    for (i, row) in kernels.iter().enumerate() {
        let own = 0.5 * (inverse[i][i] - coefficients[i] * coefficients[i]);
        gradient[dimensions] += own * hyper.variance;
        gradient[dimensions + 1] += own * hyper.noise;
        for (j, (correlation, slope)) in row.iter().enumerate() {
            let weight = inverse[i][j] - coefficients[i] * coefficients[j];
            gradient[dimensions] += weight * hyper.variance * correlation;
            let common = weight * hyper.variance * slope;
            for (d, square) in pairs[i][j].iter().enumerate() {
                gradient[d] += common * hyper.precisions[d] * square;
            }
        }
    }
    for (slope, precision) in gradient.iter_mut().zip(&hyper.precisions) {
        // Neither without effect nor without memory; in between, the losses alone decide.
        value += EXTREMES * (precision + 1.0 / precision);
        *slope += EXTREMES * (precision - 1.0 / precision);
    }
    let (density, slope) = normal_prior(logs[dimensions], 0.0, 1.5);
    value -= density;
    gradient[dimensions] -= slope;
    // A gamma distribution: little noise unless the losses show it.
    value -= NOISE_SHAPE * logs[dimensions + 1] - NOISE_RATE * hyper.noise;
    gradient[dimensions + 1] -= NOISE_SHAPE - NOISE_RATE * hyper.noise;
    value.is_finite().then_some((value, gradient))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> (Vec<Vec<f64>>, Vec<f64>) {
        let inputs: Vec<Vec<f64>> = (0..20)
            .map(|i| vec![f64::from(i * 7 % 20) / 20.0, f64::from(i * 3 % 20) / 20.0, f64::from(i % 2)])
            .collect();
        let score = |x: &Vec<f64>| libm::sin(6.0 * x[0]) + 0.3 * x[1] + 0.5 * x[2] - 0.5;
        let scores = inputs.iter().map(score).collect();
        (inputs, scores)
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let (inputs, scores) = data();
        let discrete = vec![false, false, true];
        let pairs: Vec<Vec<Vec<f64>>> =
            (0..20).map(|i| (0..i).map(|j| squares(&discrete, &inputs[i], &inputs[j])).collect()).collect();
        let logs = [1.0, -0.5, 0.2, 0.3, -4.0];
        let (_, gradient) = objective(&pairs, &scores, &logs).unwrap();
        for (d, slope) in gradient.iter().enumerate() {
            let shifted = |by: f64| {
                let mut logs = logs;
                logs[d] += by;
                objective(&pairs, &scores, &logs).unwrap().0
            };
            let difference = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!((slope - difference).abs() < 1e-4 * (1.0 + slope.abs()), "{d}: {slope} and {difference}");
        }
        let process = Process::fit(discrete, inputs, scores).unwrap();
        let x = [0.33, 0.71, 1.0];
        let here = process.predict(&x);
        for d in 0..2 {
            let shifted = |by: f64| {
                let mut x = x;
                x[d] += by;
                process.predict(&x)
            };
            let (up, down) = (shifted(1e-5), shifted(-1e-5));
            assert!(((up.mean - down.mean) / 2e-5 - here.mean_gradient[d]).abs() < 1e-4);
            assert!(((up.variance - down.variance) / 2e-5 - here.variance_gradient[d]).abs() < 1e-4);
        }
    }

    #[test]
    fn interpolates_what_it_observed() {
        let (inputs, scores) = data();
        let process = Process::fit(vec![false, false, true], inputs.clone(), scores.clone()).unwrap();
        for (input, score) in inputs.iter().zip(&scores) {
            let prediction = process.predict(input);
            assert!((prediction.mean - score).abs() < 0.05, "{} for {score}", prediction.mean);
        }
        let between = process.predict(&[0.475, 0.2, 1.0]);
        assert!((between.mean - (libm::sin(6.0 * 0.475) + 0.06)).abs() < 0.1, "{}", between.mean);
    }
}
