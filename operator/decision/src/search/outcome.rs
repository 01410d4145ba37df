//! The result of a launch of a search, as its trial learns it.

use super::{Open, open};
use crate::draft::Draft;
use crate::gates::{DryRun, measured_dry_run, validated_dry_run};
use crate::launch::{Launch, SearchRun};
use crate::reason::Reason;
use pawl_api::spec::{Objective, Search};
use pawl_api::status::Arm;
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{Budget, Evaluated, LaunchKind};
use pawl_contract::report::LaunchResult;
use pawl_search::history::{Cause, Report, State, Trial};

/// Records the result of a launch of the stage with this index.
pub(crate) fn record(draft: &mut Draft<'_>, launch: &Launch, (index, run): (usize, SearchRun), result: &LaunchResult) {
    match run {
        SearchRun::DryRun => {
            let missed = if result.outcome == Outcome::Done {
                measured_dry_run(&DryRun { spec: draft.spec, result })
            } else {
                Some(format!("{}: {}", result.outcome, result.message))
            };
            if let Some(problem) = missed {
                draft.fail(Reason::DryRunFailed, &format!("{}: {problem}", launch.plan.title));
            } else if let Some(status) = draft.status.search.get_mut(index) {
                status.dry_run = true;
            }
        }
        SearchRun::Trial(number) => {
            if let Some(open) = open(draft, index) {
                trial(draft, open, number, launch, result);
            }
        }
        SearchRun::Finalist(number) => finalist(draft, index, number, launch, result),
        SearchRun::Compared(arm) => compared(draft, index, arm, launch, result),
    }
}

/// Why the point of a trial cannot be measured, if that is the outcome.
const fn cause(outcome: Outcome) -> Option<Cause> {
    match outcome {
        Outcome::OutOfMemory | Outcome::HostOutOfMemory => Some(Cause::OutOfMemory),
        Outcome::NonFinite | Outcome::LossSpike => Some(Cause::NonFinite),
        // The workload refuses the values.
        Outcome::Unsupported | Outcome::CompileFailed | Outcome::InvalidPlan => Some(Cause::Unsupported),
        Outcome::Done
        | Outcome::CheckpointUnreadable
        | Outcome::StorageFull
        | Outcome::Stopped
        | Outcome::LostPeer
        | Outcome::Hang
        | Outcome::Failed => None,
    }
}

fn trial(draft: &mut Draft<'_>, mut open: Open, number: u32, launch: &Launch, result: &LaunchResult) {
    let search = &draft.spec.search[open.index];
    let title = open.title(draft, number);
    let measurable = open.recorded.iter().any(|recorded| !recorded.trial.reports.is_empty());
    let full = open.stage.full;
    let Some(recorded) = open.recorded.get_mut(number as usize) else { return };
    if recorded.trial.state != State::Running {
        return;
    }
    let resource = reached(&recorded.trial, launch, result);
    let unmeasured = between(&mut recorded.trial, listed(launch, result), resource);
    recorded.lists_evaluations |= !listed(launch, result).is_empty();
    let infeasible = cause(result.outcome).or(unmeasured);
    let mut missed = None;
    match (result.outcome, infeasible) {
        (Outcome::Done, Some(cause)) => recorded.trial.state = State::Infeasible(cause),
        (_, Some(cause)) => {
            recorded.trial.state = State::Infeasible(cause);
            let message = format!("{}: {}", result.outcome, result.message);
            draft.warning(Reason::TrialInfeasible, format!("{title}: {message}"), None);
            missed = Some(message);
        }
        (Outcome::Done, None) if launch.plan.kind == LaunchKind::Preflight => recorded.checked = true,
        (Outcome::Done, None) => match objectives(search, result) {
            Ok(values) => {
                recorded.lists_evaluations = !listed(launch, result).is_empty();
                recorded.items_per_second =
                    result.measured.items_per_second.and_then(Decimal::from_f64).map_or(0.0, |rate| rate.value());
                // It resumed beyond its end if that was further when the checkpoint was written.
                let value = listed(launch, result).iter().find(|(amount, _)| *amount == resource);
                let value = value.and_then(|(_, value)| Decimal::from_f64((*value)?));
                let value = value.map_or(values[0], |value| value.value());
                recorded.trial.reports.push(Report { resource, value });
                if resource >= full {
                    recorded.trial.values.clone_from(&values);
                    missed = validated_dry_run(&DryRun { spec: draft.spec, result });
                }
                let text = described(search, &values);
                let so_far = if resource < full { format!(" after {resource} of {full}") } else { String::new() };
                draft.normal(Reason::TrialDone, format!("{title}: {text}{so_far}"), None);
            }
            // A metric that is not finite is absent; one that no trial has reported does not exist.
            Err(_) if measurable || !recorded.trial.reports.is_empty() => {
                recorded.trial.state = State::Infeasible(Cause::NonFinite);
            }
            Err(message) => return draft.fail(Reason::ObjectiveUnmeasured, &format!("{title}: {message}")),
        },
        _ => {
            recorded.trial.state = State::Abandoned;
            draft.warning(Reason::TrialAbandoned, format!("{title}: {}: {}", result.outcome, result.message), None);
        }
    }
    open.write(draft);
    // Trial 0 is the rest of a dry run.
    if let Some(problem) = missed.filter(|_| number == 0 && search.dry_run) {
        draft.fail(Reason::DryRunFailed, &format!("{title}: {problem}"));
    }
}

