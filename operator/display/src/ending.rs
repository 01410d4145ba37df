//! How a launch ended, in words.

use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;

/// The outcome of a launch, and its message. One that was interrupted did not fail, whoever ended its ranks: it is run
/// again, and a training resumes from its checkpoint.
///
/// ```
/// use pawl_contract::{exit::Outcome, plan::LaunchKind};
/// use pawl_display::ending::ending;
///
/// let ended = |kind| ending(kind, Outcome::Stopped, "rank 0 was killed");
/// assert_eq!(ended(LaunchKind::Measure), ("interrupted: will be measured again".to_owned(), ""));
/// assert_eq!(ended(LaunchKind::Train), ("interrupted".to_owned(), "rank 0 was killed"));
/// ```
pub fn ending(kind: LaunchKind, outcome: Outcome, message: &str) -> (String, &str) {
    match (outcome, kind) {
        (Outcome::Stopped, LaunchKind::Train) => ("interrupted".to_owned(), message),
        (Outcome::Stopped, LaunchKind::Measure | LaunchKind::Quality) => {
            ("interrupted: will be measured again".to_owned(), "")
        }
        (Outcome::Stopped, LaunchKind::Preflight | LaunchKind::Search) => {
            ("interrupted: will be repeated".to_owned(), "")
        }
        (other, _) => (other.to_string(), message),
    }
}
