//! Requirements, conflicts, enablers, pins, and specs that change.

use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use serde_json::json;

const FACTORS: &[(&str, f64)] =
    &[("Fuse", 1.3), ("Flash", 1.2), ("loaderWorkers", 0.9), ("Cached", 0.98), ("Fused", 1.1)];

#[test]
fn phases_with_a_rejected_requirement_or_an_accepted_conflict_are_skipped() {
    let mut world = World::new(
        json!({"phases": [
            {"name": "fuse", "settings": {"compile": "Fuse"}},
            {"name": "loader", "settings": {"loaderWorkers": 4}},
            {"name": "needs", "requires": ["loader"], "settings": {"attention": "Flash"}},
            {"name": "clash", "conflictsWith": ["fuse"], "settings": {"attention": "Flash"}}]}),
        factors(FACTORS),
    );
    world.run();
    assert_eq!(world.verdict("needs"), (PhaseState::Skipped, "RequirementNotAccepted", 0));
    assert_eq!(world.verdict("clash"), (PhaseState::Skipped, "Conflict", 0));
    assert_eq!(world.launches(LaunchKind::Measure, "needs") + world.launches(LaunchKind::Measure, "clash"), 0);
}

#[test]
fn an_enabler_may_be_slower_and_remains_accepted_only_if_it_is_required() {
    let spec = |faster: &str| {
        json!({"phases": [
            {"name": "rope", "role": "Enabler", "settings": {"ropeCache": "Cached"}},
            {"name": "user", "requires": ["rope"], "settings": if faster == "yes" { json!({"attention": "Flash"}) } else { json!({"loaderWorkers": 1}) }}]})
    };
    let mut world = World::new(spec("yes"), factors(FACTORS));
    world.run();
    assert_eq!(world.verdict("rope"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    let mut world = World::new(spec("no"), factors(FACTORS));
    world.run();
    assert_eq!(world.verdict("user"), (PhaseState::RolledBack, "SpeedBelowThreshold", 0));
    assert_eq!(world.verdict("rope"), (PhaseState::RolledBack, "NothingNeedsIt", 0));
}

#[test]
fn pins_override_measurement_and_a_dry_run_is_not_accepted() {
    let mut world = World::new(
        json!({"phases": [
            {"name": "loader", "pin": "Accepted", "settings": {"loaderWorkers": 4}},
            {"name": "fuse", "pin": "RolledBack", "settings": {"compile": "Fuse"}},
            {"name": "flash", "pin": "DryRun", "settings": {"attention": "Flash"}}]}),
        factors(FACTORS),
    );
    world.run();
    assert_eq!(world.verdict("loader"), (PhaseState::Accepted, "Pinned", 0));
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "Pinned", 0));
    assert_eq!(world.verdict("flash"), (PhaseState::RolledBack, "DryRun", 0));
    assert!(world.phase("flash").message.contains("it would be Accepted"), "{}", world.phase("flash").message);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse") + world.launches(LaunchKind::Measure, "loader"), 0);
    // The evidence of the dry run counts when the pin goes: nothing is measured twice.
    let before = world.launches(LaunchKind::Measure, "flash");
    world.edit(|spec| spec["phases"][2]["pin"] = json!(null));
    world.run();
    assert_eq!(world.verdict("flash"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    assert_eq!(world.launches(LaunchKind::Measure, "flash"), before);
}

#[test]
fn a_pin_during_training_takes_effect_at_once() {
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}], "train": {"items": 1000}}),
        factors(FACTORS),
    );
    world.run_until(|world| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train));
    world.decide();
    world.edit(|spec| spec["phases"][0]["pin"] = json!("RolledBack"));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "Pinned", 0));
    let trained: Vec<_> = world.ran.iter().filter(|plan| plan.kind == LaunchKind::Train).collect();
    assert_eq!(trained.len(), 1, "the first training was stopped before it ended");
    assert_eq!(trained[0].settings.compile, None);
    assert!(trained[0].checkpoint.as_ref().unwrap().resume);
}

