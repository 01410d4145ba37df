//! Ladders and phases through `decide`.

use super::noise::{CLEAN, FEW_SLOW, HEAVY, MODELS, Machine, Noise, TWO_STATES};
use super::shell::{Shell, active, done, phase};
use super::{AtLeast, AtMost, Rows, Shown};
use pawl_api::status::PhaseState;
use serde_json::{Value, json};

/// Ten phases without any effect.
const PHASES: usize = 10;

/// A ladder of phases, each of which is faster by the factor `effect`.
fn ladder<'t>(noise: Noise, effect: f64, phases: usize, trial: u64) -> Shell<'t> {
    let mut machine = Machine::new(noise, trial);
    let phases: Vec<Value> = (0..phases).map(phase).collect();
    let trainer = move |plan: &_| done(plan, 100.0 * effect.powi(active(plan) as i32) * machine.launch(), 1.0);
    // The names of the trials seed the order within pairs.
    let spec = json!({"phases": phases, "settings": {"batchPerGpu": 8 + trial % 64}});
    let mut shell = Shell::new(spec, Box::new(trainer));
    shell.run();
    shell
}

pub(super) fn rows(rows: &mut Rows) {
    for (name, noise) in MODELS {
        let tally = rows.tally(60, |trial| match ladder(noise, 1.0, PHASES, trial).count(PhaseState::Accepted) {
            0 => "nothing",
            _ => "accepted something",
        });
        rows.add(tally.row(format!("ten phases without effect; {name}"), "accepted something", AtMost(5.0)));
    }
}

/// The verdict on one phase.
fn verdict(noise: Noise, effect: f64, trial: u64) -> &'static str {
    ladder(noise, effect, 1, trial).verdict()
}

pub(super) fn power(rows: &mut Rows) {
    for effect in [1.05, 1.1] {
        let of = |rows: &Rows, noise| rows.tally(1_000, |trial| verdict(noise, effect, trial));
        let case = |name: &str| format!("true {effect}, minSpeedup 1.02; {name}");
        rows.add(of(rows, CLEAN).row(case("normal, 1 %"), "accepted", AtLeast(99.0)));
        // Within a tenth of the clean case, where the t test of seven pairs can be.
        let heavy = if effect > 1.05 { AtLeast(89.8) } else { Shown };
        for (name, noise, holds) in [
            ("Student's t, 2 degrees of freedom, quartiles of 1 %", HEAVY, heavy),
            ("5 % of the launches half as fast", FEW_SLOW, AtLeast(89.8)),
            ("two states 20 % apart, at random", TWO_STATES, Shown),
        ] {
            let tally = of(rows, noise);
            rows.add(tally.row(case(name), "accepted", holds));
            rows.add(tally.row(case(name), "rolled back", AtMost(5.0)));
        }
    }
}
