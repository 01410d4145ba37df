//! How much of the variance of the loss each parameter explains, by functional analysis of variance (fANOVA).
//!
//! F. Hutter, H. Hoos, K. Leyton-Brown: An Efficient Approach for Assessing Hyperparameter Importance. ICML 2014: a
//! random forest predicts the loss; in each tree, the variance of the marginal prediction of one parameter is computed
//! exactly from the leaves.

use crate::history::{Loss, Observation};
use crate::random::{Draws, Purpose};
use crate::space::{Axis, Parameter, Point, Space};

const TREES: u32 = 64;
/// Depth of a tree, and the fewest observations of a node that is split.
const DEPTH: usize = 32;
const SPLIT: usize = 4;

/// A leaf: its prediction, and its box in the unit cube.
struct Leaf {
    prediction: f64,
    bounds: Vec<(f64, f64)>,
}

/// The share of the variance that each parameter explains alone, 0 to 1, in the order of the space; what is left is due
/// to interactions. `None` with fewer than 4 final losses, or if they are all equal.
///
/// An inactive parameter counts as being in the middle of its range, and the categories of a list as numbers.
pub fn importance(space: &Space, observed: &[Observation], seed: u64) -> Option<Vec<f64>> {
    let mut samples: Vec<(Vec<f64>, f64)> = Vec::new();
    for observation in observed {
        if let Loss::Final(loss) = observation.loss {
            samples.push((coordinates(space, &observation.point), loss));
        }
    }
    if samples.len() < SPLIT {
        return None;
    }
    let dimensions = space.parameters.len();
    let mut shares = vec![0.0; dimensions];
    let mut trees = 0.0;
    for tree in 0..TREES {
        let mut draws = Draws::new(seed, 0, tree, Purpose::Forest);
        let sample: Vec<&(Vec<f64>, f64)> = (0..samples.len()).map(|_| &samples[draws.below(samples.len())]).collect();
        let mut leaves = Vec::new();
        grow(sample, vec![(0.0, 1.0); dimensions], 0, &mut draws, &mut leaves);
        let mean: f64 = leaves.iter().map(|leaf| leaf.prediction * volume(leaf, None)).sum();
        let square = |value: f64| value * value;
        let total: f64 = leaves.iter().map(|leaf| square(leaf.prediction - mean) * volume(leaf, None)).sum();
        if total > 0.0 {
            trees += 1.0;
            for (dimension, share) in shares.iter_mut().enumerate() {
                *share += marginal_variance(&leaves, dimension, mean) / total;
            }
        }
    }
    (trees > 0.0).then(|| shares.into_iter().map(|share| share / trees).collect())
}

fn coordinates(space: &Space, point: &Point) -> Vec<f64> {
    let coordinate = |parameter: &Parameter| {
        let Some(value) = point.get(&parameter.name) else { return 0.5 };
        match Axis::of(&parameter.domain) {
            Some(axis) => value.number().map_or(0.5, |number| axis.share(number)),
            None => {
                let size = parameter.domain.size().unwrap_or(1) as f64;
                parameter.domain.choice(value).map_or(0.5, |index| (index as f64 + 0.5) / size)
            }
        }
    };
    space.parameters.iter().map(coordinate).collect()
}

/// Splits a node at the best threshold of a random subset of the parameters, or makes it a leaf.
fn grow(
    sample: Vec<&(Vec<f64>, f64)>,
    bounds: Vec<(f64, f64)>,
    depth: usize,
    draws: &mut Draws,
    leaves: &mut Vec<Leaf>,
) {
    let split = if depth < DEPTH && sample.len() >= SPLIT { best_split(&sample, bounds.len(), draws) } else { None };
    let Some((dimension, threshold)) = split else {
        let prediction = sample.iter().map(|s| s.1).sum::<f64>() / sample.len() as f64;
        leaves.push(Leaf { prediction, bounds });
        return;
    };
    let (below, above): (Vec<_>, Vec<_>) = sample.into_iter().partition(|s| s.0[dimension] < threshold);
    let (mut left, mut right) = (bounds.clone(), bounds);
    left[dimension].1 = threshold;
    right[dimension].0 = threshold;
    grow(below, left, depth + 1, draws, leaves);
    grow(above, right, depth + 1, draws, leaves);
}