#[test]
fn only_phases_that_depend_on_a_change_are_evaluated_again() {
    let mut world = World::new(
        json!({"phases": [
            {"name": "fuse", "settings": {"compile": "Fuse"}},
            {"name": "flash", "settings": {"attention": "Flash"}}]}),
        factors(FACTORS),
    );
    world.run();
    let (fuse, flash) = (world.launches(LaunchKind::Measure, "fuse"), world.launches(LaunchKind::Measure, "flash"));
    // A later phase changes: the earlier one stays.
    world.edit(|spec| spec["phases"][1]["settings"] = json!({"attention": "Flash", "optimizerKernel": "Fused"}));
    world.run();
    assert_eq!(world.count_events("Superseded"), 1);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), fuse);
    assert_eq!(world.launches(LaunchKind::Measure, "flash"), 2 * flash);
    // An earlier phase changes: both are evaluated again, and names do not collide.
    world.edit(|spec| spec["phases"][0]["settings"] = json!({"compile": "Fuse", "deterministic": true}));
    world.run();
    assert_eq!(world.count_events("Superseded"), 3);
    let names: std::collections::BTreeSet<_> = world.ran.iter().map(|plan| &plan.launch).collect();
    assert_eq!(names.len(), world.ran.len(), "no launch was made twice");
    // Another threshold is judged from the evidence that is there.
    let ran = world.ran.len();
    world.edit(|spec| spec["phases"][0]["minSpeedup"] = json!("1.5"));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "SpeedBelowThreshold", 0));
    assert!(world.ran[ran..].iter().all(|plan| !plan.launch.starts_with("fuse")));
}

/// What a report says below the settings that it offers to paste into the manifest.
#[test]
fn accepted_settings_as_the_baseline_skip_their_phases_and_measure_only_some_of_the_others_again() {
    let mut world = World::new(
        json!({"phases": [
            {"name": "loader", "settings": {"loaderWorkers": 4}},
            {"name": "fuse", "settings": {"compile": "Fuse"}},
            {"name": "late", "settings": {"ropeCache": "Cached"}}]}),
        factors(FACTORS),
    );
    world.run();
    let states = |world: &World| ["loader", "fuse", "late"].map(|name| world.phase(name).state);
    assert_eq!(states(&world), [PhaseState::RolledBack, PhaseState::Accepted, PhaseState::RolledBack]);
    let measured = |world: &World| ["loader", "fuse", "late"].map(|name| world.launches(LaunchKind::Measure, name));
    let before = measured(&world);
    let accepted = serde_json::to_value(world.status.effective_settings.clone().unwrap()).unwrap();
    world.edit(|spec| spec["settings"] = accepted);
    world.run();
    let after = measured(&world);
    assert_eq!(world.verdict("fuse"), (PhaseState::Skipped, "NoEffect", 0));
    assert!(after[0] > before[0] && world.phase("loader").state == PhaseState::RolledBack, "it has another baseline");
    assert_eq!(after[1..], before[1..], "nothing changed for what came after the last accepted one");
}

#[test]
fn a_drift_accepts_nothing_however_controls_are_to_be_reused() {
    let (mut accepted, mut phases) = (0, 0);
    for ladder in 0..12u64 {
        let named =
            |name: String| json!({"name": name, "minSpeedup": "1.0", "settings": {"workload": {&name: ladder}}});
        let all: Vec<_> = (0..10).map(|i| named(format!("p{i}"))).collect();
        let spec = json!({"analysis": {"reuseControl": true}, "phases": all});
        let mut clock = 0.0;
        let trainer = move |plan: &LaunchPlan, _: usize| {
            clock += f64::from(u8::from(plan.kind == LaunchKind::Measure));
            let mixed = json!([ladder, clock as u64]).to_string();
            let named = LaunchPlan { launch: mixed, ..plan.clone() };
            // 2 % in 100 launches.
            let speed = 100.0 * noise(&named, 0.017) * f64::exp(0.02 * clock / 100.0);
            done(plan, speed)
        };
        let mut world = World::new(spec, Box::new(trainer));
        world.run();
        accepted += world.status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).count();
        phases += world.status.phases.len();
    }
    let (share, error) = (accepted as f64 / phases as f64, (0.05 * 0.95 / phases as f64).sqrt());
    println!(
        "accepted {:.1} % of {phases} phases without effect (standard error {:.1} %)",
        share * 100.0,
        error * 100.0
    );
    assert!(share <= 0.05 + 2.0 * error, "{share}");
}

