//! Parallel coordinates: an axis per parameter and objective, a line per trial.

use super::objective::{range, scale};
use super::{Stage, trained};
use crate::numbers::short;
use crate::report::svg::{Anchor, Canvas, Scale, clipped};
use pawl_api::search::Recorded;
use pawl_search::history::State;
use pawl_search::space::{Domain, Parameter, Scale as Division, Value};

const WIDTH: f64 = 1000.0;
/// Smallest distance of two axes: more of them make the figure wider, and it scrolls.
const APART: f64 = 118.0;
const LEFT: f64 = 84.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 270.0;
/// Where the lines of trials without a value of the parameter pass.
const UNSET: f64 = BOTTOM + 22.0;
/// Largest number of labels of a list.
const LABELS: usize = 16;
/// Width of a character of an axis's name, with a margin.
const CHARACTER: f64 = 9.5;
/// Number of classes of colour, from the best to the worst trials.
const CLASSES: usize = 5;

/// An axis: its positions, and its labels with theirs.
struct Axis {
    name: String,
    place: Place,
    labels: Vec<(f64, String)>,
}

enum Place {
    Numbers(Scale),
    /// Texts, evenly spaced.
    Texts(Vec<String>),
}

/// Draws the trials with their settings and objectives; `None` without complete trials.
pub fn draw(stage: &Stage<'_>) -> Option<String> {
    let parameters: Vec<Axis> = stage.history.space.parameters.iter().map(|parameter| axis(stage, parameter)).collect();
    let objectives: Vec<Axis> =
        (0..stage.search.objectives.len()).map(|index| result(stage, index)).collect::<Option<_>>()?;
    let gaps = parameters.len().max(1) + objectives.len().max(1) - 1;
    let width = WIDTH.max(LEFT * 2.0 + APART * gaps as f64);
    let at = |index: usize| LEFT + (width - LEFT * 2.0) * index as f64 / gaps as f64;
    let unset = stage.history.trials.iter().any(|recorded| recorded.trial.point.len() < parameters.len());
    let mut canvas = Canvas::new(width, if unset { UNSET + 12.0 } else { BOTTOM + 12.0 });
    for (class, recorded) in ordered(stage) {
        let places = parameters.iter().zip(&stage.history.space.parameters).enumerate();
        let mut line: Vec<(f64, f64)> = places
            .map(|(index, (axis, parameter))| (at(index), axis.at(recorded.trial.point.get(&parameter.name))))
            .collect();
        let values = (0..objectives.len()).filter_map(|index| Some((index, stage.value(recorded, index)?)));
        line.extend(values.map(|(index, value)| (at(parameters.len() + index), objectives[index].number(value))));
        canvas.trial(&class, recorded.trial.number, &line, &tooltip(stage, recorded));
    }
    for (index, axis) in parameters.iter().chain(&objectives).enumerate() {
        let x = at(index);
        canvas.axis(&axis.name, x, (TOP, BOTTOM));
        // The first and the last name have only the margin beside them.
        let room = if index == 0 || index == gaps { LEFT * 2.0 } else { at(1) - at(0) };
        canvas.text("tick name", (x, TOP - 14.0), Anchor::Middle, &clipped(&axis.name, (room / CHARACTER) as usize));
        for (y, label) in &axis.labels {
            canvas.line("one", (x - 3.0, *y), (x + 3.0, *y));
            canvas.text("tick halo", (x - 6.0, y + 4.0), Anchor::End, &clipped(label, 9));
        }
    }
    if unset {
        canvas.text("tick", (LEFT - 12.0, UNSET + 4.0), Anchor::End, "not set");
    }
    Some(canvas.finish("Parallel coordinates of the trials"))
}

impl Axis {
    /// A linear or logarithmic axis with labels.
    fn numbers(name: &str, scale: Scale) -> Self {
        let labels = scale.ticks(5).into_iter().map(|tick| (scale.at(tick), short(tick))).collect();
        Self { name: name.to_owned(), place: Place::Numbers(scale), labels }
    }

    fn number(&self, value: f64) -> f64 {
        match &self.place {
            Place::Numbers(scale) => scale.at(value),
            Place::Texts(_) => UNSET,
        }
    }

