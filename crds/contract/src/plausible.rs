//! What a report may say: numbers are checked where they enter.
//!
//! A report that is not plausible is no evidence, and its launch counts as failed. The agent checks the reports of its
//! ranks, and the decision core the results of launches, which a foreign image may have written.

use crate::checkpoint::{CheckpointRef, TrainedPart};
use crate::disturbance::{DisturbanceKind, IDLE_CPU};
use crate::exit::Outcome;
use crate::measured::{Measured, Spread, Validation};
use crate::plan::{Budget, Evaluated, LaunchKind, LaunchPlan};
use crate::progress::Progress;
use crate::report::{LaunchResult, Report};
use std::path::{Component, Path};

/// Largest number of items and steps: as in the spec, with room for a step.
const MOST: u64 = 2_000_000_000_000_000;
/// Largest number of bytes.
const BYTES: u64 = 1 << 50;
/// Largest magnitude of losses and metrics: that of a float32.
const MAGNITUDE: f64 = 3.5e38;
/// Items per second, least and most.
const SPEED: (f64, f64) = (1e-9, 1e15);
/// Longest time, seconds.
const TIME: f64 = 1e10;
/// Least and largest share, with room for rounding.
const SHARE: (f64, f64) = (-0.01, 1.01);

/// What is implausible of a report: field, value, and what it should be.
///
/// ```
/// use pawl_contract::exit::Outcome;
/// use pawl_contract::plan::LaunchPlan;
/// use pawl_contract::plausible::report;
/// use pawl_contract::report::Report;
///
/// let plan: LaunchPlan = serde_json::from_value(serde_json::json!({
///     "contract": 1, "job": "j", "attempt": "j-1", "launch": "train-0badcafe", "kind": "Train", "workload": {},
///     "settings": {"batchPerGpu": 8}, "seed": 1, "budget": {"items": 1600}, "hangTimeoutSeconds": 1.0,
/// }))?;
/// let mut done = Report::bare(&plan, 0, Outcome::Done);
/// assert_eq!(report(&done, &plan).unwrap(), "it reports Done at items: 0, and its budget is 1600");
/// done.measured.items = 1600;
/// assert_eq!(report(&done, &plan), None);
/// done.measured.items_per_second = Some(1e100);
/// assert!(report(&done, &plan).unwrap().starts_with("itemsPerSecond: 1e100 is implausible"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn report(report: &Report, plan: &LaunchPlan) -> Option<String> {
    of_report(report).or_else(|| short(report.outcome, &report.measured, &report.evaluations, plan))
}

/// As [`report`], of its numbers alone, without the budget.
pub fn of_report(report: &Report) -> Option<String> {
    let Report {
        measured,
        losses,
        evaluations,
        items_per_epoch,
        last_checkpoint,
        best_checkpoint,
        stop_seconds,
        trained,
        ..
    } = report;
    let best = best_checkpoint.as_ref().map(|best| &best.checkpoint);
    let curve = || losses.iter().find_map(|point| number("losses", point.loss, -MAGNITUDE, MAGNITUDE));
    numbers(measured, *items_per_epoch, *stop_seconds)
        .or_else(curve)
        .or_else(|| listed(evaluations))
        .or_else(|| [last_checkpoint.as_ref(), best].into_iter().flatten().find_map(checkpoint))
        .or_else(|| chain(trained))
}

/// As [`report`], of the result of a launch.
pub fn result(result: &LaunchResult, plan: &LaunchPlan) -> Option<String> {
    of_result(result).or_else(|| short(result.outcome, &result.measured, &result.evaluations, plan))
}

/// As [`result`], of its numbers alone, without the budget.
pub fn of_result(result: &LaunchResult) -> Option<String> {
    let LaunchResult {
        measured,
        curve,
        evaluations,
        items_per_epoch,
        checkpoint: last,
        best_checkpoint,
        stop_seconds,
        trained,
        ..
    } = result;
    let best = best_checkpoint.as_ref().map(|best| &best.checkpoint);
    numbers(measured, *items_per_epoch, *stop_seconds)
        .or_else(|| curve.iter().find_map(|loss| number("curve", *loss, -MAGNITUDE, MAGNITUDE)))
        .or_else(|| listed(evaluations))
        .or_else(|| [last.as_ref(), best].into_iter().flatten().find_map(checkpoint))
        .or_else(|| chain(trained))
}

