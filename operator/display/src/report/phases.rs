//! The evidence of each phase: verdict, pairs, loss of A against B, launches.

use super::chart::{self, Series};
use super::evidence::{Evidence, pairs};
use super::svg::Escaped;
use crate::numbers::{factor, interval, percent_change, short};
use crate::verdict;
use pawl_api::spec::{Numerics, Phase};
use pawl_api::status::{Arm, LaunchStatus, PhaseStatus};
use pawl_contract::plan::LaunchKind;
use std::fmt::Write;

const CHART: f64 = 476.0;

/// A card for each phase, in order.
pub fn cards(evidence: &Evidence) -> String {
    let spec = &evidence.job.spec;
    let mut html = String::new();
    for phase in &evidence.status.phases {
        let written = spec.phases.iter().find(|written| written.name == phase.name);
        html.push_str(&card(evidence, phase, written));
    }
    html
}

fn card(evidence: &Evidence, phase: &PhaseStatus, spec: Option<&Phase>) -> String {
    let tone = verdict::tone(phase.state);
    let mut html = format!(
        r#"<article class="card" id="phase-{0}"><h3><span class="badge {1}">{2} {3}</span> {0}</h3>"#,
        Escaped(&phase.name),
        tone.class(),
        tone.symbol(),
        Escaped(&verdict::phrase(phase)),
    );
    if !phase.message.is_empty() || !phase.reason.is_empty() {
        write!(html, "<p><b>{}</b> {}</p>", Escaped(&phase.reason), Escaped(&phase.message)).expect(INFALLIBLE);
    }
    html.push_str(&patch(phase, spec));
    let pairs = pairs(&phase.launches);
    let threshold = spec.map_or(1.0, Phase::min_speedup);
    let speed = chart::ratios(&pairs, phase.speedup.as_ref(), threshold, CHART);
    let loss = losses(evidence, phase);
    if speed.is_some() || loss.is_some() {
        html.push_str(r#"<div class="two">"#);
        for (title, figure) in [("Speed of each pair", speed), ("Training loss, A against B", loss)] {
            if let Some(figure) = figure {
                write!(html, "<div><h4>{title}</h4>{figure}</div>").expect(INFALLIBLE);
            }
        }
        html.push_str("</div>");
    }
    html.push_str(&quality(phase));
    if !pairs.is_empty() {
        html.push_str(
            r#"<details><summary>Pairs in numbers</summary><table><thead><tr><th>pair<th class="n">seed<th class="n">A, items/s<th class="n">B, items/s<th class="n">B over A</tr></thead><tbody>"#,
        );
        for pair in &pairs {
            write!(
                html,
                r#"<tr><td>{}<td class="n">{}<td class="n">{}<td class="n">{}<td class="n">{:.3}×</tr>"#,
                pair.number + 1,
                pair.seed,
                short(pair.control),
                short(pair.candidate),
                pair.ratio()
            )
            .expect(INFALLIBLE);
        }
        html.push_str("</tbody></table></details>");
    }
    html.push_str("</article>");
    html
}

const INFALLIBLE: &str = "writing to a string does not fail";

/// What the phase changes, the rungs that were taken included.
fn patch(phase: &PhaseStatus, spec: Option<&Phase>) -> String {
    let Some(spec) = spec else { return String::new() };
    let rungs = spec.fallbacks.iter().take(phase.effective_rung() as usize).map(|rung| &rung.settings);
    let mut html = String::from(r#"<p class="patch">"#);
    for (index, settings) in std::iter::once(&spec.settings).chain(rungs).enumerate() {
        if index > 0 {
            write!(html, r#" <span class="muted">then rung {index}:</span> "#).expect(INFALLIBLE);
        }
        for (name, value) in crate::settings::flat(settings) {
            write!(html, "<code>{}: {}</code> ", Escaped(&name), Escaped(&value)).expect(INFALLIBLE);
        }
    }
    match spec.numerics {
        Numerics::Equivalent => html.push_str(r#"<span class="muted">same mathematics</span>"#),
        Numerics::Changed => html.push_str(r#"<span class="muted">changes the mathematics</span>"#),
    }
    html.push_str("</p>");
    html
}

/// The loss curves of both arms: of the quality launches when there are any, else of the measurements.
fn losses(evidence: &Evidence, phase: &PhaseStatus) -> Option<String> {
    let has_quality = phase.launches.iter().any(|launch| launch.kind == LaunchKind::Quality);
    let kind = if has_quality { LaunchKind::Quality } else { LaunchKind::Measure };
    let baseline = evidence.status.baseline.iter().flat_map(|baseline| &baseline.launches);
    let controls = baseline.filter(|launch| has_quality && launch.kind == kind);
    let series: Vec<Series> = controls
        .chain(phase.launches.iter().filter(|launch| launch.kind == kind))
        .filter_map(|launch| curve(evidence, launch))
        .collect();
    chart::lines(&series, CHART, 220.0, "both arms alike", "Training loss of both arms")
        .map(|figure| format!(r#"{figure}<p class="legend"><span class="key a"></span>A: settings so far <span class="key b"></span>B: with this phase</p>"#))
}

fn curve(evidence: &Evidence, launch: &LaunchStatus) -> Option<Series> {
    let report = evidence.report(&launch.name)?;
    let (class, arm) = match launch.arm {
        Arm::Control => ("a", "A"),
        Arm::Candidate => ("b", "B"),
    };
    let points: Vec<(f64, f64)> = report.losses.iter().map(|point| (point.items as f64, point.loss)).collect();
    (points.len() > 1).then(|| Series { class, name: format!("{arm}, seed {}", launch.seed), points, dots: false })
}

fn quality(phase: &PhaseStatus) -> String {
    let Some(quality) = &phase.quality else { return String::new() };
    let mut html = format!(
        r#"<p><b>Quality</b> at {} items, {} seed{}: validation loss <span class="num">{:+.5}</span>"#,
        short(quality.items as f64),
        quality.seeds,
        if quality.seeds == 1 { "" } else { "s" },
        quality.loss_delta.value(),
    );
    if let Some(upper) = &quality.loss_delta_upper {
        write!(html, r#" (at most <span class="num">{:+.5}</span>)"#, upper.value()).expect(INFALLIBLE);
    }
    for (name, increase) in &quality.metrics {
        let change = percent_change(1.0, 1.0 + increase.value()).unwrap_or_default();
        write!(html, r#", {} <span class="num">{change}</span>"#, Escaped(name)).expect(INFALLIBLE);
    }
    html.push_str(", against the original baseline.</p>");
    html
}

/// What was reverted and why, as a table; empty when nothing was.
pub fn rollbacks(evidence: &Evidence) -> String {
    let reverted = evidence
        .status
        .phases
        .iter()
        .filter(|phase| matches!(verdict::tone(phase.state), verdict::Tone::Bad | verdict::Tone::Unclear));
    let mut rows = String::new();
    for phase in reverted {
        let speedup = phase.speedup.as_ref();
        write!(
            rows,
            r##"<tr><td><a href="#phase-{0}">{0}</a><td>{1}<td>{2}<td class="n">{3} {4}<td>{5}</tr>"##,
            Escaped(&phase.name),
            Escaped(&verdict::phrase(phase)),
            Escaped(&phase.reason),
            speedup.map(|speedup| factor(speedup.estimate.value())).unwrap_or_default(),
            speedup.and_then(interval).unwrap_or_default(),
            Escaped(&phase.message),
        )
        .expect(INFALLIBLE);
    }
    if rows.is_empty() {
        return String::new();
    }
    format!(
        r#"<table><thead><tr><th>phase<th>state<th>reason<th class="n">speedup<th>why</tr></thead><tbody>{rows}</tbody></table>"#
    )
}
