//! Batch arithmetic.

use super::{Trial, Verdict};
use pawl_api::spec::Trigger;
use pawl_contract::settings::Settings;

/// Items per optimizer step of the whole gang, or what is wrong with the settings.
pub(crate) fn items_per_step(settings: &Settings, world: u32) -> Result<u64, String> {
    let bounded = |name: &str, value: u32, most: u32| {
        let wrong = || format!("settings.{name}: {value} is out of range: choose 1 to {most}");
        if (1..=most).contains(&value) { Ok(()) } else { Err(wrong()) }
    };
    bounded("batchPerGpu", settings.batch(), 1 << 20)?;
    bounded("accumulationSteps", settings.accumulation_steps.unwrap_or(1), 1 << 16)?;
    if !(1..=1 << 20).contains(&world) {
        return Err(format!("trainer: replicas x gpusPerReplica = {world} ranks: choose 1 to {}", 1 << 20));
    }
    settings.items_per_step(world).map_err(|mismatch| mismatch.to_string())
}

/// Items per optimizer step must come out.
pub(super) fn arithmetic(trial: &Trial<'_>) -> Option<Verdict> {
    let comparison = &trial.comparison;
    let error = items_per_step(&comparison.candidate, comparison.draft.spec.trainer.world_size()).err()?;
    let message = format!("{error} (on top of the settings accepted so far)");
    Some(Verdict::Fails { trigger: Some(Trigger::Unsupported), reason: "BatchMismatch", message })
}

/// Another number of items per optimizer step is other mathematics.
pub(super) fn misdeclared(trial: &Trial<'_>) -> Option<Verdict> {
    let comparison = &trial.comparison;
    let world = comparison.draft.spec.trainer.world_size();
    let control = items_per_step(&comparison.control, world).ok()?;
    let candidate = items_per_step(&comparison.candidate, world).ok()?;
    if trial.changes_numerics() || control == candidate {
        return None;
    }
    let name = &trial.phase.name;
    let message = format!(
        "items per optimizer step are {candidate}, those of the settings accepted so far {control}: that changes the \
         mathematics; declare phases[{name}].numerics: Changed, or adapt accumulationSteps"
    );
    Some(Verdict::Fails { trigger: None, reason: "NumericsMisdeclared", message })
}
