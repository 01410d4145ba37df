//! Trials: groups of launches with a common purpose, for which retries are counted.

use pawl_api::status::PhaseStatus;
use std::fmt;

/// A trial. Its text is the prefix of its launches' names, and is stored in the status. Trials are compared by their whole
/// text, which is unique per phase and input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// The checks before anything is measured.
    Preflight,
    /// The quality launches of the baseline.
    Baseline,
    /// A phase with its fallback `rung` (0: none). The hash of its input is part of the name, so that a repeated evaluation
    /// uses new names.
    Phase { phase: String, rung: u32, input: String },
    /// All accepted phases together, by the hash of the settings.
    Bundle { input: String },
    /// A slow-down of the training, by its number: the settings in effect against those without a phase, or without any.
    Slowdown { number: u32, phase: Option<String> },
    /// The training.
    Train,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preflight => f.write_str("preflight"),
            Self::Baseline => f.write_str("baseline"),
            Self::Phase { phase, rung, input } => write!(f, "{phase}-r{rung}-{input}"),
            Self::Bundle { input } => write!(f, "bundle-{input}"),
            Self::Slowdown { number, phase: Some(phase) } => write!(f, "slow-{number}-without-{phase}"),
            Self::Slowdown { number, phase: None } => write!(f, "slow-{number}-all"),
            Self::Train => f.write_str("train"),
        }
    }
}

impl Trial {
    /// The trial of a phase with its fallback `rung` (0: none).
    pub fn of_phase(phase: &PhaseStatus, rung: u32) -> Self {
        let input = phase.input_hash.get(..4).unwrap_or_default().to_owned();
        Self::Phase { phase: phase.name.clone(), rung, input }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_whose_name_begins_like_another_phase_has_trials_of_its_own() {
        let trials = |name: &str| {
            let phase =
                PhaseStatus { name: name.to_owned(), input_hash: "abcdef".to_owned(), ..PhaseStatus::default() };
            (0..3).map(|rung| Trial::of_phase(&phase, rung).to_string()).collect::<Vec<_>>()
        };
        let batch = trials("batch");
        assert_eq!(batch[1], "batch-r1-abcd");
        for name in ["batch-recompute", "batch-r1", "batch-r1-abcd"] {
            assert!(trials(name).iter().all(|trial| !batch.contains(trial)), "{name}");
        }
    }
}