#[test]
fn a_missed_goal_is_handled_as_configured() {
    let spec = |then: &str| {
        json!({"gates": {"overallSpeedup": "3.0"}, "rollback": {"onGoalMissed": then}, "train": {"items": 1000},
            "phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}, {"name": "flash", "settings": {"attention": "Flash"}}]})
    };
    let degraded = |world: &World| {
        world.status.conditions.iter().any(|c| c.type_ == "Degraded" && c.status == "True" && c.reason == "GoalMissed")
    };
    let mut world = World::new(spec("KeepAccepted"), factors(FACTORS));
    world.run();
    assert_eq!((world.status.stage, degraded(&world)), (Stage::Complete, true));
    assert!(world.ran.last().unwrap().settings.compile.is_some());
    let mut world = World::new(spec("RollBackAll"), factors(FACTORS));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("flash").0, PhaseState::RolledBack);
    assert_eq!(world.ran.last().unwrap().settings, world.job.spec.settings, "trained with the baseline");
    let mut world = World::new(spec("Pause"), factors(FACTORS));
    world.run();
    assert_eq!(world.status.stage, Stage::Suspended);
    world.edit(|spec| spec["gates"]["overallSpeedup"] = json!("1.5"));
    world.run();
    assert_eq!((world.status.stage, degraded(&world)), (Stage::Complete, false), "{:#?}", world.status.bundle);
}

/// Ten phases without effect, in which chance favours the pairs of some phases by these factors.
fn ten_phases(factors: &'static [(&'static str, f64)], rest: serde_json::Value) -> World {
    let phase = |index: u32| json!({"name": format!("p{index}"), "settings": {"workload": {format!("p{index}"): 1}}});
    let mut spec = json!({"phases": (0..10).map(phase).collect::<Vec<_>>(), "train": {"items": 10}});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let trainer = move |plan: &LaunchPlan, _| {
        let of_phase = factors.iter().find(|(phase, _)| plan.launch.starts_with(&format!("{phase}-")));
        let luck = of_phase.filter(|_| plan.launch.contains("-b-")).map_or(1.0, |(_, factor)| *factor);
        done(plan, 100.0 * luck * noise(plan, 0.001))
    };
    World::new(spec, Box::new(trainer))
}

#[test]
fn what_chance_accepted_is_not_confirmed_by_pairs_of_its_own() {
    for lucky in [&[("p3", 1.06)][..], &[("p3", 1.08), ("p7", 1.06)]] {
        let mut world = ten_phases(lucky, json!({}));
        world.run();
        for (name, _) in lucky {
            let (state, reason, _) = world.verdict(name);
            assert_eq!((state, reason), (PhaseState::Inconclusive, "NotConfirmed"), "{name}");
        }
        let bundle = world.status.bundle.as_ref().unwrap();
        assert_eq!((bundle.state, bundle.reason.as_str()), (PhaseState::RolledBack, "NothingAccepted"));
        assert_eq!(world.status.speedup, None);
        assert_eq!(world.ran.last().unwrap().settings, world.job.spec.settings, "trained with the baseline");
        let events = world.events.iter().filter(|event| event.reason == "NotConfirmed");
        let order: Vec<_> = events.filter_map(|event| event.phase.as_deref()).collect();
        let least_certain_first: Vec<_> = lucky.iter().rev().map(|(name, _)| *name).collect();
        assert_eq!(order, least_certain_first);
    }
}

#[test]
fn the_speedup_of_a_single_phase_is_that_of_pairs_that_did_not_select_it() {
    // Chance adds 8 % to the pairs of the phase, whose effect is 30 %.
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}], "train": {"items": 10}}),
        Box::new(|plan, _| {
            let luck = if plan.launch.starts_with("fuse-") && plan.launch.contains("-b-") { 1.08 } else { 1.0 };
            done(plan, luck * speed(&plan.settings, FACTORS) * noise(plan, 0.001))
        }),
    );
    world.run();
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted);
    let speedup = world.status.speedup.as_ref().unwrap().value();
    assert!((speedup - 1.3).abs() < 0.01, "{speedup}");
}

#[test]
fn what_a_person_accepts_needs_no_confirmation() {
    let pinned = json!([{"name": "p3", "pin": "Accepted", "settings": {"workload": {"p3": 1}}}]);
    for rest in [json!({"phases": pinned}), json!({"analysis": {"onInconclusive": "Accept"}})] {
        let mut world = ten_phases(&[("p3", 1.06)], rest);
        world.run();
        assert_eq!(world.verdict("p3").0, PhaseState::Accepted, "{}", world.phase("p3").message);
    }
}

