//! How a launch ended, in words.

use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;

/// The outcome of a launch, and its message. One that was interrupted did not fail, whoever ended its ranks.
///
/// ```
/// use pawl_contract::{exit::Outcome, plan::LaunchKind};
/// use pawl_display::ending::ending;
///
/// let ended = |kind| ending(kind, Outcome::Stopped, "rank 0 was killed");
/// assert_eq!(ended(LaunchKind::Measure), ("interrupted, no evidence".to_owned(), ""));
/// assert_eq!(ended(LaunchKind::Train), ("interrupted".to_owned(), "rank 0 was killed"));
/// ```
pub fn ending(kind: LaunchKind, outcome: Outcome, message: &str) -> (String, &str) {
    match (outcome, kind) {
        (Outcome::Stopped, LaunchKind::Train) => ("interrupted".to_owned(), message),
        (Outcome::Stopped, _) => ("interrupted, no evidence".to_owned(), ""),
        (other, _) => (other.to_string(), message),
    }
}

/// As [`ending`], while the job runs: a stopped launch is run again, unless others are planned in its place. It may
/// have been stopped by a signal, or because a pair that does not count makes the rest of its attempt another one.
pub fn ending_so_far(kind: LaunchKind, outcome: Outcome, message: &str) -> (String, &str) {
    let again = match kind {
        LaunchKind::Measure | LaunchKind::Quality => "stopped before its end: measured again if it is still needed",
        LaunchKind::Preflight | LaunchKind::Search => "stopped before its end: repeated if it is still needed",
        // It resumes from its checkpoint, or the job has ended with it.
        LaunchKind::Train => return ending(kind, outcome, message),
    };
    if outcome == Outcome::Stopped { (again.to_owned(), "") } else { ending(kind, outcome, message) }
}