/// As [`report`], of the progress of a running launch.
pub fn progress(progress: &Progress) -> Option<String> {
    // Destructured without `..`: the range of a new number is decided here.
    let Progress {
        launch: _,
        kind: _,
        phase: _,
        heartbeat: _,
        step,
        total_steps,
        items,
        resumed_items,
        trained,
        quarantined: _,
        epoch: _,
        loss,
        skipped_updates,
        items_per_second,
        windows,
        eta_seconds,
        validation: newest,
        last_checkpoint,
        straggler: _,
        stop_seconds,
    } = progress;
    let measured = Measured {
        steps: *step,
        items: *items,
        loss: *loss,
        items_per_second: *items_per_second,
        validation: newest.clone(),
        ..Measured::default()
    };
    let counts = [
        ("totalSteps", *total_steps),
        ("resumedItems", *resumed_items),
        ("skippedUpdates", Some(*skipped_updates)),
        ("windows", Some(*windows)),
    ];
    // The largest budget at the least speed.
    let eta = eta_seconds.and_then(|eta| number("etaSeconds", eta, 0.0, MOST as f64 / SPEED.0));
    numbers(&measured, None, *stop_seconds)
        .or_else(|| counts.into_iter().find_map(|(field, value)| count(field, value?, MOST)))
        .or(eta)
        .or_else(|| last_checkpoint.as_ref().and_then(checkpoint))
        .or_else(|| chain(trained))
}

fn number(field: &str, value: f64, least: f64, most: f64) -> Option<String> {
    // Not a number is in no range.
    let range = format!("a number from {least:e} to {most:e} is expected");
    (!(least..=most).contains(&value)).then(|| format!("{field}: {value:e} is implausible: {range}"))
}

fn count(field: &str, value: u64, most: u64) -> Option<String> {
    (value > most).then(|| format!("{field}: {value} is implausible: at most {most:e} is expected", most = most as f64))
}

/// Names are joined to the path of a storage: one must not lead out of it.
fn checkpoint(checkpoint: &CheckpointRef) -> Option<String> {
    let stays = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let outside = !Path::new(&checkpoint.name).components().all(stays);
    let escape = outside.then(|| {
        let name: String = checkpoint.name.chars().take(80).collect();
        format!("checkpoint.name: {name:?} is implausible: a path within the storage, without '..', is expected")
    });
    escape
        .or_else(|| count("checkpoint.items", checkpoint.items, MOST))
        .or_else(|| count("checkpoint.step", checkpoint.step, MOST))
}

/// What is wrong with a chain: each part begins where the one before it, or later, does.
fn chain(trained: &[TrainedPart]) -> Option<String> {
    let descends = trained.windows(2).find(|pair| pair[0].from_items > pair[1].from_items);
    let order = descends.map(|pair| {
        let (before, after) = (pair[0].from_items, pair[1].from_items);
        format!("trained.fromItems: {after} after {before} is implausible: parts are in order")
    });
    order.or_else(|| count("trained.fromItems", trained.last()?.from_items, MOST))
}

fn validation(field: &str, validation: &Validation) -> Option<String> {
    let metric = |(name, value): (&String, &f64)| number(&format!("{field}.{name}"), *value, -MAGNITUDE, MAGNITUDE);
    count(field, validation.items, MOST).or_else(|| validation.metrics.iter().find_map(metric))
}

/// Destructured without `..`: the range of a new measurement is decided here.
fn numbers(measured: &Measured, items_per_epoch: Option<u64>, stop_seconds: Option<f64>) -> Option<String> {
    let Measured {
        steps,
        items,
        wall_seconds,
        items_per_second,
        step_seconds,
        loss,
        first_validation,
        validation: newest,
        peak_memory_bytes,
        predicted_memory_bytes,
        loader_wait_share,
        collective_wait_share,
        offload_share,
        utilization,
        disturbance,
        float8_overflow_share,
        float8_underflow_share,
        steady: _,
        initial_weights_share,
    } = measured;
    let counts = [
        ("steps", Some(*steps), MOST),
        ("items", Some(*items), MOST),
        ("itemsPerEpoch", items_per_epoch, MOST),
        ("peakMemoryBytes", *peak_memory_bytes, BYTES),
        ("predictedMemoryBytes", *predicted_memory_bytes, BYTES),
    ];
    let (p10, median, p90) = match step_seconds {
        Some(Spread { p10, median, p90 }) => (Some(*p10), Some(*median), Some(*p90)),
        None => (None, None, None),
    };
    let ranges = [
        ("wallSeconds", *wall_seconds, (0.0, TIME)),
        // None at all is not a speed, which a gate names.
        ("itemsPerSecond", items_per_second.filter(|speed| *speed != 0.0), SPEED),
        ("stepSeconds.p10", p10, (0.0, TIME)),
        ("stepSeconds.median", median, (0.0, TIME)),
        ("stepSeconds.p90", p90, (0.0, TIME)),
        ("loss", *loss, (-MAGNITUDE, MAGNITUDE)),
        ("loaderWaitShare", *loader_wait_share, SHARE),
        ("collectiveWaitShare", *collective_wait_share, SHARE),
        ("offloadShare", *offload_share, SHARE),
        ("utilization", *utilization, SHARE),
        ("float8OverflowShare", *float8_overflow_share, SHARE),
        ("float8UnderflowShare", *float8_underflow_share, SHARE),
        ("initialWeightsShare", *initial_weights_share, SHARE),
        (IDLE_CPU, disturbance.idle_cpu_share, SHARE),
        ("stopSeconds", stop_seconds, (0.0, TIME)),
    ];
    let counted = counts.into_iter().find_map(|(field, value, most)| count(field, value?, most));
    let ranged = || ranges.into_iter().find_map(|(field, value, (least, most))| number(field, value?, least, most));
    let evaluated = || {
        let all = [("firstValidation", first_validation), ("validation", newest)];
        all.into_iter().find_map(|(field, found)| validation(field, found.as_ref()?))
    };
    let disturbed = || {
        let share = |kind: DisturbanceKind| number(kind.field(), *disturbance.share(kind)?, SHARE.0, SHARE.1);
        DisturbanceKind::ALL.into_iter().find_map(share)
    };
    counted.or_else(ranged).or_else(disturbed).or_else(evaluated)
}

