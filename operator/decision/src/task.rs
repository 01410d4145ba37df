//! Tasks: groups of launches with a common purpose, for which retries are counted.

use pawl_api::status::PhaseStatus;
use std::fmt;

/// A task. Its text is the prefix of its launches' names, and is stored in the status. Tasks are compared by their
/// whole text, which is unique per phase and input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The checks before anything is measured.
    Preflight,
    /// The quality launches of the baseline.
    Baseline,
    /// A phase with the fallback of this number (0: none). The hash of its input is part of the name, so that a
    /// repeated evaluation uses new names.
    Phase { phase: String, fallback: u32, input: String },
    /// All accepted phases together, by the hash of the settings.
    Bundle { input: String },
    /// A slow-down of the training, by its number: the settings in effect against those without a phase, or without
    /// any.
    Slowdown { number: u32, phase: Option<String> },
    /// The training.
    Train,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preflight => f.write_str("preflight"),
            Self::Baseline => f.write_str("baseline"),
            Self::Phase { phase, fallback, input } => write!(f, "{phase}-r{fallback}-{input}"),
            Self::Bundle { input } => write!(f, "bundle-{input}"),
            Self::Slowdown { number, phase: Some(phase) } => write!(f, "slow-{number}-without-{phase}"),
            Self::Slowdown { number, phase: None } => write!(f, "slow-{number}-all"),
            Self::Train => f.write_str("train"),
        }
    }
}

impl Task {
    /// The task of a phase with the fallback of this number (0: none).
    pub fn of_phase(phase: &PhaseStatus, fallback: u32) -> Self {
        let input = phase.input_hash.get(..4).unwrap_or_default().to_owned();
        Self::Phase { phase: phase.name.clone(), fallback, input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_whose_name_begins_like_another_phase_has_tasks_of_its_own() {
        let tasks = |name: &str| {
            let phase =
                PhaseStatus { name: name.to_owned(), input_hash: "abcdef".to_owned(), ..PhaseStatus::default() };
            (0..3).map(|fallback| Task::of_phase(&phase, fallback).to_string()).collect::<Vec<_>>()
        };
        let batch = tasks("batch");
        assert_eq!(batch[1], "batch-r1-abcd");
        for name in ["batch-recompute", "batch-r1", "batch-r1-abcd"] {
            assert!(tasks(name).iter().all(|task| !batch.contains(task)), "{name}");
        }
    }
}
