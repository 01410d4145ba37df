//! What measures real time, and so needs the machine for itself: examples, unchanged, with the real trainer in pods.

use pawl_api::TrainingJobStatus;
use pawl_api::status::PhaseState;
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Compile;
use pawl_e2e::job::{status, verdicts};
use pawl_e2e::local::pawl_run;
use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::{Scene, scene};
use serde_json::Value;
use std::time::Duration;

/// Of a phase that does not pay on this machine, the noise of the measurement decides which of these is said: that it
/// surely is too slow, or that the pairs did not suffice to say so.
const DOES_NOT_PAY: [&str; 2] = ["SpeedBelowThreshold", "SpeedUndecided"];

/// The status that `pawl run` of the quickstart ended with, if it ran already in the same `tests/run`: it takes minutes.
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

/// An example whose first phase the workload does not support, whose second one pays on any machine, and whose third one may.
async fn tiny_ladder(scene: &Scene, name: &str, metric: &str) {
    let _operator = scene.operator().await;
    let manifest = repository().join(format!("examples/{name}.yaml"));
    succeed(scene.kubectl(&["apply", "-f"]).arg(&manifest));
    let done = scene.complete(name, Duration::from_secs(900)).await;
    let status = status(&done);
    let verdicts = verdicts(status);
    let of = |phase: &str| verdicts.iter().find(|(name, ..)| name == phase).unwrap();
    let (_, state, reason, rung) = of("flash-attention");
    assert_eq!((*state, reason.as_str(), *rung), (PhaseState::Unsupported, "Unsupported", 0), "{verdicts:?}");
    let (_, state, ..) = of("compile");
    assert_eq!(*state, PhaseState::Accepted, "{verdicts:?}");
    let (_, state, reason, _) = of("fused-optimizer");
    assert!(*state == PhaseState::Accepted || DOES_NOT_PAY.contains(&reason.as_str()), "{verdicts:?}");
    assert!(status.phases.len() == 3 && status.effective_settings.as_ref().unwrap().compile == Some(Compile::Graph));

    let training = status.training.as_ref().unwrap();
    let items = done.spec.train.items.unwrap();
    assert!(training.measured.items >= items && training.last_checkpoint.is_some(), "{training:?}");
    let loss = |validation: Option<&Decimal>| validation.map(Decimal::value).unwrap();
    let (first, last) = (loss(training.measured.first_metric("loss")), loss(training.measured.metric("loss")));
    assert!(last < first && training.measured.metric(metric).is_some(), "{training:?}");
}

#[test]
fn the_tiny_ladder_of_forex_ends_complete() {
    scene(async |scene| tiny_ladder(scene, "forex-tiny", "crps_60m").await);
}

#[test]
fn the_tiny_ladder_of_atft_ends_complete() {
    scene(async |scene| tiny_ladder(scene, "atft-tiny", "rankic_1d").await);
}