fn listed(evaluations: &[Evaluated]) -> Option<String> {
    if let Some(pair) = evaluations.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Some(format!(
            "it reports evaluations at {} after those at {}: list them in ascending order",
            pair[1].0, pair[0].0
        ));
    }
    evaluations.iter().find_map(|(_, value)| number("evaluations", (*value)?, -MAGNITUDE, MAGNITUDE))
}

/// What a launch lacks that reports to be done: it has trained fewer items than its budget, by a whole step or more.
fn short(outcome: Outcome, measured: &Measured, listed: &[Evaluated], plan: &LaunchPlan) -> Option<String> {
    let trains = match plan.kind {
        LaunchKind::Quality | LaunchKind::Search | LaunchKind::Train => true,
        LaunchKind::Preflight | LaunchKind::Measure => false,
    };
    let Budget { items, epochs, early_stopping, evaluations, .. } = &plan.budget;
    if outcome != Outcome::Done || !trains {
        return None;
    }
    let asked = match (items, epochs) {
        (Some(items), _) => *items,
        (None, Some(epochs)) => u64::from(*epochs),
        (None, None) => 0,
    };
    let step = measured.items.checked_div(measured.steps).unwrap_or(0).max(1);
    let may_end_early = early_stopping.is_some() || evaluations.as_ref().is_some_and(|it| it.end_after(listed));
    let least = if may_end_early || items.is_none() { asked.min(1) } else { asked.saturating_sub(step - 1) };
    let budget = match (items, epochs) {
        (Some(items), _) => items.to_string(),
        (None, epochs) => format!("{} epochs", epochs.unwrap_or(0)),
    };
    (measured.items < least)
        .then(|| format!("it reports Done at items: {}, and its budget is {budget}", measured.items))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn plan(kind: &str, budget: Value) -> LaunchPlan {
        serde_json::from_value(json!({
            "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": kind, "workload": {},
            "settings": {}, "seed": 1, "budget": budget, "hangTimeoutSeconds": 1.0,
        }))
        .unwrap()
    }

    fn problem(change: Value) -> Option<String> {
        let plan = plan("Train", json!({"items": 1600}));
        let mut all = json!({"launch": "l", "outcome": "Done", "items": 1600, "steps": 200, "itemsPerSecond": 100.0});
        all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        result(&serde_json::from_value(all).unwrap(), &plan)
    }

    #[test]
    fn a_launch_of_a_search_ends_early_only_where_its_plan_says() {
        let bounds = json!({"every": 100, "metric": "loss", "better": "Smaller", "bounds": [[400, 0.5]]});
        let plan = plan("Search", json!({"items": 1600, "evaluations": bounds}));
        let problem = |evaluations: Value| {
            let all = json!({"launch": "l", "outcome": "Done", "items": 400, "steps": 50, "evaluations": evaluations});
            result(&serde_json::from_value(all).unwrap(), &plan)
        };
        assert_eq!(problem(json!([[300, 0.8], [400, 0.9]])), None);
        for evaluations in [json!([]), json!([[400, 0.4]]), json!([[300, 0.9]])] {
            assert!(problem(evaluations.clone()).is_some_and(|text| text.contains("1600")), "{evaluations}");
        }
        let descending = problem(json!([[400, 0.9], [300, 0.8]])).unwrap();
        assert!(descending.contains("at 300 after those at 400"), "{descending}");
    }

    #[test]
    fn every_number_has_a_range_and_the_message_names_field_and_value() {
        assert_eq!(problem(json!({})), None);
        let most = u64::MAX;
        for (change, named) in [
            (json!({"items": most}), "items: 18446744073709551615"),
            (json!({"steps": most}), "steps: 18446744073709551615"),
            (json!({"itemsPerEpoch": most}), "itemsPerEpoch"),
            (json!({"checkpoint": {"name": "c", "step": 1, "items": most}}), "checkpoint.items"),
            (json!({"checkpoint": {"name": "../../etc", "step": 1, "items": 8}}), "checkpoint.name: \"../../etc\""),
            (
                json!({"bestCheckpoint": {"checkpoint": {"name": "/etc", "step": 1, "items": 8}, "metric": "loss", "value": 1.0}}),
                "checkpoint.name: \"/etc\"",
            ),
            (json!({"itemsPerSecond": 1e100}), "itemsPerSecond: 1e100"),
            (json!({"itemsPerSecond": 1e-100}), "itemsPerSecond: 1e-100"),
            (json!({"itemsPerSecond": -1.0}), "itemsPerSecond: -1e0"),
            (json!({"loss": 1e120}), "loss: 1e120"),
            (json!({"validation": {"items": 1, "metrics": {"loss": 1e120}}}), "validation.loss: 1e120"),
            (json!({"utilization": 99.0}), "utilization: 9.9e1"),
            (json!({"otherCpuShare": 2.0}), "otherCpuShare: 2e0"),
            (json!({"wallSeconds": -1.0}), "wallSeconds: -1e0"),
            (
                json!({"trained": [{"fromItems": most, "attempt": "j-1", "launch": "l"}]}),
                "trained.fromItems: 18446744073709551615",
            ),
            (
                json!({"trained": [
                    {"fromItems": 80, "attempt": "j-1", "launch": "k"}, {"fromItems": 0, "attempt": "j-2", "launch": "l"},
                ]}),
                "trained.fromItems: 0 after 80",
            ),
            (json!({"stopSeconds": 1e300}), "stopSeconds: 1e300"),
        ] {
            let text = problem(change.clone()).unwrap_or_default();
            assert!(text.starts_with(named) && text.contains("implausible"), "{change}: {text}");
        }
    }

    #[test]
    fn every_number_of_progress_has_a_range() {
        let problem = |change: Value| {
            let mut all = json!({"launch": "l", "kind": "Train", "step": 5, "totalSteps": 10, "items": 40, "resumedItems": 8,
                "etaSeconds": 12.0, "stopSeconds": 1.0, "windows": 3, "epoch": 0});
            all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            progress(&serde_json::from_value(all).unwrap())
        };
        assert_eq!(problem(json!({})), None);
        for field in ["step", "totalSteps", "items", "resumedItems", "skippedUpdates", "windows"] {
            let text = problem(json!({ field: u64::MAX })).unwrap_or_default();
            assert!(text.starts_with(field) && text.contains("18446744073709551615"), "{field}: {text}");
        }
        for field in ["etaSeconds", "stopSeconds", "itemsPerSecond", "loss"] {
            let text = problem(json!({ field: 1e300 })).unwrap_or_default();
            assert!(text.starts_with(field), "{field}: {text}");
        }
    }

    #[test]
    fn a_launch_is_done_when_it_has_trained_its_budget() {
        let at = |kind: &str, budget: Value, items: u64, steps: u64| {
            let plan = plan(kind, budget);
            let mut done = Report::bare(&plan, 0, Outcome::Done);
            (done.measured.items, done.measured.steps) = (items, steps);
            report(&done, &plan)
        };
        assert!(at("Train", json!({"items": 1600}), 0, 0).is_some());
        assert!(at("Quality", json!({"items": 1600}), 1584, 198).is_some());
        assert!(at("Search", json!({"epochs": 2}), 0, 0).is_some());
        // A step is not divided, and early stopping ends earlier.
        assert_eq!(at("Train", json!({"items": 1601}), 1600, 200), None);
        assert_eq!(
            at("Train", json!({"items": 1600, "earlyStopping": {"patience": 1, "minDelta": 0.0}}), 800, 100),
            None
        );
        assert_eq!(at("Search", json!({"epochs": 2}), 1024, 128), None);
        assert_eq!(at("Measure", json!({"warmupSteps": 5, "windowSteps": 10}), 0, 0), None);
        let plan = plan("Train", json!({"items": 1600}));
        assert_eq!(report(&Report::bare(&plan, 0, Outcome::Stopped), &plan), None);
    }
}
