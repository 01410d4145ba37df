//! Examples of the workloads, unchanged, with the real trainer in pods: they take minutes, and are run by `tests/run
//! ladders`.

use crate::alone::DOES_NOT_PAY;
use pawl_api::status::PhaseState;
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Compile;
use pawl_e2e::job::{status, verdicts};
use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::{Scene, scene};
use std::time::Duration;

/// An example whose first phase the workload does not support, whose second one pays on any machine, and whose third
/// one may.
async fn tiny_ladder(scene: &Scene, name: &str, metric: &str) {
    let _operator = scene.operator().await;
    let manifest = repository().join(format!("examples/{name}.yaml"));
    succeed(scene.kubectl(&["apply", "-f"]).arg(&manifest));
    let done = scene.complete(name, Duration::from_secs(900)).await;
    let status = status(&done);
    let verdicts = verdicts(status);
    let of = |phase: &str| verdicts.iter().find(|(name, ..)| name == phase).unwrap();
    let (_, state, reason, fallback) = of("flash-attention");
    assert_eq!((*state, reason.as_str(), *fallback), (PhaseState::Unsupported, "Unsupported", 0), "{verdicts:?}");
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
fn forex_tiny_ends_complete() {
    scene(async |scene| tiny_ladder(scene, "forex-tiny", "crps_60m").await);
}

#[test]
fn atft_tiny_ends_complete() {
    scene(async |scene| tiny_ladder(scene, "atft-tiny", "rankic_1d").await);
}
