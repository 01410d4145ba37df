//! The gate on quality through `decide`.

use super::noise::Random;
use super::shell::{Shell, active, done};
use super::{AtLeast, AtMost, Rows};
use pawl_contract::measured::Validation;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use serde_json::json;
use std::collections::BTreeMap;

/// What the gate allows.
const MARGIN: f64 = 0.01;

/// A phase whose validation loss is higher by `regression` margins, in launches with noise of `noise` margins in the
/// difference of two.
struct Case {
    regression: f64,
    noise: f64,
    seeds: u64,
    /// Margins by which the loss of the baseline falls in a launch.
    learnt: f64,
    /// Share of that which the phase learns.
    learns: f64,
}

const TRAINED: Case = Case { regression: 1.0, noise: 0.3, seeds: 3, learnt: 50.0, learns: 1.0 };

fn verdict(case: &Case, sample: u64) -> &'static str {
    let &Case { regression, noise, seeds, learnt, learns } = case;
    let mut random = Random::seeded(sample);
    let trainer = move |plan: &LaunchPlan| {
        let changed = active(plan).next().is_some();
        let falls = learnt * if changed { learns } else { 1.0 };
        let noise = noise * std::f64::consts::FRAC_1_SQRT_2 * random.normal();
        let loss = 3.0 + MARGIN * (noise - falls + if changed { regression } else { 0.0 });
        let mut result = done(plan, if changed { 130.0 } else { 100.0 }, loss);
        if plan.kind == LaunchKind::Quality {
            let metrics = BTreeMap::from([("loss".to_owned(), 3.0)]);
            result.measured.first_validation = Some(Validation { items: 0, metrics });
        }
        result
    };
    let seeds: Vec<u64> = (42..42 + seeds).collect();
    let phase = json!({"name": "p0", "numerics": "Changed", "settings": {"workload": {"p0": 1}}});
    let spec = json!({"phases": [phase], "gates": {"validationLossDelta": MARGIN.to_string()}, "seeds": seeds,
        "analysis": {"qualityItems": 64_000}});
    let mut shell = Shell::new(spec, Box::new(trainer));
    shell.run().verdict()
}

pub(super) fn rows(rows: &mut Rows) {
    for noise in [0.3, 1.0, 3.0] {
        let tally = rows.tally(600, |sample| verdict(&Case { noise, ..TRAINED }, sample));
        let case = format!("job with 3 seeds, exactly at the limit, noise {noise}");
        rows.add(tally.row(case.clone(), "accepted", AtMost(5.0)));
        rows.add(tally.row(case, "rolled back", AtMost(5.0)));
        let tally = rows.tally(600, |sample| verdict(&Case { noise, regression: 0.0, ..TRAINED }, sample));
        rows.add(tally.row(format!("job with 3 seeds, no regression, noise {noise}"), "rolled back", AtMost(5.0)));
    }
    let harmless = rows.tally(400, |sample| verdict(&Case { noise: 0.1, regression: 0.0, ..TRAINED }, sample));
    rows.add(harmless.row("job with 3 seeds, no regression, noise 0.1", "accepted", AtLeast(99.0)));
    // The loss of the baseline has hardly fallen, so that a phase that learns nothing is within the limit.
    for noise in [0.0, 0.1, 0.3] {
        let untrained = Case { regression: 0.0, noise, seeds: 3, learnt: 0.9, learns: 0.0 };
        let tally = rows.tally(400, |sample| verdict(&untrained, sample));
        rows.add(tally.row(format!("an untrained model, noise {noise}"), "accepted", AtMost(0.0)));
    }
    let learns_nothing = Case { regression: 0.0, learns: 0.0, ..TRAINED };
    let tally = rows.tally(200, |sample| verdict(&learns_nothing, sample));
    rows.add(tally.row("a phase that learns nothing", "rolled back", AtLeast(99.0)));
}
