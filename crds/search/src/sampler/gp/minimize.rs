//! Minimum of a smooth function in a box: BFGS on the variables that are not held at a bound, with projection.

/// Result of an evaluation: value and gradient.
pub(super) type Evaluation = (f64, Vec<f64>);

/// A local minimum from `start` within `bounds`, by at most `steps` steps. Points at which `function` has no value are
/// not entered.
pub(super) fn minimize(
    start: &[f64],
    bounds: &[(f64, f64)],
    steps: usize,
    function: impl Fn(&[f64]) -> Option<Evaluation>,
) -> Option<(Vec<f64>, f64)> {
    let project =
        |x: &[f64]| -> Vec<f64> { x.iter().zip(bounds).map(|(x, (low, high))| x.clamp(*low, *high)).collect() };
    let mut x = project(start);
    let (mut value, mut gradient) = function(&x)?;
    let mut inverse = identity(x.len());
    for _ in 0..steps {
        let free = free(&x, &gradient, bounds);
        let direction = descent(&inverse, &gradient, &free);
        let slope: f64 = direction.iter().zip(&gradient).map(|(d, g)| d * g).sum();
        let flat = gradient.iter().zip(&free).all(|(g, free)| !free || g.abs() < 1e-7);
        if flat || slope >= 0.0 {
            break;
        }
        let Some((next, (lower, steeper))) = search(&x, value, &direction, slope, &project, &function) else {
            // The curvature was misleading: once more downhill, unless that was downhill.
            if inverse == identity(x.len()) {
                break;
            }
            inverse = identity(x.len());
            continue;
        };
        update(&mut inverse, &difference(&next, &x), &difference(&steeper, &gradient));
        let gained = value - lower;
        (x, value, gradient) = (next, lower, steeper);
        if gained < 1e-11 * (1.0 + value.abs()) {
            break;
        }
    }
    Some((x, value))
}

/// Whether each variable can move against its gradient.
fn free(x: &[f64], gradient: &[f64], bounds: &[(f64, f64)]) -> Vec<bool> {
    let at = |i: usize| !(x[i] <= bounds[i].0 && gradient[i] > 0.0 || x[i] >= bounds[i].1 && gradient[i] < 0.0);
    (0..x.len()).map(at).collect()
}

fn descent(inverse: &[Vec<f64>], gradient: &[f64], free: &[bool]) -> Vec<f64> {
    let masked = |i: usize| if free[i] { gradient[i] } else { 0.0 };
    let row = |i: usize| -> f64 { inverse[i].iter().enumerate().map(|(j, value)| value * masked(j)).sum() };
    (0..gradient.len()).map(|i| if free[i] { -row(i) } else { 0.0 }).collect()
}

/// Halves the step until the function decreases enough (Armijo).
fn search(
    x: &[f64],
    value: f64,
    direction: &[f64],
    slope: f64,
    project: &impl Fn(&[f64]) -> Vec<f64>,
    function: &impl Fn(&[f64]) -> Option<Evaluation>,
) -> Option<(Vec<f64>, Evaluation)> {
    let length = direction.iter().map(|d| d.abs()).fold(0.0, f64::max);
    let mut step = if length > 2.0 { 2.0 / length } else { 1.0 };
    for _ in 0..25 {
        let next = project(&x.iter().zip(direction).map(|(x, d)| x + step * d).collect::<Vec<_>>());
        if let Some(evaluation) = function(&next)
            && evaluation.0 < value + 1e-4 * step * slope
        {
            return Some((next, evaluation));
        }
        step *= 0.4;
    }
    None
}

fn identity(count: usize) -> Vec<Vec<f64>> {
    (0..count).map(|i| (0..count).map(|j| f64::from(u8::from(i == j))).collect()).collect()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The BFGS update of the inverse of the second derivative, where the curvature is positive.
fn update(inverse: &mut [Vec<f64>], step: &[f64], change: &[f64]) {
    let curvature: f64 = step.iter().zip(change).map(|(s, y)| s * y).sum();
    if curvature <= 1e-12 {
        return;
    }
    let product: Vec<f64> = inverse.iter().map(|row| row.iter().zip(change).map(|(h, y)| h * y).sum()).collect();
    let scale = 1.0 + change.iter().zip(&product).map(|(y, p)| y * p).sum::<f64>() / curvature;
    for (i, row) in inverse.iter_mut().enumerate() {
        for (j, value) in row.iter_mut().enumerate() {
            *value += (scale * step[i] * step[j] - product[i] * step[j] - step[i] * product[j]) / curvature;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Rosenbrock function and its gradient.
    fn banana(x: &[f64]) -> Option<Evaluation> {
        let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
        Some((a * a + 100.0 * b * b, vec![-2.0 * a - 400.0 * x[0] * b, 200.0 * b]))
    }

    #[test]
    fn finds_minima_inside_and_at_the_bounds() {
        let (x, value) = minimize(&[-1.2, 1.0], &[(-2.0, 2.0); 2], 200, banana).unwrap();
        assert!(value < 1e-10 && (x[0] - 1.0).abs() < 1e-4, "{x:?}: {value}");
        // With x0 at most 0.5, the minimum is at the bound: (0.5, 0.25).
        let (x, value) = minimize(&[-1.2, 1.0], &[(-2.0, 0.5), (-2.0, 2.0)], 200, banana).unwrap();
        assert!((x[0] - 0.5).abs() < 1e-6 && (x[1] - 0.25).abs() < 1e-4 && (value - 0.25).abs() < 1e-8, "{x:?}");
    }
}
