//! Phases that declare `numerics: Equivalent`.

use super::{candidate, candidate_is, metric, one_phase};
use crate::world::{Trainer, World, done, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use serde_json::json;

#[test]
fn the_declaration_of_equivalent_numerics_is_verified() {
    let mut world = one_phase(
        json!({}),
        candidate_is(|result, _| result.measured.loss = result.measured.loss.map(|loss| loss * 1.05)),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    assert!(world.phase("fuse").message.contains("numerics: Changed"));
    // Rounding is no divergence.
    let mut world = one_phase(
        json!({}),
        candidate_is(|result, _| result.measured.loss = result.measured.loss.map(|loss| loss * 1.0005)),
    );
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
}

/// Trained by a script: its loss after a quarter of the launch and so on, which the seed moves.
fn with_curve(result: &mut LaunchResult, plan: &LaunchPlan, factor: f64) {
    if plan.kind == LaunchKind::Measure {
        let by_seed = 1.0 + 0.1 * f64::from(plan.seed as u32 % 3);
        result.curve = [10.0, 9.0, 8.5, 8.2].map(|loss| loss * by_seed * factor).to_vec();
        result.measured.loss = result.curve.last().copied();
    }
}

/// A trainer whose candidate is 1.3 times faster and has training losses that differ by the factor of its seed.
fn losses_are(factors: [f64; 3], change: impl Fn(&mut LaunchResult, &LaunchPlan) + 'static) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
        with_curve(&mut result, plan, if candidate(plan) { factors[plan.seed as usize % 3] } else { 1.0 });
        change(&mut result, plan);
        result
    })
}

#[test]
fn a_phase_that_is_worse_in_every_pair_is_no_equivalent_one() {
    let mut world = one_phase(json!({"seeds": [42, 43, 44]}), losses_are([1.1, 1.09, 1.11], |_, _| ()));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    assert_eq!(world.launches(LaunchKind::Quality, ""), 0);
}

#[test]
fn losses_that_do_not_decide_lead_to_the_quality_gates() {
    for seeds in [json!([42]), json!([42, 43, 44])] {
        let worse = |by: f64| {
            move |result: &mut LaunchResult, plan: &LaunchPlan| {
                if candidate(plan) && plan.kind == LaunchKind::Quality {
                    *metric(result, "loss") += by;
                }
            }
        };
        let rounding = [1.007, 0.99, 1.012];
        let mut world = one_phase(json!({"seeds": seeds.clone()}), losses_are(rounding, worse(0.0)));
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        let phase = world.phase("fuse");
        assert!(
            phase.message.contains("judged as numerics: Changed, because training losses differ"),
            "{}",
            phase.message
        );
        assert!(phase.quality.is_some() && world.count_events("NumericsUnclear") == 1);

        let mut world = one_phase(json!({"seeds": seeds}), losses_are(rounding, worse(0.5)));
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "QualityBelowThreshold", 0));
        assert!(world.phase("fuse").message.contains("judged as numerics: Changed"), "{}", world.phase("fuse").message);
    }
}

/// The longest message of a verdict: on a busy machine, with one seed, without a validation before the first step.
#[test]
fn the_reason_of_an_escalation_is_whole_behind_all_other_notes() {
    let busy = |result: &mut LaunchResult, plan: &LaunchPlan| {
        result.measured.disturbance.other_cpu_share = (plan.kind == LaunchKind::Measure).then_some(0.57);
    };
    let mut world = one_phase(json!({"seeds": [42]}), losses_are([1.007; 3], busy));
    world.run();
    let message = &world.phase("fuse").message;
    for note in ["measured while other programs used the CPUs: 57 %", "no validation before the first step"] {
        assert!(message.contains(note), "{message} lacks {note}");
    }
    assert!(message.ends_with("with one seed, which has no interval"), "{message}");
}

