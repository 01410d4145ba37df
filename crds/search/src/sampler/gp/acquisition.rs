//! The point with the largest expected improvement.

use super::minimize::minimize;
use super::process::Process;
use super::surface::Surface;
use crate::history::Observation;
use crate::normal;
use crate::random::Draws;
use crate::space::{Point, Space};

/// Random points of which the best are refined.
const SAMPLES: usize = 1000;
/// Points that are refined, beside the best observed one.
const REFINED: usize = 6;

/// Logarithm of E[max(0, z + N(0, 1))], and its derivative.
fn log_improvement(z: f64) -> (f64, f64) {
    if z > -25.0 {
        let (below, density) = (normal::cdf(z), normal::pdf(z));
        let improvement = z * below + density;
        return (libm::log(improvement), below / improvement);
    }
    // Asymptotic series, where the difference above cancels.
    let inverse = 1.0 / (z * z);
    let series = 1.0 - inverse * (3.0 - inverse * (15.0 - inverse * 105.0));
    let mass = 1.0 - inverse * (1.0 - inverse * (3.0 - inverse * 15.0));
    (-0.5 * z * z - normal::LOG_SQRT_2PI + libm::log(inverse * series), -z * mass / series)
}

/// Logarithm of the expected improvement at `x`, and its gradient.
fn value(process: &Process, incumbent: f64, x: &[f64]) -> (f64, Vec<f64>) {
    let prediction = process.predict(x);
    let deviation = libm::sqrt(prediction.variance);
    let z = (prediction.mean - incumbent) / deviation;
    let (log, slope) = log_improvement(z);
    let gradient = |(mean, variance): (&f64, &f64)| {
        let widened = variance / (2.0 * prediction.variance);
        slope * (mean / deviation - z * widened) + widened
    };
    let gradients = prediction.mean_gradient.iter().zip(&prediction.variance_gradient).map(gradient).collect();
    (log + libm::log(deviation), gradients)
}

/// The best point that satisfies the constraints and, where there is another, was not observed.
pub(super) fn best(
    space: &Space,
    surface: &Surface,
    process: &Process,
    observed: &[Observation],
    draws: &mut Draws,
) -> Option<Point> {
    let incumbent = process.incumbent();
    let score = |x: &[f64]| value(process, incumbent, x).0;
    let mut samples: Vec<(f64, Vec<f64>)> = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let x = surface.coordinates(&space.draw(draws)?);
        samples.push((score(&x), x));
    }
    samples.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut starts: Vec<Vec<f64>> = samples.iter().take(REFINED).map(|sample| sample.1.clone()).collect();
    starts.extend(process.best_input().cloned());
    let mut found: Vec<(f64, Point)> = Vec::new();
    for x in
        starts.iter().map(|start| refine(surface, process, incumbent, start)).chain(samples.into_iter().map(|s| s.1))
    {
        let point = surface.point(&x);
        found.push((score(&surface.coordinates(&point)), point));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let known = |point: &Point| observed.iter().any(|observation| observation.point == *point);
    let permitted: Vec<&Point> = found.iter().map(|(_, point)| point).filter(|point| space.permits(point)).collect();
    permitted.iter().find(|point| !known(point)).or(permitted.first()).map(|point| (*point).clone())
}

/// A local maximum: the continuous parameters by gradient, the others one by one.
fn refine(surface: &Surface, process: &Process, incumbent: f64, start: &[f64]) -> Vec<f64> {
    let continuous = surface.continuous();
    let mut x = start.to_vec();
    let mut reached = value(process, incumbent, &x).0;
    for _ in 0..10 {
        let before = reached;
        let bounds: Vec<(f64, f64)> =
            (0..x.len()).map(|i| if continuous[i] { (0.0, 1.0) } else { (x[i], x[i]) }).collect();
        let negated = |x: &[f64]| {
            let (log, gradient) = value(process, incumbent, x);
            Some((-log, gradient.into_iter().map(|g| -g).collect()))
        };
        if let Some((better, lowest)) = minimize(&x, &bounds, 50, negated)
            && -lowest > reached
        {
            (x, reached) = (better, -lowest);
        }
        for index in (0..x.len()).filter(|&index| !continuous[index]) {
            for other in surface.neighbours(&x, index) {
                let mut next = x.clone();
                next[index] = other;
                let score = value(process, incumbent, &next).0;
                if score > reached {
                    (x, reached) = (next, score);
                }
            }
        }
        if reached - before < 1e-6 || continuous.iter().all(|continuous| *continuous) {
            break;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn improvement_is_smooth_far_into_the_tail() {
        for z in [-60.0, -25.1, -24.9, -10.0, -1.0, 0.0, 2.0] {
            let (log, slope) = log_improvement(z);
            let difference = (log_improvement(z + 1e-4).0 - log_improvement(z - 1e-4).0) / 2e-4;
            assert!(log.is_finite() && (slope / difference - 1.0).abs() < 1e-4, "{z}: {slope} and {difference}");
        }
        assert!((log_improvement(-25.0).0 - log_improvement(-25.000_001).0).abs() < 1e-4);
        assert!((libm::exp(log_improvement(0.0).0) - normal::pdf(0.0)).abs() < 1e-15);
    }
}
