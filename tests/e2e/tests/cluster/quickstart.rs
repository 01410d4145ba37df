//! The README's first job, unchanged, with the real trainer in pods.

use crate::shells::pawl_run;
use pawl_api::TrainingJobStatus;
use pawl_e2e::job::status;
use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::scene;
use std::time::Duration;

/// Reasons of a speed verdict that the machine's noise decides, not the phase.
const UNDECIDED: &str = "SpeedUndecided";

#[test]
fn the_quickstart_ends_complete_with_the_verdicts_of_pawl_run() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let manifest = repository().join("examples/quickstart.yaml");
        succeed(scene.kubectl(&["apply", "-f"]).arg(&manifest));
        let there = scene.complete("quickstart", Duration::from_secs(900)).await;
        let there = status(&there);
        let here: TrainingJobStatus = serde_json::from_value(pawl_run(scene, &manifest, &[])).unwrap();

        assert_eq!(there.phases.len(), here.phases.len());
        for (there, here) in there.phases.iter().zip(&here.phases) {
            assert!(there.state.is_final() && here.state.is_final());
            assert_eq!(there.name, here.name);
            // Whoever could not decide does not contradict the other.
            if ![&there.reason, &here.reason].iter().any(|reason| *reason == UNDECIDED) {
                assert_eq!(there.reason, here.reason, "{}: {} | {}", there.name, there.message, here.message);
            }
        }
        assert!(there.phases.iter().filter(|phase| phase.reason != UNDECIDED).count() >= 2, "{:?}", there.phases);
        let training = there.training.as_ref().unwrap();
        let nrmse =
            |metrics: &std::collections::BTreeMap<String, pawl_contract::decimal::Decimal>| metrics["nrmse"].value();
        assert!(nrmse(&training.validation) < nrmse(&training.first_validation), "{training:?}");
    });
}
