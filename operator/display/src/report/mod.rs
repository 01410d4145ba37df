//! One self-contained HTML page of evidence, without scripts and without the network.

mod chart;
pub mod evidence;
mod memory;
mod phases;
mod svg;
mod tables;
mod training;
mod waterfall;

use crate::numbers::{factor, interval, percent_change, saved, short};
use crate::verdict::{Tone, tone};
use evidence::Evidence;
use pawl_api::status::Stage;
use std::fmt::Write;
use svg::Escaped;

const STYLE: &str = include_str!("style.css");
const INFALLIBLE: &str = "writing to a string does not fail";

/// The page.
pub fn render(evidence: &Evidence) -> String {
    let name = Escaped(evidence.name());
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{name} · Pawl</title><style>{STYLE}</style></head><body><main>"
    );
    header(&mut html, evidence);
    let waterfall = waterfall::draw(evidence).map(|figure| {
        format!(
            r#"{figure}<p class="legend"><span class="key good"></span>kept <span class="key ghost"></span>not kept, drawn where it would stand <span class="key whisker"></span>interval <span class="key diamond"></span>expected</p>"#
        )
    });
    section(&mut html, "Speedup, phase by phase", &waterfall.unwrap_or_default());
    section(&mut html, "What was not kept, and why", &phases::rollbacks(evidence));
    section(&mut html, "Training", &training::section(evidence));
    section(&mut html, "Evidence", &phases::cards(evidence));
    section(&mut html, "Memory", &memory::draw(evidence).unwrap_or_default());
    section(&mut html, "Settings", &tables::settings(evidence));
    section(&mut html, "Events", &tables::events(evidence));
    let launches = tables::launches(evidence);
    if !launches.is_empty() {
        let count = evidence.launches.len();
        let folded =
            format!(r#"<details><summary>{count} launches</summary><div class="wide">{launches}</div></details>"#);
        section(&mut html, "Launches", &folded);
    }
    html.push_str("</main></body></html>\n");
    html
}

fn section(html: &mut String, title: &str, content: &str) {
    if !content.is_empty() {
        write!(html, "<section><h2>{title}</h2>{content}</section>").expect(INFALLIBLE);
    }
}

/// Name, stage, and the few numbers that matter.
fn header(html: &mut String, evidence: &Evidence) {
    let status = &evidence.status;
    let class = match status.stage {
        Stage::Complete => "good",
        Stage::Failed => "bad",
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => "idle",
        Stage::Suspended => "unclear",
    };
    let workload = &evidence.job.spec.workload;
    let workload = workload.name.clone().unwrap_or_else(|| workload.command.join(" "));
    let ranks = evidence.job.spec.trainer.world_size();
    let device = if evidence.job.spec.trainer.gpus_per_replica == 0 { "CPU rank" } else { "GPU" };
    write!(
        html,
        r#"<header><h1>{} <span class="badge {class}">{}</span></h1><p class="muted">workload {} on {ranks} {device}{}{}</p><div class="tiles">"#,
        Escaped(evidence.name()),
        status.stage,
        Escaped(&workload),
        if ranks == 1 { "" } else { "s" },
        started(status.start_time.as_deref()),
    )
    .expect(INFALLIBLE);
    for (label, value, detail) in tiles(evidence) {
        write!(
            html,
            r#"<div class="tile"><span class="what">{}</span><span class="value">{}</span><span class="detail">{}</span></div>"#,
            Escaped(&label),
            Escaped(&value),
            Escaped(&detail)
        )
        .expect(INFALLIBLE);
    }
    html.push_str("</div>");
    for condition in &status.conditions {
        let alarming = matches!(condition.type_.as_str(), "Failed" | "Degraded" | "Stalled" | "Suspended");
        if alarming && condition.status == "True" {
            write!(
                html,
                r#"<p class="notice"><b>{}: {}</b> {}</p>"#,
                Escaped(&condition.type_),
                Escaped(&condition.reason),
                Escaped(&condition.message)
            )
            .expect(INFALLIBLE);
        }
    }
    html.push_str("</header>");
}

/// When the job began, to the second.
fn started(time: Option<&str>) -> String {
    let time = time.and_then(|time| time.parse::<jiff::Timestamp>().ok());
    time.map(|time| format!(" · started {}", time.strftime("%Y-%m-%d %H:%M:%S UTC"))).unwrap_or_default()
}

/// Label, value and detail of each tile.
fn tiles(evidence: &Evidence) -> Vec<(String, String, String)> {
    let status = &evidence.status;
    let mut tiles = Vec::new();
    match status.bundle.as_ref().and_then(|bundle| bundle.speedup.as_ref()) {
        Some(speedup) => tiles.push((
            "speedup, measured together".to_owned(),
            factor(speedup.estimate.value()),
            interval(speedup).map(|interval| format!("{interval}, {} pairs", speedup.pairs)).unwrap_or_default(),
        )),
        None if !status.phases.is_empty() => tiles.push((
            "speedup".to_owned(),
            factor(waterfall::product(&status.phases)),
            "product of the kept phases' estimates".to_owned(),
        )),
        None => {}
    }
    if !status.phases.is_empty() {
        let count = |wanted: Tone| status.phases.iter().filter(|phase| tone(phase.state) == wanted).count();
        let (kept, reverted) = (count(Tone::Good), count(Tone::Bad));
        tiles.push((
            "phases kept".to_owned(),
            format!("{kept} of {}", status.phases.len()),
            format!("{reverted} rolled back"),
        ));
    }
    if let Some(training) = &status.training {
        let gated = evidence.job.spec.gates.validation_metrics.first().map(|gate| gate.name.as_str());
        let preferred = [gated, Some("nrmse"), Some("loss")].into_iter().flatten();
        if let Some((name, now)) = preferred.filter_map(|name| training.validation.get_key_value(name)).next() {
            let before = training.first_validation.get(name).map(|before| before.value());
            let change = before.and_then(|before| {
                percent_change(before, now.value()).map(|change| format!("{change} from {}", short(before)))
            });
            tiles.push((format!("validation {name}"), short(now.value()), change.unwrap_or_default()));
        }
    }
    if let Some(cost) = &status.cost {
        let hours = cost.gpu_hours.as_ref().map(|hours| short(hours.value())).unwrap_or_default();
        let unit = if evidence.job.spec.trainer.gpus_per_replica == 0 { "process hours" } else { "GPU hours" };
        match &cost.spent {
            Some(spent) => {
                let saved = saved(cost).map(|saved| format!(", {saved}")).unwrap_or_default();
                tiles.push((
                    "cost".to_owned(),
                    format!("{:.2} {}", spent.value(), cost.currency),
                    format!("{hours} {unit}{saved}"),
                ));
            }
            None => tiles.push((unit.to_owned(), hours, saved(cost).unwrap_or_default())),
        }
    }
    tiles
}
