//! The summary of a job: the table of phases, then settings, training, cost and files.

use super::{search, table, trained};
use crate::numbers::{percent_change, short};
use crate::payback;
use crate::plain::plain;
use crate::sentence::sentence;
use crate::settings::{Difference, differences};
use console::{Style as Paint, measure_text_width, truncate_str};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pawl_api::status::Stage;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::report::printable;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

const INFALLIBLE: &str = "writing to a string does not fail";

/// Locations of the output files of a job, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The storage of its checkpoints; `None` when they are deleted with the pods.
    pub checkpoints: Option<String>,
    /// The HTML report, if it exists.
    pub report: Option<String>,
}

/// A job and the locations of its files.
struct View<'a> {
    job: &'a TrainingJob,
    status: &'a TrainingJobStatus,
    places: &'a Places,
}

/// Renders the summary of a job. Lines are truncated to `width` columns if given, but for the sentence at the beginning
/// and paths; `colours`: whether to use ANSI colours.
pub fn render(
    job: &TrainingJob,
    status: &TrainingJobStatus,
    places: &Places,
    width: Option<usize>,
    colours: bool,
) -> String {
    let (status, places) = (&plain(status), &plain(places));
    let result = sentence(job, status).map(|result| format!("{}\n\n", printable(&result)));
    let mut text = result.unwrap_or_default() + &table::render(status, width, colours);
    if !text.is_empty() {
        text.push('\n');
    }
    for (label, facts) in facts(&View { job, status, places }) {
        for (index, fact) in facts.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let label = Paint::new().bold().force_styling(colours).apply_to(format!("{label:<11}"));
            let line = format!("{label}{fact}");
            // Paths are never truncated, so that they can be copied.
            let cut = width.filter(|&width| measure_text_width(&line) > width && !fact.contains('/'));
            match cut {
                Some(width) => writeln!(text, "{}", truncate_str(&line, width, "…")).expect(INFALLIBLE),
                None => writeln!(text, "{line}").expect(INFALLIBLE),
            }
        }
    }
    text
}

/// Label and lines of each block.
fn facts(view: &View<'_>) -> Vec<(&'static str, Vec<String>)> {
    let mut facts = vec![("stage", stage(view.status))];
    if let Some(effective) = &view.status.effective_settings {
        let changed: Vec<String> = differences(&view.job.spec.settings, effective)
            .into_iter()
            .filter(Difference::changed)
            .map(|Difference { name, baseline, effective }| {
                let side = |value: Option<String>| value.unwrap_or_else(|| "default".to_owned());
                format!("{name}: {} (was {})", side(effective), side(baseline))
            })
            .collect();
        facts.push(("settings", if changed.is_empty() { vec!["the baseline".to_owned()] } else { changed }));
    }
    facts.push(("search", search_lines(view)));
    facts.push(("training", training(view)));
    facts.push(("trained", trained_with(view)));
    facts.push(("cost", cost(view).into_iter().collect()));
    facts.push(("report", view.places.report.iter().cloned().collect()));
    facts
}

fn stage(status: &TrainingJobStatus) -> Vec<String> {
    let mut lines = vec![match status.stage {
        Stage::Complete => "complete".to_owned(),
        other => other.to_string().to_lowercase(),
    }];
    lines.extend(alarms(status).map(|alarm| format!("{}: {}: {}", alarm.type_, alarm.reason, alarm.message)));
    lines
}

/// Reasons of the condition `Reconciling` that say what a job waits for.
const WAITS: [&str; 3] = ["GangPending", "PodsRefused", "Queued"];

/// The conditions that need a user's attention. A failed job is also stalled, for the same reason: it is shown once.
pub(crate) fn alarms(status: &TrainingJobStatus) -> impl Iterator<Item = &Condition> {
    let is =
        |condition: &Condition, types: &[&str]| condition.status == "True" && types.contains(&condition.type_.as_str());
    let failed = status.conditions.iter().find(move |condition| is(condition, &["Failed"]));
    status.conditions.iter().filter(move |condition| {
        let again = condition.type_ == "Stalled" && failed.is_some_and(|failed| failed.message == condition.message);
        let waits = is(condition, &["Reconciling"]) && WAITS.contains(&condition.reason.as_str());
        is(condition, &["Failed", "Degraded", "Stalled", "Suspended", "RestartNeeded"]) && !again || waits
    })
}

/// Each stage of the search that has begun: its trials, its winner, or its best trial so far.
fn search_lines(view: &View<'_>) -> Vec<String> {
    let spec = plain(&view.job.spec);
    let stages = search::begun(&spec, view.status);
    stages
        .flat_map(|(search, status)| {
            search::lines(search, status).into_iter().map(|line| format!("{}: {line}", search.name))
        })
        .collect()
}

fn training(view: &View<'_>) -> Vec<String> {
    let Some(training) = &view.status.training else { return Vec::new() };
    let mut lines = Vec::new();
    let mut speed = format!("{} steps, {} items", training.measured.steps, short(training.measured.items as f64));
    if let Some(rate) = &training.measured.items_per_second {
        write!(speed, " at {} items/s", short(rate.value())).expect(INFALLIBLE);
    }
    lines.push(speed);
    for (name, now) in training.measured.validation.iter().flat_map(|validation| &validation.metrics) {
        let now = now.value();
        let before = training.measured.first_metric(name).map(|before| before.value());
        lines.push(match before {
            Some(before) => {
                let change = percent_change(before, now).map(|change| format!(" ({change})")).unwrap_or_default();
                format!("validation {name}: {} -> {}{change}", short(before), short(now))
            }
            None => format!("validation {name}: {}", short(now)),
        });
    }
    if let Some(checkpoint) = &training.last_checkpoint {
        lines.push(match &view.places.checkpoints {
            Some(storage) => {
                format!("checkpoint {}/{}", storage.trim_end_matches('/'), training.path(&checkpoint.name))
            }
            None => format!("checkpoint {} (deleted with its pods)", checkpoint.name),
        });
    }
    lines
}

fn trained_with(view: &View<'_>) -> Vec<String> {
    let training = view.status.training.as_ref();
    training.map_or_else(Vec::new, |training| {
        trained::lines(training, &view.job.spec.train, view.status.effective_settings.as_ref())
    })
}

fn cost(view: &View<'_>) -> Option<String> {
    let cost = view.status.cost.as_ref()?;
    let unit = if view.job.spec.trainer.gpus_per_replica == 0 { "process hours" } else { "GPU hours" };
    let mut text = format!("{} {unit}", short(cost.gpu_hours.as_ref()?.value()));
    if let Some(spent) = &cost.spent {
        write!(text, ", {:.2} {}", spent.value(), cost.currency).expect(INFALLIBLE);
    }
    if let Some(saved) = payback::words(view.job, view.status) {
        write!(text, ", {saved}").expect(INFALLIBLE);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_reason_of_a_failure_is_shown_once() {
        let condition = |type_: &str, message: &str| json!({"type": type_, "status": "True", "reason": "BaselineUnsupported", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = |stalled: &str| -> TrainingJobStatus {
            let conditions = json!([condition("Stalled", stalled), condition("Failed", "no such option")]);
            serde_json::from_value(json!({"conditions": conditions})).unwrap()
        };
        let lines = |stalled: &str| stage(&status(stalled)).split_off(1);
        assert_eq!(lines("no such option"), ["Failed: BaselineUnsupported: no such option"]);
        assert_eq!(lines("a node is cut off").len(), 2);
    }
}
