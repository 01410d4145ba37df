//! Quality: non-inferior to the **original** baseline at equal items seen, or ten small losses add up.

use super::sequential::{Interval, alpha, interval};
use super::{Trial, Verdict};
use crate::comparison::Comparison;
use crate::launch::{Launch, Target, Work};
use pawl_api::spec::{TrainingJobSpec, Trigger};
use pawl_api::status::{Arm, LaunchStatus, Purpose, QualityStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use std::collections::BTreeMap;

/// Relative increase of the validation loss that is allowed when no quality gate is declared.
const DEFAULT_RELATIVE_MARGIN: f64 = 0.01;
/// Seeds that the gate uses at most: their launches and the baseline's fit into one attempt.
const MAX_SEEDS: usize = 7;
/// The metric that every evaluation reports.
pub(crate) const LOSS: &str = "loss";

/// What is compared of one metric: increases by seed, in the unit of its margin.
struct Criterion {
    what: String,
    interval: Interval,
    margin: f64,
}

/// What is known of the candidate's quality.
pub(crate) enum Quality {
    /// Launches are missing.
    Missing(Vec<Launch>),
    /// Worse than allowed.
    Worse(String),
    /// Not worse, but that may be noise.
    Underpowered(String),
    /// Non-inferior.
    Good(String),
}

/// The candidate's quality launches paired with the baseline's, and what is missing.
fn paired<'a>(
    candidate: &Comparison<'a>,
    baseline: &Comparison<'a>,
) -> (Vec<(&'a LaunchStatus, &'a LaunchStatus)>, Vec<Launch>) {
    let (mut pairs, mut missing) = (Vec::new(), Vec::new());
    let complete = |launch: &LaunchStatus| {
        missing_metric(candidate.draft.spec, |name| launch.validation.contains_key(name)).is_none()
    };
    let done = |launch: &&LaunchStatus| launch.outcome == Outcome::Done && complete(launch);
    for index in 0..candidate.draft.spec.seeds.len().clamp(1, MAX_SEEDS) as u32 {
        let a = baseline.find(LaunchKind::Quality, Arm::Control, index).filter(done);
        let b = candidate.find(LaunchKind::Quality, Arm::Candidate, index).filter(done);
        if let (Some(a), Some(b)) = (a, b) {
            pairs.push((a, b));
            continue;
        }
        missing.extend(a.is_none().then(|| baseline.launch(LaunchKind::Quality, Arm::Control, index)));
        missing.extend(b.is_none().then(|| candidate.launch(LaunchKind::Quality, Arm::Candidate, index)));
    }
    (pairs, missing)
}

/// The original baseline, whose quality launches serve every phase.
pub(crate) fn baseline<'a>(candidate: &Comparison<'a>) -> Comparison<'a> {
    let draft = candidate.draft;
    let settings = draft.spec.settings.clone();
    let evidence = draft.status.baseline.as_ref().map_or(&[][..], |baseline| &baseline.launches);
    Comparison::new(draft, ("baseline".to_owned(), Target::Baseline), (settings.clone(), settings), evidence)
}

/// The first metric that the gates need and that is not reported.
pub(crate) fn missing_metric(spec: &TrainingJobSpec, reported: impl Fn(&str) -> bool) -> Option<&str> {
    let gated = spec.gates.validation_metrics.iter().map(|gate| gate.name.as_str());
    std::iter::once(LOSS).chain(gated).find(|name| !reported(name))
}

fn metric(launch: &LaunchStatus, name: &str) -> f64 {
    launch.validation.get(name).map_or(f64::NAN, |value| value.value())
}

/// Every gated metric. Without any gate on quality the validation loss has a default margin.
fn criteria(candidate: &Comparison<'_>, pairs: &[(&LaunchStatus, &LaunchStatus)]) -> Vec<Criterion> {
    let spec = candidate.draft.spec;
    let alpha = alpha(&spec.analysis);
    let relative = |name: &str| -> Vec<f64> {
        let increase = |a: f64, b: f64| (b - a) / a.abs().max(f64::MIN_POSITIVE);
        pairs.iter().map(|(a, b)| increase(metric(a, name), metric(b, name))).collect()
    };
    let mut found = Vec::new();
    let mut add = |what: String, values: Vec<f64>, margin: f64| {
        found.extend(interval(&values, alpha).map(|interval| Criterion { what, interval, margin }));
    };
    let gates = &spec.gates;
    if let Some(delta) = &gates.validation_loss_delta {
        let values = pairs.iter().map(|(a, b)| metric(b, LOSS) - metric(a, LOSS)).collect();
        add("validation loss increase, gates.validationLossDelta".to_owned(), values, delta.value());
    } else if gates.validation_metrics.is_empty() {
        let what = "relative validation loss increase, by default as no gate on quality is declared";
        add(what.to_owned(), relative(LOSS), DEFAULT_RELATIVE_MARGIN);
    }
    for gate in &gates.validation_metrics {
        let what = format!("relative increase of {}, gates.validationMetrics", gate.name);
        add(what, relative(&gate.name), gate.max_relative_increase.value());
    }
    found
}

