//! What an exported model is: its configuration, and what trained it.

use super::Options;
use crate::checkpoint::Described;
use pawl_contract::plan::LaunchPlan;
use pawl_workloads::layered::overlay;
use serde_json::{Value, json};

/// The record of a model that was exported from `found`, of which `averaged` weights are moving averages.
pub fn of(plan: &LaunchPlan, found: &Described, options: &Options, averaged: usize) -> Value {
    let mut config = Value::Object(plan.workload.config.clone());
    overlay(&mut config, &Value::Object(plan.settings.workload()));
    let author = &found.author;
    let best = found.position.best_checkpoint.as_ref();
    let best = best.filter(|best| best.checkpoint.name == found.reference.name);
    json!({
        "pawl": env!("CARGO_PKG_VERSION"),
        "workload": plan.workload.name,
        "config": config,
        "dtype": options.format.torch_name(),
        "averagedWeights": averaged,
        "seed": plan.seed,
        "settings": plan.settings,
        "checkpoint": found.reference,
        "best": best.map(|best| json!({"metric": best.metric, "value": best.value})),
        "job": {"namespace": author.namespace, "name": author.job, "uid": author.uid},
        "trainedBy": author.trained,
    })
}
