//! In what way failures are alike, and a storage that is full: neither is read from a message.

use crate::world::{Trainer, World, done, ended, fuse, speed};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::LaunchResult;
use serde_json::json;
use std::collections::BTreeSet;

const FACTORS: &[(&str, f64)] = &[("Fuse", 1.3)];

/// Fails each launch with another message, with these exit codes in turn.
fn failing(exit_codes: &'static [i32]) -> Trainer {
    let words = ["IndexError", "no route to host", "KeyError: 'text'", "File exists", "Broken pipe"];
    let mut failures = 0;
    Box::new(move |plan, _| {
        if plan.kind == LaunchKind::Preflight {
            return ended(plan, Outcome::Done);
        }
        failures += 1;
        let message = words[failures % words.len()].to_owned();
        let exit_code = Some(exit_codes[failures % exit_codes.len()]);
        LaunchResult { message, exit_code, ..ended(plan, Outcome::Failed) }
    })
}

#[test]
fn failures_are_compared_by_exit_code_and_not_by_their_messages() {
    let lifecycle = || json!({"lifecycle": {"maxRestarts": 4}, "train": {"items": 1000}});
    let mut world = World::new(fuse(lifecycle()), failing(&[1]));
    world.run();
    assert_eq!((world.failure().0, world.count_events("AttemptFailed")), ("BaselineFailed", 3));
    let mut world = World::new(fuse(lifecycle()), failing(&[1, 2]));
    world.run();
    assert_eq!(world.count_events("AttemptFailed"), 5, "{:?}", world.failure());
}

/// As a trainer whose storage is full for the launches of `kind` in `times` attempts.
fn full(kind: LaunchKind, times: usize) -> Trainer {
    let mut attempts = BTreeSet::new();
    Box::new(move |plan, _| {
        let is_full = plan.kind == kind && (attempts.contains(&plan.attempt) || attempts.len() < times);
        if !is_full {
            return done(plan, speed(&plan.settings, FACTORS));
        }
        attempts.insert(plan.attempt.clone());
        LaunchResult { message: "no space: free some".to_owned(), ..ended(plan, Outcome::StorageFull) }
    })
}

#[test]
fn a_full_storage_counts_against_no_phase_and_no_limit() {
    let no_restarts = || fuse(json!({"lifecycle": {"maxRestarts": 0}, "train": {"items": 1000}}));
    for kind in [LaunchKind::Preflight, LaunchKind::Measure, LaunchKind::Train] {
        // Somebody makes space.
        let mut world = World::new(no_restarts(), full(kind, 8));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{kind:?}: {:?}", world.status.failure);
        assert_eq!(world.verdict("fuse").0, PhaseState::Accepted, "{kind:?}");
        assert_eq!((world.count_events("StorageFull"), world.count_events("AttemptFailed")), (8, 0), "{kind:?}");
        for (wait, times) in [(60, 1), (120, 7)] {
            let text = format!("again after {wait} s");
            let waits = world.events.iter().filter(|event| event.message.contains(&text)).count();
            assert_eq!(waits, times, "{kind:?}: {wait} s");
        }

        // Nobody does: the job has failed, not the phase.
        let mut world = World::new(no_restarts(), full(kind, usize::MAX));
        world.run();
        let (reason, message) = world.failure();
        assert!(reason == "StorageFull" && message.contains("no space: free some (9 attempts"), "{kind:?}: {message}");
        let judged =
            world.status.phases.iter().any(|phase| {
                matches!(phase.state, PhaseState::Error | PhaseState::RolledBack | PhaseState::Unsupported)
            });
        assert!(!judged, "{kind:?}: {:?}", world.status.phases);
    }
}
