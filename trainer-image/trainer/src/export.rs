//! Exports a trained language model as a directory that Hugging Face libraries can load.

use crate::checkpoint::Store;
use crate::ending::Ending;
use crate::launch::read_plan;
use crate::workload::ending;
use pawl_contract::plan::LaunchPlan;
use pawl_graph::array::Array;
use pawl_workloads::slm::SlmJob;
use pawl_workloads::slm::config_json;
use pawl_workloads::slm::export::{description, export};
use pawl_workloads::{Job as _, Request};
use std::path::{Path, PathBuf};

/// Files of the model beside the tokenizer or the initial weights of a run, which are copied too.
const COMPANIONS: [&str; 5] =
    ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];

/// Exports the model of the plan in the file at `plan` to the directory `to`: `model.safetensors` with the best
/// checkpoint of the storage at `checkpoints` (the newest one where `newest`), adapters merged (bfloat16 where
/// `narrow`, else float32), `config.json`, and the tokenizer of its text or of the weights that it started from.
/// Returns a one-line summary.
///
/// # Errors
/// When the plan is of another workload, there is no checkpoint, it belongs to another run, or writing fails.
pub fn plan_file(plan: &Path, checkpoints: &str, newest: bool, narrow: bool, to: &Path) -> Result<String, Ending> {
    let plan = read_plan(plan)?;
    let job = language_model(&plan)?;
    let store = Store::open(checkpoints)?;
    let found = if newest { store.newest(None)? } else { store.best()? };
    let found = found.ok_or_else(|| {
        Ending::InvalidPlan(format!(
            "{checkpoints}: contains no complete checkpoint: name the storage of a run that has trained"
        ))
    })?;
    let workload = plan.workload.name.as_deref().unwrap_or_default();
    found.checkpoint.made_by(workload, plan.seed, &job.extras()).map_err(|foreign| {
        Ending::InvalidPlan(format!("{checkpoints}: {foreign}: name the storage of the run of this plan"))
    })?;
    let tensors = &found.checkpoint.tensors;
    let trained = |name: &str| -> Option<Array> {
        tensors.iter().find(|(known, _)| known == name).map(|(_, array)| array.clone())
    };
    let failed = |path: &Path, error: &dyn std::fmt::Display| Ending::Failed(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(to).map_err(|error| failed(to, &error))?;
    let file = to.join("model.safetensors");
    export(&job, plan.seed, &trained, narrow, &file).map_err(|error| Ending::Failed(error.to_string()))?;
    let config = to.join(config_json::FILE);
    let text = format!("{:#}\n", description(job.config(), narrow).map_err(ending)?);
    pawl_durable::write(&config, text.as_bytes()).map_err(|error| failed(&config, &error))?;
    let weights = job.config().weights.as_ref().map(PathBuf::from);
    let tokenizer = job.config().tokenizer().and_then(|file| file.parent().map(PathBuf::from));
    let beside: Vec<PathBuf> = tokenizer.into_iter().chain(weights).collect();
    for name in COMPANIONS {
        if let Some(source) = beside.iter().map(|directory| directory.join(name)).find(|source| source.exists()) {
            std::fs::copy(&source, to.join(name)).map_err(|error| failed(&source, &error))?;
        }
    }
    Ok(format!("{}: step {}, {} items", to.display(), found.reference.step, found.reference.items))
}

fn language_model(plan: &LaunchPlan) -> Result<SlmJob, Ending> {
    let name = plan.workload.name.as_deref().unwrap_or_default();
    if name != "slm" {
        return Err(Ending::InvalidPlan(format!(
            "workload.name: {name:?}: only models of the workload slm can be exported"
        )));
    }
    let config = plan.workload.config.clone();
    let request = Request { config, settings: plan.settings.clone(), seed: plan.seed, rank: 0, world: 1 };
    SlmJob::new(&request).map_err(ending)
}
