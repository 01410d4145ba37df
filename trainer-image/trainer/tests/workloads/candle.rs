//! Weights between the built-in trainer and candle-nn, in both directions: the same names and values.

use crate::one_rank;
use candle_core::{DType, Device};
use candle_nn::{Init, VarBuilder, VarMap};
use pawl_candle::exchange;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_trainer::checkpoint::{Store, Tensors};
use serde_json::{Value, json};
use std::path::Path;

fn plan(changes: Value) -> LaunchPlan {
    let own = json!({
        "workload": {"name": "slm", "config": {"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}}},
        "settings": {"batchPerGpu": 4, "compile": "Graph", "learningRate": "1e-3"},
        "budget": {"items": 40}, "hangTimeoutSeconds": 60.0,
    });
    one_rank::plan(&own, &changes)
}

/// The weights of the newest checkpoint: all but the optimizer's state.
fn weights(dir: &Path) -> (String, Tensors) {
    let store = Store::open(dir.join("checkpoints").to_str().unwrap()).unwrap();
    let found = store.newest(None).unwrap().unwrap();
    let mut tensors = found.checkpoint.tensors;
    tensors.retain(|(name, _)| !name.starts_with("adamw."));
    (found.reference.name, tensors)
}

#[test]
fn what_the_trainer_saves_is_read_by_candle_and_what_candle_saves_starts_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let trained = one_rank::run(dir.path(), &plan(json!({})));
    assert_eq!(trained.outcome, Outcome::Done, "{}", trained.message);
    let (name, saved) = weights(dir.path());
    let storage = dir.path().join("checkpoints");

    // A VarBuilder over the file of the checkpoint, as it is.
    let file = storage.join(name).join("model-00001-of-00001.safetensors");
    // SAFETY: nothing writes to the file of a complete checkpoint.
    let builder = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu) }.unwrap();
    let vars = VarMap::new();
    for (name, array) in &saved {
        let tensor = builder.get(array.shape().dims(), name).unwrap();
        let values: Vec<f64> = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1().unwrap();
        assert_eq!(values, array.to_f64(), "{name}");
        vars.get(array.shape().dims(), name, Init::Const(0.0), DType::F32, &Device::Cpu).unwrap();
    }

    // Verified, into the variables of a model; those of another one are left as they are.
    let mut names = exchange::read(&vars, storage.to_str().unwrap()).unwrap();
    names.sort();
    assert_eq!(names, saved.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    assert!(names.contains(&"model.embed_tokens.weight".to_owned()), "{names:?}");
    let other = VarMap::new();
    other.get(3, "other", Init::Const(1.0), DType::F32, &Device::Cpu).unwrap();
    assert!(exchange::read(&other, storage.to_str().unwrap()).unwrap().is_empty());
    let wide = VarMap::new();
    wide.get(3, &names[0], Init::Const(1.0), DType::F32, &Device::Cpu).unwrap();
    let message = exchange::read(&wide, storage.to_str().unwrap()).unwrap_err().to_string();
    assert!(message.contains(&names[0]) && message.contains("has shape"), "{message}");

    // And back, as the initial weights of another job of the workload: its first evaluation is the last one of this
    // job.
    let copy = dir.path().join("copy");
    exchange::write(&vars, copy.to_str().unwrap(), "slm").unwrap();
    let again = tempfile::tempdir().unwrap();
    let from = json!({"checkpoint": {"resumeFrom": {"storage": copy, "weightsOnly": true}}, "seed": 42, "budget": {"items": 4}});
    let report = one_rank::run(again.path(), &plan(from));
    assert_eq!(report.outcome, Outcome::Done, "{}", report.message);
    assert_eq!(report.measured.steps, 1);
    assert_eq!(report.measured.first_metric("loss"), trained.measured.metric("loss"));
}