/// Judges the candidate against the baseline. With one seed the estimate decides, and is labelled.
pub(crate) fn judge(candidate: &Comparison<'_>) -> Quality {
    let (pairs, missing) = paired(candidate, &baseline(candidate));
    if !missing.is_empty() {
        return Quality::Missing(missing);
    }
    let criteria = criteria(candidate, &pairs);
    let label = if pairs.len() == 1 { " (SingleSeed: no interval)" } else { "" };
    let show = |c: &Criterion| {
        let upper = c.interval.bounds.map(|(_, upper)| format!(" (upper bound {upper:.3e})")).unwrap_or_default();
        format!("{}: {:.3e}{upper} of at most {:.3e}{label}", c.what, c.interval.mean, c.margin)
    };
    if let Some(worse) = criteria.iter().find(|c| c.interval.mean > c.margin) {
        return Quality::Worse(show(worse));
    }
    let unsure = |c: &&Criterion| c.interval.bounds.is_some_and(|(_, upper)| upper > c.margin);
    if let Some(unsure) = criteria.iter().find(unsure) {
        return Quality::Underpowered(format!("{}; more seeds or more qualityItems would tell", show(unsure)));
    }
    Quality::Good(criteria.iter().map(show).collect::<Vec<_>>().join("; "))
}

/// The comparison as it stands in the status; `None` before it is complete.
pub(crate) fn status(candidate: &Comparison<'_>) -> Option<QualityStatus> {
    let (pairs, missing) = paired(candidate, &baseline(candidate));
    if !missing.is_empty() || pairs.is_empty() {
        return None;
    }
    let spec = candidate.draft.spec;
    let increases: Vec<f64> = pairs.iter().map(|(a, b)| metric(b, LOSS) - metric(a, LOSS)).collect();
    let loss = interval(&increases, alpha(&spec.analysis))?;
    let mean_of = |name: &str| {
        let values: Vec<f64> = pairs
            .iter()
            .map(|(a, b)| (metric(b, name) - metric(a, name)) / metric(a, name).abs().max(f64::MIN_POSITIVE))
            .collect();
        Decimal::from_f64(interval(&values, 0.5)?.mean)
    };
    let gated = spec.gates.validation_metrics.iter();
    Some(QualityStatus {
        loss_delta: Decimal::from_f64(loss.mean)?,
        loss_delta_upper: loss.bounds.and_then(|(_, upper)| Decimal::from_f64(upper)),
        metrics: gated.filter_map(|gate| Some((gate.name.clone(), mean_of(&gate.name)?))).collect::<BTreeMap<_, _>>(),
        seeds: pairs.len() as u32,
        items: pairs.iter().map(|(a, b)| a.items.min(b.items)).min().unwrap_or(0),
    })
}

/// A phase that changes the mathematics must not be worse than the original baseline.
pub(super) fn phase(trial: &Trial<'_>) -> Option<Verdict> {
    if !trial.changes_numerics() {
        return None;
    }
    match judge(&trial.comparison) {
        Quality::Missing(launches) => Some(Verdict::Run(Work {
            purpose: Purpose::Quality,
            phase: Some(trial.phase.name.clone()),
            trial: trial.comparison.trial.clone(),
            launches,
            stop_on_failure: true,
        })),
        Quality::Worse(message) => Some(Verdict::Fails {
            trigger: Some(Trigger::QualityBelowThreshold),
            reason: "QualityBelowThreshold",
            message,
        }),
        Quality::Underpowered(message) => Some(Verdict::Inconclusive { reason: "GateUnderpowered", message }),
        Quality::Good(_) => None,
    }
}
