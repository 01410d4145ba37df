//! The winner of a search, and the trials that are handed on to the next stage.

use crate::history::{Goal, Trial};
use crate::pareto;
use crate::space::Point;

/// A trial that was repeated with several seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Finalist {
    /// Number of the trial.
    pub number: u32,
    /// Losses by seed, the same seeds for all finalists; smaller is better.
    pub losses: Vec<f64>,
    /// What a complete training with these settings costs, in any unit: of equals, the cheaper wins.
    pub cost: f64,
}

/// Numbers of the best `count` complete trials, best first; of equal trials the older first. With several objectives,
/// the non-dominated ones come first.
pub fn best(trials: &[Trial], goals: &[Goal], count: usize) -> Vec<u32> {
    let complete: Vec<(u32, Vec<f64>)> =
        trials.iter().filter_map(|trial| trial.losses(goals).map(|losses| (trial.number, losses))).collect();
    let losses: Vec<Vec<f64>> = complete.iter().map(|(_, losses)| losses.clone()).collect();
    let order = match goals {
        [_] => losses.iter().map(|losses| losses[0]).collect(),
        _ => pareto::order(&losses),
    };
    let mut ranked: Vec<(f64, u32)> =
        order.into_iter().zip(&complete).map(|(order, (number, _))| (order, *number)).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ranked.into_iter().take(count).map(|(_, number)| number).collect()
}

/// Numbers of the trials that no other trial dominates, ascending.
pub fn pareto_set(trials: &[Trial], goals: &[Goal]) -> Vec<u32> {
    let complete: Vec<(u32, Vec<f64>)> =
        trials.iter().filter_map(|trial| trial.losses(goals).map(|losses| (trial.number, losses))).collect();
    let losses: Vec<Vec<f64>> = complete.iter().map(|(_, losses)| losses.clone()).collect();
    let mut numbers: Vec<u32> = pareto::front(&losses).into_iter().map(|index| complete[index].0).collect();
    numbers.sort_unstable();
    numbers
}

/// The points of the trials in `numbers`, to begin the next stage with.
pub fn points(trials: &[Trial], numbers: &[u32]) -> Vec<Point> {
    let point = |number: &u32| trials.iter().find(|trial| trial.number == *number).map(|trial| trial.point.clone());
    numbers.iter().filter_map(point).collect()
}

/// The number of the winner: of the finalists that are not worse than the one with the smallest mean loss, the
/// cheapest; of those, the one with the smaller mean; `None` without finalists.
///
/// `worse` is the statistical test: whether differences of losses by seed, of a finalist to the best, are above zero by
/// more than their noise.
pub fn winner(finalists: &[Finalist], worse: impl Fn(&[f64]) -> bool) -> Option<u32> {
    let mean = |finalist: &Finalist| finalist.losses.iter().sum::<f64>() / finalist.losses.len() as f64;
    let finite: Vec<&Finalist> = finalists.iter().filter(|finalist| mean(finalist).is_finite()).collect();
    let best = finite.iter().min_by(|a, b| mean(a).total_cmp(&mean(b)).then(a.number.cmp(&b.number)))?;
    let tied = |finalist: &&&Finalist| {
        let differences: Vec<f64> = finalist.losses.iter().zip(&best.losses).map(|(a, b)| a - b).collect();
        finalist.number == best.number || !worse(&differences)
    };
    finite
        .iter()
        .filter(tied)
        .min_by(|a, b| a.cost.total_cmp(&b.cost).then(mean(a).total_cmp(&mean(b))).then(a.number.cmp(&b.number)))
        .map(|finalist| finalist.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::State;
    use statrs::distribution::{ContinuousCDF, StudentsT};

    /// A one-sided t test at 5 %.
    fn worse(differences: &[f64]) -> bool {
        let count = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / count;
        let variance = differences.iter().map(|d| (d - mean) * (d - mean)).sum::<f64>() / (count - 1.0);
        mean > StudentsT::new(0.0, 1.0, count - 1.0).unwrap().inverse_cdf(0.95) * (variance / count).sqrt()
    }

    #[test]
    fn a_difference_within_the_noise_is_a_tie_and_the_cheaper_wins() {
        let finalist = |number, losses: [f64; 3], cost| Finalist { number, losses: losses.to_vec(), cost };
        let best = finalist(4, [0.50, 0.54, 0.52], 10.0);
        let tied = finalist(7, [0.52, 0.53, 0.52], 3.0);
        let cheap = finalist(9, [0.60, 0.64, 0.63], 1.0);
        let broken = finalist(1, [f64::NAN, 0.1, 0.1], 0.1);
        assert_eq!(winner(&[cheap.clone(), tied, best.clone(), broken.clone()], worse), Some(7));
        assert_eq!(winner(&[cheap, best], worse), Some(4));
        assert_eq!(winner(&[broken], worse), None);
    }

    #[test]
    fn best_trials_by_one_and_by_two_objectives() {
        let complete = |number, values: &[f64]| Trial {
            state: State::Complete,
            values: values.to_vec(),
            ..Trial::new(number, Point::from([("n".to_owned(), crate::space::Value::Int(i64::from(number)))]), 1)
        };
        let trials = [complete(0, &[3.0]), complete(1, &[1.0]), Trial::new(2, Point::new(), 1), complete(3, &[1.0])];
        assert_eq!(best(&trials, &[Goal::Minimize], 2), [1, 3]);
        assert_eq!(best(&trials, &[Goal::Maximize], 9), [0, 1, 3]);
        let trials = [complete(0, &[1.0, 9.0]), complete(1, &[2.0, 5.0]), complete(2, &[3.0, 10.0])];
        let goals = [Goal::Minimize, Goal::Maximize];
        assert_eq!(pareto_set(&trials, &goals), [0, 2]);
        assert_eq!(best(&trials, &goals, 3)[2], 1);
        assert_eq!(points(&trials, &[2]), [trials[2].point.clone()]);
    }
}