/// The parameter and threshold that leave the smallest sum of squares, of five sixths of the parameters.
fn best_split(sample: &[&(Vec<f64>, f64)], dimensions: usize, draws: &mut Draws) -> Option<(usize, f64)> {
    let mut candidates: Vec<usize> = (0..dimensions).collect();
    for _ in 0..dimensions / 6 {
        candidates.remove(draws.below(candidates.len()));
    }
    let mut best: Option<(f64, usize, f64)> = None;
    for dimension in candidates {
        let mut sorted: Vec<(f64, f64)> = sample.iter().map(|s| (s.0[dimension], s.1)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let total: f64 = sorted.iter().map(|s| s.1).sum();
        let mut sum = 0.0;
        for (index, pair) in sorted.windows(2).enumerate() {
            sum += pair[0].1;
            let (left, right) = ((index + 1) as f64, (sorted.len() - index - 1) as f64);
            // Larger is better: the sum of squares of the two means.
            let gain = sum * sum / left + (total - sum) * (total - sum) / right;
            if pair[0].0 < pair[1].0 && best.is_none_or(|(highest, ..)| gain > highest) {
                best = Some((gain, dimension, f64::midpoint(pair[0].0, pair[1].0)));
            }
        }
    }
    best.map(|(_, dimension, threshold)| (dimension, threshold))
}

/// Volume of a leaf's box, without the side of one dimension.
fn volume(leaf: &Leaf, without: Option<usize>) -> f64 {
    let sides = leaf.bounds.iter().enumerate().filter(|(dimension, _)| Some(*dimension) != without);
    sides.map(|(_, (low, high))| high - low).product()
}

/// Variance of the mean prediction as a function of one parameter.
fn marginal_variance(leaves: &[Leaf], dimension: usize, mean: f64) -> f64 {
    let mut edges: Vec<f64> =
        leaves.iter().flat_map(|leaf| [leaf.bounds[dimension].0, leaf.bounds[dimension].1]).collect();
    edges.sort_by(f64::total_cmp);
    edges.dedup();
    let interval = |pair: &[f64]| {
        let covers = |leaf: &&Leaf| leaf.bounds[dimension].0 <= pair[0] && pair[1] <= leaf.bounds[dimension].1;
        let marginal: f64 = leaves.iter().filter(covers).map(|l| l.prediction * volume(l, Some(dimension))).sum();
        (marginal - mean) * (marginal - mean) * (pair[1] - pair[0])
    };
    edges.windows(2).map(interval).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Domain, Scale, Value};

    fn observations(count: u32, loss: impl Fn(&[f64]) -> f64) -> (Space, Vec<Observation>) {
        let parameter = |name| Parameter::new(name, Domain::Float { low: 0.0, high: 1.0, scale: Scale::Linear });
        let space = Space { parameters: ["a", "b", "c"].map(parameter).to_vec(), ..Space::default() };
        let mut draws = Draws::new(5, 0, 0, Purpose::Uniform);
        let observed = (0..count).filter_map(|_| space.draw(&mut draws)).map(|point| {
            let x: Vec<f64> = point.values().filter_map(Value::number).collect();
            Observation { loss: Loss::Final(loss(&x)), point }
        });
        let observed = observed.collect();
        (space, observed)
    }

    #[test]
    fn shares_of_an_additive_function_are_those_of_its_variances() {
        // Variances of 3 a and 1 b: 9 to 1.
        let (space, observed) = observations(300, |x| 3.0 * x[0] + x[1]);
        let shares = importance(&space, &observed, 1).unwrap();
        assert!((shares[0] - 0.9).abs() < 0.05 && (shares[1] - 0.1).abs() < 0.05 && shares[2] < 0.02, "{shares:?}");
        assert_eq!(importance(&space, &observed, 1), Some(shares));
    }

    #[test]
    fn an_interaction_belongs_to_no_single_parameter() {
        let (space, observed) = observations(300, |x| (x[0] - 0.5) * (x[1] - 0.5));
        assert!(importance(&space, &observed, 1).unwrap().iter().sum::<f64>() < 0.35);
        assert_eq!(importance(&space, &observed[..3], 1), None);
        let (space, equal) = observations(20, |_| 1.0);
        assert_eq!(importance(&space, &equal, 1), None);
    }
}
