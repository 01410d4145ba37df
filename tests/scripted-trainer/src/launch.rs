//! A launch in progress: what it counts, and what it says in the end.

use crate::faults::Armed;
use crate::script::{Fault, FaultKind, Script};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Disturbance, Measured, Spread, Validation};
use pawl_contract::plan::{Evaluated, Evaluations, LaunchKind, LaunchPlan};
use pawl_contract::settings::OptimizerOffload;
use std::time::Instant;

/// Why a rank ends before its budget does.
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    pub(crate) message: String,
}

impl End {
    pub(crate) fn new(outcome: Outcome, message: impl Into<String>) -> Self {
        Self { outcome, message: message.into() }
    }

    pub(crate) fn failed(error: impl std::fmt::Display) -> Self {
        Self::new(Outcome::Failed, error.to_string())
    }
}

/// A launch in progress.
pub(crate) struct Run<'a> {
    pub(crate) script: &'a Script,
    pub(crate) plan: &'a LaunchPlan,
    pub(crate) faults: Vec<Armed>,
    pub(crate) items_per_step: u64,
    pub(crate) total_steps: u64,
    pub(crate) items_per_second: f64,
    pub(crate) step: u64,
    pub(crate) validation: Option<Validation>,
    pub(crate) evaluations: Vec<Evaluated>,
    pub(crate) checkpoint: Option<CheckpointRef>,
    pub(crate) written: Option<Instant>,
}

impl Run<'_> {
    pub(crate) fn items(&self) -> u64 {
        self.step * self.items_per_step
    }

    /// The product of what faults of a kind do at this step.
    fn effect(&self, of: FaultKind, factor: impl Fn(&Fault) -> f64) -> f64 {
        let now = self.faults.iter().map(|armed| &armed.fault).filter(|f| f.fault == of && f.at_step <= self.step);
        now.map(factor).product()
    }

    pub(crate) fn rate(&self) -> f64 {
        let slow = self.effect(FaultKind::Slow, |fault| fault.factor.unwrap_or(1.0));
        self.items_per_second * slow * (1.0 - self.loader_fault())
    }

    fn loader_fault(&self) -> f64 {
        1.0 - self.effect(FaultKind::SlowLoader, |fault| 1.0 - fault.share.unwrap_or(0.0))
    }

    /// # Errors
    /// When `needed` bytes of device memory are more than there are.
    pub(crate) fn fits(&self, needed: u64) -> Result<(), End> {
        let limit = self.script.memory.limit_bytes;
        if needed <= limit {
            return Ok(());
        }
        let message = format!("{needed} bytes needed, the device has {limit}: use a smaller batchPerGpu");
        Err(End::new(Outcome::OutOfMemory, message))
    }

    pub(crate) fn validate(&mut self) -> &Validation {
        let items = self.items();
        let loss = self.script.validation_loss(&self.plan.settings, items, self.plan.seed, &self.plan.launch)
            * self.effect(FaultKind::QualityLoss, |fault| fault.factor.unwrap_or(1.0));
        self.validation.insert(Validation { items, metrics: self.script.metrics(loss) })
    }
}

impl Run<'_> {
    /// Evaluates where the plan lists an evaluation after this step; ends the run where the plan says so.
    pub(crate) fn list(&mut self) {
        let Some(planned) = self.plan.budget.evaluations.as_ref().filter(|_| self.plan.kind == LaunchKind::Search)
        else {
            return;
        };
        let step = (self.items() - self.items_per_step, self.items());
        for amount in planned.reached(&self.plan.budget, self.script.items_per_epoch, step) {
            let value = self.validate().metrics.get(&planned.criterion.metric).copied();
            Evaluations::add(&mut self.evaluations, amount, value);
        }
        if planned.end_after(&self.evaluations) {
            self.total_steps = self.step;
        }
    }
}

/// Early stopping: the best validation loss, and the number of evaluations since then.
pub(crate) struct Patience {
    best: f64,
    worse: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { best: f64::INFINITY, worse: 0 }
    }
}

impl Patience {
    /// Evaluates; ends the run at this step when the patience of its budget is exhausted.
    pub(crate) fn evaluate(&mut self, run: &mut Run<'_>) {
        let loss = run.validate().metrics["loss"];
        let Some(early) = &run.plan.budget.early_stopping else { return };
        self.worse = if loss < self.best - early.min_delta { 0 } else { self.worse + 1 };
        self.best = self.best.min(loss);
        if self.worse >= early.patience {
            run.total_steps = run.step;
        }
    }
}

/// How many steps the launch's budget is.
pub(crate) fn total_steps(script: &Script, plan: &LaunchPlan, items_per_step: u64) -> Result<u64, End> {
    let budget = &plan.budget;
    let items = budget.items.or(budget.epochs.map(|epochs| u64::from(epochs) * script.items_per_epoch));
    match (plan.kind, items, budget.window_steps) {
        (LaunchKind::Preflight, _, _) => Ok(0),
        (LaunchKind::Measure, _, Some(window)) => Ok(budget.warmup_steps.unwrap_or(0) + window),
        (LaunchKind::Measure, _, None) => Err(missing(plan.kind, "windowSteps")),
        (_, Some(items), _) => Ok(items.div_ceil(items_per_step)),
        (kind, None, _) => Err(missing(kind, "items")),
    }
}

fn missing(kind: LaunchKind, field: &str) -> End {
    End::new(Outcome::InvalidPlan, format!("budget.{field}: missing: a launch of kind {kind:?} needs it"))
}

/// What the steps in the window say.
pub(crate) fn measured(run: &Run<'_>, mut seconds: Vec<f64>, into: &mut Measured) {
    let total: f64 = seconds.iter().sum();
    if !seconds.is_empty() {
        into.items_per_second = Some(run.items_per_step as f64 * seconds.len() as f64 / total);
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| seconds[((seconds.len() - 1) as f64 * share).round() as usize];
        into.step_seconds = Some(Spread { p10: at(0.1), median: at(0.5), p90: at(0.9) });
    }
    let offloads = run.plan.settings.optimizer_offload() == OptimizerOffload::Cpu;
    into.loader_wait_share = Some(run.loader_fault().max(run.script.loader_wait_share));
    into.collective_wait_share = Some(0.0);
    into.offload_share = Some(if offloads { run.script.offload_share } else { 0.0 });
    into.utilization = Some(run.script.utilization);
    // Its speed is scripted: what the agent would observe of this machine has no part in it.
    into.disturbance = Disturbance {
        cpu_pressure: Some(0.0),
        memory_pressure: Some(0.0),
        io_pressure: Some(0.0),
        other_cpu_share: Some(0.0),
        cpu_throttled_share: Some(0.0),
        ..Disturbance::default()
    };
}
