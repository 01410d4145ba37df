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
    ActionRequired,
    AllTrialsEnded,
    AsPlanned,
    AttemptFailed,
    AttemptStarted,
    BackOff,
    BatchMismatch,
    BudgetSpent,
    BundleFailed,
    Complete,
    Conflict,
    ControlFailed,
    Crashed,
    DeadlineExceeded,
    Disrupted,
    DryRun,
    DryRunFailed,
    GangPending,
    GateUnderpowered,
    GateUnmeasured,
    GoalMet,
    GoalMissed,
    InitialWeights,
    InvalidPlan,
    InvalidSpec,
    LoaderBound,
    LossDiverged,
    MeasurementRunning,
    MeasurementStarted,
    MemoryAboveGate,
    NoEffect,
    NoFailure,
    NoImprovement,
    NotAllowed,
    NotComplete,
    NotConfirmed,
    NotMeasured,
    NotSteady,
    NotSuspended,
    NotWorthKnowing,
    NothingAccepted,
    NothingNeedsIt,
    NumericsMisdeclared,
    NumericsUnclear,
    ObjectiveUnmeasured,
    OffloadOverhead,
    PhaseError,
    Pinned,
    PodsRefused,
    Preempted,
    QualityBelowThreshold,
    QualityUnclear,
    Queued,
    Reopened,
    Restarted,
    ReferenceUntrained,
    RequirementNotAccepted,
    RetriesExhausted,
    RevertedWith,
    SearchDone,
    SearchFailed,
    SearchStarted,
    SinglePair,
    SlowMachine,
    SlowdownCheck,
    SlowdownUnexplained,
    SpaceExhausted,
    SpecSuspend,
    SpeedAboveThreshold,
    SpeedBelowThreshold,
    SpeedUndecided,
    StorageUnusable,
    Straggler,
    Superseded,
    TemplateChanged,
    ThroughputBelowGate,
    ThroughputBelowPromise,
    TrainerChanged,
    TrainingDegraded,
    TrainingDone,
    TrainingRestarted,
    TrialAbandoned,
    TrialDone,
    TrialInfeasible,
    UnknownFields,
    Unpinned,
    Unreadable,
    UtilizationBelowGate,
    ValidatedEarly,
    ValidationAboveGate,
}

impl Reason {
    /// Whether `text`, from the status, is this reason.
    pub fn is(self, text: &str) -> bool {
        self.to_string() == text
    }

    /// Whether `text`, from the status, says that a phase was given up for what judging it would take.
    pub fn gives_up(text: &str) -> bool {
        [Self::BudgetSpent, Self::NotWorthKnowing].into_iter().any(|reason| reason.is(text))
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
