//! Trials in the compact form of the status: a line of text each, so that 400 trials fit.

use pawl_search::history::{Cause, Report, State, Trial};
use pawl_search::space::{Domain, Parameter, Point, Space, Value};
use std::fmt::Write;

/// The state of a running trial whose settings passed the check.
const CHECKED: char = 'T';
/// Before the rate of a trial whose evaluations were listed.
const LISTS: char = '+';
/// Number of fields of a line.
const FIELDS: usize = 6;

/// A trial, and what beside its result is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The trial.
    pub trial: Trial,
    /// Whether its settings passed the check before training.
    pub checked: bool,
    /// Items per second; 0 if unknown.
    pub items_per_second: f64,
    /// Whether the report of its last launch listed the evaluations in its course.
    pub lists_evaluations: bool,
}

/// The trials as lines; `full` is the amount of training of a complete trial.
pub fn encode(trials: &[Recorded], space: &Space, full: u32) -> Vec<String> {
    trials.iter().map(|recorded| line(recorded, space, full)).collect()
}

/// The trials of [`encode`]; `None` if a line is not one of this space.
pub fn decode(lines: &[String], space: &Space, full: u32) -> Option<Vec<Recorded>> {
    lines.iter().zip(0..).map(|(line, number)| parse(line, number, space, full)).collect()
}

/// The states of the trials of [`encode`], by number: the space is not needed. A line without a state is left out.
pub fn states(lines: &[String]) -> impl Iterator<Item = (u32, State)> {
    (0..).zip(lines).filter_map(|(number, line)| Some((number, state_of(line.split(';').next()?)?)))
}

/// Whether the reports of the trainer list evaluations, by the newest of the trials of [`encode`] that has a value;
/// `None` without one. The space is not needed.
pub fn lists_evaluations(lines: &[String]) -> Option<bool> {
    lines.iter().rev().find_map(|line| {
        let fields: Vec<&str> = line.splitn(FIELDS, ';').collect();
        let [_, _, values, reports, rate, _] = fields.as_slice() else { return None };
        (!values.is_empty() || !reports.is_empty()).then(|| rate.starts_with(LISTS))
    })
}

fn line(recorded: &Recorded, space: &Space, full: u32) -> String {
    let trial = &recorded.trial;
    let mut line =
        if recorded.checked && trial.state == State::Running { CHECKED } else { letter(trial.state) }.to_string();
    line.push(';');
    if trial.target != full {
        let _ = write!(line, "{}", trial.target);
    }
    line.push(';');
    line.push_str(&joined(trial.values.iter().copied().map(short)));
    line.push(';');
    // The last report of a complete trial is its value.
    let reports = trial.reports.iter().filter(|report| report.resource != full || trial.values.is_empty());
    line.push_str(&joined(reports.map(|report| format!("{}:{}", report.resource, short(report.value)))));
    line.push(';');
    // Versions that do not know of the sign read the number.
    if recorded.lists_evaluations {
        line.push(LISTS);
    }
    if recorded.items_per_second > 0.0 || recorded.lists_evaluations {
        line.push_str(&short(recorded.items_per_second));
    }
    line.push(';');
    let values = space
        .parameters
        .iter()
        .map(|parameter| trial.point.get(&parameter.name).map(|value| written(parameter, value)).unwrap_or_default());
    line.push_str(&joined(values));
    line
}

fn parse(line: &str, number: u32, space: &Space, full: u32) -> Option<Recorded> {
    let fields: Vec<&str> = line.splitn(FIELDS, ';').collect();
    let [state, target, values, reports, rate, point] = fields.as_slice() else { return None };
    let values = list(values).map(|value| value.parse().ok()).collect::<Option<Vec<f64>>>()?;
    let report = |text: &str| {
        let (resource, value) = text.split_once(':')?;
        Some(Report { resource: resource.parse().ok()?, value: value.parse().ok()? })
    };
    let mut reports = list(reports).map(report).collect::<Option<Vec<Report>>>()?;
    reports.extend(values.first().map(|&value| Report { resource: full, value }));
    let texts: Vec<String> = split(point);
    if texts.len() != space.parameters.len() {
        return None;
    }
    let mut values_of = Point::new();
    for (parameter, text) in space.parameters.iter().zip(&texts).filter(|(_, text)| !text.is_empty()) {
        values_of.insert(parameter.name.clone(), read(parameter, text)?);
    }
    let target = if target.is_empty() { full } else { target.parse().ok()? };
    let checked = state.starts_with(CHECKED);
    let state = state_of(state)?;
    let items_per_second = if rate.is_empty() { 0.0 } else { rate.parse().ok()? };
    let lists_evaluations = rate.starts_with(LISTS);
    let trial = Trial { number, point: values_of, state, target, reports, values };
    Some(Recorded { trial, checked, items_per_second, lists_evaluations })
}

fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(",")
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|part| !part.is_empty())
}

/// The shorter of a number's decimal and exponential form, which is read back exactly.
fn short(value: f64) -> String {
    let (plain, exponential) = (format!("{value}"), format!("{value:e}"));
    if exponential.len() < plain.len() { exponential } else { plain }
}

/// A choice is its index; one that is not in the list is its text after `=`.
fn written(parameter: &Parameter, value: &Value) -> String {
    let Domain::Categorical { choices } = &parameter.domain else {
        return value.number().map(short).unwrap_or_default();
    };
    let text = value.to_string();
    match choices.iter().position(|choice| *choice == text) {
        Some(index) => index.to_string(),
        None => format!("={}", text.replace('\\', "\\\\").replace(',', "\\,")),
    }
}

/// The values of a point: separated by commas that no backslash precedes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let part = match character {
            ',' => {
                parts.push(String::new());
                continue;
            }
            '\\' => characters.next(),
            other => Some(other),
        };
        if let Some(last) = parts.last_mut() {
            last.extend(part);
        }
    }
    parts
}

fn read(parameter: &Parameter, text: &str) -> Option<Value> {
    match &parameter.domain {
        Domain::Categorical { choices } => Some(Value::Text(match text.strip_prefix('=') {
            Some(other) => other.to_owned(),
            None => choices.get(text.parse::<usize>().ok()?)?.clone(),
        })),
        Domain::Float { .. } => text.parse().ok().map(Value::Float),
        Domain::Int { .. } => text.parse::<f64>().ok().map(|number| Value::Int(number as i64)),
    }
}

const fn letter(state: State) -> char {
    match state {
        State::Running => 'R',
        State::Paused => 'P',
        State::Complete => 'C',
        State::Stopped => 'S',
        State::Infeasible(Cause::OutOfMemory) => 'O',
        State::Infeasible(Cause::NonFinite) => 'N',
        State::Infeasible(Cause::Unsupported) => 'U',
        State::Infeasible(Cause::Crashed) => 'X',
        State::Abandoned => 'A',
    }
}

fn state_of(text: &str) -> Option<State> {
    Some(match text {
        "R" | "T" => State::Running,
        "P" => State::Paused,
        "C" => State::Complete,
        "S" => State::Stopped,
        "O" => State::Infeasible(Cause::OutOfMemory),
        "N" => State::Infeasible(Cause::NonFinite),
        "U" => State::Infeasible(Cause::Unsupported),
        "X" => State::Infeasible(Cause::Crashed),
        "A" => State::Abandoned,
        _ => return None,
    })
}

