//! What a launch would run, without running it.

use crate::node::Node;
use crate::script::{self, Script};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::template::RenderError;
use std::collections::BTreeMap;

/// The command line and the environment of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Program and arguments. Variables that differ between ranks, such as `$(RANK)`, are not replaced.
    pub command: Vec<String>,
    /// Environment variables from the manifest and from the settings.
    pub env: BTreeMap<String, String>,
    /// Names of the variables that each rank has besides those, and besides the contract's (`PAWL_*`).
    pub of_ranks: Vec<&'static str>,
    /// Why the launch would end as [`Outcome::Unsupported`] before it starts, if it would.
    pub unsupported: Option<String>,
}

/// What the ranks of `launch` would run on `node`. Placeholders of variables of this process are kept: their values may
/// be secret.
///
/// # Errors
/// [`RenderError`]: a placeholder of the command has no value, or an environment variable is not set.
pub fn preview(plan: &AttemptPlan, launch: &LaunchPlan, node: &Node) -> Result<Preview, RenderError> {
    let mut env: BTreeMap<_, _> = node.env.iter().cloned().collect();
    let nccl = launch.settings.nccl.iter().flatten().map(|(name, value)| (name.clone(), value.clone()));
    let Some(script) = Script::new(plan, node) else {
        env.extend(nccl);
        let command = node.trainer.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        return Ok(Preview { command, env, of_ranks: script::of_ranks(plan), unsupported: None });
    };
    let rendered = script.clone().concealing().rendered_before_start(launch)?;
    for (name, value) in script.defaults(launch, plan.gpus_per_replica == 0) {
        env.entry(name.to_owned()).or_insert(value);
    }
    env.extend(rendered.env);
    env.extend(nccl);
    env.retain(|name, _| !Script::removed(launch).contains(&name.as_str()));
    let ended = script.before_start(launch).filter(|report| report.outcome == Outcome::Unsupported);
    let unsupported = ended.map(|report| report.message);
    Ok(Preview { command: rendered.command, env, of_ranks: script::of_ranks(plan), unsupported })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_preview_has_the_rendered_command_and_names_a_setting_without_effect() {
        let launch = json!({
            "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Measure", "workload": {}, "seed": 7,
            "settings": {"batchPerGpu": 8, "attention": "Flash"}, "budget": {"warmupSteps": 2, "windowSteps": 8},
            "hangTimeoutSeconds": 1.0,
        });
        let plan: AttemptPlan = serde_json::from_value(json!({
            "contract": 1, "job": "j", "attempt": "j-1", "replicas": 1, "ranksPerReplica": 1, "gpusPerReplica": 0,
            "launches": [launch], "stopOnFailure": true, "command": ["train", "$(launch.steps)", "$(RANK)"],
            "script": {"env": {"BATCH": "$(settings.batchPerGpu)"}, "monitor": {"training": "(?<step>\\d+)"}},
        }))
        .unwrap();
        let mut node = Node::local("/work", Vec::new());
        let of_manifest = [("PYTHONUNBUFFERED", "0"), ("MLFLOW_TRACKING_URI", "http://mlflow")];
        node.env.extend(of_manifest.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let preview = preview(&plan, &plan.launches[0], &node).unwrap();
        assert_eq!(preview.command, ["train", "10", "$(RANK)"]);
        let env: Vec<_> = preview.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let [switch, online, mode] = ["COMET_AUTO_LOG_DISABLE=1", "COMET_START_ONLINE=0", "WANDB_MODE=disabled"];
        assert_eq!(env, ["ACCELERATE_USE_CPU=true", "BATCH=8", switch, online, "PYTHONUNBUFFERED=0", mode]);
        assert!(preview.unsupported.unwrap().contains("settings.attention"));
        for name in ["RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES"] {
            assert!(preview.of_ranks.contains(&name), "{name}");
        }

        let mut unset = plan.clone();
        unset.command.push("--data=$(NO_SUCH_VARIABLE)".to_owned());
        let error = super::preview(&unset, &plan.launches[0], &node).unwrap_err().to_string();
        assert!(error.contains("NO_SUCH_VARIABLE is not set"), "{error}");
        node.env.push(("NO_SUCH_VARIABLE".to_owned(), "/data".to_owned()));
        let preview = super::preview(&unset, &plan.launches[0], &node).unwrap();
        assert_eq!(preview.command[3], "--data=/data");
        // A variable of whoever calls may be secret.
        unset.command.push("--key=$(CARGO_MANIFEST_DIR)".to_owned());
        let preview = super::preview(&unset, &plan.launches[0], &node).unwrap();
        assert_eq!(preview.command[4], "--key=$(CARGO_MANIFEST_DIR)");
    }
}
