//! A training that diverges or fails: what is reverted, and from which checkpoint it goes on.

use crate::training::{FACTORS, spec, trained};
use crate::world::{World, done, ended, noise, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_decision::observed::Ending;
use serde_json::json;

#[test]
fn divergence_reverts_changed_numerics_and_resumes_before_the_damage() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("bf16"), (PhaseState::RolledBack, "NonFinite", 0));
    assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "not judged again");
    let runs = trained(&world);
    assert_eq!(runs.len(), 2);
    let checkpoint = runs[1].checkpoint.as_ref().unwrap();
    assert_eq!((checkpoint.resume, checkpoint.resume_not_after_items), (true, Some(500)));
    assert!(runs[1].settings.compile.is_some() && runs[1].settings.precision.is_none());
}

/// Nobody may have observed the checkpoints that a gang wrote since it resumed: it, and not the next one, deleted the
/// damaged.
#[test]
fn what_is_written_after_a_reverted_divergence_is_not_damaged() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    let trains = |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
    let reverted = |world: &World| world.status.phases.iter().any(|phase| phase.state == PhaseState::RolledBack);
    world.run_until(|world| reverted(world) && trains(world));
    world.decide();
    let lost = |world: &mut World| {
        world.end_alive(Ending::Disrupted("the pod was deleted".to_owned()));
        world.run_until(trains);
        let checkpoint = world.alive()[0].plan.launches[0].checkpoint.clone().unwrap();
        let items = |known: Option<CheckpointRef>| known.map(|known| known.items);
        (checkpoint.resume_not_after_items, items(checkpoint.expected), items(checkpoint.expected_after_limit))
    };
    assert_eq!(lost(&mut world), (Some(500), None, None), "the gang may not have begun to train");
    world.decide();
    world.progress(|progress| {
        let checkpoint = CheckpointRef { name: "step-60".to_owned(), step: 60, items: 600 };
        (progress.step, progress.items, progress.last_checkpoint) = (65, 650, Some(checkpoint));
    });
    world.decide();
    assert_eq!(lost(&mut world), (None, Some(600), None));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
}

/// Otherwise an emptied storage would be a new start.
#[test]
fn a_checkpoint_after_the_last_good_position_is_known_to_the_next_attempt() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => ended(plan, Outcome::NonFinite),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    let trains = |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
    world.run_until(trains);
    world.decide();
    let checkpoint = CheckpointRef { name: "step-60".to_owned(), step: 60, items: 600 };
    world.progress(|progress| {
        (progress.step, progress.items, progress.last_checkpoint) = (65, 650, Some(checkpoint.clone()));
    });
    world.decide();
    let reverted = |world: &World| world.status.phases.iter().any(|phase| phase.state == PhaseState::RolledBack);
    world.run_until(|world| reverted(world) && trains(world));
    let policy = world.alive()[0].plan.launches[0].checkpoint.clone().unwrap();
    assert_eq!((policy.resume_not_after_items, policy.expected), (Some(500), None), "it is not resumed");
    assert_eq!(policy.expected_after_limit, Some(checkpoint));
}

#[test]
fn training_that_diverges_with_the_baseline_fails() {
    let mut world = World::new(
        spec(json!({})),
        Box::new(|plan, _| match plan.kind {
            LaunchKind::Train => ended(plan, Outcome::LossSpike),
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        }),
    );
    world.run();
    assert_eq!(world.failure().0, "LossSpike");
    assert_eq!(trained(&world).len(), 3, "both phases were reverted before");
}

/// Phases of which the older one has a fallback for failures, and a training that fails with `outcome` until `fits`.
fn fallible(outcome: Outcome, fits: fn(&str) -> bool) -> World {
    World::new(
        json!({
            "phases": [
                {"name": "fuse", "settings": {"compile": "Fuse"},
                 "fallbacks": [{"when": ["Hang"], "settings": {"loaderWorkers": 2}},
                               {"when": ["OutOfMemory", "CompileFailed", "NonFinite"], "settings": {"activationCheckpointing": "Full"}}]},
                {"name": "flash", "settings": {"attention": "Flash"}}],
            "train": {"items": 100_000},
        }),
        Box::new(move |plan, _| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            match plan.kind == LaunchKind::Train && !fits(&text) {
                true => ended(plan, outcome),
                false => done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("Flash", 1.2)]) * noise(plan, 0.002)),
            }
        }),
    )
}

#[test]
fn a_fallback_handles_a_failure_of_the_training() {
    for (outcome, resume_not_after) in
        [(Outcome::OutOfMemory, None), (Outcome::CompileFailed, None), (Outcome::NonFinite, Some(500))]
    {
        let mut world = fallible(outcome, |text| text.contains("Full"));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete);
        let fuse = world.phase("fuse");
        assert_eq!((fuse.state, fuse.fallback, fuse.training_fallback), (PhaseState::Accepted, 0, Some(2)));
        assert_eq!(fuse.reason, outcome.to_string());
        assert!(fuse.message.contains("fallback 2 of 2") && fuse.message.contains("not measured"), "{}", fuse.message);
        assert_eq!(world.verdict("flash").0, PhaseState::Accepted);
        assert_eq!(world.count_events("Superseded"), 0, "nothing is evaluated again");
        let runs = trained(&world);
        assert_eq!(runs.len(), 2);
        let resumed = runs[1].checkpoint.as_ref().unwrap();
        assert_eq!((resumed.resume, resumed.resume_not_after_items), (true, resume_not_after));
        assert!(runs[1].settings.compile.is_some() && runs[1].settings.attention.is_some());
    }
}

#[test]
fn a_training_that_no_fallback_saves_reverts_phases() {
    let mut world = fallible(Outcome::OutOfMemory, |text| !text.contains("Fuse"));
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    assert_eq!(world.verdict("flash"), (PhaseState::RolledBack, "OutOfMemory", 0), "the newest first");
    assert_eq!(world.verdict("fuse"), (PhaseState::RolledBack, "OutOfMemory", 0));
    assert_eq!(trained(&world).len(), 4, "as judged, on the fallback, without flash, without both");
    // A phase that is judged again begins with its first patch.
    world.edit(|spec| spec["phases"][0]["minSpeedup"] = json!("1.01"));
    world.run_until(|world| world.phase("fuse").state == PhaseState::Accepted);
    assert_eq!(world.phase("fuse").training_fallback, None);
}
