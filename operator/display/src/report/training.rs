//! The training: curves, validation before and after, where the checkpoint is.

use super::chart::{self, Series};
use super::evidence::Evidence;
use super::svg::Escaped;
use crate::numbers::{percent_change, short};
use std::fmt::Write;

const INFALLIBLE: &str = "writing to a string does not fail";

/// The section's content; empty when the job did not train.
pub fn section(evidence: &Evidence) -> String {
    let Some(training) = &evidence.status.training else { return String::new() };
    let mut html = String::from(r#"<div class="two">"#);
    let loss: Vec<Series> = evidence
        .training()
        .map(|launch| Series {
            class: "train",
            name: format!("training loss, {}", launch.attempt),
            points: launch.report.losses.iter().map(|point| (point.items as f64, point.loss)).collect(),
            dots: false,
        })
        .collect();
    let loss = chart::lines(&loss, 476.0, 240.0, "whole gang", "Training loss");
    let validation = validation(evidence);
    for (title, figure) in [("Training loss", loss), ("Validation loss", validation)] {
        if let Some(figure) = figure {
            write!(html, "<div><h4>{title}</h4>{figure}</div>").expect(INFALLIBLE);
        }
    }
    html.push_str("</div>");
    if !training.validation.is_empty() {
        html.push_str(r#"<table><thead><tr><th>validation<th class="n">before<th class="n">now<th class="n">change</tr></thead><tbody>"#);
        for (name, now) in &training.validation {
            let now = now.value();
            let before = training.first_validation.get(name).map(|before| before.value());
            write!(
                html,
                r#"<tr><td>{}<td class="n">{}<td class="n">{}<td class="n">{}</tr>"#,
                Escaped(name),
                before.map(short).unwrap_or_default(),
                short(now),
                before.and_then(|before| percent_change(before, now)).unwrap_or_default(),
            )
            .expect(INFALLIBLE);
        }
        html.push_str("</tbody></table>");
    }
    let mut facts = vec![format!("{} steps, {} items", training.step, short(training.items as f64))];
    if let Some(speed) = &training.items_per_second {
        let promised = training.promised_items_per_second.as_ref();
        let promised = promised.map(|p| format!(" ({} promised)", short(p.value()))).unwrap_or_default();
        facts.push(format!("{} items/s{promised}", short(speed.value())));
    }
    if let Some(goodput) = &training.goodput {
        facts.push(format!("goodput {:.0} %", goodput.value() * 100.0));
    }
    if training.restarts > 0 {
        facts.push(format!("{} restart{}", training.restarts, if training.restarts == 1 { "" } else { "s" }));
    }
    if let Some(checkpoint) = &training.last_checkpoint {
        facts.push(format!("newest checkpoint {} at {} items", checkpoint.name, short(checkpoint.items as f64)));
    }
    write!(html, "<p>{}</p>", Escaped(&facts.join(" · "))).expect(INFALLIBLE);
    html
}

/// Validation loss over items. A report keeps the first and the newest evaluation of its launch.
fn validation(evidence: &Evidence) -> Option<String> {
    let mut points: Vec<(f64, f64)> = evidence
        .training()
        .flat_map(|launch| [&launch.report.first_validation, &launch.report.validation])
        .flatten()
        .filter_map(|validation| Some((validation.items as f64, *validation.metrics.get("loss")?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    let series = Series { class: "valid", name: "validation loss".to_owned(), points, dots: true };
    chart::lines(&[series], 476.0, 240.0, "whole gang", "Validation loss")
}
