//! In what compared jobs differ, in a few lines: their speeds, verdicts and settings.

use crate::compared::{Compared, Group};
use crate::numbers::short;
use crate::report::evidence::Evidence;
use crate::report::pairs::{Pair, comparisons};
use crate::sentence::patch;
use crate::together::{TOGETHER, is_current};
use crate::verdict;
use maud::{Markup, html};
use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseState, PhaseStatus};
use std::collections::BTreeSet;

/// The jobs with their keys.
type Jobs<'a> = [(&'a str, &'a Evidence)];

/// A list of the differences. `is_apart`: the jobs do not train the same, so that neither items per second nor settings
/// can be compared.
pub(super) fn list(jobs: &Jobs<'_>, rows: &[Compared], is_apart: bool) -> Markup {
    let phases = Phases::new(jobs);
    let speeds = (!is_apart).then(|| speeds(jobs)).flatten();
    let settings = (!is_apart).then(|| settings(rows)).flatten();
    let lines = [
        ("Items per second of the baseline and of all accepted phases", speeds),
        ("Verdicts that differ", Some(phases.differing.join("; ")).filter(|it| !it.is_empty())),
        ("The same verdict", Some(phases.equal.join("; ")).filter(|it| !it.is_empty())),
        ("Phases that not all have", Some(phases.alone.join("; ")).filter(|it| !it.is_empty())),
        ("One measurement, which the jobs share as one goes on from the other", phases.shared()),
        ("Settings in effect", settings),
    ];
    html! {
        ul {
            @for (label, text) in &lines {
                @if let Some(text) = text { li { b { (label) } ": " (text) "." } }
            }
        }
    }
}

/// `a 27.3 and 202, on 1 GPU; b 304 with the last accepted phase, on 2 GPUs`; `None` if no job has either.
fn speeds(jobs: &Jobs<'_>) -> Option<String> {
    let sizes: BTreeSet<u32> = jobs.iter().map(|(_, evidence)| evidence.job.spec.trainer.world_size()).collect();
    let of = |(key, evidence): &(&str, &Evidence)| {
        let speed = together(evidence).or_else(|| last(&evidence.status))?;
        let size = evidence.job.spec.trainer.world_size();
        let device = match (evidence.job.spec.trainer.gpus_per_replica, size) {
            (0, 1) => "process",
            (0, _) => "processes",
            (_, 1) => "GPU",
            _ => "GPUs",
        };
        let on = if sizes.len() > 1 { format!(", on {size} {device}") } else { String::new() };
        Some(format!("{key} {speed}{on}"))
    };
    let known: Vec<String> = jobs.iter().filter_map(of).collect();
    (!known.is_empty()).then(|| known.join("; "))
}

/// Items per second of the baseline and of the settings in effect in the pairs that measured these: rates of other
/// times, or of other machines, would give another ratio than the speedup.
fn together(evidence: &Evidence) -> Option<String> {
    let Evidence { job, status, .. } = evidence;
    status.bundle.as_ref().filter(|bundle| is_current(bundle, status))?;
    let all = comparisons(&job.spec, status);
    let comparison = all.iter().find(|comparison| comparison.name == TOGETHER && comparison.speedup.is_some())?;
    let pairs: Vec<&Pair> = comparison.counted().collect();
    let mean = |of: fn(&Pair) -> f64| (pairs.iter().map(|pair| of(pair).ln()).sum::<f64>() / pairs.len() as f64).exp();
    (!pairs.is_empty()).then(|| format!("{} and {}", short(mean(|it| it.control)), short(mean(|it| it.candidate))))
}

/// Items per second with the phase that was accepted last.
fn last(status: &TrainingJobStatus) -> Option<String> {
    let phase = status.phases.iter().rfind(|phase| phase.state == PhaseState::Accepted)?;
    let speed = short(phase.measured.items_per_second.as_ref()?.value());
    Some(format!("{speed} with {}, the last accepted phase", phase.name))
}

