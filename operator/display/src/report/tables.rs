//! Tables: settings, launches, events.

use super::evidence::Evidence;
use super::svg::Escaped;
use crate::numbers::{bytes, seconds, short};
use crate::settings::differences;
use pawl_api::status::Arm;
use std::fmt::Write;

const INFALLIBLE: &str = "writing to a string does not fail";

/// What holds now against the baseline, changed settings first.
pub fn settings(evidence: &Evidence) -> String {
    let baseline = &evidence.job.spec.settings;
    let effective = evidence.status.effective_settings.as_ref().unwrap_or(baseline);
    let mut all = differences(baseline, effective);
    all.sort_by_key(|difference| !difference.changed());
    let mut html = String::from("<table><thead><tr><th>setting<th>baseline<th>now</tr></thead><tbody>");
    for difference in all {
        let side = |value: &Option<String>| match value {
            Some(value) => format!("<code>{}</code>", Escaped(value)),
            None => r#"<span class="muted">default</span>"#.to_owned(),
        };
        write!(
            html,
            "<tr{}><td>{}<td>{}<td>{}</tr>",
            if difference.changed() { r#" class="changed""# } else { "" },
            Escaped(&difference.name),
            side(&difference.baseline),
            side(&difference.effective),
        )
        .expect(INFALLIBLE);
    }
    html.push_str("</tbody></table>");
    html
}

/// Every launch that finished, oldest first.
pub fn launches(evidence: &Evidence) -> String {
    if evidence.launches.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        r#"<table><thead><tr><th>launch<th>kind<th>phase<th>arm<th class="n">seed<th>outcome<th class="n">items/s<th class="n">loss<th class="n">peak<th class="n">time<th>said</tr></thead><tbody>"#,
    );
    for launch in &evidence.launches {
        let report = &launch.report;
        let (phase, judged) = match evidence.judged(&report.launch) {
            Some((phase, judged)) => (phase.map_or("", |phase| phase.name.as_str()), Some(judged)),
            None => ("", None),
        };
        let arm = match judged.map(|judged| judged.arm) {
            Some(Arm::Control) => "A",
            Some(Arm::Candidate) => "B",
            None => "",
        };
        write!(
            html,
            r#"<tr><td>{}<td>{:?}<td>{}<td>{arm}<td class="n">{}<td>{:?}<td class="n">{}<td class="n">{}<td class="n">{}<td class="n">{}<td>{}</tr>"#,
            Escaped(&report.launch),
            report.kind,
            Escaped(phase),
            launch.seed,
            report.outcome,
            report.items_per_second.map(short).unwrap_or_default(),
            report.losses.last().map(|point| short(point.loss)).unwrap_or_default(),
            report.peak_memory_bytes.map(bytes).unwrap_or_default(),
            Some(report.wall_seconds).filter(|&time| time > 0.0).map(seconds).unwrap_or_default(),
            Escaped(&report.message),
        )
        .expect(INFALLIBLE);
    }
    html.push_str("</tbody></table>");
    html
}

/// Every event, oldest first, with the time since the first.
pub fn events(evidence: &Evidence) -> String {
    let Some(first) = evidence.events.first().map(|event| event.time) else { return String::new() };
    let mut html = String::from(r#"<ol class="timeline">"#);
    for event in &evidence.events {
        let since = event.time.duration_since(first).as_secs_f64();
        let phase = event.phase.as_deref().map(|phase| format!("<b>{}</b> ", Escaped(phase))).unwrap_or_default();
        write!(
            html,
            r#"<li class="{}"><time datetime="{}">+{}</time><span class="why">{}</span><span>{phase}{}</span></li>"#,
            if event.warning { "warning" } else { "normal" },
            event.time,
            seconds(since),
            Escaped(&event.reason),
            Escaped(&event.message),
        )
        .expect(INFALLIBLE);
    }
    html.push_str("</ol>");
    html
}
