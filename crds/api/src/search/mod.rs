//! Searches of a job for the crate `pawl-search`: the stage of a spec, settings with the values of a trial, and trials
//! in the status.

mod domain;
mod history;
mod record;
mod setting;
mod stage;

pub use history::{History, history};
pub use record::{Recorded, decode, encode, lists_evaluations, rounded, states};
pub use setting::with;
pub use stage::{full, goals, scheduler, stage};

use crate::spec::TrainingJobSpec;
use pawl_contract::settings::Settings;
use pawl_search::space::Point;
use std::collections::BTreeMap;

/// The values of a point as text, by the path of their setting.
pub fn texts(point: &Point) -> BTreeMap<String, String> {
    point.iter().map(|(name, value)| (name.clone(), value.to_string())).collect()
}

/// The settings of a trial: `base` with the values of its point.
pub fn settings(spec: &TrainingJobSpec, base: &Settings, point: &Point) -> Settings {
    with(base, &spec.workload, &texts(point))
}
