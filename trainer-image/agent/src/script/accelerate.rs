//! Environment variables of Hugging Face Accelerate, as `accelerate launch` sets them.

use pawl_contract::settings::{ActivationCheckpointing, Compile, OptimizerOffload, Precision, Settings, Sharding};

/// The variables for the settings that are given. Settings that Accelerate has no variable for, and `sharding: Zero1`,
/// have none.
pub(crate) fn accelerate(settings: &Settings, world_size: u32, on_cpu: bool) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut set = |name, value: &str| all.push((name, value.to_owned()));
    if on_cpu {
        set("ACCELERATE_USE_CPU", "true");
    }
    if let Some(precision) = settings.precision {
        let mixed = match precision {
            Precision::Fp32 | Precision::Tf32 => "no",
            Precision::Fp16 => "fp16",
            Precision::Bf16 => "bf16",
            Precision::Fp8 => "fp8",
        };
        set("ACCELERATE_MIXED_PRECISION", mixed);
    }
    if settings.accumulation_steps.is_some() || settings.global_batch.is_some() {
        let steps = settings.accumulation(world_size).unwrap_or(1);
        set("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", &steps.to_string());
    }
    match settings.compile {
        None => {}
        Some(Compile::None) => set("ACCELERATE_DYNAMO_BACKEND", "no"),
        Some(mode) => {
            set("ACCELERATE_DYNAMO_BACKEND", "inductor");
            set("ACCELERATE_DYNAMO_MODE", if mode == Compile::Graph { "reduce-overhead" } else { "default" });
        }
    }
    let reshard = match settings.sharding {
        None | Some(Sharding::None | Sharding::Zero1) => return all,
        Some(Sharding::Zero2) => "false",
        Some(Sharding::Full) => "true",
    };
    set("ACCELERATE_USE_FSDP", "true");
    set("FSDP_VERSION", "2");
    set("FSDP_RESHARD_AFTER_FORWARD", reshard);
    set("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP");
    if settings.activation_checkpointing == Some(ActivationCheckpointing::Full) {
        set("FSDP_ACTIVATION_CHECKPOINTING", "true");
    }
    if settings.optimizer_offload == Some(OptimizerOffload::Cpu) {
        set("FSDP_OFFLOAD_PARAMS", "true");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: serde_json::Value) -> Vec<String> {
        let settings = serde_json::from_value(settings).unwrap();
        accelerate(&settings, 4, false).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn only_given_settings_become_variables() {
        assert!(of(serde_json::json!({"batchPerGpu": 8})).is_empty());
        let given = serde_json::json!({"precision": "bf16", "compile": "Graph", "batchPerGpu": 2, "globalBatch": 16,
            "sharding": "Full", "activationCheckpointing": "Full"});
        assert_eq!(
            of(given),
            [
                "ACCELERATE_MIXED_PRECISION=bf16",
                "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2",
                "ACCELERATE_DYNAMO_BACKEND=inductor",
                "ACCELERATE_DYNAMO_MODE=reduce-overhead",
                "ACCELERATE_USE_FSDP=true",
                "FSDP_VERSION=2",
                "FSDP_RESHARD_AFTER_FORWARD=true",
                "FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP",
                "FSDP_ACTIVATION_CHECKPOINTING=true",
            ]
        );
        assert_eq!(of(serde_json::json!({"precision": "tf32"})), ["ACCELERATE_MIXED_PRECISION=no"]);
    }
}
