//! Batch arithmetic.

use super::{Subject, Verdict};
use crate::reason::Reason;
use pawl_api::spec::Trigger;
use pawl_contract::settings::Settings;

/// Items per optimizer step of the whole gang.
///
/// # Errors
/// A message when a value is out of range, or `globalBatch` is not divisible.
pub(crate) fn items_per_step(settings: &Settings, world: u32) -> Result<u64, String> {
    let bounded = |name: &str, value: u32, most: u32| {
        let wrong = || format!("settings.{name}: {value} is out of range: choose 1 to {most}");
        if (1..=most).contains(&value) { Ok(()) } else { Err(wrong()) }
    };
    bounded("batchPerGpu", settings.batch_per_gpu(), 1 << 20)?;
    bounded("accumulationSteps", settings.accumulation_steps(), 1 << 16)?;
    if !(1..=1 << 20).contains(&world) {
        return Err(format!("trainer: replicas x gpusPerReplica = {world} ranks: choose 1 to {}", 1 << 20));
    }
    settings.items_per_step(world).map_err(|mismatch| mismatch.to_string())
}

/// `globalBatch` must be divisible by `batchPerGpu` times the number of ranks.
pub(super) fn arithmetic(subject: &Subject<'_>) -> Option<Verdict> {
    let error = items_per_step(&subject.comparison.candidate, subject.spec().trainer.world_size()).err()?;
    let message = format!("{error} (on top of the settings accepted so far)");
    Some(Verdict::Fails { trigger: Some(Trigger::Unsupported), reason: Reason::BatchMismatch, message })
}

/// A different number of items per optimizer step changes the numerics.
pub(super) fn misdeclared(subject: &Subject<'_>) -> Option<Verdict> {
    let world = subject.spec().trainer.world_size();
    let control = items_per_step(&subject.comparison.control, world).ok()?;
    let candidate = items_per_step(&subject.comparison.candidate, world).ok()?;
    if subject.declares_change() || control == candidate {
        return None;
    }
    let name = subject.phase.map(|phase| phase.name.as_str()).unwrap_or_default();
    let message = format!(
        "items per optimizer step are {candidate}, but {control} with the settings accepted so far: this changes the \
         numerics; declare phases[{name}].numerics: Changed, or adapt accumulationSteps"
    );
    Some(Verdict::Fails { trigger: None, reason: Reason::NumericsMisdeclared, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_per_step_are_counted_or_the_setting_is_named() {
        let settings =
            |batch, global_batch| Settings { batch_per_gpu: Some(batch), global_batch, ..Settings::default() };
        assert_eq!(items_per_step(&settings(8, None), 4), Ok(32));
        assert_eq!(items_per_step(&settings(8, Some(64)), 4), Ok(64));
        for (settings, world, named) in
            [(settings(0, None), 1, "batchPerGpu"), (settings(8, Some(12)), 1, "12"), (settings(8, None), 0, "ranks")]
        {
            let error = items_per_step(&settings, world).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
