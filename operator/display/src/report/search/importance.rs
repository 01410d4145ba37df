//! Importance of the parameters by functional analysis of variance.

use super::Stage;
use crate::report::svg::{Anchor, Canvas, Scale, clipped};
use maud::{Markup, PreEscaped, html};
use pawl_search::history::{Loss, Observation};
use pawl_search::importance::importance;

const WIDTH: f64 = 476.0;
const LEFT: f64 = 176.0;
const RIGHT: f64 = 410.0;
const ROW: f64 = 24.0;
/// Number of complete trials below which the shares are a rough indication.
const FEW: usize = 20;
/// Seed of the forest: the same page for the same trials.
const SEED: u64 = 0;

/// A figure per objective with enough complete trials, with its title.
pub fn figures<'a>(stage: &'a Stage<'_>) -> impl Iterator<Item = (String, Markup)> + 'a {
    (0..stage.search.objectives.len()).filter_map(|objective| {
        let title = format!("Importance for {}", stage.objective(objective));
        Some((title, figure(stage, objective)?))
    })
}

fn figure(stage: &Stage<'_>, objective: usize) -> Option<Markup> {
    let observation = |recorded| {
        let value = stage.value(recorded, objective)?;
        Some(Observation {
            point: recorded.trial.point.clone(),
            loss: Loss::Final(stage.history.goals[objective].loss(value)),
        })
    };
    let observed: Vec<Observation> = stage.complete().filter_map(observation).collect();
    let shares = importance(&stage.history.space, &observed, SEED)?;
    let names = stage.history.space.parameters.iter().map(|parameter| parameter.name.as_str());
    let mut rows: Vec<(&str, f64)> = names.zip(shares.iter().copied()).collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let interactions = (1.0 - shares.iter().sum::<f64>()).max(0.0);
    Some(html! {
        (PreEscaped(draw(&rows)))
        p.muted {
            "Share of the variance that each parameter explains alone, by fANOVA (Hutter, Hoos, Leyton-Brown, ICML 2014) over "
            (observed.len()) " complete trials; interactions explain " (percent(interactions)) "."
            @if observed.len() < FEW { " With fewer than " (FEW) " trials it is a rough indication." }
        }
    })
}

fn draw(rows: &[(&str, f64)]) -> String {
    let scale = Scale::linear(0.0, 1.0, LEFT, RIGHT);
    let bottom = 8.0 + ROW * rows.len() as f64;
    let mut canvas = Canvas::new(WIDTH, bottom + 8.0);
    for (index, (name, share)) in rows.iter().enumerate() {
        let top = 8.0 + ROW * index as f64;
        canvas.text("number", (LEFT - 10.0, top + ROW / 2.0 + 4.5), Anchor::End, &clipped(name, 18));
        let tooltip = format!("{name}: {}", percent(*share));
        canvas.bar("bar total", (scale.at(0.0), scale.at(*share)), top + 5.0, ROW - 10.0, &tooltip);
        canvas.text("number", (scale.at(*share) + 8.0, top + ROW / 2.0 + 4.5), Anchor::Start, &percent(*share));
    }
    canvas.finish("Importance of the parameters")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
