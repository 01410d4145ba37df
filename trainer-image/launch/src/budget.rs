//! Duration of a launch, and its evaluation schedule.

use crate::ending::Ending;
use pawl_contract::plan::{LaunchKind, LaunchPlan};

/// A launch's budget in steps and items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Items at which the launch ends, with the first step that reaches them.
    pub items: u64,
    /// Items at which schedules end: those of the launch, or of the complete trial of which it is a part.
    pub horizon: u64,
    /// Warm-up steps of this process that its throughput excludes.
    pub warmup: u64,
    /// Items between evaluations while training; `None`: only before and after, or never.
    pub eval_every: Option<u64>,
    /// Whether validation is measured before the first step and at the end.
    pub evaluates: bool,
}

impl Budget {
    /// The budget of `plan` with `step_items` items a step.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] when the plan lacks what its kind needs.
    pub fn new(plan: &LaunchPlan, step_items: u64, epoch_items: u64) -> Result<Self, Ending> {
        let budget = &plan.budget;
        let missing = |field: &str| {
            Ending::InvalidPlan(format!("budget.{field}: missing, a launch of kind {:?} needs it", plan.kind))
        };
        match plan.kind {
            LaunchKind::Preflight => Ok(Self { items: 0, horizon: 0, warmup: 0, eval_every: None, evaluates: false }),
            LaunchKind::Measure => {
                let warmup = budget.warmup_steps.ok_or_else(|| missing("warmupSteps"))?;
                let window = budget.window_steps.filter(|steps| *steps > 0).ok_or_else(|| missing("windowSteps"))?;
                let items = (warmup + window) * step_items;
                Ok(Self { items, horizon: items, warmup, eval_every: None, evaluates: false })
            }
            LaunchKind::Quality | LaunchKind::Search | LaunchKind::Train => {
                let epochs = budget.epochs.map(|epochs| u64::from(epochs) * epoch_items);
                let items = budget.items.or(epochs).filter(|items| *items > 0);
                let items = items.ok_or_else(|| missing("items (or epochs)"))?;
                let steps = items.div_ceil(step_items);
                let warmup = budget.warmup_steps.unwrap_or(10).min(steps / 4);
                let training = plan.kind == LaunchKind::Train;
                let listed = budget.evaluations.as_ref().filter(|_| plan.kind == LaunchKind::Search);
                let eval_every = training
                    .then(|| budget.eval_every_items.unwrap_or(epoch_items).max(1))
                    .or_else(|| Some(listed?.every_items(budget, epoch_items)));
                let complete = budget.horizon_epochs.map(|epochs| u64::from(epochs) * epoch_items);
                let horizon = budget.horizon_items.or(complete).map_or(items, |complete| complete.max(items));
                Ok(Self { items, horizon, warmup, eval_every, evaluates: true })
            }
        }
    }

    /// Items of the complete measurement of `plan`, if it has ended by time after fewer `items`.
    pub fn planned_items(&self, plan: &LaunchPlan, items: u64) -> Option<u64> {
        (plan.kind == LaunchKind::Measure && items < self.horizon).then_some(self.horizon)
    }

    /// Whether an evaluation falls between `before` and `after` items.
    pub fn evaluation_due(&self, before: u64, after: u64) -> bool {
        self.eval_every.is_some_and(|every| before / every != after / every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::plan::{Budget as Planned, Criterion, Evaluations, WorkloadPlan};

    fn plan(kind: LaunchKind, budget: Planned) -> LaunchPlan {
        LaunchPlan {
            contract: 1,
            job: "j".into(),
            attempt: "j-1".into(),
            launch: "l".into(),
            title: String::new(),
            kind,
            workload: WorkloadPlan { name: None, config: Default::default() },
            settings: Default::default(),
            seed: 1,
            budget,
            checkpoint: None,
            hang_timeout_seconds: 60.0,
        }
    }

    #[test]
    fn kinds_run_for_what_they_need() {
        let window = Planned { warmup_steps: Some(3), window_steps: Some(5), ..Default::default() };
        assert_eq!(Budget::new(&plan(LaunchKind::Measure, window), 4, 100).unwrap().items, 32);
        let epochs = Planned { epochs: Some(2), ..Default::default() };
        let train = Budget::new(&plan(LaunchKind::Train, epochs), 4, 100).unwrap();
        assert_eq!((train.items, train.eval_every, train.warmup), (200, Some(100), 10));
        assert!(train.evaluation_due(96, 100) && !train.evaluation_due(100, 104));
        let epochs = Planned { epochs: Some(2), ..Default::default() };
        let quality = Budget::new(&plan(LaunchKind::Quality, epochs), 4, 100).unwrap();
        assert_eq!((quality.items, quality.eval_every), (200, None));
        let rung = Planned { epochs: Some(2), horizon_epochs: Some(9), ..Default::default() };
        let rung = Budget::new(&plan(LaunchKind::Search, rung), 4, 100).unwrap();
        assert_eq!((rung.items, rung.horizon, rung.eval_every, rung.evaluates), (200, 900, None, true));
        let listed = Evaluations { every: 2, criterion: Criterion::default(), bounds: Vec::new() };
        let listing = Planned { epochs: Some(9), evaluations: Some(listed), ..Default::default() };
        assert_eq!(Budget::new(&plan(LaunchKind::Search, listing), 4, 100).unwrap().eval_every, Some(200));
        assert_eq!((train.horizon, quality.horizon), (200, 200));
        for kind in [LaunchKind::Measure, LaunchKind::Quality, LaunchKind::Train] {
            let message = Budget::new(&plan(kind, Planned::default()), 4, 100).unwrap_err().to_string();
            assert!(message.starts_with("budget."), "{message}");
        }
    }
}
