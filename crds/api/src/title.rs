//! Human-readable titles of launches, whose names contain hashes.

use crate::status::{Arm, LaunchStatus};
use pawl_contract::plan::LaunchKind;
use std::fmt;

/// The title of a launch, such as `compile: pair 2 of 3, control`, by [`Display`](fmt::Display).
///
/// ```
/// use pawl_api::{status::Arm, title::Title};
/// use pawl_contract::plan::LaunchKind;
///
/// let (kind, arm) = (LaunchKind::Measure, Arm::Control);
/// let title = Title { subject: "compile", fallback: 0, kind, arm, index: 1, of: Some(3) };
/// assert_eq!(title.to_string(), "compile: pair 2 of 3, control");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Title<'a> {
    /// The subject: the name of a phase, `baseline`, `all together`; empty where the context names it.
    pub subject: &'a str,
    /// Index of the fallback in effect, from 1; 0: none.
    pub fallback: u32,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// Arm of the comparison.
    pub arm: Arm,
    /// Index of the pair (Measure) or seed (Quality), from 0.
    pub index: u32,
    /// Number of pairs or seeds, when known.
    pub of: Option<u32>,
}

impl<'a> Title<'a> {
    /// The title of `launch`, which is part of `evidence` on `subject`, a phase with the fallback of this number (0:
    /// none).
    pub fn of_evidence(subject: &'a str, fallback: u32, evidence: &[LaunchStatus], launch: &LaunchStatus) -> Self {
        let alike = evidence.iter().filter(|other| other.kind == launch.kind);
        let of = alike.map(|other| other.pair.saturating_add(1)).max();
        Self { subject, fallback, kind: launch.kind, arm: launch.arm, index: launch.pair, of }
    }

    /// The title of `launch` in a context that names the subject.
    pub fn bare(launch: &LaunchStatus) -> Self {
        Self { subject: "", fallback: 0, kind: launch.kind, arm: launch.arm, index: launch.pair, of: None }
    }
}

impl fmt::Display for Title<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { subject, fallback, kind, arm, index, of } = self;
        if kind == LaunchKind::Train {
            return f.write_str("training");
        }
        match (subject, fallback) {
            ("", _) => {}
            (subject, 0) => write!(f, "{subject}: ")?,
            (subject, fallback) => write!(f, "{subject}, fallback {fallback}: ")?,
        }
        let what = match kind {
            LaunchKind::Preflight => return f.write_str("check"),
            LaunchKind::Measure => "pair",
            LaunchKind::Quality => "quality, seed",
            LaunchKind::Search | LaunchKind::Train => "trial",
        };
        write!(f, "{what} {}", index.saturating_add(1))?;
        if let Some(of) = of {
            write!(f, " of {of}")?;
        }
        f.write_str(match arm {
            Arm::Control => ", control",
            Arm::Candidate => ", candidate",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_describe_launches() {
        let title = Title {
            subject: "compile",
            fallback: 0,
            kind: LaunchKind::Measure,
            arm: Arm::Control,
            index: 1,
            of: Some(3),
        };
        assert_eq!(title.to_string(), "compile: pair 2 of 3, control");
        let quality = Title { fallback: 1, kind: LaunchKind::Quality, arm: Arm::Candidate, ..title };
        assert_eq!(quality.to_string(), "compile, fallback 1: quality, seed 2 of 3, candidate");
        assert_eq!(Title { subject: "", of: None, ..title }.to_string(), "pair 2, control");
        assert_eq!(Title { kind: LaunchKind::Preflight, ..title }.to_string(), "compile: check");
        assert_eq!(Title { kind: LaunchKind::Train, ..title }.to_string(), "training");
    }
}
