//! The HTML report: a self-contained page without scripts and external resources.

pub(crate) mod chart;
pub(crate) mod curves;
pub mod evidence;
pub(crate) mod measurement;
mod memory;
pub(crate) mod pairs;
mod paste;
mod peak;
mod phases;
mod provenance;
mod quality;
pub(crate) mod search;
mod speeds;
mod steps;
mod svg;
mod tables;
mod training;
mod waterfall;

use self::pairs::comparisons;
use crate::numbers::{factor, interval, pairs, percent_change, short};
use crate::payback;
use crate::sentence::{promised, sentence};
use crate::summary::alarms;
use crate::together::{TOGETHER, is_current};
use crate::verdict::{Tone, stage_tone, tone, word};
use evidence::Evidence;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use measurement::{Level, Measurement, Measurements};
use pawl_api::TrainingJobStatus;
use pawl_contract::provenance::redacted;
use pawl_contract::report::unprintable;

/// The style sheet of the page.
pub const STYLE: &str = include_str!("style.css");

/// Renders the HTML page.
pub fn render(evidence: &Evidence) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (evidence.name()) " · Pawl" }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (content(evidence, None)) } }
        }
    };
    displayable(page) + "\n"
}

/// The content of the page: name and key numbers, then a section for each kind of evidence. `place` tells the job from
/// others of its name.
pub fn content(evidence: &Evidence, place: Option<&str>) -> Markup {
    let comparisons = comparisons(&evidence.job.spec, &evidence.status);
    let measurements = measurement::all(evidence, &comparisons);
    let sections = [
        (paste::title(evidence), paste::section(evidence)),
        ("Speedup, phase by phase", waterfall(evidence, &measurements)),
        ("Phases not accepted", phases::rollbacks(evidence, &measurements)),
        ("Search", search::section(evidence, None)),
        ("Training", training::section(evidence)),
        ("Evidence", phases::cards(evidence, &comparisons, &measurements)),
        ("Memory", memory::draw(evidence).map(PreEscaped)),
        ("Settings", Some(tables::settings(evidence))),
        ("Measured with", provenance::section(evidence)),
        ("What happened", tables::events(evidence)),
        ("Launches", tables::launches(evidence)),
    ];
    html! {
        (header(evidence, place, &measurements))
        @for (title, content) in &sections {
            @if let Some(content) = content { section { h2 { (title) } (content) } }
        }
    }
}

/// HTML as text. Names and messages may contain control characters, which are not allowed in HTML, and others that a
/// browser obeys.
pub(crate) fn displayable(page: Markup) -> String {
    let obeyed = |c: char| unprintable(c) && c != '\n' && c != '\t';
    page.into_string().replace(obeyed, "\u{fffd}")
}

fn waterfall(evidence: &Evidence, measurements: &Measurements<'_>) -> Option<Markup> {
    let status = &evidence.status;
    let figure = waterfall::draw(evidence, measurements)?;
    let most = waterfall::most(&status.phases);
    Some(html! {
        @if let Some((name, speedup)) = most {
            p {
                b { (name) } " brought most: " (factor(speedup))
                @if let Some(weaker) = measurements.get(name).filter(|it| it.level != Level::Good) {
                    " (" (weaker.mark()) ")"
                }
                "."
            }
        }
        @if let Some((product, together)) = waterfall::apart(status) {
            p {
                (format!("The phases multiply to {product:.2}×; measured together they are "))
                (format!("{:.2}× ", together.estimate.value())) (interval(together).unwrap_or_default())
                ". What was measured together is what training is promised."
            }
        }
        div.drawn {
            (PreEscaped(figure))
            p.legend {
                span.key.good {} "accepted " span.key.ghost {} "not accepted, drawn at the speedup reached before it "
                span.key.whisker {} "interval " span.key.diamond {} "expected "
                @if !measurements.is_empty() {
                    span.levels {
                        "speed measurement: "
                        @for level in Level::ALL { span.level.(level.class()) { (level.symbol()) } " " (level.word()) " " }
                    }
                }
            }
        }
        div.inwords { (steps::table(status, measurements)) }
    })
}

/// How good the measurement of the speedup is that [`sentence`] says; `None` where it says none.
pub(crate) fn of_result<'a>(evidence: &Evidence, measurements: &'a Measurements<'_>) -> Option<&'a Measurement> {
    measurements.get(promised(&evidence.status)?.name)
}

