//! The README's first command: `pawl run examples/quickstart.yaml`, with the real trainer on this machine's CPU.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseState, Stage};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_quickstart_measures_keeps_reverts_falls_back_and_trains() {
    let state = tempfile::tempdir().unwrap();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart.yaml");
    let run = Command::new(env!("CARGO_BIN_EXE_pawl"))
        .args(["run", "--output", "json", "--state"])
        .arg(state.path())
        .arg(&manifest)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", run.status);
    // For the test that compares it with what the cluster makes of the same file.
    if let Some(file) = std::env::var_os("PAWL_QUICKSTART") {
        std::fs::write(file, &run.stdout).unwrap();
    }
    let result: Value = serde_json::from_slice(&run.stdout).unwrap();
    let status: TrainingJobStatus = serde_json::from_value(result["status"].clone()).unwrap();
    assert_eq!(status.stage, Stage::Complete);

    let states: Vec<_> = status.phases.iter().map(|phase| (phase.name.as_str(), phase.state, phase.fallback)).collect();
    assert!(states.iter().all(|(_, state, _)| state.is_final()), "{states:?}");
    assert!(states.iter().any(|&(_, state, _)| state == PhaseState::Accepted), "{states:?}");
    assert!(states.iter().any(|&(_, _, fallback)| fallback > 0), "{states:?}");
    // Rolled back because it was measured to be slower or worse, not because it could not be run or did not pay enough.
    let measured_and_reverted = status.phases.iter().any(|phase| {
        let upper = phase.speedup.as_ref().and_then(|speedup| speedup.upper.as_ref());
        let slower = upper.is_some_and(|upper| upper.value() < 1.0);
        phase.state == PhaseState::RolledBack && (slower || phase.reason == "QualityBelowThreshold")
    });
    assert!(measured_and_reverted, "{:?}", status.phases);

    let training = status.training.unwrap();
    let measured = training.measured;
    // In latent space, and in that of the fields.
    for (metric, most) in [("nrmse", 0.5), ("physical_nrmse_advection1d", 0.9)] {
        let (first, last) = (measured.first_metric(metric).unwrap().value(), measured.metric(metric).unwrap().value());
        assert!(last < most * first, "validation {metric} went from {first} to {last}");
    }
    for what in ["checkpoint", "report"] {
        let path = result["paths"][what].as_str().unwrap();
        assert!(Path::new(path).exists(), "{what}: {path}");
    }
}
