//! Names of attempts, and how attempts end.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The name of an attempt: `ups-4gpu-12` is attempt 12 of the job `ups-4gpu`. This is the only parser of such names.
///
/// ```
/// use pawl_contract::attempt::AttemptName;
///
/// let name = AttemptName::parse("ups-4gpu-12").unwrap();
/// assert_eq!((name.job, name.number), ("ups-4gpu", 12));
/// assert_eq!(name.to_string(), "ups-4gpu-12");
/// assert_eq!(AttemptName::parse("ups-4gpu"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptName<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Number of the attempt, from 1.
    pub number: u32,
}

impl<'a> AttemptName<'a> {
    /// The attempt with this name; `None` when [`Display`](fmt::Display) would not write it so.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (job, digits) = name.rsplit_once('-')?;
        let canonical = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
        let number = digits.parse().ok().filter(|_| canonical && !job.is_empty())?;
        Some(Self { job, number })
    }

    /// The number in a name; 0, before every attempt, when it is not the name of an attempt.
    pub fn number_of(name: &'a str) -> u32 {
        Self::parse(name).map_or(0, |name| name.number)
    }
}

impl fmt::Display for AttemptName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.job, self.number)
    }
}

/// Reason of the end of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptEnd {
    /// All launches have run.
    Complete,
    /// A launch failed, and the plan sets `stopOnFailure`.
    LaunchFailed,
    /// A stop was requested.
    Stopped,
    /// An agent was lost or did not connect: the gang is incomplete.
    LostPeer,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_written_in_the_same_way() {
        for (job, number) in [("ups", 1), ("ups-4gpu", 12), ("a-1", u32::MAX)] {
            let name = AttemptName { job, number };
            assert_eq!(AttemptName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn what_is_not_written_so_is_no_name() {
        for other in ["", "ups", "ups-", "-1", "ups-01", "ups-0", "ups-+1", "ups-x1", "ups--1x", "ups-99999999999"] {
            assert_eq!(AttemptName::parse(other), None, "{other}");
            assert_eq!(AttemptName::number_of(other), 0, "{other}");
        }
    }
}
