//! Answers of MLflow's REST API, as far as they are read.

use serde::Deserialize;

/// An error.
#[derive(Deserialize)]
pub(super) struct Said {
    pub(super) message: String,
}

#[derive(Deserialize)]
pub(super) struct FoundRuns {
    #[serde(default)]
    pub(super) runs: Vec<FoundRun>,
}

#[derive(Deserialize)]
pub(super) struct FoundRun {
    pub(super) info: Info,
    #[serde(default)]
    pub(super) data: Data,
}

#[derive(Deserialize)]
pub(super) struct Info {
    pub(super) run_id: String,
    #[serde(default)]
    pub(super) status: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Data {
    pub(super) metrics: Vec<FoundMetric>,
    pub(super) params: Vec<Pair>,
    pub(super) tags: Vec<Pair>,
}

#[derive(Deserialize)]
pub(super) struct Pair {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Deserialize)]
pub(super) struct FoundMetric {
    pub(super) key: String,
    pub(super) value: f64,
    #[serde(default)]
    pub(super) step: Whole,
}

/// A 64-bit integer, which the JSON of Protocol Buffers may write as a text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Whole {
    Number(u64),
    Text(String),
}

impl Default for Whole {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Whole {
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => text.parse().unwrap_or(0),
        }
    }
}

/// An experiment that was found.
#[derive(Deserialize)]
pub(super) struct FoundExperiment {
    pub(super) experiment: Experiment,
}

/// An experiment.
#[derive(Deserialize)]
pub(super) struct Experiment {
    pub(super) experiment_id: String,
}

/// A run that was created.
#[derive(Deserialize)]
pub(super) struct Created {
    pub(super) run: FoundRun,
}