#[test]
fn losses_of_launches_ended_by_time_must_agree_so_closely_that_they_would_at_the_end() {
    // A difference that grows steadily to 2 %: 0.25 % in the first quarter of the steps, and 1.5 % in the second half.
    let grown = |ended_by_time: bool| {
        losses_are([1.0; 3], move |result, plan| {
            if plan.kind == LaunchKind::Measure {
                let by = if candidate(plan) { 0.02 } else { 0.0 };
                let quarters = if ended_by_time { 1 } else { 4 };
                let loss = |quarter: usize| 8.0 * (1.0 + by * (quarter as f64 + 0.5) / 4.0);
                result.curve = (0..quarters).map(loss).collect();
                result.measured.steps = if ended_by_time { 17 } else { 70 };
            }
        })
    };
    let mut whole = one_phase(json!({"seeds": [42, 43, 44]}), grown(false));
    whole.run();
    assert_eq!(whole.verdict("fuse"), (PhaseState::RolledBack, "LossDiverged", 0));
    let mut early = one_phase(json!({"seeds": [42, 43, 44]}), grown(true));
    early.run();
    assert!(early.phase("fuse").message.contains("judged as numerics: Changed"), "{}", early.phase("fuse").message);
    // Rounding does not reach a sixth of what is allowed.
    let rounding = losses_are([1.0001, 0.9999, 1.0], |result, _| {
        result.curve.truncate(1);
        result.measured.steps = 17;
    });
    let mut same = one_phase(json!({"seeds": [42, 43, 44]}), rounding);
    same.run();
    assert!(!same.phase("fuse").message.contains("judged as"), "{}", same.phase("fuse").message);
}

#[test]
fn the_quality_gates_are_inputs_of_a_phase_that_they_have_judged_only() {
    let reopened = |factors: [f64; 3]| {
        let mut world = one_phase(json!({"seeds": [42]}), losses_are(factors, |_, _| ()));
        world.job.metadata.generation = Some(1);
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        world.edit(|spec| spec["gates"] = json!({"validationLossDelta": "0.5"}));
        world.run();
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{}", world.phase("fuse").message);
        world.count_events("Superseded")
    };
    assert_eq!((reopened([1.0; 3]), reopened([1.01; 3])), (0, 1));
}

#[test]
fn losses_that_do_not_decide_are_inconclusive_where_no_quality_is_measured() {
    let monitored = json!({"seeds": [42], "workload": {"name": "gpt", "command": ["python", "train.py"],
        "monitor": {"training": "step (?<step>\\d+) loss (?<loss>\\S+)"}}});
    let mut world = one_phase(monitored, losses_are([1.01; 3], |_, _| ()));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Inconclusive, "NumericsUnclear", 0));
    assert!(
        world.phase("fuse").message.ends_with("set workload.monitor.validation"),
        "{}",
        world.phase("fuse").message
    );
    assert_eq!(world.launches(LaunchKind::Quality, ""), 0);

    // Scripts that do not validate: the job has done without, and goes on.
    for outcome in [Outcome::Done, Outcome::Unsupported, Outcome::InvalidPlan] {
        let silent = move |result: &mut LaunchResult, plan: &LaunchPlan| {
            if plan.kind == LaunchKind::Quality {
                (result.outcome, result.measured.validation) = (outcome, None);
                result.message = "no validation was reported".to_owned();
            }
        };
        let mut world = one_phase(json!({"seeds": [42]}), losses_are([1.01; 3], silent));
        world.run();
        let phase = world.phase("fuse");
        assert_eq!(
            (phase.state, phase.reason.as_str()),
            (PhaseState::Inconclusive, "NumericsUnclear"),
            "{}",
            phase.message
        );
        assert!(phase.message.contains("the quality gates cannot decide"), "{}", phase.message);
        assert_eq!(world.status.stage, Stage::Complete);
    }
}

#[test]
fn a_fallback_is_compared_anew() {
    let mut world = World::new(
        json!({"seeds": [42], "phases": [{"name": "fuse", "settings": {"compile": "Fuse"},
            "fallbacks": [{"when": ["QualityBelowThreshold"], "settings": {"compile": "Graph"}}]}]}),
        Box::new(|plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("Graph", 1.3)]) * noise(plan, 0.002));
            let fused = serde_json::to_string(&plan.settings).unwrap().contains("Fuse");
            with_curve(&mut result, plan, if fused { 1.01 } else { 1.0 });
            if fused && plan.kind == LaunchKind::Quality {
                *metric(&mut result, "loss") += 0.5;
            }
            result
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 1));
    assert!(!world.phase("fuse").message.contains("judged as"), "{}", world.phase("fuse").message);
}
