//! Bounds on the regret of the samplers, in seconds: TPE and GP against random points with as many trials. The
//! comparison with Optuna is `tests/search/compare`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_search::sampler::Sampler;
use pawl_search_tests::functions::{ALL, Function, named};
use pawl_search_tests::minimize::{epochs_to, minimize, regret};

const SEEDS: u64 = 5;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn regrets(function: &Function, sampler: Sampler, trials: u32) -> Vec<f64> {
    (0..SEEDS).map(|seed| regret(function, &minimize(function, sampler, seed, trials))).collect()
}

#[test]
fn no_loss_is_below_the_minimum_of_its_function() {
    for function in ALL {
        let lowest = regrets(&function, Sampler::Sobol, 200).into_iter().fold(f64::INFINITY, f64::min);
        assert!(lowest >= 0.0, "{}: {lowest}", function.name);
    }
}

#[test]
fn tpe_needs_fewer_trials_than_random_points() {
    let wins = ALL.into_iter().filter(|function| {
        let (tpe, random) =
            (median(regrets(function, Sampler::Tpe, 60)), median(regrets(function, Sampler::Random, 120)));
        println!("{}: TPE {tpe:.3}, random with twice the trials {random:.3}", function.name);
        tpe < random
    });
    let wins = wins.count();
    assert!(wins >= 10, "better on {wins} of 12");
}

#[test]
fn gp_finds_smooth_minima_in_40_trials() {
    for (name, most) in [("branin", 0.01), ("camel", 0.1), ("hartmann3", 0.01), ("hartmann6", 0.6)] {
        let regret = median(regrets(&named(name).unwrap(), Sampler::Gp, 40));
        assert!(regret < most, "{name}: {regret}");
    }
}

#[test]
fn asha_finds_a_good_training_in_the_epochs_of_a_few_complete_ones() {
    // The best complete loss of 20 random trials of 81 epochs each is about 0.3.
    let epochs = median((0..SEEDS).map(|seed| f64::from(epochs_to(seed, 0.25, 5000))).collect());
    assert!(epochs < 600.0, "{epochs} epochs");
}