/// `precision bf16 / fp16`, in the order of the jobs.
fn settings(rows: &[Compared]) -> Option<String> {
    let different = rows.iter().filter(|row| row.group == Group::Settings && row.differs);
    let all: Vec<String> = different.map(|row| format!("{} {}", row.name, row.values.join(" / "))).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The phases of all jobs, by what the verdicts have in common.
#[derive(Debug, Default)]
struct Phases {
    /// Other verdicts, or one that is open in some of the jobs.
    differing: Vec<String>,
    /// The same verdict in all jobs.
    equal: Vec<String>,
    /// Not in all jobs.
    alone: Vec<String>,
    /// Names of those whose launches are the same in all jobs.
    one_measurement: Vec<String>,
}

impl Phases {
    fn new(jobs: &Jobs<'_>) -> Self {
        let mut phases = Self::default();
        let mut seen = BTreeSet::new();
        let names = jobs.iter().flat_map(|(_, evidence)| &evidence.status.phases).map(|phase| phase.name.as_str());
        for name in names.filter(|name| seen.insert(*name)) {
            phases.add(name, jobs);
        }
        phases
    }

    fn add(&mut self, name: &str, jobs: &Jobs<'_>) {
        let found: Vec<InJob<'_>> = jobs.iter().filter_map(|(key, evidence)| InJob::new(key, evidence, name)).collect();
        let each = || found.iter().map(|it| format!("{} in {}", it.word(), it.key)).collect::<Vec<_>>().join(", ");
        let patches: Vec<String> = found.iter().map(InJob::patch).collect();
        let is_other = !is_one(&patches);
        if found.len() < jobs.len() {
            self.alone.push(format!("{name} ({})", each()));
        } else if is_one(found.iter().map(InJob::word)) {
            let other = if is_other { ", of other settings" } else { "" };
            self.equal.push(format!("{name} ({}{other})", found.first().map_or("", InJob::word)));
        } else {
            let other = if is_other { format!(", of other settings: {}", patches.join(" / ")) } else { String::new() };
            self.differing.push(format!("{name} ({}{other})", each()));
        }
        let is_measured = found.iter().all(|it| !it.phase.launches.is_empty());
        if found.len() > 1 && is_measured && is_one(found.iter().map(|it| &it.phase.launches)) {
            self.one_measurement.push(name.to_owned());
        }
    }

    fn shared(&self) -> Option<String> {
        (!self.one_measurement.is_empty()).then(|| self.one_measurement.join(", "))
    }
}

/// A phase in one of the jobs.
struct InJob<'a> {
    key: &'a str,
    evidence: &'a Evidence,
    phase: &'a PhaseStatus,
}

impl<'a> InJob<'a> {
    fn new(key: &'a str, evidence: &'a Evidence, name: &str) -> Option<Self> {
        let phase = evidence.status.phases.iter().find(|phase| phase.name == name)?;
        Some(Self { key, evidence, phase })
    }

    fn word(&self) -> &'static str {
        verdict::word(self.phase.state, self.evidence.status.stage)
    }

    /// What the phase changes: `loaderWorkers: 6, precision: bf16`.
    fn patch(&self) -> String {
        let settings = patch(&self.evidence.job, self.phase).flat();
        settings.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
    }
}