/// Records the values of the evaluations before the one at `end`; returns the cause if one of them has no value.
fn between(trial: &mut Trial, listed: &[Evaluated], end: u32) -> Option<Cause> {
    let done = trial.newest().map_or(0, |report| report.resource);
    for &(resource, value) in listed.iter().filter(|(resource, _)| (done + 1..end).contains(resource)) {
        let Some(value) = value.and_then(Decimal::from_f64) else { return Some(Cause::NonFinite) };
        trial.reports.push(Report { resource, value: value.value() });
    }
    None
}

/// The evaluations that the result lists, if the plan asks for them.
fn listed<'a>(launch: &Launch, result: &'a LaunchResult) -> &'a [Evaluated] {
    if launch.plan.budget.evaluations.is_some() { &result.evaluations } else { &[] }
}

/// The amount of training at the end of a launch: that of its plan, or less if it was done where the trial is stopped.
fn reached(trial: &Trial, launch: &Launch, result: &LaunchResult) -> u32 {
    let Budget { items, epochs, .. } = &launch.plan.budget;
    let planned = epochs.or(items.and_then(|items| u32::try_from(items).ok())).unwrap_or(trial.target);
    let done = trial.newest().map_or(0, |report| report.resource);
    let last = listed(launch, result).last().map(|(resource, _)| *resource);
    let earlier = last.filter(|last| result.outcome == Outcome::Done && (done + 1..planned).contains(last));
    earlier.unwrap_or(planned)
}

/// The values of the objectives, rounded as the status holds them.
///
/// # Errors
/// The message that names a metric which was not reported.
fn objectives(search: &Search, result: &LaunchResult) -> Result<Vec<f64>, String> {
    let measured = &result.measured;
    let value = |metric: &str| match metric {
        Objective::ITEMS_PER_SECOND => measured.items_per_second,
        Objective::PEAK_MEMORY => measured.peak_memory_bytes.map(|bytes| bytes as f64),
        _ => measured.metric(metric).copied(),
    };
    let read = |metric: &String| {
        let rounded = value(metric).and_then(Decimal::from_f64).map(|value| value.value());
        rounded.ok_or_else(|| {
            let known = measured.validation.iter().flat_map(|validation| validation.metrics.keys().map(String::as_str));
            let known: Vec<&str> = known.chain([Objective::ITEMS_PER_SECOND, Objective::PEAK_MEMORY]).collect();
            format!("the trainer reports no metric {metric}: set objectives to some of {}", known.join(", "))
        })
    };
    search.objectives.iter().map(|objective| read(&objective.metric)).collect()
}

/// Values of the objectives in a message.
pub(super) fn described(search: &Search, values: &[f64]) -> String {
    let one = |(metric, value): (&str, &f64)| {
        let value = Decimal::from_f64(*value).map_or_else(|| value.to_string(), |value| value.to_string());
        format!("{metric} {value}")
    };
    let metrics = search.objectives.iter().map(|objective| objective.metric.as_str());
    metrics.zip(values).map(one).collect::<Vec<_>>().join(", ")
}

/// Records a repetition of one side of the comparison with the accepted settings.
fn compared(draft: &mut Draft<'_>, index: usize, arm: Arm, launch: &Launch, result: &LaunchResult) {
    let search = &draft.spec.search[index];
    let value = objectives(search, result).ok().and_then(|values| values.first().copied());
    let value = value.filter(|_| result.outcome == Outcome::Done).and_then(Decimal::from_f64);
    let speed = Decimal::from_f64(result.measured.items_per_second.unwrap_or(0.0)).unwrap_or_default();
    let title = launch.plan.title.clone();
    let comparison = draft.status.search.get_mut(index).and_then(|status| status.comparison.as_mut());
    let Some(comparison) = comparison else { return };
    let side = match arm {
        Arm::Candidate => &mut comparison.candidate,
        Arm::Control => &mut comparison.accepted,
    };
    match value {
        Some(value) if side.values.len() == launch.pair as usize => {
            let text = described(search, &[value.value()]);
            side.values.push(value);
            side.items_per_second.push(speed);
            draft.normal(Reason::TrialDone, format!("{title}: {text}"), None);
        }
        Some(_) => {}
        None => {
            side.failed = true;
            draft.warning(Reason::TrialInfeasible, format!("{title}: {}: {}", result.outcome, result.message), None);
        }
    }
}

fn finalist(draft: &mut Draft<'_>, index: usize, number: u32, launch: &Launch, result: &LaunchResult) {
    let value = objectives(&draft.spec.search[index], result).ok().and_then(|values| values.first().copied());
    let value = value.filter(|_| result.outcome == Outcome::Done).and_then(Decimal::from_f64);
    let title = launch.plan.title.clone();
    let Some(status) = draft.status.search.get_mut(index) else { return };
    let Some(finalist) = status.finalists.iter_mut().find(|finalist| finalist.trial == number) else { return };
    match value {
        Some(value) if finalist.values.len() == launch.pair as usize => {
            let text = described(&draft.spec.search[index], &[value.value()]);
            finalist.values.push(value);
            draft.normal(Reason::TrialDone, format!("{title}: {text}"), None);
        }
        Some(_) => {}
        None => {
            finalist.failed = true;
            draft.warning(Reason::TrialInfeasible, format!("{title}: {}: {}", result.outcome, result.message), None);
        }
    }
}