    /// Position of a value of the parameter; of an inactive one below the axis.
    fn at(&self, value: Option<&Value>) -> f64 {
        match (&self.place, value) {
            (Place::Numbers(scale), Some(value)) => value.number().map_or(UNSET, |number| scale.at(number)),
            (Place::Texts(texts), Some(value)) => {
                let text = value.to_string();
                texts.iter().position(|known| *known == text).map_or(UNSET, |index| spaced(index, texts.len()))
            }
            (_, None) => UNSET,
        }
    }
}

/// Position of one of some texts.
fn spaced(index: usize, count: usize) -> f64 {
    BOTTOM + (TOP - BOTTOM) * (index as f64 + 0.5) / count as f64
}

/// The axis of a parameter: its range, and values of trial 0 outside of it.
fn axis(stage: &Stage<'_>, parameter: &Parameter) -> Axis {
    let values = || stage.history.trials.iter().filter_map(|recorded| recorded.trial.point.get(&parameter.name));
    let (low, high, division) = match &parameter.domain {
        Domain::Categorical { choices } => {
            let mut texts = choices.clone();
            for text in values().map(Value::to_string) {
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            let labels = texts.iter().enumerate().map(|(index, text)| (spaced(index, texts.len()), text.clone()));
            let labels = labels.take(LABELS).collect();
            return Axis { name: parameter.name.clone(), place: Place::Texts(texts), labels };
        }
        Domain::Float { low, high, scale } => (*low, *high, *scale),
        Domain::Int { low, high, scale } => (*low as f64, *high as f64, *scale),
    };
    let (low, high) = range(values().filter_map(Value::number).chain([low, high])).unwrap_or((low, high));
    let scale = if division == Division::Log && low > 0.0 {
        Scale::logarithmic(low, high, BOTTOM, TOP)
    } else {
        Scale::linear(low, high, BOTTOM, TOP)
    };
    Axis::numbers(&parameter.name, scale)
}

/// The axis of an objective; `None` without values.
fn result(stage: &Stage<'_>, index: usize) -> Option<Axis> {
    let (low, high) = range(stage.complete().filter_map(|recorded| stage.value(recorded, index)))?;
    Some(Axis::numbers(&stage.search.objectives[index].metric, scale(low, high, BOTTOM, TOP)))
}

/// The trials that are drawn with the classes of their lines, the best last: on top.
fn ordered<'a>(stage: &'a Stage<'_>) -> Vec<(String, &'a Recorded)> {
    let early = stage
        .history
        .trials
        .iter()
        .filter(|recorded| matches!(recorded.trial.state, State::Running | State::Paused | State::Stopped));
    let mut lines: Vec<(String, &Recorded)> = early.map(|recorded| ("series pruned".to_owned(), recorded)).collect();
    let loss = |recorded: &Recorded| {
        stage.value(recorded, 0).map_or(f64::INFINITY, |value| stage.history.goals[0].loss(value))
    };
    let mut complete: Vec<&Recorded> = stage.complete().collect();
    complete.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    let count = complete.len();
    let classed = complete.into_iter().enumerate().map(|(index, recorded)| {
        let rank = CLASSES - 1 - index * CLASSES / count;
        let class = if stage.outstanding(recorded.trial.number) {
            "series outstanding".to_owned()
        } else {
            format!("series rank{rank}")
        };
        (class, recorded)
    });
    lines.extend(classed);
    // The sort is stable.
    lines.sort_by_key(|(class, _)| class == "series outstanding");
    lines
}

fn tooltip(stage: &Stage<'_>, recorded: &Recorded) -> String {
    let values = stage.search.objectives.iter().zip(&recorded.trial.values);
    let values: Vec<String> =
        values.map(|(objective, value)| format!("{} {}", objective.metric, short(*value))).collect();
    let newest = recorded.trial.newest().filter(|_| values.is_empty());
    let newest = newest.map(|report| format!("{}{}", short(report.value), trained(stage, recorded)));
    format!("{}: {}", stage.described(recorded), newest.unwrap_or_else(|| values.join(", ")))
}
