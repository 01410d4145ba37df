//! The Pareto set of several objectives: each two of them as a figure.

use super::Stage;
use super::objective::{range, scale};
use crate::numbers::short;
use crate::report::svg::{Anchor, Canvas};
use maud::{Markup, PreEscaped};

const WIDTH: f64 = 476.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 30.0;

/// A figure for each two objectives, with its title; none with one objective.
pub fn figures<'a>(stage: &'a Stage<'_>) -> impl Iterator<Item = (String, Markup)> + 'a {
    let count = stage.search.objectives.len();
    let pairs = (0..count).flat_map(move |first| (first + 1..count).map(move |second| (first, second)));
    pairs.filter_map(|(first, second)| {
        let metric = |index: usize| &stage.search.objectives[index].metric;
        let title = format!("Pareto set of {} and {}", metric(first), metric(second));
        Some((title, PreEscaped(draw(stage, (first, second))?)))
    })
}

/// Draws the complete trials by two objectives; `None` without any.
fn draw(stage: &Stage<'_>, (first, second): (usize, usize)) -> Option<String> {
    let points: Vec<_> = stage
        .complete()
        .filter_map(|recorded| Some((recorded, stage.value(recorded, first)?, stage.value(recorded, second)?)))
        .collect();
    let (left, right) = range(points.iter().map(|point| point.1))?;
    let (low, high) = range(points.iter().map(|point| point.2))?;
    let (end, bottom) = (WIDTH - 22.0, HEIGHT - 42.0);
    let (x_scale, y_scale) = (scale(left, right, LEFT, end), scale(low, high, bottom, TOP));
    let mut canvas = Canvas::new(WIDTH, HEIGHT);
    for tick in y_scale.ticks(5) {
        let y = y_scale.at(tick);
        canvas.line("grid", (LEFT, y), (end, y));
        canvas.text("tick", (LEFT - 8.0, y + 4.0), Anchor::End, &short(tick));
    }
    for tick in x_scale.ticks(4) {
        let x = x_scale.at(tick);
        canvas.line("grid", (x, bottom), (x, bottom + 4.0));
        canvas.text("tick", (x, bottom + 18.0), Anchor::Middle, &short(tick));
    }
    canvas.text("axis", ((LEFT + end) / 2.0, HEIGHT - 6.0), Anchor::Middle, &stage.objective(first));
    canvas.text("axis", (8.0, 16.0), Anchor::Start, &stage.objective(second));
    // With two objectives, sorted by one of them, the set is a monotone front.
    if stage.search.objectives.len() == 2 {
        let mut front: Vec<(f64, f64)> = points
            .iter()
            .filter(|(recorded, ..)| stage.outstanding(recorded.trial.number))
            .map(|&(_, x, y)| (x_scale.at(x), y_scale.at(y)))
            .collect();
        front.sort_by(|a, b| a.0.total_cmp(&b.0));
        canvas.path("series bestsofar", &front, "Pareto set");
    }
    let metric = |index: usize| &stage.search.objectives[index].metric;
    for &(recorded, x, y) in &points {
        let class = if stage.outstanding(recorded.trial.number) { "point outstanding" } else { "point train" };
        let tooltip =
            format!("{}: {} {}, {} {}", stage.described(recorded), metric(first), short(x), metric(second), short(y));
        canvas.dot(class, (x_scale.at(x), y_scale.at(y)), 4.0, &tooltip);
    }
    Some(canvas.finish("Pareto set"))
}
