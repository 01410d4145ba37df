//! What is kept where there is not room for everything.

use super::{MAX_EVALUATIONS, MAX_RECORD, MAX_RECORDS};
use crate::attempt::AttemptName;
use crate::measured::Validation;

/// What is left of the records of a job when some are deleted, bytes: to choose them, all must be read.
const LEFT: u64 = MAX_RECORDS / 4 * 3;

/// A file with the record of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Name of the attempt.
    pub attempt: String,
    /// Bytes.
    pub size: u64,
    /// Whether the attempt trains the model.
    pub trains: bool,
}

/// The attempts whose records are deleted, so that all of them and a new one of any size fit into [`MAX_RECORDS`]: the
/// oldest ones that measured, then the oldest ones that trained. Where there is no room, some is made for several.
///
/// ```
/// use pawl_contract::record::{MAX_RECORDS, Stored, surplus};
///
/// let stored = |number: u32, trains| Stored { attempt: format!("toy-{number}"), size: MAX_RECORDS / 3, trains };
/// assert_eq!(surplus(vec![stored(1, true), stored(3, false), stored(2, false)]), ["toy-2"]);
/// assert!(surplus(vec![stored(1, false)]).is_empty());
/// ```
pub fn surplus(mut stored: Vec<Stored>) -> Vec<String> {
    let mut total: u64 = stored.iter().map(|file| file.size).sum();
    stored.sort_by_key(|file| (file.trains, AttemptName::number_of(&file.attempt)));
    let mut deleted = Vec::new();
    if total <= MAX_RECORDS - MAX_RECORD as u64 {
        return deleted;
    }
    for file in stored {
        if total <= LEFT {
            break;
        }
        total -= file.size;
        deleted.push(file.attempt);
    }
    deleted
}

/// The evaluations of a launch, of which the first and the newest are always kept.
#[derive(Clone, Debug, Default)]
pub struct Evaluations(Vec<Validation>);

impl Evaluations {
    /// Adds the newest evaluation, unless it is the one that was added last. When there are too many, every second one
    /// is dropped.
    pub fn add(&mut self, newest: &Validation) {
        if self.0.last() == Some(newest) {
            return;
        }
        if self.0.len() == MAX_EVALUATIONS {
            self.0 = std::mem::take(&mut self.0).into_iter().step_by(2).collect();
        }
        self.0.push(newest.clone());
    }

    /// The evaluations, oldest first.
    pub fn take(&mut self) -> Vec<Validation> {
        std::mem::take(&mut self.0)
    }
}
