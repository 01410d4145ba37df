//! What a run or `pawl status` ends with: the table, the settings, the training, the cost, the files.

use super::table;
use crate::numbers::{percent_change, short};
use crate::report::settings::{Difference, differences};
use crate::shell::displayed;
use crate::state::StateDir;
use crate::state::document::Document;
use console::{Style as Paint, measure_text_width, truncate_str};
use pawl_api::status::Stage;
use std::fmt::Write;

const INFALLIBLE: &str = "writing to a string does not fail";

/// Everything about a job, for people.
pub fn render(state: &StateDir, document: &Document, width: Option<usize>, colours: bool) -> String {
    let mut text = table::render(&document.status, width, colours);
    if !text.is_empty() {
        text.push('\n');
    }
    for (label, facts) in facts(state, document) {
        for (index, fact) in facts.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let label = Paint::new().bold().force_styling(colours).apply_to(format!("{label:<11}"));
            let line = format!("{label}{fact}");
            // A path is never cut: people copy it.
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
fn facts(state: &StateDir, document: &Document) -> Vec<(&'static str, Vec<String>)> {
    let status = &document.status;
    let mut facts = vec![("stage", stage(document))];
    if let Some(effective) = &status.effective_settings {
        let changed: Vec<String> = differences(&document.job.spec.settings, effective)
            .into_iter()
            .filter(Difference::changed)
            .map(|Difference { name, baseline, effective }| {
                let side = |value: Option<String>| value.unwrap_or_else(|| "default".to_owned());
                format!("{name}: {} (was {})", side(effective), side(baseline))
            })
            .collect();
        facts.push(("settings", if changed.is_empty() { vec!["the baseline".to_owned()] } else { changed }));
    }
    facts.push(("training", training(state, document)));
    facts.push(("cost", cost(document).into_iter().collect()));
    if state.report().exists() {
        facts.push(("report", vec![displayed(&state.report())]));
    }
    facts
}

fn stage(document: &Document) -> Vec<String> {
    let status = &document.status;
    let mut lines = vec![match status.stage {
        Stage::Complete => "complete".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }];
    for condition in &status.conditions {
        let alarming = matches!(condition.type_.as_str(), "Failed" | "Degraded" | "Stalled" | "Suspended");
        if alarming && condition.status == "True" {
            lines.push(format!("{}: {}: {}", condition.type_, condition.reason, condition.message));
        }
    }
    lines
}

fn training(state: &StateDir, document: &Document) -> Vec<String> {
    let Some(training) = &document.status.training else { return Vec::new() };
    let mut lines = Vec::new();
    let mut speed = format!("{} steps, {} items", training.step, short(training.items as f64));
    if let Some(rate) = &training.items_per_second {
        write!(speed, " at {} items/s", short(rate.value())).expect(INFALLIBLE);
    }
    lines.push(speed);
    for (name, now) in &training.validation {
        let now = now.value();
        let before = training.first_validation.get(name).map(|before| before.value());
        lines.push(match before {
            Some(before) => {
                let change = percent_change(before, now).map(|change| format!(" ({change})")).unwrap_or_default();
                format!("validation {name}: {} -> {}{change}", short(before), short(now))
            }
            None => format!("validation {name}: {}", short(now)),
        });
    }
    if let Some(checkpoint) = &training.last_checkpoint {
        let path = match &document.job.spec.train.checkpoint.storage {
            Some(storage) => format!("{}/{}", storage.trim_end_matches('/'), checkpoint.name),
            None => displayed(&state.checkpoints().join(&checkpoint.name)),
        };
        lines.push(format!("checkpoint {path}"));
    }
    lines
}

fn cost(document: &Document) -> Option<String> {
    let cost = document.status.cost.as_ref()?;
    let unit = if document.job.spec.trainer.gpus_per_replica == 0 { "process hours" } else { "GPU hours" };
    let mut text = format!("{} {unit}", short(cost.gpu_hours.as_ref()?.value()));
    if let Some(spent) = &cost.spent {
        write!(text, ", {:.2} {}", spent.value(), cost.currency).expect(INFALLIBLE);
    }
    if let Some(saved) = &cost.saved {
        write!(text, ", {:.2} {} saved in training", saved.value(), cost.currency).expect(INFALLIBLE);
    }
    Some(text)
}
