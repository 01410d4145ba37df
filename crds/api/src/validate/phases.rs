//! Checks of phases: references to other phases, the settings that they change, and the gates that their fallbacks and
//! numerics require.

use super::{Problem, is_label, quoted};
use crate::rules::changing_numerics;
use crate::spec::{Numerics, Phase, Pin, Role, TrainingJobSpec, Trigger};
use pawl_contract::settings::Settings;

pub(super) fn check(spec: &TrainingJobSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, phase) in spec.phases.iter().enumerate() {
        let at = format!("spec.phases[{i}]");
        let mut refuse = |field: String, value: String, message: String, remedy: &str| {
            problems.push(Problem::new(format!("{at}.{field}"), value, message, remedy));
        };
        if !is_label(&phase.name) {
            let remedy = "use lower-case letters, digits and -, at most 63 characters";
            refuse("name".to_owned(), quoted(&phase.name), "is not a valid phase name".to_owned(), remedy);
        }
        if let Some(first) = spec.phases[..i].iter().position(|p| p.name == phase.name) {
            let message = format!("is already the name of spec.phases[{first}]");
            refuse("name".to_owned(), quoted(&phase.name), message, "choose a unique name");
        }
        references(spec, i, phase, &mut refuse);
        if phase.settings == Settings::default() && phase.pin.is_none() {
            let remedy = "set at least one setting, or remove the phase";
            refuse("settings".to_owned(), String::new(), "is an empty patch".to_owned(), remedy);
        }
        numerics(spec, phase, &mut refuse);
        for (k, fallback) in phase.fallbacks.iter().enumerate() {
            for (t, trigger) in fallback.when.iter().enumerate() {
                if let Some((message, remedy)) = never(spec, *trigger) {
                    refuse(format!("fallbacks[{k}].when[{t}]"), trigger.to_string(), message.to_owned(), remedy);
                }
            }
        }
    }
    problems
}

type Refuse<'a> = dyn FnMut(String, String, String, &str) + 'a;

fn references(spec: &TrainingJobSpec, i: usize, phase: &Phase, refuse: &mut Refuse<'_>) {
    let place = |name: &String| spec.phases.iter().position(|p| p.name == *name);
    for (r, name) in phase.requires.iter().enumerate() {
        let (message, remedy) = match place(name) {
            Some(earlier) if earlier < i => continue,
            Some(own) if own == i => ("is the phase itself", "remove it"),
            Some(_) => ("comes later in the list", "requires may only name earlier phases: move it up"),
            None => ("is not a phase of this job", "name an earlier phase"),
        };
        refuse(format!("requires[{r}]"), quoted(name), message.to_owned(), remedy);
    }
    for (c, name) in phase.conflicts_with.iter().enumerate() {
        let (message, remedy) = match place(name) {
            Some(own) if own == i => ("is the phase itself", "remove it"),
            None => ("is not a phase of this job", "name another phase"),
            Some(_) if phase.requires.contains(name) => ("is also in requires", "keep one of them"),
            Some(_) => continue,
        };
        refuse(format!("conflictsWith[{c}]"), quoted(name), message.to_owned(), remedy);
    }
    if phase.role == Role::Enabler && !spec.phases.iter().any(|p| p.requires.contains(&phase.name)) {
        let message = "must be required by a later phase, and no phase requires it".to_owned();
        let remedy = "add it to requires of a later phase, or set role to Optimization";
        refuse("role".to_owned(), "Enabler".to_owned(), message, remedy);
    }
}

fn numerics(spec: &TrainingJobSpec, phase: &Phase, refuse: &mut Refuse<'_>) {
    match phase.numerics {
        Numerics::Equivalent => {
            let patches = std::iter::once(("settings".to_owned(), &phase.settings));
            let fallbacks =
                phase.fallbacks.iter().enumerate().map(|(k, f)| (format!("fallbacks[{k}].settings"), &f.settings));
            for (path, patch) in patches.chain(fallbacks) {
                let patch = serde_json::to_value(patch).unwrap_or_default();
                for (name, value) in changing_numerics().filter_map(|name| Some((name, patch.get(name)?))) {
                    let message = "changes the computation, but the phase declares numerics: Equivalent".to_owned();
                    let remedy = "set numerics to Changed, so that the quality gate is checked";
                    refuse(format!("{path}.{name}"), value.to_string(), message, remedy);
                }
            }
        }
        Numerics::Changed => {
            let judged = matches!(phase.pin, None | Some(Pin::DryRun));
            if judged && !spec.gates.has_quality() {
                let remedy = "set spec.gates.validationLossDelta, validationLossWithin or validationMetrics";
                refuse("numerics".to_owned(), "Changed".to_owned(), "requires a quality gate".to_owned(), remedy);
            }
        }
    }
}

/// Why a trigger cannot occur in this job, and the remedy. Without a wildcard: whether a new trigger needs a gate is
/// decided here.
fn never(spec: &TrainingJobSpec, trigger: Trigger) -> Option<(&'static str, &'static str)> {
    match trigger {
        Trigger::MemoryAboveGate if spec.gates.gpu_memory.is_none() && spec.gates.gpu_memory_increase.is_none() => {
            Some(("cannot occur without the gate", "set spec.gates.gpuMemory or spec.gates.gpuMemoryIncrease"))
        }
        Trigger::OffloadOverhead if spec.gates.max_offload_overhead.is_none() => {
            Some(("cannot occur without the gate", "set spec.gates.maxOffloadOverhead"))
        }
        Trigger::OutOfMemory
        | Trigger::HostOutOfMemory
        | Trigger::NonFinite
        | Trigger::LossSpike
        | Trigger::Hang
        | Trigger::LoaderBound
        | Trigger::SpeedBelowThreshold
        | Trigger::QualityBelowThreshold
        | Trigger::MemoryAboveGate
        | Trigger::OffloadOverhead
        | Trigger::Unsupported
        | Trigger::CompileFailed => None,
    }
}
