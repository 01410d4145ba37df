//! Settings of the optimizer that every workload supports.

use crate::schedule::RateSchedule;
use crate::workload::{Optimization, WorkloadError};
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use pawl_graph::optim::{AdamW, Optimizer};
use std::ops::Range;

/// The settings of the optimizer; `None` stands for the default of the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptimizerSettings {
    /// `learningRate`.
    pub learning_rate: Option<f64>,
    /// `weightDecay`.
    pub weight_decay: Option<f64>,
    /// `ema`: decay of the moving average of the parameters.
    pub average: Option<f64>,
}

impl OptimizerSettings {
    /// Reads `settings`.
    ///
    /// # Errors
    /// When a number is out of its range.
    pub fn new(settings: &Settings) -> Result<Self, WorkloadError> {
        Ok(Self {
            learning_rate: within("learningRate", settings.learning_rate.as_ref(), 0.0..10.0)?,
            weight_decay: within("weightDecay", settings.weight_decay.as_ref(), 0.0..10.0)?,
            average: within("ema", settings.ema.as_ref(), 0.0..1.0)?,
        })
    }
}

fn within(field: &str, value: Option<&Decimal>, range: Range<f64>) -> Result<Option<f64>, WorkloadError> {
    match value.map(Decimal::value) {
        Some(value) if !range.contains(&value) => {
            let problem = format!("must be at least {} and less than {}", range.start, range.end);
            Err(WorkloadError::setting(field, value, problem))
        }
        value => Ok(value),
    }
}

impl Optimization {
    /// `adamw` for all parameters, with a gradient norm of at most 1; `settings` override its weight decay and
    /// `learning_rate`.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub(crate) fn adamw(
        settings: &Settings,
        adamw: AdamW,
        learning_rate: f64,
        schedule: RateSchedule,
    ) -> Result<Self, WorkloadError> {
        let settings = OptimizerSettings::new(settings)?;
        let weight_decay = settings.weight_decay.unwrap_or(adamw.weight_decay);
        Ok(Self {
            optimizer: Optimizer { matrices: None, others: AdamW { weight_decay, ..adamw } },
            groups: Vec::new(),
            learning_rate: settings.learning_rate.unwrap_or(learning_rate),
            schedule,
            stages: Vec::new(),
            skip_non_finite: false,
            clip: Some(1.0),
            average: settings.average,
        })
    }
}
