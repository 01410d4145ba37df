//! The history of an objective: the value of each trial, and the best so far.

use super::{Stage, trained};
use crate::numbers::short;
use crate::report::svg::{Anchor, Canvas, Scale};
use pawl_api::search::Recorded;
use pawl_search::history::State;

const WIDTH: f64 = 476.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 14.0;
/// Height of the lane of the infeasible trials, below the values.
const LANE: f64 = 18.0;
/// Values of which the largest is this many times the smallest are drawn logarithmically.
const WIDE: f64 = 8.0;

/// Draws an objective over the number of the trial; `None` without values. Only complete trials count as the best.
pub fn draw(stage: &Stage<'_>, objective: usize) -> Option<String> {
    let points = points(stage, objective);
    let (low, high) = range(points.iter().map(|point| point.value))?;
    let (right, bottom) = (WIDTH - 22.0, HEIGHT - 42.0 - LANE);
    let y_scale = scale(low, high, bottom, TOP);
    let x_scale = Scale::linear(0.0, (stage.history.trials.len().max(2) - 1) as f64, LEFT + 8.0, right);
    let mut canvas = Canvas::new(WIDTH, HEIGHT);
    for tick in y_scale.ticks(5) {
        let y = y_scale.at(tick);
        canvas.line("grid", (LEFT, y), (right, y));
        canvas.text("tick", (LEFT - 8.0, y + 4.0), Anchor::End, &short(tick));
    }
    for tick in x_scale.ticks(6).into_iter().filter(|tick| tick.fract() == 0.0) {
        canvas.text("tick", (x_scale.at(tick), bottom + LANE + 18.0), Anchor::Middle, &short(tick));
    }
    canvas.text("axis", ((LEFT + right) / 2.0, HEIGHT - 6.0), Anchor::Middle, "trial");
    let steps: Vec<(f64, f64)> = best(&points, stage, objective, stage.history.trials.len())
        .into_iter()
        .map(|(number, value)| (x_scale.at(number), y_scale.at(value)))
        .collect();
    if !steps.is_empty() {
        canvas.path("series bestsofar", &steps, "best so far");
    }
    for point in &points {
        let class = if point.complete { "point train" } else { "point pruned" };
        canvas.dot(class, (x_scale.at(point.number), y_scale.at(point.value)), 3.5, &point.tooltip);
    }
    for recorded in &stage.history.trials {
        if let State::Infeasible(cause) = recorded.trial.state {
            let tooltip = format!("{}: {}", stage.described(recorded), crate::search::cause(cause));
            let at = (x_scale.at(f64::from(recorded.trial.number)), bottom + LANE / 2.0 + 2.0);
            canvas.diamond("mark bad", at, 4.0, &tooltip);
        }
    }
    Some(canvas.finish(&format!("History of {}", stage.objective(objective))))
}

struct TrialValue {
    number: f64,
    value: f64,
    complete: bool,
    tooltip: String,
}

/// The values of the trials: final ones, and of the first objective also the newest of the others.
fn points(stage: &Stage<'_>, objective: usize) -> Vec<TrialValue> {
    let point = |recorded: &Recorded| {
        let trial = &recorded.trial;
        let complete = trial.state == State::Complete;
        let newest = trial.newest().filter(|_| objective == 0 && !complete).map(|report| report.value);
        let value = if complete { stage.value(recorded, objective) } else { newest.filter(|value| value.is_finite()) }?;
        let metric = &stage.search.objectives[objective].metric;
        let tooltip = format!("{}: {metric} {}{}", stage.described(recorded), short(value), trained(stage, recorded));
        Some(TrialValue { number: f64::from(trial.number), value, complete, tooltip })
    };
    stage.history.trials.iter().filter_map(point).collect()
}

/// The corners of the best complete value so far, up to the newest trial.
fn best(points: &[TrialValue], stage: &Stage<'_>, objective: usize, trials: usize) -> Vec<(f64, f64)> {
    let goal = stage.history.goals[objective];
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for point in points.iter().filter(|point| point.complete) {
        match corners.last() {
            Some(&(_, best)) if goal.loss(point.value) >= goal.loss(best) => {}
            Some(&(_, best)) => corners.extend([(point.number, best), (point.number, point.value)]),
            None => corners.push((point.number, point.value)),
        }
    }
    if let Some(&(_, best)) = corners.last() {
        corners.push(((trials.max(1) - 1) as f64, best));
    }
    corners
}

/// The smallest and the largest value; `None` without any.
pub fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    low.is_finite().then_some((low, high))
}

/// A scale for values of an objective, with a margin: logarithmic if they are positive and far apart.
pub fn scale(low: f64, high: f64, start: f64, end: f64) -> Scale {
    if low > 0.0 && high / low > WIDE {
        return Scale::logarithmic(low / 1.1, high * 1.1, start, end);
    }
    let margin = (high - low).max(high.abs() * 1e-3) * 0.06;
    Scale::linear(low - margin, high + margin, start, end)
}
