//! `pawl replay`.

use super::{document, print, source, terminal};
use crate::args::{Output, StateArgs};
use jiff::Timestamp;
use pawl_api::status::{BundleStatus, PhaseState, PhaseStatus};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::report::printable;
use pawl_decision::Replay;
use pawl_display::table;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::ExitCode;

/// The name of all accepted phases together.
const TOGETHER: &str = "all together";
/// In place of a verdict.
const NEEDS_LAUNCHES: &str = "needs launches that are not in the record";

/// The verdict on a phase as it was recorded, and as it is by the other manifest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared<'a> {
    name: &'a str,
    /// Absent: it was not judged, or is a new phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Verdict<'a>>,
    /// Absent: it needs launches that are not in the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<Verdict<'a>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict<'a> {
    state: PhaseState,
    reason: &'a str,
}

impl<'a> Verdict<'a> {
    fn new(state: PhaseState, reason: &'a str) -> Option<Self> {
        state.is_final().then_some(Self { state, reason })
    }
}

impl Display for Verdict<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.state, self.reason)
    }
}

/// The result as a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Replayed<'a> {
    job: &'a str,
    verdicts: Vec<Compared<'a>>,
    status: &'a TrainingJobStatus,
}

/// Judges a recorded job anew and prints the verdicts.
pub fn replay(args: &StateArgs, gates: Option<&Path>, output: Output) -> ExitCode {
    let (_, recorded) = match source::recorded(args) {
        Ok(found) => found,
        Err(code) => return code,
    };
    match gates.map(source::load).transpose() {
        Ok(other) => print(&judged(recorded.job, &recorded.status, other, output)),
        Err(error) => source::reject(&error),
    }
}

/// The verdicts on the launches that were recorded of `job`, by the spec of another manifest if there is one, in the
/// requested format.
pub fn judged(
    mut job: TrainingJob,
    recorded: &TrainingJobStatus,
    other: Option<TrainingJob>,
    output: Output,
) -> String {
    job.spec = other.map_or(job.spec, |other| other.spec);
    let Replay { status, kept } = pawl_decision::replay(&job, recorded, Timestamp::now());
    let verdicts = compared(recorded, &status, &kept);
    match output {
        Output::Table => {
            let (width, colours) = terminal();
            table::render(&status, width, colours) + &differences(&verdicts)
        }
        Output::Json | Output::Yaml => {
            let job = job.metadata.name.as_deref().unwrap_or_default();
            document(&Replayed { job, verdicts, status: &status }, output == Output::Yaml)
        }
    }
}

/// The verdicts on the phases and on all together, in order.
fn compared<'a>(
    recorded: &'a TrainingJobStatus,
    replayed: &'a TrainingJobStatus,
    kept: &[String],
) -> Vec<Compared<'a>> {
    let of_phase = |phase: &'a PhaseStatus| Verdict::new(phase.state, &phase.reason);
    let of_bundle = |bundle: &'a BundleStatus| Verdict::new(bundle.state, &bundle.reason);
    let phases = replayed.phases.iter().map(|phase| {
        let before = recorded.phases.iter().find(|before| before.name == phase.name);
        let replayed = of_phase(phase).filter(|_| !kept.contains(&phase.name));
        Compared { name: &phase.name, recorded: before.and_then(of_phase), replayed }
    });
    let (before, now) = (recorded.bundle.as_ref(), replayed.bundle.as_ref());
    let together = before.or(now).map(|_| Compared {
        name: TOGETHER,
        recorded: before.and_then(of_bundle),
        replayed: now.and_then(of_bundle),
    });
    phases.chain(together).collect()
}

/// What differs from the record, a line each.
fn differences(verdicts: &[Compared<'_>]) -> String {
    let lines = verdicts.iter().filter(|verdict| verdict.replayed.is_none() || verdict.replayed != verdict.recorded);
    let lines = lines.map(|Compared { name, recorded, replayed }| {
        let before = recorded.as_ref().map_or_else(|| "not judged".to_owned(), Verdict::to_string);
        let now = replayed.as_ref().map_or_else(|| NEEDS_LAUNCHES.to_owned(), Verdict::to_string);
        printable(&format!("{name}: {now}; recorded: {before}")) + "\n"
    });
    let text: String = lines.collect();
    if text.is_empty() { "\nEach verdict is the recorded one.\n".to_owned() } else { format!("\n{text}") }
}
