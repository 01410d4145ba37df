//! `pawl replay`.

use super::{document, print, source, terminal};
use crate::args::{Output, StateArgs};
use crate::exit;
use jiff::Timestamp;
use pawl_api::status::{BundleStatus, PhaseState, PhaseStatus};
use pawl_api::{TrainingJob, TrainingJobSpec, TrainingJobStatus};
use pawl_contract::report::printable;
use pawl_decision::Replay;
use pawl_display::table;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
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
    /// In what the other manifest is not of the recorded job.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    differs: &'a [String],
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
        Ok(other) => judge(recorded.job, &recorded.status, other, output),
        Err(error) => source::reject(&error),
    }
}

/// Prints the verdicts on the launches that were recorded of `job`, by the spec of another manifest if there is one, in
/// the requested format, and reports where that manifest is of another job.
pub fn judge(
    mut job: TrainingJob,
    recorded: &TrainingJobStatus,
    other: Option<TrainingJob>,
    output: Output,
) -> ExitCode {
    let differs = other.as_ref().map(|other| differing(&job, other)).unwrap_or_default();
    if !differs.is_empty() {
        let uid = job.metadata.uid.as_ref().map(|uid| format!(" ({uid})")).unwrap_or_default();
        let name = job.metadata.name.as_deref().unwrap_or_default();
        exit::say(&format_args!(
            "warning: these are the records of job {name}{uid}, whose launches differ from those of the manifest: {}",
            differs.join("; ")
        ));
    }
    job.spec = other.map_or(job.spec, |other| other.spec);
    let Replay { status, kept } = pawl_decision::replay(&job, recorded, Timestamp::now());
    let verdicts = compared(recorded, &status, &kept);
    print(&match output {
        Output::Table => {
            let (width, colours) = terminal();
            table::render(&status, width, colours) + &differences(&verdicts)
        }
        Output::Json | Output::Yaml => {
            let job = job.metadata.name.as_deref().unwrap_or_default();
            document(&Replayed { job, differs: &differs, verdicts, status: &status }, output == Output::Yaml)
        }
    })
}

/// The fields in which `other` is not a manifest of the recorded `job`: the name, and what any launch has.
fn differing(job: &TrainingJob, other: &TrainingJob) -> Vec<String> {
    let identity = |TrainingJob { metadata, spec, .. }: &TrainingJob| {
        let TrainingJobSpec { workload, settings, seeds, trainer, .. } = spec;
        let ranks = json!({"image": trainer.image, "replicas": trainer.replicas,
            "gpusPerReplica": trainer.gpus_per_replica, "gpuResource": trainer.gpu_resource});
        let spec = json!({"workload": workload, "settings": settings, "seeds": seeds, "trainer": ranks});
        json!({"metadata": {"name": metadata.name}, "spec": spec})
    };
    let mut found = Vec::new();
    compare(&mut found, "", &identity(job), &identity(other));
    found
}

/// Parts of a spec that are the program's own.
const OWN: [&str; 2] = ["spec.workload.config", "spec.settings.workload"];

/// Adds the fields that differ, in order. Lists, and fields of the program's own, are named without their values: these
/// may be secret.
fn compare(found: &mut Vec<String>, path: &str, recorded: &Value, other: &Value) {
    if let (Value::Object(before), Value::Object(now)) = (recorded, other) {
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let [before, now] = [before, now].map(|fields| fields.get(name).unwrap_or(&Value::Null));
            compare(found, &path, before, now);
        }
    } else if recorded != other {
        let is_own = OWN.iter().any(|own| path.starts_with(own));
        let is_shown = |value: &Value| !value.is_array() && !value.is_object();
        found.push(match !is_own && is_shown(recorded) && is_shown(other) {
            true => format!("{path}: {other}, recorded: {recorded}"),
            false => path.to_owned(),
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, spec: Value) -> TrainingJob {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_manifest_of_another_job_is_told_from_one_with_other_gates() {
        let spec = |batch: u32, secret: &str, speedup: &str| {
            json!({"workload": {"command": ["train", secret]}, "settings": {"batchPerGpu": batch},
                "phases": [{"name": "compile", "minSpeedup": speedup, "settings": {"compile": "Graph"}}]})
        };
        let recorded = job("one", spec(8, "--key=a", "1.1"));
        let mut gates = job("one", spec(8, "--key=a", "1.5"));
        gates.spec.gates.overall_speedup = Some("2".parse().unwrap());
        assert_eq!(differing(&recorded, &gates), [""; 0]);
        let expected = [
            "metadata.name: \"two\", recorded: \"one\"",
            "spec.settings.batchPerGpu: 16, recorded: 8",
            "spec.workload.command",
        ];
        assert_eq!(differing(&recorded, &job("two", spec(16, "--key=b", "1.1"))), expected);
        let absent = job("one", json!({"workload": {"command": ["train", "--key=a"]}}));
        assert_eq!(differing(&recorded, &absent), ["spec.settings.batchPerGpu: null, recorded: 8"]);
        let trainer = |image: &str, resource: &str| {
            job("one", json!({"workload": {"name": "ups"}, "trainer": {"image": image, "gpuResource": resource}}))
        };
        let differs = differing(&trainer("a", "nvidia.com/gpu"), &trainer("b", "amd.com/gpu"));
        let expected = [
            "spec.trainer.gpuResource: \"amd.com/gpu\", recorded: \"nvidia.com/gpu\"",
            "spec.trainer.image: \"b\", recorded: \"a\"",
        ];
        assert_eq!(differs, expected);
        let own = |token: &str| job("one", json!({"workload": {"command": ["train"], "config": {"token": token}}}));
        assert_eq!(differing(&own("a"), &own("b")), ["spec.workload.config.token"]);
    }
}
