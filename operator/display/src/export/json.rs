//! The search as one JSON document.

use super::Stage;
use pawl_api::search::Recorded;
use pawl_api::spec::{Objective, Parameter};
use pawl_api::status::{BestTrial, FinalistStatus, SearchState};
use pawl_search::history::State;
use pawl_search::space::Value;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Document<'a> {
    job: &'a str,
    stages: Vec<StageRecord<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StageRecord<'a> {
    name: &'a str,
    state: SearchState,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    /// Unit of `full` and `trained`.
    unit: &'static str,
    /// Length of a complete trial.
    full: u32,
    objectives: &'a [Objective],
    parameters: &'a [Parameter],
    trials: Vec<TrialRecord<'a>>,
    finalists: &'a [FinalistStatus],
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<&'a BestTrial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    winner: Option<&'a BestTrial>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pareto: &'a [u32],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TrialRecord<'a> {
    number: u32,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    parameters: BTreeMap<&'a str, serde_json::Value>,
    /// Final values of the objectives.
    values: BTreeMap<&'a str, f64>,
    /// Values of the first objective in the course of training.
    reports: Vec<ReportRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items_per_second: Option<f64>,
}

#[derive(Serialize)]
struct ReportRecord {
    trained: u32,
    value: f64,
}

/// Writes all stages.
pub fn render(job: &str, stages: &[Stage<'_>]) -> String {
    let document = Document { job, stages: stages.iter().map(stage_record).collect() };
    serde_json::to_string_pretty(&document).expect("numbers, texts and lists can be written") + "\n"
}

fn stage_record<'a>(stage: &'a Stage<'_>) -> StageRecord<'a> {
    let Stage { search, status, history } = stage;
    StageRecord {
        name: &search.name,
        state: status.state,
        reason: &status.reason,
        message: &status.message,
        unit: stage.unit(),
        full: history.full,
        objectives: &search.objectives,
        parameters: &search.parameters,
        trials: history.trials.iter().map(|recorded| trial_record(stage, recorded)).collect(),
        finalists: &status.finalists,
        best: status.best.as_ref(),
        winner: status.winner.as_ref(),
        pareto: &status.pareto,
    }
}

fn trial_record<'a>(stage: &'a Stage<'_>, recorded: &'a Recorded) -> TrialRecord<'a> {
    let trial = &recorded.trial;
    let rate = recorded.items_per_second;
    TrialRecord {
        number: trial.number,
        state: trial.state.name(),
        cause: if let State::Infeasible(cause) = trial.state { Some(cause.name()) } else { None },
        parameters: trial.point.iter().map(|(name, value)| (name.as_str(), typed(value))).collect(),
        values: stage.metrics().zip(trial.values.iter().copied()).collect(),
        reports: trial.reports.iter().map(|r| ReportRecord { trained: r.resource, value: r.value }).collect(),
        items_per_second: (rate > 0.0).then_some(rate),
    }
}

/// The value as JSON.
pub(super) fn typed(value: &Value) -> serde_json::Value {
    match value {
        Value::Float(number) => (*number).into(),
        Value::Int(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
    }
}