#[test]
fn every_launch_has_a_title() {
    let mut world = World::new(
        json!({"seeds": [1, 2], "train": {"items": 10},
               "phases": [{"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}}]}),
        factors(&[("bf16", 1.3)]),
    );
    world.run();
    let titles: Vec<&str> = world.ran.iter().map(|plan| plan.display_title()).collect();
    for title in [
        "baseline: check",
        "bf16: check",
        "bf16: pair 1 of 3, control",
        "bf16: pair 3 of 3, candidate",
        "baseline: quality, seed 2 of 2, control",
        "bf16: quality, seed 2 of 2, candidate",
        "training",
    ] {
        assert!(titles.contains(&title), "{title} is not among {titles:?}");
    }
}

#[test]
fn measured_and_predicted_memory_are_separate() {
    let mut world = World::new(
        json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]}),
        Box::new(|plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]));
            result.measured.predicted_memory_bytes = Some(9 << 30);
            if plan.kind == LaunchKind::Preflight {
                result.measured.peak_memory_bytes = Some(99 << 30);
            }
            result
        }),
    );
    world.run_until(|world| world.status.phases.first().is_some_and(|phase| !phase.checked.is_empty()));
    let checked = world.phase("fuse").measured.clone();
    assert_eq!((checked.peak_memory_bytes, checked.predicted_memory_bytes), (None, Some(9 << 30)));
    world.run();
    let measured = &world.phase("fuse").measured;
    assert_eq!((measured.peak_memory_bytes, measured.predicted_memory_bytes), (Some(10 << 30), Some(9 << 30)));
    assert_eq!(measured.items_per_second.as_ref().unwrap().value(), 130.0);
    assert_eq!(measured.utilization.as_ref().unwrap().value(), 0.9);
    let baseline = &world.status.baseline.as_ref().unwrap().measured;
    assert_eq!((baseline.peak_memory_bytes, baseline.predicted_memory_bytes), (Some(10 << 30), Some(9 << 30)));
}

/// Phase `b` diverges in training, which goes on with `a` alone. An edit lets `b` return: what the bundle has measured
/// decides at once that both together are not faster, and the less certain one, `a`, is the one that trains.
#[test]
fn a_training_ends_before_what_it_trains_with_is_found_not_to_be_confirmed() {
    for (together, state) in [(0.97, PhaseState::RolledBack), (1.0, PhaseState::Inconclusive)] {
        let phase = |name: &str, least: &str| {
            let settings = json!({"workload": {name: 1}});
            json!({"name": name, "minSpeedup": least, "numerics": "Changed", "settings": settings})
        };
        let trainer = move |plan: &LaunchPlan, _: usize| {
            let has = |name: &str| plan.settings.workload.as_ref().is_some_and(|workload| workload.contains_key(name));
            if plan.kind == LaunchKind::Train && has("b") {
                return ended(plan, Outcome::NonFinite);
            }
            // Chance favours the pairs of both.
            let luck = ["a", "b"]
                .into_iter()
                .zip([1.06, 1.08])
                .find(|(name, _)| plan.launch.starts_with(&format!("{name}-")) && plan.launch.contains("-b-"));
            let speed = luck.map_or(if has("b") { together } else { 1.0 }, |(_, luck)| luck);
            done(plan, 100.0 * speed * noise(plan, 0.001))
        };
        let spec = json!({"phases": [phase("a", "1.02"), phase("b", "0.5")], "train": {"items": 100_000}});
        let mut world = World::new(spec, Box::new(trainer));
        let trains =
            |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
        world.run_until(|world| trains(world) && world.verdict("b").1 == "NonFinite");
        world.decide();
        assert_eq!(world.verdict("a").0, PhaseState::Accepted);
        world.edit(|spec| spec["phases"][1]["minSpeedup"] = json!("1.02"));
        let starts = world.count_events("AttemptStarted");
        let mut stopped = false;
        while world.verdict("a").0 == PhaseState::Accepted {
            assert_eq!(world.count_events("AttemptStarted"), starts, "evidence that is there decides");
            assert!(!stopped || !trains(&world), "it is not started again before");
            world.decide();
            stopped |= !trains(&world);
        }
        assert!(!trains(&world), "it ended before the phase");
        assert_eq!(world.verdict("a"), (state, "NotConfirmed", 0));
        assert_eq!(world.count_events("NotConfirmed"), 1);
        world.run();
        assert_eq!(world.status.stage, Stage::Complete);
    }
}
