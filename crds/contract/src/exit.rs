//! Exit codes of a rank and the outcome of a launch.

use serde::{Deserialize, Serialize};

/// How a launch ended.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    /// The budget was used up and the report is complete.
    Done,
    /// A device allocation failed, or the predicted memory exceeds the device.
    OutOfMemory,
    /// The host's memory ran out (the kernel's OOM killer included).
    HostOutOfMemory,
    /// A loss or gradient became NaN or infinite.
    NonFinite,
    /// The loss rose far above its recent level.
    LossSpike,
    /// The trainer or the device does not support the settings.
    Unsupported,
    /// The plan is inconsistent, or uses a name that the workload does not know.
    InvalidPlan,
    /// A kernel of these settings does not compile, or no algorithm exists for it (NVRTC, cuBLASLt, cuDNN).
    CompileFailed,
    /// A checkpoint that must exist is missing or cannot be read, or the storage cannot be used.
    CheckpointUnreadable,
    /// The storage of checkpoints, or the working directory, has no space or no quota left.
    StorageFull,
    /// Stopped on request, after a checkpoint.
    Stopped,
    /// Another rank of the gang was lost.
    LostPeer,
    /// A rank made no progress for `hangTimeout`; the agent ended it.
    Hang,
    /// Anything else: a crash, an unreadable report.
    Failed,
}

impl Outcome {
    /// The exit code of a rank that ends with this outcome, below 128. [`Outcome::Hang`] has no code of its own,
    /// because a hung rank cannot exit.
    ///
    /// ```
    /// use pawl_contract::exit::Outcome;
    ///
    /// assert_eq!(Outcome::OutOfMemory.exit_code(), 10);
    /// assert_eq!(Outcome::from_exit_code(10), Outcome::OutOfMemory);
    /// assert_eq!(Outcome::from_exit_code(137), Outcome::Failed);
    /// ```
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::OutOfMemory => 10,
            Self::HostOutOfMemory => 11,
            Self::NonFinite => 12,
            Self::LossSpike => 13,
            Self::Unsupported => 20,
            Self::InvalidPlan => 21,
            Self::CompileFailed => 22,
            Self::CheckpointUnreadable => 23,
            Self::StorageFull => 24,
            Self::Stopped => 30,
            Self::LostPeer => 40,
            Self::Hang | Self::Failed => 1,
        }
    }

    /// The outcome that an exit code indicates; unknown codes are [`Outcome::Failed`].
    pub const fn from_exit_code(code: i32) -> Self {
        match code {
            0 => Self::Done,
            10 => Self::OutOfMemory,
            11 => Self::HostOutOfMemory,
            12 => Self::NonFinite,
            13 => Self::LossSpike,
            20 => Self::Unsupported,
            21 => Self::InvalidPlan,
            22 => Self::CompileFailed,
            23 => Self::CheckpointUnreadable,
            24 => Self::StorageFull,
            30 => Self::Stopped,
            40 => Self::LostPeer,
            _ => Self::Failed,
        }
    }

    /// The outcome of a program that ends with an error of the system.
    ///
    /// ```
    /// use pawl_contract::exit::Outcome;
    /// use std::io::{Error, ErrorKind};
    ///
    /// assert_eq!(Outcome::of_error(&ErrorKind::QuotaExceeded.into()), Outcome::StorageFull);
    /// assert_eq!(Outcome::of_error(&Error::other("No space left on device")), Outcome::Failed);
    /// ```
    pub fn of_error(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::StorageFull,
            _ => Self::Failed,
        }
    }

    /// Whether the training has diverged: what it wrote after its last healthy loss may be damaged.
    pub const fn is_divergence(self) -> bool {
        matches!(self, Self::NonFinite | Self::LossSpike)
    }

    /// Whether the outcome is final for its launch: evidence about the settings, the plan or its checkpoints. The
    /// others are infrastructure failures and are retried.
    pub const fn is_evidence(self) -> bool {
        match self {
            Self::Done
            | Self::OutOfMemory
            | Self::HostOutOfMemory
            | Self::NonFinite
            | Self::LossSpike
            | Self::Unsupported
            | Self::InvalidPlan
            | Self::CompileFailed
            | Self::CheckpointUnreadable
            | Self::Hang => true,
            Self::StorageFull | Self::Stopped | Self::LostPeer | Self::Failed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::IntoEnumIterator;

    #[test]
    fn every_exit_code_is_read_back_and_every_name_is_the_serialized_one() {
        for outcome in Outcome::iter() {
            let expected = if outcome == Outcome::Hang { Outcome::Failed } else { outcome };
            assert_eq!(Outcome::from_exit_code(outcome.exit_code().into()), expected);
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.to_string());
        }
    }

    #[test]
    fn a_compile_error_is_evidence_about_the_settings() {
        assert_eq!(Outcome::from_exit_code(22), Outcome::CompileFailed);
        assert!(Outcome::CompileFailed.is_evidence());
    }
}
