//! Experiment trackers of a script (W&B, Comet, MLflow): only its training reports to them. The launches of a ladder
//! are many and short, and would fill a project with runs that are no models.

use pawl_contract::plan::LaunchKind;
use tokio::process::Command;

/// Variables that keep a library from sending anything. One that is set, in the manifest or the image, is left
/// unchanged.
/// `Experiment(...)` of Comet does not ask whether it is to be online.
const OFF: [(&str, &str); 3] =
    [("WANDB_MODE", "disabled"), ("COMET_START_ONLINE", "0"), ("COMET_AUTO_LOG_DISABLE", "1")];

/// Variables that are removed: MLflow and TensorBoard have no switch, and without them they write into the present
/// directory.
const PLACES: [&str; 4] = ["MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID", "TENSORBOARD_LOGGING_DIR"];

/// Variables that a launch of `kind` has unless the user sets them.
pub(super) fn off(kind: LaunchKind) -> Vec<(&'static str, String)> {
    if kind == LaunchKind::Train {
        return Vec::new();
    }
    OFF.map(|(name, value)| (name, value.to_owned())).to_vec()
}

/// Variables that a launch of `kind` must not have, whoever sets them.
pub(super) fn removed(kind: LaunchKind) -> &'static [&'static str] {
    if kind == LaunchKind::Train { &[] } else { &PLACES }
}

/// Keeps a command from trackers that is no launch of a job, and is not the training, either.
pub(crate) fn quiet(command: &mut Command) {
    let kind = LaunchKind::Measure;
    let open = off(kind).into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    command.envs(open);
    for name in removed(kind) {
        command.env_remove(name);
    }
}
