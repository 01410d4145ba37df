//! The state of a phase as words, a symbol and a tone, so that colour is never the only indication.

use pawl_api::status::{PhaseState, PhaseStatus, Stage};

/// The tone of a row: its colour and its symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Accepted.
    Good,
    /// Rolled back.
    Bad,
    /// No verdict: inconclusive, unsupported or an error.
    Unclear,
    /// Not evaluated (yet).
    Idle,
    /// The total of all phases.
    Total,
}

impl Tone {
    /// Its class in the report's style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Unclear => "unclear",
            Self::Idle => "idle",
            Self::Total => "total",
        }
    }

    /// Its symbol.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "↩",
            Self::Unclear => "?",
            Self::Idle => "–",
            Self::Total => "Σ",
        }
    }
}

/// The tone of a state.
pub const fn tone(state: PhaseState) -> Tone {
    match state {
        PhaseState::Accepted => Tone::Good,
        PhaseState::RolledBack | PhaseState::RollingBack => Tone::Bad,
        PhaseState::Inconclusive | PhaseState::Error | PhaseState::Unsupported => Tone::Unclear,
        PhaseState::Pending
        | PhaseState::Preflight
        | PhaseState::Measuring
        | PhaseState::Retrying
        | PhaseState::Skipped => Tone::Idle,
    }
}

/// The tone of a job in `stage`.
pub const fn stage_tone(stage: Stage) -> Tone {
    match stage {
        Stage::Complete => Tone::Good,
        Stage::Failed => Tone::Bad,
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => Tone::Idle,
        Stage::Suspended => Tone::Unclear,
    }
}

/// Whether a job in `stage` is worked on until it ends.
pub const fn is_open(stage: Stage) -> bool {
    match stage {
        Stage::Complete | Stage::Failed | Stage::Suspended => false,
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => true,
    }
}

/// Whether a job in `stage` has ended, so that nothing more becomes known of it. A suspended one is resumed.
pub const fn is_ended(stage: Stage) -> bool {
    match stage {
        Stage::Complete | Stage::Failed => true,
        Stage::Pending
        | Stage::Preflight
        | Stage::Optimizing
        | Stage::Searching
        | Stage::Training
        | Stage::Suspended => false,
    }
}

/// The state of a phase, or of all together, of a job in `stage`, in words.
pub const fn word(state: PhaseState, stage: Stage) -> &'static str {
    match state {
        PhaseState::Pending => "pending",
        // Of a job that has failed, nothing goes on.
        PhaseState::Preflight | PhaseState::Measuring | PhaseState::Retrying | PhaseState::RollingBack
            if matches!(stage, Stage::Failed) =>
        {
            "not finished"
        }
        PhaseState::Preflight => "being checked",
        PhaseState::Measuring => "being measured",
        PhaseState::Retrying => "next fallback",
        PhaseState::RollingBack => "rolling back",
        PhaseState::Accepted => "accepted",
        PhaseState::RolledBack => "rolled back",
        PhaseState::Unsupported => "unsupported",
        PhaseState::Skipped => "skipped",
        PhaseState::Inconclusive => "inconclusive",
        PhaseState::Error => "error",
    }
}

/// The verdict on a phase of a job in `stage`, in a few words, with the number of its fallback, if any.
pub fn phrase(phase: &PhaseStatus, stage: Stage) -> String {
    let word = word(phase.state, stage);
    match phase.effective_fallback() {
        0 => word.to_owned(),
        fallback => format!("{word} (fallback {fallback})"),
    }
}
