//! The report that a rank has written: read within limits.

use crate::files::{MAX_REPORT, read_bounded};
use crate::nonfinite;
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::checkpoint::{MAX_QUARANTINED, reported};
use pawl_contract::measured::Measured;
use pawl_contract::plan::MAX_LISTED;
use pawl_contract::provenance::Provenance;
use pawl_contract::report::{Report, printable, truncated, unprintable};
use std::fmt::{self, Display};
use std::io;
use std::path::Path;

/// Maximum length of a report's message in bytes.
pub(crate) const MAX_TEXT: usize = 4096;
/// Maximum points of a loss curve.
const MAX_LOSSES: usize = 64;
/// Maximum number of validation metrics, and maximum length of their names in bytes.
const MAX_METRICS: usize = 64;

/// Why there is no report of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoReport {
    /// It has not written one.
    Absent,
    /// It has written something else.
    Invalid(String),
}

impl Display for NoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("left no report.json"),
            Self::Invalid(why) => write!(f, "left a report.json {why}"),
        }
    }
}

/// A rank's report, or why there is no valid one.
pub(crate) fn read_report(path: &Path, launch: &str) -> Result<Report, NoReport> {
    let content = read_bounded(path, MAX_REPORT).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => NoReport::Absent,
        _ => NoReport::Invalid(format!("that cannot be read ({e})")),
    })?;
    let unreadable = |error: &dyn Display| NoReport::Invalid(format!("that cannot be read ({error})"));
    let report = serde_json::from_slice(&content).map_err(|error| unreadable(&error));
    let report: Report = report.or_else(|why| nonfinite::read(&content).ok_or(why))?;
    if report.contract != CONTRACT_VERSION {
        return Err(NoReport::Invalid(format!("of contract {}, not {CONTRACT_VERSION}", report.contract)));
    }
    if report.launch != launch {
        return Err(NoReport::Invalid(format!("of launch `{}`", truncated(&report.launch, 128))));
    }
    Ok(bounded(report))
}

/// The report with its texts, curves and maps truncated to the contract's limits, and without control characters.
pub(crate) fn bounded(mut report: Report) -> Report {
    report.message = printable(truncated(&report.message, MAX_TEXT));
    if report.losses.len() > MAX_LOSSES {
        let last = report.losses.len() - 1;
        report.losses = (0..MAX_LOSSES).map(|i| report.losses[i * last / (MAX_LOSSES - 1)]).collect();
    }
    let older = report.evaluations.len().saturating_sub(MAX_LISTED);
    report.evaluations.drain(..older);
    let Measured { validation, first_validation, .. } = &mut report.measured;
    for validation in validation.iter_mut().chain(first_validation) {
        let mut room = MAX_METRICS;
        validation.metrics.retain(|name, _| {
            let sound = name.len() <= MAX_METRICS && !name.contains(unprintable);
            let kept = name == "loss" || (room > 0 && sound);
            room -= usize::from(kept && room > 0);
            kept
        });
    }
    if let Some(checkpoint) = &mut report.last_checkpoint {
        checkpoint.name = printable(truncated(&checkpoint.name, MAX_TEXT));
    }
    report.provenance = report.provenance.map(Provenance::bounded);
    report.trained = reported(&report.trained).to_vec();
    report.quarantined.truncate(MAX_QUARANTINED);
    report.quarantined.iter_mut().for_each(|name| *name = printable(truncated(name, MAX_TEXT)));
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::exit::Outcome;
    use pawl_contract::provenance;
    use pawl_contract::report::LossPoint;

    #[test]
    fn a_report_is_cut_to_the_contract() {
        let plan = serde_json::from_value(serde_json::json!({
            "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Train", "workload": {}, "settings": {},
            "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
        }));
        let mut long = Report::bare(&plan.unwrap(), 0, Outcome::Failed);
        long.message = "é".repeat(10_000);
        long.losses = (0..1000).map(|items| LossPoint { items, loss: 1.0 }).collect();
        let metrics = (0..500).map(|i| (format!("a{i}"), 1.0)).chain([("loss".to_owned(), 2.0)]).collect();
        long.measured.validation = Some(pawl_contract::measured::Validation { items: 1, metrics });
        long.provenance = Some(Provenance { driver: Some("580\n".repeat(1000)), ..Provenance::default() });
        let hostile = Report { message: "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}lost".to_owned(), ..long.clone() };
        assert_eq!(bounded(hostile).message, " ]0;owned  31m lost");
        let short = bounded(long);
        let driver = short.provenance.unwrap().driver.unwrap();
        assert!(driver.len() <= provenance::MAX_TEXT && driver.starts_with("580 580"), "{driver}");
        let metrics = short.measured.validation.unwrap().metrics;
        assert!(short.message.len() <= MAX_TEXT && metrics.len() <= MAX_METRICS + 1 && metrics["loss"] == 2.0);
        let items: Vec<u64> = short.losses.iter().map(|point| point.items).collect();
        assert_eq!((items.len(), items[0], items[63]), (64, 0, 999));
    }
}
