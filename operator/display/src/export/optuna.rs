//! The search as the log of Optuna's `JournalStorage`: a JSON object per line, which Optuna replays.
//!
//! The lines are the operations that Optuna itself writes for studies and trials that are added whole
//! (`optuna/storages/journal/_storage.py`): 0 creates a study, 2 and 3 set its attributes, 4 creates a trial. Optuna
//! counts studies and trials in the order of the lines.
//!
//! States: Running and Paused are `RUNNING`, Pruned is `PRUNED` with the newest value, Infeasible and Abandoned are
//! `FAIL`. The user attributes `state`, `cause` and `itemsPerSecond` have what Optuna's states do not. A value outside
//! of its range, which only the settings accepted before the search may have (trial 0), is no value of Optuna's
//! distributions: it is in the user attribute `outside`. Trials have no start and end times, because the status has
//! none.

use super::Stage;
use super::json::typed;
use pawl_api::search::Recorded;
use pawl_search::history::{Goal, State};
use pawl_search::space::{Domain, Parameter, Scale, Value};
use serde_json::{Map, Value as Json, json};

const CREATE_STUDY: u8 = 0;
const SET_STUDY_USER_ATTRIBUTE: u8 = 2;
const SET_STUDY_SYSTEM_ATTRIBUTE: u8 = 3;
const CREATE_TRIAL: u8 = 4;

/// Optuna's numbers of the states.
const RUNNING: u8 = 0;
const COMPLETE: u8 = 1;
const PRUNED: u8 = 2;
const FAIL: u8 = 3;

/// Deviation from a multiple of the step that counts as rounding, in steps, as in Optuna.
const ROUNDING: f64 = 1e-8;

/// Writes all stages, a study each.
pub fn render(job: &str, stages: &[Stage<'_>]) -> String {
    let mut log = String::new();
    for (study, stage) in stages.iter().enumerate() {
        let trials = stage.history.trials.iter().map(|recorded| trial(study, stage, recorded));
        for mut line in created(job, study, stage).into_iter().chain(trials) {
            line["worker_id"] = "pawl".into();
            log.push_str(&line.to_string());
            log.push('\n');
        }
    }
    log
}

/// The operations that create a study.
fn created(job: &str, study: usize, stage: &Stage<'_>) -> Vec<Json> {
    let direction = |goal: &Goal| match goal {
        Goal::Minimize => 1,
        Goal::Maximize => 2,
    };
    let directions: Vec<u8> = stage.history.goals.iter().map(direction).collect();
    let metrics: Vec<&str> = stage.metrics().collect();
    let attribute = |name: &str, value: Json| json!({"op_code": SET_STUDY_USER_ATTRIBUTE, "study_id": study, "user_attr": {name: value}});
    vec![
        json!({"op_code": CREATE_STUDY, "study_name": format!("{job}/{}", stage.search.name), "directions": directions}),
        json!({"op_code": SET_STUDY_SYSTEM_ATTRIBUTE, "study_id": study, "system_attr": {"study:metric_names": metrics}}),
        attribute("job", job.into()),
        attribute("unit", stage.unit().into()),
        attribute("full", stage.history.full.into()),
    ]
}

/// The operation that creates a trial.
fn trial(study: usize, stage: &Stage<'_>, recorded: &Recorded) -> Json {
    let trial = &recorded.trial;
    let state = match trial.state {
        State::Running | State::Paused => RUNNING,
        State::Complete => COMPLETE,
        State::Stopped => PRUNED,
        State::Infeasible(_) | State::Abandoned => FAIL,
    };
    let mut attributes = Map::from_iter([("state".to_owned(), trial.state.name().into())]);
    if let State::Infeasible(cause) = trial.state {
        attributes.insert("cause".to_owned(), cause.name().into());
    }
    if recorded.items_per_second > 0.0 {
        attributes.insert("itemsPerSecond".to_owned(), recorded.items_per_second.into());
    }
    let (mut distributions, mut parameters, mut outside) = (Map::new(), Map::new(), Map::new());
    for parameter in &stage.history.space.parameters {
        let Some(value) = trial.point.get(&parameter.name) else { continue };
        match internal(&parameter.domain, value) {
            Some(number) => {
                distributions.insert(parameter.name.clone(), distribution(parameter).to_string().into());
                parameters.insert(parameter.name.clone(), number);
            }
            None => {
                outside.insert(parameter.name.clone(), typed(value));
            }
        }
    }
    if !outside.is_empty() {
        attributes.insert("outside".to_owned(), outside.into());
    }
    let values = match trial.state {
        State::Complete => trial.values.clone(),
        State::Stopped => trial.newest().map(|report| report.value).into_iter().collect(),
        State::Running | State::Paused | State::Infeasible(_) | State::Abandoned => Vec::new(),
    };
    let (value, values) = match values.as_slice() {
        [] => (Json::Null, Json::Null),
        [value] => (json!(value), Json::Null),
        several => (Json::Null, json!(several)),
    };
    let reports: Map<String, Json> =
        trial.reports.iter().map(|report| (report.resource.to_string(), report.value.into())).collect();
    json!({
        "op_code": CREATE_TRIAL, "study_id": study, "state": state, "value": value, "values": values, "datetime_start": null,
        "distributions": distributions, "params": parameters, "user_attrs": attributes, "system_attrs": {},
        "intermediate_values": reports,
    })
}

/// The range of a parameter, as Optuna writes it.
fn distribution(parameter: &Parameter) -> Json {
    match &parameter.domain {
        Domain::Categorical { choices } => {
            json!({"name": "CategoricalDistribution", "attributes": {"choices": choices}})
        }
        Domain::Float { low, high, scale } => {
            let step = if let Scale::Step(step) = scale { Some(*step) } else { None };
            let attributes = json!({"low": low, "high": high, "log": *scale == Scale::Log, "step": step});
            json!({"name": "FloatDistribution", "attributes": attributes})
        }
        Domain::Int { low, high, scale } => {
            let step = if let Scale::Step(step) = scale { *step as i64 } else { 1 };
            let attributes = json!({"low": low, "high": high, "log": *scale == Scale::Log, "step": step});
            json!({"name": "IntDistribution", "attributes": attributes})
        }
    }
}

/// The number by which Optuna stores a value: that of a choice is its index. `None` outside of the range.
fn internal(domain: &Domain, value: &Value) -> Option<Json> {
    let within = |low: f64, high: f64, scale: &Scale, number: f64| {
        let on_grid = match scale {
            Scale::Step(step) => {
                let steps = (number - low) / step;
                (steps - steps.round()).abs() < ROUNDING
            }
            Scale::Linear | Scale::Log => true,
        };
        low <= number && number <= high && on_grid
    };
    match (domain, value) {
        (Domain::Categorical { choices }, Value::Text(text)) => {
            choices.iter().position(|choice| choice == text).map(Json::from)
        }
        (Domain::Float { low, high, scale }, Value::Float(number)) => {
            within(*low, *high, scale, *number).then(|| (*number).into())
        }
        (Domain::Int { low, high, scale }, Value::Int(number)) => {
            within(*low as f64, *high as f64, scale, *number as f64).then(|| (*number).into())
        }
        _ => None,
    }
}
