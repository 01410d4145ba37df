//! Columns of the trials, and their order.

use super::{Stage, trained};
use crate::numbers::short;
use crate::report::evidence::Evidence;
use crate::search::{begun, cause, word};
use pawl_api::search::{Recorded, history};
use pawl_search::history::State;
use std::cmp::Ordering;

/// A column.
pub(super) enum Column<'a> {
    /// Number of the trial.
    Trial,
    /// Its state.
    State,
    /// Its value of the objective of this index and name.
    Value(usize, &'a str),
    /// Its value of a parameter.
    Parameter(&'a str),
    /// Its items per second.
    Rate,
}

/// All columns of a stage.
pub(super) fn columns<'a>(stage: &'a Stage<'_>) -> Vec<Column<'a>> {
    let objectives = stage.search.objectives.iter().enumerate();
    let values = objectives.map(|(index, objective)| Column::Value(index, &objective.metric));
    let parameters = stage.history.space.parameters.iter().map(|parameter| Column::Parameter(&parameter.name));
    [Column::Trial, Column::State].into_iter().chain(values).chain(parameters).chain([Column::Rate]).collect()
}

impl Column<'_> {
    /// Its name in an address, as in an export.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Trial => "trial".to_owned(),
            Self::State => "state".to_owned(),
            Self::Value(_, metric) => format!("value.{metric}"),
            Self::Parameter(name) => format!("parameter.{name}"),
            Self::Rate => "itemsPerSecond".to_owned(),
        }
    }

    /// Its heading.
    pub(super) fn heading(&self) -> &str {
        match self {
            Self::Trial => "trial",
            Self::State => "state",
            Self::Value(_, name) | Self::Parameter(name) => name,
            Self::Rate => "items/s",
        }
    }

    /// Whether it is aligned as numbers are.
    pub(super) const fn is_number(&self) -> bool {
        !matches!(self, Self::State)
    }

    /// Its text for a trial. The value of an objective is the final one or, of the first objective, the newest one.
    pub(super) fn text(&self, stage: &Stage<'_>, recorded: &Recorded) -> String {
        let trial = &recorded.trial;
        match self {
            Self::Trial => trial.number.to_string(),
            Self::State => state(trial.state),
            Self::Value(index, _) => match (trial.values.get(*index), trial.newest()) {
                (Some(value), _) => short(*value),
                (None, Some(report)) if *index == 0 => format!("{}{}", short(report.value), trained(stage, recorded)),
                _ => String::new(),
            },
            Self::Parameter(name) => trial.point.get(*name).map(ToString::to_string).unwrap_or_default(),
            Self::Rate if recorded.items_per_second > 0.0 => short(recorded.items_per_second),
            Self::Rate => String::new(),
        }
    }

    /// By what trials are sorted in this column.
    fn key(&self, recorded: &Recorded) -> Key {
        let trial = &recorded.trial;
        let number = |value: Option<f64>| value.map_or(Key::Missing, Key::Number);
        match self {
            Self::Trial => Key::Number(trial.number.into()),
            Self::State => Key::Text(state(trial.state)),
            Self::Value(0, _) => {
                number(trial.values.first().copied().or_else(|| trial.newest().map(|report| report.value)))
            }
            Self::Value(index, _) => number(trial.values.get(*index).copied()),
            Self::Parameter(name) => trial
                .point
                .get(*name)
                .map_or(Key::Missing, |value| value.number().map_or_else(|| Key::Text(value.to_string()), Key::Number)),
            Self::Rate => number(Some(recorded.items_per_second).filter(|rate| *rate > 0.0)),
        }
    }
}

/// What is compared of a trial.
enum Key {
    Number(f64),
    Text(String),
    Missing,
}

impl Key {
    /// In both directions, a trial without a value comes last.
    fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let directed = |order: Ordering| if descending { order.reverse() } else { order };
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => directed(a.total_cmp(b)),
            (Self::Text(a), Self::Text(b)) => directed(a.cmp(b)),
            (Self::Number(_), Self::Text(_)) => directed(Ordering::Less),
            (Self::Text(_), Self::Number(_)) => directed(Ordering::Greater),
            (Self::Missing, Self::Missing) => Ordering::Equal,
            (Self::Missing, _) => Ordering::Greater,
            (_, Self::Missing) => Ordering::Less,
        }
    }
}

fn state(state: State) -> String {
    match state {
        State::Infeasible(why) => format!("{}: {}", word(state), cause(why)),
        State::Running | State::Paused | State::Complete | State::Stopped | State::Abandoned => word(state).to_owned(),
    }
}

/// The order of the trials, as in an address: the name of a column, with `-` before it for the reverse order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    column: String,
    descending: bool,
}

/// Error of an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sort: \"{column}\": not a column of the trials: choose one of {choices}, with - before it for the reverse order"
)]
pub struct OrderError {
    column: String,
    choices: String,
}

impl Order {
    /// Reads an order of the trials of a job; an empty one is by number.
    ///
    /// # Errors
    /// No stage that has begun has the column.
    pub fn parse(text: &str, evidence: &Evidence) -> Result<Self, OrderError> {
        let (column, descending) = text.strip_prefix('-').map_or((text, false), |column| (column, true));
        let column = if column.is_empty() { Column::Trial.name() } else { column.to_owned() };
        let mut known: Vec<String> = vec![Column::Trial.name()];
        for (search, status) in begun(&evidence.job.spec, &evidence.status) {
            let Some(history) = history(search, status) else { continue };
            let stage = Stage { search, status, history };
            for name in columns(&stage).iter().map(Column::name) {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
        }
        if !known.contains(&column) {
            return Err(OrderError { column, choices: known.join(", ") });
        }
        Ok(Self { column, descending })
    }

    /// Its text in an address.
    pub fn text(&self) -> String {
        format!("{}{}", if self.descending { "-" } else { "" }, self.column)
    }

    /// Whether the trials are sorted by `column`, and if so, whether in the reverse order.
    pub(super) fn direction(&self, column: &Column<'_>) -> Option<bool> {
        (self.column == column.name()).then_some(self.descending)
    }

    /// The order by `column`; the reverse one of the trials that are sorted by it.
    pub(super) fn by(&self, column: &Column<'_>) -> Self {
        Self { column: column.name(), descending: self.direction(column).is_some_and(|descending| !descending) }
    }

    /// Sorts trials, which are in the order of their numbers: equal ones remain so, and all do without the column.
    pub(super) fn sort(&self, columns: &[Column<'_>], trials: &mut [&Recorded]) {
        if let Some(column) = columns.iter().find(|column| self.direction(column).is_some()) {
            trials.sort_by(|a, b| column.key(a).compare(&column.key(b), self.descending));
        }
    }
}
