//! Collects all errors in the settings of a job into one message.

use crate::draft::{Draft, MAX_MESSAGE};
use crate::launch::check_tag;
use crate::revision::standalone;
use pawl_api::spec::{Pin, TrainingJobSpec};
use pawl_contract::report::truncated;
use pawl_contract::settings::Settings;

/// Minimum length to which a problem is truncated in a message, bytes.
const LEAST: usize = 60;
/// Space for the number of omitted problems, bytes.
const AND_MORE: usize = 16;

/// An error in the settings of the baseline or of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `None`: the baseline.
    pub phase: Option<String>,
    /// Fallback in effect, from 1; 0: none.
    pub fallback: u32,
    pub message: String,
}

impl Problem {
    fn of(&self) -> String {
        match (&self.phase, self.fallback) {
            (None, _) => "baseline".to_owned(),
            (Some(phase), 0) => format!("phase {phase}"),
            (Some(phase), fallback) => format!("phase {phase}, fallback {fallback}"),
        }
    }
}

/// All settings that a job may run: those of the baseline, and of each phase with each of its fallbacks.
pub(crate) fn settings(spec: &TrainingJobSpec) -> Vec<(Option<String>, u32, Settings)> {
    let mut all = vec![(None, 0, spec.settings.clone())];
    for (index, phase) in spec.phases.iter().enumerate().filter(|(_, phase)| phase.pin != Some(Pin::RolledBack)) {
        let fallbacks = 0..=phase.fallbacks.len() as u32;
        all.extend(fallbacks.map(|fallback| (Some(phase.name.clone()), fallback, standalone(spec, index, fallback))));
    }
    all
}

/// Checks all settings that a job may run, and collects the errors that `check` returns.
pub(crate) fn all(spec: &TrainingJobSpec, check: impl Fn(&Settings) -> Option<String>) -> Vec<Problem> {
    let problem = |(phase, fallback, settings): (_, _, Settings)| {
        check(&settings).map(|message| Problem { phase, fallback, message })
    };
    settings(spec).into_iter().filter_map(problem).collect()
}

/// Drops the errors of settings that are no longer in the spec.
pub(crate) fn retain_current(draft: &mut Draft<'_>) {
    if draft.status.invalid.is_empty() {
        return;
    }
    let known: Vec<String> =
        settings(draft.spec).iter().map(|(.., settings)| check_tag(draft.spec, settings)).collect();
    draft.status.invalid.retain(|invalid| known.contains(&invalid.input_hash));
}

/// The errors that the preflight found in the current settings.
pub(crate) fn found(draft: &Draft<'_>) -> Vec<Problem> {
    if draft.status.invalid.is_empty() {
        return Vec::new();
    }
    all(draft.spec, |settings| {
        let tag = check_tag(draft.spec, settings);
        let invalid = draft.status.invalid.iter().find(|invalid| invalid.input_hash == tag)?;
        Some(invalid.message.clone())
    })
}

/// The problems in one message that fits into the status. A problem of the baseline is not repeated for the phases,
/// which inherit it, nor one of a phase for its fallbacks; problems that do not fit are counted.
pub(crate) fn listed(problems: &[Problem]) -> String {
    let inherited = |problem: &Problem| {
        let from = |known: &Problem| {
            let of_baseline = known.phase.is_none() && problem.phase.is_some();
            let of_phase = known.phase == problem.phase && known.fallback < problem.fallback;
            known.message == problem.message && (of_baseline || of_phase)
        };
        problems.iter().any(from)
    };
    let own: Vec<&Problem> = problems.iter().filter(|problem| !inherited(problem)).collect();
    let share = (MAX_MESSAGE / own.len().max(1)).max(LEAST);
    let mut text = String::new();
    for (index, problem) in own.iter().enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        let entry = format!("{separator}{}: {}", problem.of(), problem.message);
        let entry = truncated(&entry, share);
        let last = index + 1 == own.len();
        let room = if last { MAX_MESSAGE } else { MAX_MESSAGE - AND_MORE };
        if text.len() + entry.len() > room {
            text.push_str(&format!("; and {} more", own.len() - index));
            break;
        }
        text.push_str(entry);
    }
    text
}
