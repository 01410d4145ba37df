//! What measures real time, and so needs the machine for itself: the quickstart, unchanged, with the real trainer in
//! pods.

use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;
use pawl_e2e::job::status;
use pawl_e2e::local::pawl_run;
use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::scene;
use serde_json::Value;
use std::time::Duration;

/// Of a phase that does not pay on this machine, the noise of the measurement decides which of these is said: that it
/// surely is too slow, or that the pairs did not suffice to say so.
pub const DOES_NOT_PAY: [&str; 2] = ["SpeedBelowThreshold", "SpeedUndecided"];

/// The status that `pawl run` of the quickstart ended with, if it ran already in the same `tests/run`: it takes
/// minutes.
fn ran_before() -> Option<Value> {
    let said = std::fs::read(std::env::var_os("PAWL_QUICKSTART")?).ok()?;
    let result: Value = serde_json::from_slice(&said).expect("what 'pawl run --output json' says");
    Some(result["status"].clone())
}

#[test]
fn the_quickstart_ends_complete_with_the_verdicts_of_pawl_run() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let manifest = repository().join("examples/quickstart.yaml");
        succeed(scene.kubectl(&["apply", "-f"]).arg(&manifest));
        let there = scene.complete("quickstart", Duration::from_secs(900)).await;
        let there = status(&there);
        let here = ran_before().unwrap_or_else(|| pawl_run(scene, &manifest, &[]));
        let here: TrainingJobStatus = serde_json::from_value(here).unwrap();

        assert_eq!(there.phases.len(), here.phases.len());
        let mut same = 0;
        for (there, here) in there.phases.iter().zip(&here.phases) {
            let told = format!("{}: {} | {}", there.name, there.message, here.message);
            eprintln!("{told}");
            assert!(there.state.is_final() && here.state.is_final(), "{told}");
            assert_eq!(there.name, here.name);
            let kept = [there, here].map(|phase| phase.state == PhaseState::Accepted);
            assert_eq!(kept[0], kept[1], "kept by one shell alone: {told}");
            if there.reason == here.reason {
                same += 1;
                continue;
            }
            let noise = [&there.reason, &here.reason].iter().all(|reason| DOES_NOT_PAY.contains(&reason.as_str()));
            assert!(noise, "{} | {}: {told}", there.reason, here.reason);
        }
        // One phase may be as close to its threshold as that; not most of them.
        assert!(same + 1 >= there.phases.len(), "only {same} reasons are the same");
        let measured = &there.training.as_ref().unwrap().measured;
        let (first, last) = (measured.first_metric("nrmse").unwrap(), measured.metric("nrmse").unwrap());
        assert!(last.value() < first.value(), "{measured:?}");
    });
}
