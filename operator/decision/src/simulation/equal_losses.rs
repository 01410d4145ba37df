//! Phases that declare `numerics: Equivalent` through `decide`: by their losses, else by the gate on quality.

use super::noise::Random;
use super::shell::{Shell, active, done};
use super::{AtLeast, AtMost, Rows};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use serde_json::json;
use std::collections::BTreeMap;

/// The verdict on a phase whose losses are higher by the share `worse`, with a difference of this standard deviation by
/// rounding in the later half of a launch. Launches with equal seeds and settings repeat exactly.
fn verdict(noise: f64, worse: f64, sample: u64) -> &'static str {
    let mut random = Random::seeded(sample);
    let mut known: BTreeMap<u64, f64> = BTreeMap::new();
    let trainer = move |plan: &LaunchPlan| {
        let changed = active(plan).next().is_some();
        let by_rounding = noise * *known.entry(plan.seed).or_insert_with(|| random.normal());
        let by = if changed { 1.0 + worse + by_rounding } else { 1.0 };
        let mut result = done(plan, if changed { 130.0 } else { 100.0 }, 8.0 * by);
        if plan.kind == LaunchKind::Measure {
            // The difference grows from a tenth of it in the first quarter.
            let grown = |share: f64| if changed { 1.0 + worse + share * by_rounding } else { 1.0 };
            result.curve = vec![10.0 * grown(0.1), 9.0 * grown(0.5), 8.5 * grown(1.0), 8.0 * grown(1.0)];
        }
        result
    };
    let phase = json!({"name": "p0", "settings": {"workload": {"p0": 1}}});
    let spec = json!({"phases": [phase], "seeds": [42, 43, 44], "analysis": {"qualityItems": 64_000}});
    Shell::new(spec, Box::new(trainer)).run().verdict()
}

pub(super) fn rows(rows: &mut Rows) {
    for noise in [0.001, 0.004, 0.01] {
        let case = |what: &str| format!("job with 3 seeds, {what}; launches differ by {} %", noise * 100.0);
        let rounding = rows.tally(400, |sample| verdict(noise, 0.0, sample));
        if noise < 0.01 {
            rows.add(rounding.row(case("only rounding"), "accepted", AtLeast(if noise < 0.004 { 99.0 } else { 80.0 })));
        }
        rows.add(rounding.row(case("only rounding"), "rolled back", AtMost(5.0)));
        let worse = rows.tally(400, |sample| verdict(noise, 0.02, sample));
        rows.add(worse.row(case("2 % worse"), "accepted", AtMost(5.0)));
    }
}
