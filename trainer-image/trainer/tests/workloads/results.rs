//! What launches leave behind, compared.

use pawl_contract::report::Report;
use pawl_trainer::checkpoint::{Store, Tensors};
use std::path::Path;

/// The loss of each point of a launch.
pub fn losses(report: &Report) -> Vec<f64> {
    report.losses.iter().map(|point| point.loss).collect()
}

/// The newest checkpoint of the launches in `dir`.
pub fn tensors(dir: &Path) -> Tensors {
    Store::open(dir.join("checkpoints").to_str().unwrap()).unwrap().newest(None).unwrap().unwrap().checkpoint.tensors
}

/// Each loss differs by at most `tolerance` of the expected one.
pub fn assert_close(losses: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(losses.len(), expected.len(), "{what}");
    for (loss, expected_loss) in losses.iter().zip(expected) {
        let close = (loss - expected_loss).abs() <= tolerance * expected_loss.abs();
        assert!(close, "{what}: {expected:?} {losses:?}");
    }
}
