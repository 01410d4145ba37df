//! Simulations of the gates on quality, with their standard errors.

use super::super::sequential::tests::Noise;
use super::*;

fn gates(json: serde_json::Value) -> Gates {
    serde_json::from_value(json).unwrap()
}

/// What became of simulated phases.
#[derive(Debug, Default)]
struct Simulated {
    /// Share that passes.
    passed: f64,
    /// Share that is rolled back because of its quality.
    failed: f64,
    /// Mean of the items trained, in launches of full length.
    cost: f64,
}

/// A simulation of a gate whose limit is 1.
struct Simulation {
    regression: f64,
    noise: f64,
    seeds: usize,
    looks: u32,
    metrics: usize,
}

impl Simulation {
    const TRIALS: u32 = 50_000;
    /// Three standard errors of a share of 5 %: dozens of shares are compared with it.
    const ERROR: f64 = 0.0029;

    /// Regressions of each metric and seed along their curves, with a true regression and noise, of which half is the seed's own in
    /// all looks.
    fn run(&self) -> Simulated {
        let &Self { regression, noise, seeds, looks, metrics } = self;
        let analysis = Analysis { quality_looks: looks, ..Analysis::default() };
        let mut random = Noise::seeded(42);
        let mut own = || noise * std::f64::consts::FRAC_1_SQRT_2 * random.normal();
        let gate = gates(serde_json::json!({"validationLossDelta": "1"}));
        let criteria: Vec<Requirement<'_>> = (0..metrics).flat_map(|_| criteria(&gate)).collect();
        let (mut found, mut cost) = (Simulated::default(), 0.0);
        for _ in 0..Self::TRIALS {
            let each: Vec<Vec<f64>> = (0..metrics).map(|_| (0..seeds).map(|_| own()).collect()).collect();
            let mut before = Early::Unclear;
            for look in 0..looks {
                cost += 0.25f64.powi((looks - 1 - look) as i32);
                let error = error(&analysis, look, looks);
                let band = Band::at_most(1.0);
                let values = each.iter().map(|seeds| seeds.iter().map(|seed| regression + seed + own()).collect());
                let values: Vec<Vec<f64>> = values.collect();
                let judged: Vec<Judged> = values
                    .iter()
                    .map(|values| Judged {
                        band,
                        interval: interval(values, error),
                        to_fail: interval(values, error / metrics as f64),
                    })
                    .collect();
                let result = if look + 1 < looks { before.and(early(&judged)) } else { Early::Unclear };
                if look + 1 < looks && result == Early::Unclear {
                    before = early(&judged);
                    continue;
                }
                match verdict(&criteria, &judged) {
                    None => found.passed += 1.0,
                    Some(Verdict::Fails { .. }) => found.failed += 1.0,
                    Some(_) => {}
                }
                break;
            }
        }
        let share = |count: f64| count / f64::from(Self::TRIALS);
        let found = Simulated { passed: share(found.passed), failed: share(found.failed), cost: share(cost) };
        let error = |p: f64| 100.0 * (p * (1.0 - p) / f64::from(Self::TRIALS)).sqrt();
        println!(
            "{seeds} seeds, {looks} looks, {metrics} metrics, true regression {regression} of the limit, noise {noise}: passed {:.2} % \
             (standard error {:.2}), failed {:.2} % ({:.2}), trained {:.1} %",
            found.passed * 100.0,
            error(found.passed),
            found.failed * 100.0,
            error(found.failed),
            found.cost * 100.0
        );
        found
    }
}

/// Three seeds and one metric.
fn passed(regression: f64, noise: f64, looks: u32) -> (f64, f64) {
    let Simulated { passed, cost, .. } = Simulation { regression, noise, looks, seeds: 3, metrics: 1 }.run();
    (passed, cost)
}

#[test]
fn a_failed_gate_has_its_error_controlled() {
    let most = 0.05 + Simulation::ERROR;
    for (seeds, metrics) in [(2, 1), (3, 1), (3, 3), (7, 1), (7, 3)] {
        for noise in [0.3, 1.0, 3.0] {
            let run = |regression| Simulation { regression, noise, looks: 1, seeds, metrics }.run();
            assert!(run(0.0).failed <= most, "a phase without regression is told that it hurts");
            let limit = run(1.0);
            assert!(limit.passed <= most && limit.failed <= most, "at the limit neither is known: {limit:?}");
        }
    }
    for looks in [3, 5] {
        let found = Simulation { regression: 1.0, noise: 0.5, looks, seeds: 3, metrics: 3 }.run();
        assert!(found.failed <= most && found.passed <= most, "{looks} looks: {found:?}");
    }
    let worse = Simulation { regression: 3.0, noise: 0.3, looks: 1, seeds: 3, metrics: 1 }.run();
    assert!(worse.failed > 0.95, "a clear regression is still found: {worse:?}");
}

#[test]
fn one_seed_is_judged_by_its_estimate() {
    let found = Simulation { regression: 1.0, noise: 0.5, looks: 1, seeds: 1, metrics: 1 }.run();
    assert!((found.passed - 0.5).abs() < 0.02, "that is why the examples have three seeds: {found:?}");
}

#[test]
fn looks_keep_the_error_rate_and_train_less() {
    for looks in 1..=5 {
        for noise in [0.05, 0.2, 0.5] {
            assert!(passed(1.0, noise, looks).0 <= 0.05 + Simulation::ERROR, "false passes at the limit");
        }
    }
    let ((complete, _), (share, cost)) = (passed(0.0, 0.05, 1), passed(0.0, 0.05, 4));
    assert!(complete > 0.99 && share > 0.99 && cost < 0.15, "a phase without regression: {share}, {cost}");
    let (share, cost) = passed(3.0, 0.05, 4);
    assert!(share < 0.001 && cost < 0.15, "a large regression: {share}, {cost}");
    let (share, cost) = passed(0.0, 1.0, 4);
    assert!(share < 0.5 && cost > 1.0, "noise as large as the limit is looked at to the end: {share}, {cost}");
}

#[test]
fn the_looks_spend_the_error_and_no_more() {
    let analysis = Analysis::default();
    for looks in 1..=5 {
        let spent: f64 = (0..looks).map(|look| error(&analysis, look, looks)).sum();
        assert!((spent - alpha(&analysis)).abs() < 1e-12, "{looks} looks spend {spent}");
    }
}
