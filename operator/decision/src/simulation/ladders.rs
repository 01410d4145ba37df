//! Ladders and phases through `decide`.

use super::noise::{CLEAN, FEW_SLOW, HEAVY, MODELS, Machine, Noise, TWO_STATES};
use super::shell::{Shell, active, done, phase};
use super::{AtLeast, AtMost, Rows, Shown};
use pawl_api::status::PhaseState;
use serde_json::{Value, json};

/// Ten phases without any effect.
const PHASES: usize = 10;

/// A ladder of phases, each of which is faster by its factor.
fn ladder<'t>(noise: Noise, effects: &[f64], sample: u64) -> Shell<'t> {
    let mut machine = Machine::new(noise, sample);
    let phases: Vec<Value> = (0..effects.len()).map(phase).collect();
    let effects = effects.to_vec();
    let trainer = move |plan: &_| {
        let effect: f64 = active(plan).map(|index| effects[index]).product();
        done(plan, 100.0 * effect * machine.launch(), 1.0)
    };
    // The names of the tasks seed the order within pairs.
    let spec = json!({"phases": phases, "settings": {"batchPerGpu": 8 + sample % 64}});
    let mut shell = Shell::new(spec, Box::new(trainer));
    shell.run();
    shell
}

pub(super) fn rows(rows: &mut Rows) {
    for (name, noise) in MODELS {
        let tally = rows.tally(60, |sample| match ladder(noise, &[1.0; PHASES], sample).count(PhaseState::Accepted) {
            0 => "nothing",
            _ => "accepted something",
        });
        rows.add(tally.row(format!("ten phases without effect; {name}"), "accepted something", AtMost(5.0)));
    }
}

/// The verdict on one phase.
fn verdict(noise: Noise, effect: f64, sample: u64) -> &'static str {
    ladder(noise, &[effect], sample).verdict()
}

pub(super) fn power(rows: &mut Rows) {
    for effect in [1.05, 1.1] {
        let of = |rows: &Rows, noise| rows.tally(1_000, |sample| verdict(noise, effect, sample));
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
    confirmed(rows);
}

/// What became of phase `index` of a ladder of phases with these effects: with several, the accepted ones are confirmed
/// by pairs of their own.
fn verdict_in(noise: Noise, effects: &[f64], index: usize, sample: u64) -> &'static str {
    let state = ladder(noise, effects, sample).status.phases[index].state;
    if state == PhaseState::Accepted {
        "accepted"
    } else if state == PhaseState::RolledBack {
        "rolled back"
    } else {
        "inconclusive"
    }
}

/// The power of ladders of several phases.
fn confirmed(rows: &mut Rows) {
    let few_slow = "5 % of the launches half as fast";
    for (name, noise, effect, samples, holds) in [
        ("normal, 1 %", CLEAN, 1.05, 100, AtLeast(99.0)),
        ("Student's t, 2 degrees of freedom, quartiles of 1 %", HEAVY, 1.1, 100, AtLeast(89.8)),
        (few_slow, FEW_SLOW, 1.1, 200, AtLeast(89.8)),
        ("two states 20 % apart, at random", TWO_STATES, 1.1, 100, Shown),
    ] {
        let tally = rows.tally(samples, |sample| verdict_in(noise, &[effect; 3], sample as usize % 3, sample));
        let case = format!("one of three phases of true {effect}, minSpeedup 1.02; {name}");
        rows.add(tally.row(case.clone(), "accepted", holds));
        rows.add(tally.row(case, "rolled back", AtMost(5.0)));
    }
    // What is accepted alone is confirmed by its own effect alone. Two slow launches of one arm look like what its
    // settings do: of 5 % it costs 3 to 4 percent of the phases. More than 91 % remain, with the sign test: within a
    // tenth of the clean case.
    for (effect, samples, holds) in [(1.05, 300, Shown), (1.1, 200, AtLeast(89.8))] {
        let tally = rows.tally(samples, |sample| verdict_in(FEW_SLOW, &[1.0, effect], 1, sample));
        let case = format!("the only one of two phases with an effect, true {effect}, minSpeedup 1.02; {few_slow}");
        rows.add(tally.row(case.clone(), "accepted", holds));
        rows.add(tally.row(case, "rolled back", AtMost(5.0)));
    }
}
