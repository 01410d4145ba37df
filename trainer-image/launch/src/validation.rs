//! What evaluations decide: whether validation still improves, and which checkpoint is the best.

use crate::checkpoint::Position;
use crate::ending::Ending;
use pawl_contract::measured::Validation;
use pawl_contract::plan::{Criterion, EarlyStopping, Evaluations, LaunchKind, LaunchPlan};
use std::collections::BTreeMap;

/// The validation at `position` with these metrics; those that are not finite are left out.
///
/// # Errors
/// [`Ending::NonFinite`] when the metric `loss` is missing or not finite.
pub fn validated(position: &Position, mut metrics: BTreeMap<String, f64>) -> Result<Validation, Ending> {
    let loss = metrics.get("loss").copied().unwrap_or(f64::NAN);
    if !loss.is_finite() {
        return Err(Ending::NonFinite(format!(
            "the validation loss is {loss} after step {}; lower settings.learningRate or set settings.gradientClip",
            position.step
        )));
    }
    metrics.retain(|_, value| value.is_finite());
    Ok(Validation { items: position.items, metrics })
}

/// Refuses criteria of the plan by a metric that `validation` does not contain. `reporter` is what reports the metrics,
/// such as `workload ups`.
///
/// # Errors
/// [`Ending::InvalidPlan`], naming the field and the metrics that there are.
pub fn require_metrics(plan: &LaunchPlan, validation: &Validation, reporter: &str) -> Result<(), Ending> {
    let stopping = plan.budget.early_stopping.as_ref().map(|rule| ("train.earlyStopping.metric", &rule.criterion));
    let best = plan.checkpoint.as_ref().map(|policy| ("train.checkpoint.best.metric", &policy.best));
    let unknown = stopping.into_iter().chain(best).find(|(_, c)| !validation.metrics.contains_key(&c.metric));
    let Some((field, criterion)) = unknown else { return Ok(()) };
    let known: Vec<&str> = validation.metrics.keys().map(String::as_str).collect();
    Err(Ending::InvalidPlan(format!(
        "{field}: {} is not a validation metric of {reporter}: choose one of {}",
        criterion.metric,
        known.join(", ")
    )))
}

/// Updates in `position` whether validation still improves, by the criterion of `rule` or else by the loss. A metric
/// that is absent is no improvement.
pub fn improve(position: &mut Position, rule: Option<&EarlyStopping>, validation: &Validation) {
    let (criterion, least) = rule.map_or((Criterion::default(), 0.0), |rule| (rule.criterion.clone(), rule.min_delta));
    let value = validation.metrics.get(&criterion.metric).copied();
    let improves =
        |value: f64| position.best_validation.is_none_or(|best| criterion.better.improves(value, best, least));
    let better = value.is_some_and(improves);
    if better {
        position.best_validation = value;
    }
    position.evaluations_since_best = if better { 0 } else { position.evaluations_since_best + 1 };
}

/// Notes in `position` the value of an evaluation that the plan lists, if the last step, of `step_items`, reached one.
pub fn note(
    plan: &LaunchPlan,
    position: &mut Position,
    (step_items, epoch_items): (u64, u64),
    validation: &Validation,
) {
    let Some(planned) = plan.budget.evaluations.as_ref().filter(|_| plan.kind == LaunchKind::Search) else { return };
    let step = (position.items.saturating_sub(step_items), position.items);
    let value = validation.metrics.get(&planned.criterion.metric).copied();
    for amount in planned.reached(&plan.budget, epoch_items, step) {
        Evaluations::add(&mut position.evaluations, amount, value);
    }
}

/// Whether the launch ends before its budget does: validation has stopped improving, or the trial is stopped here.
pub fn stopped_early(plan: &LaunchPlan, position: &Position) -> bool {
    let budget = &plan.budget;
    match plan.kind {
        LaunchKind::Train => {
            budget.early_stopping.as_ref().is_some_and(|rule| position.evaluations_since_best >= rule.patience)
        }
        LaunchKind::Search => {
            budget.evaluations.as_ref().is_some_and(|planned| planned.end_after(&position.evaluations))
        }
        LaunchKind::Preflight | LaunchKind::Measure | LaunchKind::Quality => false,
    }
}

/// The value by which a checkpoint at this validation is the best so far: `None` when it is not, or no best one is
/// kept. A trial of a search needs only the checkpoint from which it may be continued.
pub fn best_value(plan: &LaunchPlan, validation: &Validation, best: Option<f64>) -> Option<f64> {
    let policy = plan.checkpoint.as_ref().filter(|_| plan.kind == LaunchKind::Train)?;
    let Criterion { metric, better } = &policy.best;
    let value = validation.metrics.get(metric).copied()?;
    best.is_none_or(|best| better.improves(value, best, 0.0)).then_some(value)
}
