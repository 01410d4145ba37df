//! Which settings a search replaces: by evidence that had no part in choosing them.

use crate::search::{of_search, rate, stage, trained};
use crate::world::{Trainer, World, done, ended};
use pawl_api::status::Stage;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};

/// A standard normal number by the launch and the repetition.
fn normal(plan: &LaunchPlan, repetition: u64) -> f64 {
    let mut state = plan.launch.bytes().fold(repetition.wrapping_mul(0x9e37_79b9_7f4a_7c15), |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    };
    let (radius, angle) = ((-2.0 * (1.0 - uniform()).ln()).sqrt(), std::f64::consts::TAU * uniform());
    radius * angle.cos()
}

/// Loss 1 with noise of 0.01 between launches, and `gain` less where the learning rate is below 1e-3.
fn noisy(gain: f64, repetition: u64) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, 100.0 * (1.0 + 0.03 * normal(plan, !repetition)));
        let better = if rate(plan) < 1e-3 { gain } else { 0.0 };
        let loss = 1.0 - better + 0.01 * normal(plan, repetition);
        result.measured.validation.as_mut().unwrap().metrics.insert("loss".to_owned(), loss);
        result
    })
}

/// Number of searches of `count` that replace the accepted settings, and mean of the improvement that they report.
fn replaced(changes: &Value, seeds: &Value, gain: f64, count: u64) -> (u64, f64) {
    let (mut replaced, mut improvement) = (0, 0.0);
    for repetition in 0..count {
        let job = json!({
            "settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "seeds": seeds, "train": {"items": 1000},
            "search": [stage(changes.clone())]});
        let mut world = World::new(job, noisy(gain, repetition));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete);
        let search = &world.status.search[0];
        if world.status.effective_settings.as_ref() != Some(&world.job.spec.settings) {
            replaced += 1;
            let compared = search.comparison.as_ref().unwrap();
            let mean = |values: &[pawl_contract::decimal::Decimal]| {
                values.iter().map(|value| value.value()).sum::<f64>() / values.len() as f64
            };
            improvement += mean(&compared.accepted.values) - mean(&compared.candidate.values);
        }
    }
    (replaced, improvement / replaced.max(1) as f64)
}

#[test]
fn noise_replaces_the_accepted_settings_in_one_of_twenty_at_most() {
    const COUNT: u64 = 300;
    for seeds in [json!([42]), json!([42, 43, 44]), json!([42, 43, 44, 45, 46])] {
        let (replaced, _) = replaced(&json!({"trials": 12}), &seeds, 0.0, COUNT);
        let rate = replaced as f64 / COUNT as f64;
        let error = (0.05_f64 * 0.95 / COUNT as f64).sqrt();
        println!("seeds {seeds}: {:.1} % +- {:.1} replaced", 100.0 * rate, 100.0 * error);
        assert!(rate <= 0.05 + 2.0 * error, "{seeds}: {replaced} of {COUNT}");
    }
}

#[test]
fn what_is_better_replaces_them_and_its_improvement_is_not_exaggerated() {
    const COUNT: u64 = 60;
    for (seeds, gain, least) in [(json!([42, 43, 44]), 0.1, 0.9), (json!([42, 43, 44, 45, 46]), 0.04, 0.8)] {
        let (replaced, improvement) = replaced(&json!({"trials": 12}), &seeds, gain, COUNT);
        let rate = replaced as f64 / COUNT as f64;
        println!("seeds {seeds}, gain {gain}: {:.0} % replaced, improvement {improvement:.4}", 100.0 * rate);
        assert!(rate >= least, "{seeds}: {replaced} of {COUNT}");
        // Those that are replaced are the lucky ones, by a little.
        assert!((improvement - gain).abs() < 0.004, "{improvement} instead of {gain}");
    }
}

#[test]
fn several_stages_are_compared_with_the_settings_before_the_first() {
    let first = stage(json!({"name": "first", "trials": 6, "handOn": 2}));
    let second = stage(json!({"name": "second", "trials": 6}));
    let job = |gain: f64| {
        let spec = json!({
            "settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "search": [first.clone(), second.clone()],
            "train": {"items": 1000}});
        let mut world = World::new(spec, noisy(gain, 3));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
        world
    };
    let world = job(0.0);
    assert_eq!(
        world.status.effective_settings.as_ref(),
        Some(&world.job.spec.settings),
        "{:?}",
        world.status.search[1]
    );
    assert_eq!(rate(world.ran.last().unwrap()), 0.1);
    assert!(world.status.search[1].message.contains("the accepted settings are kept"));
    let world = job(0.2);
    assert!(rate(world.ran.last().unwrap()) < 1e-3, "{}", world.status.search[1].message);
    let accepted = of_search(&world).into_iter().filter(|plan| plan.launch.contains("-compared-") && rate(plan) == 0.1);
    assert_eq!(accepted.count(), 3);
}

#[test]
fn accepted_settings_that_cannot_be_trained_need_no_comparison_and_a_failed_one_keeps_them() {
    let world = |broken: fn(&LaunchPlan) -> bool| {
        let spec = json!({"settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "train": {"items": 1000},
            "search": [stage(json!({"trials": 8}))]});
        let trainer = move |plan: &LaunchPlan, _| -> LaunchResult {
            match plan.kind == LaunchKind::Search && broken(plan) {
                true => ended(plan, Outcome::NonFinite),
                false => trained(plan),
            }
        };
        let mut world = World::new(spec, Box::new(trainer));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete);
        world
    };
    let diverges = world(|plan| rate(plan) == 0.1);
    assert!(rate(diverges.ran.last().unwrap()) < 0.1 && diverges.status.search[0].comparison.is_none());
    let fails = world(|plan| plan.launch.contains("-compared-") && rate(plan) != 0.1);
    assert_eq!(rate(fails.ran.last().unwrap()), 0.1, "{}", fails.status.search[0].message);
}

#[test]
fn a_budget_leaves_room_for_the_comparison() {
    // A launch takes a hundredth of an hour.
    let changes = json!({"trials": 60, "sampler": "TPE", "finalists": 1, "budget": {"gpuHours": "0.3"}});
    let spec = json!({"settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "search": [stage(changes)]});
    let mut world = World::new(spec, Box::new(|plan, _| trained(plan)));
    world.run();
    let search = &world.status.search[0];
    assert_eq!(search.reason, "BudgetSpent");
    assert_eq!(search.comparison.as_ref().unwrap().candidate.values.len(), 3, "{}", search.message);
    assert!(of_search(&world).len() <= 31 && search.winner.as_ref().unwrap().trial != 0, "{}", search.message);
}