/// Whether all are equal.
fn is_one<T: PartialEq>(all: impl IntoIterator<Item = T>) -> bool {
    let mut all = all.into_iter();
    let first = all.next();
    all.all(|value| Some(value) == first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compared::compared;
    use crate::jobs::Entry;
    use serde_json::{Value, json};

    fn job(phases: Value, status: Value) -> Evidence {
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}, "phases": phases}});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        Evidence::new(job, status, Vec::new(), Vec::new())
    }

    fn listed(a: &Evidence, b: &Evidence, is_apart: bool) -> String {
        list(&[("a", a), ("b", b)], &compared(&[entry(a), entry(b)]), is_apart).into_string()
    }

    fn entry(evidence: &Evidence) -> Entry<'_> {
        Entry { job: &evidence.job, status: &evidence.status, place: "", measured_with: &[], stopped: false }
    }

    #[test]
    fn verdicts_are_told_apart_from_those_on_other_settings() {
        let phase = |workers: u32| json!([{"name": "loader", "settings": {"loaderWorkers": workers}}, {"name": "graph", "settings": {"compile": "Graph"}}]);
        let states =
            |loader: &str| json!([{"name": "loader", "state": loader}, {"name": "graph", "state": "Accepted"}]);
        let of =
            |workers: u32, loader: &str| job(phase(workers), json!({"stage": "Complete", "phases": states(loader)}));
        let text = listed(&of(2, "Accepted"), &of(6, "Inconclusive"), false);
        let differ = "Verdicts that differ</b>: loader (accepted in a, inconclusive in b, of other settings: loaderWorkers: \
                      2 / loaderWorkers: 6).";
        assert!(text.contains(differ) && text.contains("The same verdict</b>: graph (accepted)."), "{text}");
        let text = listed(&of(2, "Accepted"), &of(6, "Accepted"), false);
        assert!(text.contains("loader (accepted, of other settings); graph (accepted)."), "{text}");
        let text = listed(&of(2, "Accepted"), &of(2, "RolledBack"), false);
        assert!(text.contains("loader (accepted in a, rolled back in b)."), "{text}");
        let none = job(json!([]), json!({"stage": "Complete"}));
        let text = listed(&of(2, "Accepted"), &none, false);
        assert!(text.contains("not all have</b>: loader (accepted in a); graph (accepted in a)."), "{text}");
    }

    #[test]
    fn speeds_are_those_of_the_pairs_that_measured_the_speedup() {
        let launch = |arm: &str, pair: u32, rate: &str| {
            json!({"name": format!("{arm}-{pair}"), "kind": "Measure", "arm": arm, "pair": pair, "seed": 1,
                "outcome": "Done", "itemsPerSecond": rate})
        };
        let launches: Vec<Value> =
            (0..3).flat_map(|pair| [launch("Control", pair, "20"), launch("Candidate", pair, "150")]).collect();
        let phases = json!([{"name": "graph", "state": "Accepted", "itemsPerSecond": "304"}]);
        let bundle = json!({"state": "Accepted", "speedup": {"estimate": "7.5", "pairs": 3}, "launches": launches});
        let status = |bundle: Value| json!({"stage": "Optimizing", "baseline": {"itemsPerSecond": "21"}, "phases": phases, "bundle": bundle});
        let (measured, open) = (job(json!([]), status(bundle)), job(json!([]), status(Value::Null)));
        let text = listed(&measured, &open, false);
        let speeds = "accepted phases</b>: a 20 and 150; b 304 with graph, the last accepted phase.";
        assert!(text.contains(speeds), "{text}");
        assert!(!listed(&measured, &open, true).contains("304"), "items of other workloads are others");
    }

    #[test]
    fn settings_are_beside_each_other_where_they_can_be_compared() {
        let of = |precision: &str| {
            job(json!([]), json!({"stage": "Optimizing", "effectiveSettings": {"precision": precision}}))
        };
        let (a, b) = (of("bf16"), of("fp16"));
        let text = listed(&a, &b, false);
        assert!(text.contains("Settings in effect</b>: precision bf16 / fp16."), "{text}");
        assert!(!listed(&a, &b, true).contains("precision"));
    }

    #[test]
    fn one_measurement_in_two_jobs_is_named_as_such() {
        let of = |name: &str| {
            let launch =
                json!({"name": name, "kind": "Measure", "arm": "Control", "pair": 0, "seed": 1, "outcome": "Done"});
            let phase = json!({"name": "graph", "state": "Accepted", "launches": [launch]});
            job(json!([]), json!({"stage": "Complete", "phases": [phase]}))
        };
        assert!(listed(&of("x"), &of("x"), false).contains("goes on from the other</b>: graph."));
        assert!(!listed(&of("x"), &of("y"), false).contains("goes on from the other"));
    }
}
