//! Settings that have no effect beside others.

use crate::settings::{Compile, Precision, Settings, Sharding};
use std::fmt;

/// The trainer that is given settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trainer {
    /// Whether it is the built-in one. Another one has defaults of its own for absent settings, and uses settings in
    /// its own way: only explicit values of settings that are defined in terms of each other tell something about it.
    pub built_in: bool,
    /// Number of ranks.
    pub world_size: u32,
    /// Whether the ranks have GPUs.
    pub on_gpus: bool,
}

/// Why a patch has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEffect {
    /// All its settings have these values already, given or by default.
    Unchanged,
    /// These have no effect, and the others have their values already.
    Without(Vec<Missing>),
}

/// A setting without effect, and what would give it one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name, as in a manifest.
    pub setting: &'static str,
    /// Beside what it has no effect.
    pub cause: &'static str,
    /// What to change.
    pub remedy: &'static str,
}

impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged => write!(f, "all its settings have these values already"),
            Self::Without(missing) => {
                for (index, Missing { setting, cause, remedy }) in missing.iter().enumerate() {
                    let separator = if index > 0 { "; " } else { "" };
                    write!(f, "{separator}{setting} has no effect {cause}: {remedy}")?;
                }
                Ok(())
            }
        }
    }
}

/// Why `patch` on top of `settings` cannot have an effect; `None` if it can.
///
/// ```
/// use pawl_contract::effect::{NoEffect, Trainer, no_effect};
/// use pawl_contract::settings::Settings;
///
/// let settings = |text| serde_json::from_str::<Settings>(text);
/// let trainer = Trainer { built_in: true, world_size: 1, on_gpus: false };
/// let prefetch = settings(r#"{"loaderPrefetch": 64}"#)?;
/// let Some(NoEffect::Without(missing)) = no_effect(&settings("{}")?, &prefetch, trainer) else { panic!() };
/// assert_eq!((missing[0].setting, missing[0].remedy), ("loaderPrefetch", "set loaderWorkers to at least 1"));
/// assert_eq!(no_effect(&settings(r#"{"loaderWorkers": 2}"#)?, &prefetch, trainer), None);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn no_effect(settings: &Settings, patch: &Settings, trainer: Trainer) -> Option<NoEffect> {
    let patched = settings.with(patch);
    let dead = missing(&patched, trainer);
    if *patch == Settings::default() || in_effect(settings, trainer) != in_effect(&patched, trainer) {
        return None;
    }
    let given = patch.flat();
    let is_given = |setting: &str| given.keys().any(|name| name.split('.').next() == Some(setting));
    let changed = |setting: &str| {
        let of = |settings: &Settings| serde_json::to_value(settings).ok().and_then(|all| all.get(setting).cloned());
        of(settings) != of(&patched)
    };
    let causes: Vec<Missing> =
        dead.into_iter().filter(|found| is_given(found.setting) && changed(found.setting)).collect();
    Some(if causes.is_empty() { NoEffect::Unchanged } else { NoEffect::Without(causes) })
}

/// The settings that have no effect beside the others.
fn missing(settings: &Settings, trainer: Trainer) -> Vec<Missing> {
    let Trainer { built_in, world_size, on_gpus } = trainer;
    // Absent: the default of the contract, or another one of a trainer that is not built in.
    let known = |is_given: bool| built_in || is_given;
    let uncompiled = known(settings.compile.is_some()) && settings.compile() == Compile::None;
    let wide = known(settings.precision.is_some()) && settings.precision() != Precision::Fp8;
    let alone = known(settings.loader_workers.is_some()) && settings.loader_workers() == 0;
    let sharded = built_in && world_size > 1 && settings.sharding() != Sharding::None;
    let rules = [
        ("compileScope", uncompiled, "without compile", "set compile to Fuse or Graph"),
        ("float8Scaling", wide, "without 8-bit floats", "set precision to fp8"),
        ("float8Gradients", wide, "without 8-bit floats", "set precision to fp8"),
        ("loaderPrefetch", alone, "without workers", "set loaderWorkers to at least 1"),
        ("loaderPersistent", alone, "without workers", "set loaderWorkers to at least 1"),
        (
            "optimizerKernel",
            sharded,
            "with sharding, which updates each shard at once",
            "remove it, or set sharding to None",
        ),
        ("nccl", built_in && world_size == 1, "with one rank, which communicates with none", "use several GPUs"),
        ("deterministic", built_in && !on_gpus, "on a CPU, where results are reproducible anyway", "use GPUs"),
    ];
    let found = rules.into_iter().filter(|(_, applies, _, _)| *applies);
    found.map(|(setting, _, cause, remedy)| Missing { setting, cause, remedy }).collect()
}