/// Name, stage, result and key numbers.
fn header(evidence: &Evidence, place: Option<&str>, measurements: &Measurements<'_>) -> Markup {
    let status = &evidence.status;
    let class = stage_tone(status.stage).class();
    let workload = &evidence.job.spec.workload;
    let workload = workload.name.clone().unwrap_or_else(|| redacted(&workload.command));
    let ranks = evidence.job.spec.trainer.world_size();
    let device = if evidence.job.spec.trainer.gpus_per_replica == 0 { "CPU rank" } else { "GPU" };
    let plural = if ranks == 1 { "" } else { "s" };
    html! {
        header {
            h1 { (evidence.name()) " " @if let Some(place) = place { span.muted { "@" (place) } " " } span.badge.(class) { (status.stage) } }
            p.muted {
                "workload " (workload) " on " (ranks) " " (device) (plural) (started(status.start_time.as_deref()))
            }
            @if let Some(result) = sentence(&evidence.job, status) {
                p { b { (result) } }
                @if let Some(measurement) = of_result(evidence, measurements) { (measurement.line()) }
            }
            div.tiles {
                @if let Some(tile) = together_tile(evidence, measurements.get(TOGETHER)) { (tile) }
                @for (label, value, detail) in tiles(evidence) {
                    div.tile { span.what { (label) } span.value { (value) } span.detail { (detail) } }
                }
            }
            @for alarm in alarms(status) {
                p.notice { b { (alarm.type_) ": " (alarm.reason) } " " (alarm.message) }
            }
        }
    }
}

/// Start time of the job, to the second.
fn started(time: Option<&str>) -> String {
    let time = time.and_then(|time| time.parse::<jiff::Timestamp>().ok());
    time.map(|time| format!(" · started {}", time.strftime("%Y-%m-%d %H:%M:%S UTC"))).unwrap_or_default()
}

/// The tile of what was measured together, with a link to its evidence, and the first cause if that is not good.
fn together_tile(evidence: &Evidence, measurement: Option<&Measurement>) -> Option<Markup> {
    let status = &evidence.status;
    let speedup = status.bundle.as_ref().filter(|bundle| is_current(bundle, status))?.speedup.as_ref()?;
    let of_pairs = interval(speedup).map(|interval| format!("{interval}, {} pairs", pairs(speedup)));
    let cause = measurement.map(Measurement::brief).filter(|causes| !causes.is_empty());
    let detail: Vec<String> = of_pairs.into_iter().chain(cause).collect();
    Some(html! {
        div.tile {
            span.what { a href={ "#" (phases::TOGETHER_ID) } { "speedup, measured together" } }
            span.value { (factor(speedup.estimate.value())) }
            span.detail { (detail.join(", ")) }
        }
    })
}

/// What training has made of a metric, which is no effect of Pawl. A percentage of a number near 0 says nothing.
fn during_training(before: f64, now: f64) -> String {
    let change = percent_change(before, now).filter(|_| before.abs() * 2.0 > now.abs());
    let change = change.map(|change| format!("{change} ")).unwrap_or_default();
    format!("during training: {change}from {}", short(before))
}

