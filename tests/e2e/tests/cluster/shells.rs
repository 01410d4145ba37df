//! Two shells, one brain: a foreign image is measured, kept, rolled back and trained alike by the operator and by
//! `pawl run`.

use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;
use pawl_e2e::job::{status, toy, verdicts};
use pawl_e2e::local::{differences, pawl_run, timeless};
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

#[test]
fn a_foreign_image_ends_with_the_same_status_in_both_shells() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let manifest = toy(|_| {});
        scene.apply(&manifest);
        let done = scene.complete("toy", Duration::from_secs(240)).await;

        let by_state: Vec<_> = status(&done).phases.iter().map(|phase| (phase.state, phase.fallback)).collect();
        let expected = [(PhaseState::Accepted, 0), (PhaseState::RolledBack, 0), (PhaseState::Accepted, 1)];
        assert_eq!(by_state, expected, "{:?}", verdicts(status(&done)));

        let file = scene.directory.path().join("toy.json");
        std::fs::write(&file, manifest.to_string()).unwrap();
        let there = timeless(&scene.status("toy").await);
        let here = timeless(&pawl_run(scene, &file, &[]));
        let differences = differences(&there, &here);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        // Fields were compared, not two empty documents.
        serde_json::from_value::<TrainingJobStatus>(scene.status("toy").await).unwrap();
        assert!(there.len() > 200, "only {} fields were compared", there.len());
    });
}

#[test]
fn each_verdict_is_told_in_an_event_with_its_evidence() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| job["spec"]["train"]["items"] = json!(640)));
        let done = scene.complete("toy", Duration::from_secs(240)).await;
        let events = scene.events("toy").await;
        for phase in &status(&done).phases {
            let told = events.iter().any(|(_, note)| note.contains(&phase.name) && note.contains(&phase.message));
            assert!(told, "no event tells {}: {}\n{events:#?}", phase.name, phase.message);
        }
    });
}