/// The settings without those that have no effect, and of a built-in trainer without those that have their defaults.
fn in_effect(settings: &Settings, trainer: Trainer) -> Settings {
    let dead: Vec<&str> = missing(settings, trainer).iter().map(|found| found.setting).collect();
    let mut left = settings.clone();
    if let Some(steps) = settings.global_batch.and_then(|_| settings.accumulation(trainer.world_size.max(1)).ok()) {
        (left.accumulation_steps, left.global_batch) = (Some(steps), None);
    }
    let defaults = if trainer.built_in {
        // The default of `warmupSteps` is the schedule of the workload.
        Settings { eval_batch: Some(settings.batch_per_gpu()), warmup_steps: None, ..Settings::of_defaults() }
    } else {
        Settings::default()
    };
    left.without(&defaults, &dead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn settings(value: Value) -> Settings {
        serde_json::from_value(value).unwrap()
    }

    const BUILT_IN: Trainer = Trainer { built_in: true, world_size: 1, on_gpus: true };
    const SCRIPT: Trainer = Trainer { built_in: false, ..BUILT_IN };

    /// The settings that are named as without effect; none where there is one; "unchanged" where nothing changes.
    fn named(before: Value, patch: Value, trainer: Trainer) -> Vec<&'static str> {
        match no_effect(&settings(before), &settings(patch), trainer) {
            None => Vec::new(),
            Some(NoEffect::Unchanged) => vec!["unchanged"],
            Some(NoEffect::Without(missing)) => missing.iter().map(|found| found.setting).collect(),
        }
    }

    #[test]
    fn each_setting_that_needs_another_is_found_and_has_an_effect_with_it() {
        let two = Trainer { world_size: 2, ..BUILT_IN };
        let cpu = Trainer { on_gpus: false, ..BUILT_IN };
        for (patch, without, with, trainer, other) in [
            (json!({"compileScope": {"exclude": ["gat"]}}), json!({}), json!({"compile": "Graph"}), BUILT_IN, BUILT_IN),
            (
                json!({"float8Scaling": "Delayed"}),
                json!({"precision": "bf16"}),
                json!({"precision": "fp8"}),
                BUILT_IN,
                BUILT_IN,
            ),
            (json!({"float8Gradients": "e5m2"}), json!({}), json!({"precision": "fp8"}), BUILT_IN, BUILT_IN),
            (
                json!({"loaderPrefetch": 64}),
                json!({"loaderPrefetch": 1}),
                json!({"loaderWorkers": 1}),
                BUILT_IN,
                BUILT_IN,
            ),
            (json!({"loaderPersistent": true}), json!({}), json!({"loaderWorkers": 1}), BUILT_IN, BUILT_IN),
            (json!({"optimizerKernel": "Fused"}), json!({"sharding": "Zero1"}), json!({"sharding": "None"}), two, two),
            (json!({"nccl": {"NCCL_ALGO": "Ring"}}), json!({}), json!({}), BUILT_IN, two),
            (json!({"deterministic": true}), json!({}), json!({}), cpu, BUILT_IN),
        ] {
            let name = patch.as_object().unwrap().keys().next().unwrap().clone();
            assert_eq!(named(without, patch.clone(), trainer), [name.as_str()], "{patch}");
            assert_eq!(named(with.clone(), patch.clone(), other), [""; 0], "{patch} on {with}");
            // What would give it an effect may be in the patch itself.
            let mut both = with.as_object().unwrap().clone();
            both.extend(patch.as_object().unwrap().clone());
            if !with.as_object().unwrap().is_empty() {
                assert_eq!(named(json!({}), Value::Object(both), other), [""; 0], "{patch} with {with}");
            }
        }
    }

    #[test]
    fn an_inherited_setting_without_effect_does_not_hide_the_effect_of_others() {
        let before = json!({"loaderWorkers": 2, "loaderPrefetch": 4});
        assert_eq!(named(before, json!({"loaderWorkers": 0, "loaderPrefetch": 8}), BUILT_IN), [""; 0]);
        assert_eq!(named(json!({}), json!({"loaderPrefetch": 8, "evalBatch": 4}), BUILT_IN), [""; 0]);
    }

    #[test]
    fn a_patch_that_repeats_values_or_defaults_changes_nothing() {
        let compiled = json!({"compile": "Graph", "batchPerGpu": 8});
        assert_eq!(named(compiled.clone(), json!({"compile": "Graph"}), BUILT_IN), ["unchanged"]);
        assert_eq!(named(compiled.clone(), json!({"compile": "Graph"}), SCRIPT), ["unchanged"]);
        assert_eq!(
            named(compiled.clone(), json!({"attention": "Math", "accumulationSteps": 1}), BUILT_IN),
            ["unchanged"]
        );
        assert_eq!(named(compiled.clone(), json!({"globalBatch": 8}), BUILT_IN), ["unchanged"]);
        assert_eq!(named(compiled.clone(), json!({"globalBatch": 16}), BUILT_IN), [""; 0]);
        assert_eq!(named(compiled, json!({}), BUILT_IN), [""; 0], "an empty patch is asked for");
    }

    #[test]
    fn a_script_has_defaults_of_its_own() {
        assert_eq!(named(json!({}), json!({"loaderPrefetch": 64}), SCRIPT), [""; 0]);
        assert_eq!(named(json!({"loaderWorkers": 0}), json!({"loaderPrefetch": 64}), SCRIPT), ["loaderPrefetch"]);
        assert_eq!(named(json!({}), json!({"attention": "Math"}), SCRIPT), [""; 0]);
        assert_eq!(named(json!({}), json!({"deterministic": true, "nccl": {"NCCL_ALGO": "Ring"}}), SCRIPT), [""; 0]);
    }

    #[test]
    fn the_message_names_each_setting_its_cause_and_the_remedy() {
        let patch = settings(json!({"loaderPrefetch": 8, "compileScope": {"exclude": ["gat"]}}));
        let text = no_effect(&settings(json!({})), &patch, BUILT_IN).unwrap().to_string();
        let expected = "compileScope has no effect without compile: set compile to Fuse or Graph; loaderPrefetch has no effect \
                        without workers: set loaderWorkers to at least 1";
        assert_eq!(text, expected);
    }
}