/// How many phases are in which state, besides those that were accepted: `1 rolled back, 2 inconclusive`.
fn others(status: &TrainingJobStatus) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for phase in status.phases.iter().filter(|phase| tone(phase.state) != Tone::Good) {
        let word = word(phase.state, status.stage);
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    counts.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

/// Label, value and detail of each other tile.
fn tiles(evidence: &Evidence) -> Vec<(String, String, String)> {
    let status = &evidence.status;
    let mut tiles = Vec::new();
    let is_together =
        status.bundle.as_ref().is_some_and(|bundle| bundle.speedup.is_some() && is_current(bundle, status));
    if !is_together && !status.phases.is_empty() {
        tiles.push((
            "speedup".to_owned(),
            factor(waterfall::product(&status.phases)),
            match status.phases.iter().any(|phase| tone(phase.state) == Tone::Good) {
                true => "product of the accepted phases' estimates".to_owned(),
                false => "no phase was accepted".to_owned(),
            },
        ));
    }
    if !status.phases.is_empty() {
        let accepted = status.phases.iter().filter(|phase| tone(phase.state) == Tone::Good).count();
        tiles.push(("phases accepted".to_owned(), format!("{accepted} of {}", status.phases.len()), others(status)));
    }
    tiles.extend(search::tile(evidence));
    if let Some(training) = &status.training {
        let gated = evidence.job.spec.gates.validation_metrics.first().map(|gate| gate.name.as_str());
        let preferred = [gated, Some("nrmse"), Some("loss")].into_iter().flatten();
        if let Some((name, now)) = preferred.filter_map(|name| Some((name, training.measured.metric(name)?))).next() {
            let before = training.measured.first_metric(name).map(|before| before.value());
            let change = before.map(|before| during_training(before, now.value())).unwrap_or_default();
            tiles.push((format!("validation {name}"), short(now.value()), change));
        }
    }
    tiles.extend(peak::tile(status));
    if let Some(cost) = &status.cost {
        let hours = cost.gpu_hours.as_ref().map(|hours| short(hours.value())).unwrap_or_default();
        let unit = if evidence.job.spec.trainer.gpus_per_replica == 0 { "process hours" } else { "GPU hours" };
        let saved = payback::words(&evidence.job, status);
        match &cost.spent {
            Some(spent) => {
                let saved = saved.map(|saved| format!(", {saved}")).unwrap_or_default();
                tiles.push((
                    "cost".to_owned(),
                    format!("{:.2} {}", spent.value(), cost.currency),
                    format!("{hours} {unit}{saved}"),
                ));
            }
            None => tiles.push((unit.to_owned(), hours, saved.unwrap_or_default())),
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The page of a job with these phases and what was measured of all of them together.
    fn page(phases: Value, bundle: Value) -> String {
        let named = ["compile", "fuse"].map(|name| json!({"name": name, "settings": {"compile": "Graph"}}));
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}, "phases": named}});
        let status = json!({"phases": phases, "bundle": bundle, "stage": "Complete"});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        content(&Evidence::new(job, status, Vec::new(), Vec::new()), None).into_string()
    }

    #[test]
    fn the_result_says_how_good_its_measurement_is() {
        let speedup = |upper: &str| json!({"estimate": "1.3", "lower": "1.2", "upper": upper, "pairs": 3});
        let phase = |name: &str| json!({"name": name, "state": "Accepted", "speedup": speedup("1.4")});
        let bundle = json!({"inputHash": "x", "state": "Accepted", "reason": "GoalMet", "speedup": speedup("3.6")});
        let result = |page: String| page.split_once("class=\"tiles\"").unwrap().0.to_owned();
        let alone = result(page(json!([phase("compile")]), Value::Null));
        assert!(alone.contains("(at least 1.20)") && alone.contains("interval [1.20, 1.40]"), "{alone}");
        let together = result(page(json!([phase("compile"), phase("fuse")]), bundle));
        assert!(
            together.contains("Speed measurement: weak.") && together.contains("interval [1.20, 3.60]"),
            "{together}"
        );
        let none = json!([{"name": "compile", "state": "RolledBack", "speedup": speedup("1.4")}]);
        assert!(!result(page(none, Value::Null)).contains("Speed measurement"));
    }

    #[test]
    fn the_losses_of_a_phase_that_computes_the_same_are_beside_what_it_declares() {
        let launch = |arm: &str, pair: u32, loss: &str| {
            json!({"name": format!("{arm}-{pair}"), "kind": "Measure", "arm": arm, "pair": pair, "seed": 1, "outcome": "Done",
                   "itemsPerSecond": "10", "loss": loss})
        };
        let launches = [
            launch("Control", 0, "2"),
            launch("Candidate", 0, "2.001"),
            launch("Control", 1, "2"),
            launch("Candidate", 1, "1.999"),
        ];
        let phase = json!({"name": "compile", "state": "RolledBack", "speedup": {"estimate": "1", "pairs": 2},
                           "launches": launches});
        let text = page(json!([phase]), Value::Null);
        assert!(text.contains("; B's losses differ from A's by -0.05 % to +0.05 %"), "{text}");
    }

    #[test]
    fn the_progress_of_a_metric_is_that_of_the_training_without_a_share_of_nearly_nothing() {
        assert_eq!(during_training(0.0996, 1.0), "during training: from 0.1");
        assert_eq!(during_training(2.0, 0.5), "during training: -75.0 % from 2");
        assert_eq!(during_training(0.0, 1.0), "during training: from 0");
    }
}
