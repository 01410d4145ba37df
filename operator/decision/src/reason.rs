//! Reasons of phases, conditions, events and failures, each one CamelCase word.

use pawl_api::status::Stage;
use pawl_contract::exit::Outcome;

/// Reason of a phase, the bundle, a condition, an event or a failure. Displayed as in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub(crate) enum Reason {
    /// Outcome of a launch.
    #[strum(to_string = "{0}")]
    Outcome(Outcome),
    /// Outcome of a launch of the baseline.
    #[strum(to_string = "Baseline{0}")]
    Baseline(Outcome),
    /// Stage of the job.
    #[strum(to_string = "{0}")]
    Stage(Stage),
    AcceptedInconclusive,
    AsPlanned,
    AttemptFailed,
    AttemptStarted,
    BatchMismatch,
    BundleFailed,
    Complete,
    Conflict,
    ControlFailed,
    DeadlineExceeded,
    DryRun,
    GateUnderpowered,
    GateUnmeasured,
    GoalMet,
    GoalMissed,
    InvalidPlan,
    InvalidSpec,
    LoaderBound,
    LossDiverged,
    MemoryAboveGate,
    NoFailure,
    NoLongerHelps,
    NotComplete,
    NotSuspended,
    NothingAccepted,
    NothingNeedsIt,
    NumericsMisdeclared,
    OffloadOverhead,
    PhaseError,
    Pinned,
    Preempted,
    QualityBelowThreshold,
    Queued,
    Reopened,
    RequirementNotAccepted,
    RetriesExhausted,
    RevertedWith,
    SearchUnavailable,
    SinglePair,
    SpecSuspend,
    SpeedAboveThreshold,
    SpeedBelowThreshold,
    SpeedUndecided,
    Straggler,
    Superseded,
    ThroughputBelowGate,
    ThroughputBelowPromise,
    TrainingDegraded,
    TrainingDone,
    TrialRunning,
    TrialStarted,
    Unpinned,
    UtilizationBelowGate,
    ValidationAboveGate,
}

impl Reason {
    /// Whether `text`, from the status, is this reason.
    pub fn is(self, text: &str) -> bool {
        self.to_string() == text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_camel_case_word() {
        for (reason, text) in [
            (Reason::Outcome(Outcome::OutOfMemory), "OutOfMemory"),
            (Reason::Baseline(Outcome::CompileFailed), "BaselineCompileFailed"),
            (Reason::Stage(Stage::Optimizing), "Optimizing"),
            (Reason::GoalMissed, "GoalMissed"),
        ] {
            assert_eq!(reason.to_string(), text);
            assert!(reason.is(text) && !Reason::AsPlanned.is(text));
        }
    }
}
