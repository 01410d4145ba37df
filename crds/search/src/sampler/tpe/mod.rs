//! Tree-structured Parzen estimator: two densities of points, of the good observations and of all others; the candidate
//! drawn from the first whose ratio of densities is largest.
//!
//! - J. Bergstra, R. Bardenet, Y. Bengio, B. Kégl: Algorithms for Hyper-Parameter Optimization. NeurIPS 2011.
//! - S. Watanabe: Tree-Structured Parzen Estimator: Understanding Its Algorithm Components and Their Roles for Better
//!   Empirical Performance. arXiv:2304.11127.
//!
//! The densities are multivariate: a kernel is a product over all parameters, centred at one observation, and the prior
//! in a parameter that is inactive there. Running trials count as bad (a constant liar), so that parallel trials keep
//! apart.

mod parzen;

use crate::history::{Loss, Observation};
use crate::random::Draws;
use crate::space::{Point, Space};
use parzen::Parzen;
use std::cmp::Ordering;

/// Observations before the first model.
const STARTUP: usize = 10;
/// Candidates of which the best is proposed.
const CANDIDATES: usize = 40;
/// Largest number of good observations.
const MOST_GOOD: usize = 25;
/// Draws at most for each candidate: others violate a constraint, or were observed already.
const TRIES: usize = 20;

/// The next point, or `None` with too few observations.
pub(super) fn propose(space: &Space, observed: &[Observation], draws: &mut Draws) -> Option<Point> {
    let known = observed.iter().filter(|observation| observation.loss != Loss::Pending).count();
    if known < STARTUP {
        return None;
    }
    let (good, bad) = split(observed, known);
    let mut repeated = None;
    for _ in 0..TRIES {
        let Some(point) = descend(space, observed, (&good, &bad), draws) else { continue };
        // A discrete space: what is known is not measured again while there is something else.
        if !is_observed(observed, &point) {
            return Some(point);
        }
        repeated = Some(point);
    }
    unobserved(space, observed, draws).or(repeated)
}

/// Chooses the parameters without a condition, then those that are active with these values, and so on. A branch is so
/// chosen by what is common to all observations, and its own parameters by the observations in it: the densities of
/// different branches have different dimensions and cannot be compared.
fn descend(
    space: &Space,
    observed: &[Observation],
    (good, bad): (&[&Point], &[&Point]),
    draws: &mut Draws,
) -> Option<Point> {
    let mut point = Point::new();
    loop {
        let group = space.group(&point);
        if group.is_empty() {
            return space.permits(&point).then_some(point);
        }
        let within = |points: &[&Point]| -> Parzen {
            let has = |point: &&&Point| group.iter().all(|&index| point.contains_key(&space.parameters[index].name));
            Parzen::new(space, &points.iter().filter(has).copied().collect::<Vec<_>>())
        };
        let (good, bad) = (within(good), within(bad));
        let given = good.weights_given(space, &point);
        let mut best: Option<(f64, Point)> = None;
        for _ in 0..CANDIDATES {
            let fits = |candidate: &Point| {
                space.permits(candidate) && !(space.group(candidate).is_empty() && is_observed(observed, candidate))
            };
            let mut drawn = (0..TRIES).map(|_| good.draw(space, &given, &group, &point, draws));
            let Some(candidate) = drawn.find(fits) else { continue };
            let ratio = good.log_density(space, &candidate) - bad.log_density(space, &candidate);
            if best.as_ref().is_none_or(|(highest, _)| ratio > *highest) {
                best = Some((ratio, candidate));
            }
        }
        point = best?.1;
    }
}

fn is_observed(observed: &[Observation], point: &Point) -> bool {
    observed.iter().any(|observation| observation.point == *point)
}

/// A random point that was not observed.
fn unobserved(space: &Space, observed: &[Observation], draws: &mut Draws) -> Option<Point> {
    (0..CANDIDATES * TRIES).filter_map(|_| space.draw(draws)).find(|point| !is_observed(observed, point))
}

/// The good observations and the others, both in the order of `observed`.
fn split(observed: &[Observation], known: usize) -> (Vec<&Point>, Vec<&Point>) {
    let count = known.div_ceil(10).min(MOST_GOOD);
    let mut ranked: Vec<usize> = (0..observed.len()).collect();
    ranked.sort_by(|&a, &b| better(observed[a].loss, observed[b].loss));
    let feasible = |index: &&usize| matches!(observed[**index].loss, Loss::Final(_) | Loss::Partial { .. });
    let good: Vec<usize> = ranked.iter().take(count).filter(feasible).copied().collect();
    let (mut is_good, mut is_bad) = (Vec::new(), Vec::new());
    for (index, observation) in observed.iter().enumerate() {
        if good.contains(&index) { is_good.push(&observation.point) } else { is_bad.push(&observation.point) }
    }
    (is_good, is_bad)
}

/// Order of losses: final values, then those of trials that were ended early, after more training first.
fn better(a: Loss, b: Loss) -> Ordering {
    let class = |loss| match loss {
        Loss::Final(_) => 0,
        Loss::Partial { .. } => 1,
        Loss::Infeasible => 2,
        Loss::Pending => 3,
    };
    match (a, b) {
        (Loss::Final(a), Loss::Final(b)) => a.total_cmp(&b),
        (Loss::Partial { resource: far, value: a }, Loss::Partial { resource: near, value: b }) => {
            near.cmp(&far).then(a.total_cmp(&b))
        }
        _ => class(a).cmp(&class(b)),
    }
}