/// `point` with real numbers of four significant digits, which the status has room for: what a trial runs with is what
/// later trials learn from. Multiples of a step lose only the error of their sum.
pub fn rounded(point: Point, space: &Space) -> Point {
    let round = |name: &str, value: Value| {
        let domain =
            space.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.domain);
        let (Some(Domain::Float { low, high, scale }), Value::Float(number)) = (domain, &value) else { return value };
        let stepped = matches!(scale, pawl_search::space::Scale::Step(_));
        let text = if stepped { format!("{number:.11e}") } else { format!("{number:.3e}") };
        Value::Float(text.parse().unwrap_or(*number).clamp(*low, *high))
    };
    point.into_iter().map(|(name, value)| (name.clone(), round(&name, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_search::space::Scale;

    fn space() -> Space {
        let choices = ["adam", "sgd"].map(str::to_owned).to_vec();
        Space {
            parameters: vec![
                Parameter::new("learningRate", Domain::Float { low: 1e-6, high: 1e-1, scale: Scale::Log }),
                Parameter::new("batchPerGpu", Domain::Int { low: 1, high: 64, scale: Scale::Linear }),
                Parameter::new("workload.optimizer", Domain::Categorical { choices }),
                Parameter::new("weightDecay", Domain::Float { low: 0.0, high: 1.0, scale: Scale::Step(0.1) }),
            ],
            ..Space::default()
        }
    }

    fn point(rate: f64, optimizer: &str) -> Point {
        Point::from([
            ("learningRate".to_owned(), Value::Float(rate)),
            ("batchPerGpu".to_owned(), Value::Int(16)),
            ("workload.optimizer".to_owned(), Value::Text(optimizer.to_owned())),
        ])
    }

    #[test]
    fn every_state_is_read_back() {
        let states = [
            State::Running,
            State::Paused,
            State::Complete,
            State::Stopped,
            State::Infeasible(Cause::OutOfMemory),
            State::Infeasible(Cause::NonFinite),
            State::Infeasible(Cause::Unsupported),
            State::Infeasible(Cause::Crashed),
            State::Abandoned,
        ];
        let recorded = |(number, state): (u32, State)| {
            let mut trial = Trial::new(number, point(1.25e-5, if number == 1 { "a,\\b" } else { "sgd" }), 3);
            trial.state = state;
            trial.reports = vec![Report { resource: 1, value: 0.5 }, Report { resource: 3, value: 0.25 }];
            if state == State::Complete {
                (trial.target, trial.values) = (10, vec![0.125, 1e9]);
                trial.reports.push(Report { resource: 10, value: 0.125 });
            }
            let items_per_second = if number == 2 { 12.5 } else { 0.0 };
            Recorded { trial, checked: false, items_per_second, lists_evaluations: false }
        };
        let mut trials: Vec<Recorded> = (0..).zip(states).map(recorded).collect();
        trials.push(Recorded { checked: true, ..recorded((9, State::Running)) });
        let lines = encode(&trials, &space(), 10);
        assert_eq!(lines[0], "R;3;;1:0.5,3:0.25;;1.25e-5,16,1,");
        assert_eq!(lines[2], "C;;0.125,1e9;1:0.5,3:0.25;12.5;1.25e-5,16,1,");
        let known: Vec<(u32, State)> = trials.iter().map(|r| (r.trial.number, r.trial.state)).collect();
        assert_eq!(super::states(&lines).collect::<Vec<_>>(), known);
        assert!(known.iter().all(|(_, state)| State::NAMES.contains(&state.name())));
        assert_eq!((decode(&lines, &space(), 10), lists_evaluations(&lines)), (Some(trials.clone()), Some(false)));
        trials.iter_mut().for_each(|recorded| recorded.lists_evaluations = true);
        let listing = encode(&trials, &space(), 10);
        assert!(listing[0].contains(";+0;") && listing[2].contains(";+12.5;"), "{listing:?}");
        assert_eq!((decode(&listing, &space(), 10), lists_evaluations(&listing)), (Some(trials), Some(true)));
        assert_eq!(lists_evaluations(&["R;;;;;1,2,0,".to_owned()]), None, "it has no value yet");
        for broken in ["", "R;3;;;", "Y;3;;;;1,2,3,", "R;3;;;;1,2", "R;x;;;;1,2,0,", "R;3;;;;1,2,9,"] {
            assert_eq!(decode(&[broken.to_owned()], &space(), 10), None, "{broken}");
        }
    }

    #[test]
    fn points_are_rounded_within_their_range() {
        let exact = Point::from([
            ("learningRate".to_owned(), Value::Float(0.000_123_456_78)),
            ("weightDecay".to_owned(), Value::Float(0.1 + 0.2)),
        ]);
        let rounded = rounded(exact, &space());
        assert_eq!(rounded["learningRate"], Value::Float(0.000_123_5));
        assert_eq!(rounded["weightDecay"], Value::Float(0.3));
        let narrow = Domain::Float { low: 0.123_46, high: 0.123_47, scale: Scale::Linear };
        let narrow = Space { parameters: vec![Parameter::new("ema", narrow)], ..Space::default() };
        let point = super::rounded(Point::from([("ema".to_owned(), Value::Float(0.123_465))]), &narrow);
        assert_eq!(point["ema"], Value::Float(0.123_47));
    }
}
