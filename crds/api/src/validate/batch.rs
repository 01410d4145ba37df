//! Batch arithmetic of every revision: `globalBatch` must be divisible, and an `Equivalent` phase must not change the
//! items per step.

use super::Problem;
use crate::spec::{Numerics, Phase, TrainingJobSpec};
use pawl_contract::settings::Settings;

pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let world = spec.trainer.world_size().max(1);
    let mut problems: Vec<_> = patch(&Settings::default(), &spec.settings, world, None).err().into_iter().collect();
    for problem in &mut problems {
        problem.field = format!("spec.settings.{}", problem.field);
    }
    if !problems.is_empty() {
        // Every phase is applied on top of the baseline, whose error would be reported once for each.
        return problems;
    }
    for (i, phase) in spec.phases.iter().enumerate() {
        let patches = std::iter::once(("settings".to_owned(), phase.settings.clone())).chain(
            phase.fallbacks.iter().enumerate().map(|(k, f)| (format!("fallbacks[{k}].settings"), f.settings.clone())),
        );
        for (path, own) in patches {
            let is_fallback = path != "settings";
            let found = bases(spec, i).iter().find_map(|base| {
                let on = if is_fallback { base.with(&phase.settings) } else { base.clone() };
                let before = (phase.numerics == Numerics::Equivalent).then_some(base);
                patch(&on, &own, world, before).err()
            });
            if let Some(mut problem) = found {
                problem.field = format!("spec.phases[{i}].{path}.{}", problem.field);
                problems.push(problem);
            }
        }
    }
    problems
}

/// The revisions on which phase `i` may be evaluated: with only its requirements accepted, and with all earlier phases
/// accepted.
pub(super) fn bases(spec: &TrainingJobSpec, i: usize) -> [Settings; 2] {
    let phase = &spec.phases[i];
    let mut needed: Vec<&String> = phase.requires.iter().collect();
    for earlier in spec.phases[..i].iter().rev() {
        if needed.contains(&&earlier.name) {
            needed.extend(&earlier.requires);
        }
    }
    let fold = |keep: &dyn Fn(&Phase) -> bool| {
        let kept = spec.phases[..i].iter().filter(|p| keep(p));
        kept.fold(spec.settings.clone(), |settings, p| settings.with(&p.settings))
    };
    [fold(&|p| needed.contains(&&p.name)), fold(&|p| !phase.conflicts_with.contains(&p.name))]
}

/// `patch` on `base` for `world` ranks; `before`: the settings whose items per step must not change.
fn patch(base: &Settings, patch: &Settings, world: u32, before: Option<&Settings>) -> Result<(), Problem> {
    let touches = patch.batch_per_gpu.is_some() || patch.global_batch.is_some() || patch.accumulation_steps.is_some();
    if !touches {
        return Ok(());
    }
    let folded = base.with(patch);
    if folded.batch_per_gpu() == 0 {
        return Err(Problem::new("batchPerGpu", "0", "is too small", "write at least 1"));
    }
    let field = match patch {
        Settings { global_batch: Some(_), .. } => "globalBatch",
        Settings { batch_per_gpu: Some(_), .. } => "batchPerGpu",
        _ => "accumulationSteps",
    };
    let value = |s: &Settings| match field {
        "globalBatch" => s.global_batch,
        "batchPerGpu" => s.batch_per_gpu,
        _ => s.accumulation_steps,
    };
    let shown = value(patch).map(|v| v.to_string()).unwrap_or_default();
    let per_step = folded.items_per_step(world).map_err(|e| {
        let step = u64::from(e.batch_per_gpu) * u64::from(world);
        Problem::new(
            field,
            shown.clone(),
            format!(
                "is invalid: globalBatch {} is not divisible by batchPerGpu x ranks = {} x {world}",
                e.global_batch, e.batch_per_gpu
            ),
            format!("choose a globalBatch that is a multiple of {step}, or another batchPerGpu"),
        )
    })?;
    let derived = folded.accumulation(world).unwrap_or(1);
    if let (Some(steps), Some(global)) = (patch.accumulation_steps, folded.global_batch)
        && steps != derived
    {
        return Err(Problem::new(
            "accumulationSteps",
            steps.to_string(),
            format!("conflicts with globalBatch {global}, from which {derived} is derived"),
            "remove one of them",
        ));
    }
    match before.map(|b| b.items_per_step(world)) {
        Some(Ok(items)) if items != per_step => Err(Problem::new(
            field,
            shown,
            format!(
                "changes the items per step from {items} to {per_step}, but the phase declares numerics: Equivalent"
            ),
            "set numerics to Changed, or keep batchPerGpu x accumulationSteps x ranks unchanged",
        )),
        _ => Ok(()),
    }
}
