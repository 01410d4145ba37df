//! What a preflight finds, and what it is made from.

use pawl_contract::report::printable;
use serde::Serialize;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The result.
    pub result: CheckResult,
    /// What was checked, such as `ResourceQuota team/gpus`.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckResult {
    /// Passed.
    Ok,
    /// Worth knowing; nothing was checked.
    Note,
    /// Could not be checked.
    Unknown,
    /// The job cannot run, or would wait.
    Problem,
}

impl Finding {
    fn new(result: CheckResult, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { result, object: object.into(), message: message.into(), remedy: None }
    }

    /// A check that passed.
    pub fn ok(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(CheckResult::Ok, object, message)
    }

    /// Worth knowing.
    pub fn note(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(CheckResult::Note, object, message)
    }

    /// Could not be checked.
    pub fn unknown(object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(CheckResult::Unknown, object, message)
    }

    /// The job cannot run, or would wait.
    pub fn problem(object: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(CheckResult::Problem, object, message) }
    }

    /// The lines that people read.
    pub fn text(&self) -> String {
        let mark = match self.result {
            CheckResult::Ok => "✓ ok     ",
            CheckResult::Note => "· note   ",
            CheckResult::Unknown => "? unknown",
            CheckResult::Problem => "✗ problem",
        };
        let remedy = self.remedy.as_ref().map_or_else(String::new, |remedy| format!("            remedy: {remedy}\n"));
        // The API server answers in several lines at times.
        let message = self.message.split_whitespace().collect::<Vec<_>>().join(" ");
        printable(&format!("{mark} {}: {message}\n{remedy}", self.object))
    }
}

/// What was read of an object or a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<T> {
    /// It exists.
    Found(T),
    /// It does not exist.
    Absent,
    /// It could not be read; why, such as `you may not list nodes`.
    Unseen(String),
}

/// The answer of the API server to a dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum DryRun<T> {
    /// It would be stored like this.
    Accepted(T),
    /// One of this name exists. It would be admitted.
    Exists,
    /// It would be refused, with this message.
    Refused(String),
    /// Its namespace does not exist.
    NoNamespace,
    /// It was not tried; why, such as `you may not create pods`.
    Unseen(String),
}
