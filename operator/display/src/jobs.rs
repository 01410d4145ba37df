//! Several jobs: their list, and two of them beside each other.

use crate::columns::lay_out;
use crate::numbers::{factor, interval, short};
use crate::plain::plain;
use crate::settings::differences;
use crate::verdict;
use pawl_api::status::{CostStatus, PhaseState, PhaseStatus, Speedup};
use pawl_api::{TrainingJob, TrainingJobStatus};

/// A job, its status, and where that is kept.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The job.
    pub job: &'a TrainingJob,
    /// Its status.
    pub status: &'a TrainingJobStatus,
    /// Such as its state directory.
    pub place: &'a str,
}

impl Entry<'_> {
    fn name(&self) -> String {
        self.job.metadata.name.clone().unwrap_or_default()
    }
}

/// A line for each job. Lines are truncated to `width` columns if given.
pub fn list(entries: &[Entry<'_>], width: Option<usize>) -> String {
    let head = ["JOB", "STAGE", "ACCEPTED", "SPEEDUP", "NET SAVED", "PROGRESS", "STATE"].map(str::to_owned);
    let row = |entry: &Entry<'_>| {
        let status = &plain(entry.status);
        let accepted = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).count();
        [
            plain(&entry.name()),
            status.stage.to_string(),
            format!("{accepted} of {}", status.phases.len()),
            status.speedup.as_ref().map(|speedup| factor(speedup.value())).unwrap_or_default(),
            status.cost.as_ref().and_then(net_saved).unwrap_or_default(),
            status.progress.clone(),
            entry.place.to_owned(),
        ]
    };
    let rows: Vec<_> = std::iter::once(head).chain(entries.iter().map(row)).collect();
    lay_out(&rows, width)
}

/// The savings compared with training with the baseline, after what judging cost.
fn net_saved(cost: &CostStatus) -> Option<String> {
    cost.saved_percent.as_ref().map(|percent| format!("{:+.0} %", percent.value()))
}

/// Two jobs beside each other: how they ended, their verdicts, their settings and their trainings. A row that differs
/// begins with `≠`. Lines are truncated to `width` columns if given.
pub fn compare(a: Entry<'_>, b: Entry<'_>, width: Option<usize>) -> String {
    let (first, second) = (plain(a.status), plain(b.status));
    let mut pairs = vec![("stage".to_owned(), [first.stage.to_string(), second.stage.to_string()])];
    let speedup = |status: &TrainingJobStatus| status.speedup.as_ref().map(|speedup| factor(speedup.value()));
    pairs.push(("speedup".to_owned(), [&first, &second].map(|status| speedup(status).unwrap_or_default())));
    let phase = |status: &TrainingJobStatus, name: &str| {
        let found = status.phases.iter().find(|phase| phase.name == name);
        found.map(|phase| of_phase(phase, status)).unwrap_or_default()
    };
    let mut names: Vec<&String> = first.phases.iter().chain(&second.phases).map(|phase| &phase.name).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    pairs.extend(
        names.into_iter().map(|name| (format!("phase {name}"), [&first, &second].map(|status| phase(status, name)))),
    );
    let together = |status: &TrainingJobStatus| {
        let bundle = status.bundle.as_ref();
        bundle.map(|bundle| measured(verdict::word(bundle.state, status.stage), bundle.speedup.as_ref()))
    };
    pairs.push(("all together".to_owned(), [&first, &second].map(|status| together(status).unwrap_or_default())));
    let effective = |entry: &Entry<'_>, status: &TrainingJobStatus| {
        status.effective_settings.clone().unwrap_or_else(|| plain(&entry.job.spec.settings))
    };
    let settings = differences(&effective(&a, &first), &effective(&b, &second));
    pairs.extend(settings.into_iter().map(|setting| {
        let sides = [setting.baseline, setting.effective];
        (setting.name, sides.map(|side| side.unwrap_or_else(|| "default".to_owned())))
    }));
    pairs.extend(trained(&first, &second));
    let cost = |status: &TrainingJobStatus| {
        status.cost.as_ref().and_then(|cost| Some(format!("{} h", short(cost.gpu_hours.as_ref()?.value()))))
    };
    pairs.push(("device hours".to_owned(), [&first, &second].map(|status| cost(status).unwrap_or_default())));

    let head = [String::new(), String::new(), plain(&a.name()), plain(&b.name())];
    let shown = pairs.into_iter().filter(|(_, sides)| sides.iter().any(|side| !side.is_empty()));
    let rows = shown.map(|(name, [one, other])| {
        let mark = if one == other { "" } else { "≠" };
        [mark.to_owned(), name, one, other]
    });
    lay_out(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), width)
}

/// The verdict on a phase, and its speedup.
fn of_phase(phase: &PhaseStatus, status: &TrainingJobStatus) -> String {
    measured(&verdict::phrase(phase, status.stage), phase.speedup.as_ref())
}

fn measured(verdict: &str, speedup: Option<&Speedup>) -> String {
    let figures = speedup.map(|speedup| {
        let bounds = interval(speedup).map(|bounds| format!(" {bounds}")).unwrap_or_default();
        format!(" {}{bounds}", factor(speedup.estimate.value()))
    });
    format!("{verdict}{}", figures.unwrap_or_default())
}

/// What the trainings did.
fn trained(first: &TrainingJobStatus, second: &TrainingJobStatus) -> Vec<(String, [String; 2])> {
    let of = |status: &TrainingJobStatus| {
        let Some(training) = &status.training else { return Vec::new() };
        let measured = &training.measured;
        let mut facts = vec![("items".to_owned(), short(measured.items as f64))];
        facts.extend(measured.items_per_second.as_ref().map(|rate| ("items/s".to_owned(), short(rate.value()))));
        let metrics = measured.validation.iter().flat_map(|validation| &validation.metrics);
        facts.extend(metrics.map(|(name, value)| (format!("validation {name}"), short(value.value()))));
        facts
    };
    let sides = [of(first), of(second)];
    let mut names: Vec<String> = Vec::new();
    for (name, _) in sides.iter().flatten() {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let side = |facts: &[(String, String)], name: &str| {
        facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    names.into_iter().map(|name| (name.clone(), sides.each_ref().map(|facts| side(facts, &name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(name: &str, status: Value) -> (TrainingJob, TrainingJobStatus) {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
    }

    fn entry((job, status): &(TrainingJob, TrainingJobStatus)) -> Entry<'_> {
        Entry { job, status, place: ".pawl/toy" }
    }

    #[test]
    fn a_job_is_a_line() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "RolledBack"}]);
        let toy = job(
            "toy",
            json!({"stage": "Complete", "phases": phases, "speedup": "1.5", "progress": "100%",
            "cost": {"savedPercent": "-12.3"}}),
        );
        let text = list(&[entry(&toy)], None);
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["toy", "Complete", "1", "of", "2", "1.50×", "-12", "%", "100%", ".pawl/toy"]);
        assert!(list(&[entry(&toy)], Some(20)).lines().all(|line| console::measure_text_width(line) <= 20));
    }

    #[test]
    fn what_differs_between_two_jobs_is_marked() {
        let phase = |estimate: &str| json!([{"name": "compile", "state": "Accepted", "speedup": {"estimate": estimate, "pairs": 3}}]);
        let training = json!({"items": 64, "validation": {"items": 64, "metrics": {"loss": "0.5"}}});
        let one = job(
            "one",
            json!({"phases": phase("1.5"), "effectiveSettings": {"compile": "Graph"}, "training": training}),
        );
        let other = job("other", json!({"phases": phase("1.2"), "training": training}));
        let text = compare(entry(&one), entry(&other), None);
        let line =
            |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(line("phase compile").starts_with('≠') && line("phase compile").contains("accepted 1.50×"), "{text}");
        assert!(line("compile      ").contains("Graph") && line("validation loss").starts_with(' '), "{text}");
        assert!(compare(entry(&one), entry(&one), None).lines().all(|line| !line.contains('≠')));
    }
}
