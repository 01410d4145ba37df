//! Quality: compares validation metrics (and the training loss) with the **original** baseline at equal items seen.
//! Compared with the settings accepted so far, small regressions of several phases would add up.

pub(crate) mod reference;
pub(crate) mod training;

#[cfg(test)]
pub(crate) mod simulated;

use self::reference::reference_settings;
use super::band::{Band, Position, significant};
use super::evidence::{self, Early as EarlyValidation};
use super::{DryRun, Subject, Verdict, unmeasured};
use crate::comparison::Comparison;
use crate::launch::{EvidenceTarget, Launch, quality as budget_of, quality_looks, quality_seeds};
use crate::reason::Reason;
use crate::statistics::sequential::{Interval, alpha, interval};
use crate::task::Task;
use pawl_api::spec::{Analysis, Gates, MetricGate, TrainingJobSpec, Trigger};
use pawl_api::status::{Arm, LaunchStatus, Purpose, QualityStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{Better, LOSS, LaunchKind};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Allowed relative increase of the validation loss when no gate on validation metrics is set, a ratio.
pub const DEFAULT_RELATIVE_MARGIN: f64 = 0.01;

/// Least improvement of the baseline over its own first validation, in margins of the gate. A phase that learns nothing
/// at all loses that improvement: with less than a margin it would pass, and with four the gate resolves the loss of a
/// quarter of what was learnt.
const LEARNT_MARGINS: f64 = 4.0;

/// What is said of an estimate without an interval.
const ONE_SEED: &str = "no interval (one seed)";

/// The metric of a criterion.
#[derive(Clone, Debug, PartialEq)]
enum Measure<'a> {
    Validation(&'a str),
    TrainingLoss,
}

/// How the candidate's value is compared with the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// The regression, in the unit of the metric.
    Regression,
    /// The regression relative to the baseline's value.
    RelativeRegression,
    /// The candidate's value itself.
    Value,
}

/// The requirement of one gate on one metric.
#[derive(Clone, Debug, PartialEq)]
struct Requirement<'a> {
    what: String,
    measure: Measure<'a>,
    better: Better,
    scale: Scale,
    band: Band,
}

impl Requirement<'_> {
    fn scaled(&self, baseline: f64, candidate: f64) -> f64 {
        let regression = self.better.regression(candidate, baseline);
        match self.scale {
            Scale::Regression => regression,
            Scale::RelativeRegression => regression / baseline.abs().max(f64::MIN_POSITIVE),
            Scale::Value => candidate,
        }
    }

    fn of_launch(&self, launch: &LaunchStatus) -> f64 {
        let value = match self.measure {
            Measure::Validation(name) => launch.measured.metric(name),
            Measure::TrainingLoss => launch.measured.loss.as_ref(),
        };
        value.map_or(f64::NAN, Decimal::value)
    }

    /// The improvement of a launch over its own first validation, in margins, or the change in either direction where
    /// both are limited: a phase that learns nothing differs by as much. `None` where no validation before the first
    /// step is known, and where the criterion has no margin.
    fn learnt(&self, launch: &LaunchStatus) -> Option<f64> {
        let Measure::Validation(name) = self.measure else { return None };
        let measured = &launch.measured;
        measured.first_validation.as_ref().filter(|first| first.items == 0)?;
        let (first, last) = (measured.first_metric(name)?.value(), self.of_launch(launch));
        // What it would cost to end where it began.
        let improvement = self.scaled(last, first);
        let improvement = if self.band.is_bounded() { improvement.abs() } else { improvement };
        let margin = match self.scale {
            Scale::Regression | Scale::RelativeRegression => self.band.high().max(0.0),
            Scale::Value => return None,
        };
        // Without a margin any improvement counts, and none does not.
        let margins = if margin > 0.0 { improvement / margin } else { improvement.signum() * f64::INFINITY };
        Some(if improvement > 0.0 { margins } else { margins.min(0.0) })
    }

    /// The band without the limit in the direction of better values.
    fn worse_end(&self) -> Band {
        match (self.scale, self.better) {
            (Scale::Value, Better::Larger) => self.band.without_high(),
            (Scale::Regression | Scale::RelativeRegression, _) | (Scale::Value, Better::Smaller) => {
                self.band.without_low()
            }
        }
    }
}

/// The requirements of the gates. Without any quality gate the validation loss has a default margin.
fn criteria(gates: &Gates) -> Vec<Requirement<'_>> {
    let loss = |what: &str, measure, scale, band| Requirement {
        what: what.to_owned(),
        measure,
        better: Better::Smaller,
        scale,
        band,
    };
    let mut found = Vec::new();
    if let Some(delta) = &gates.validation_loss_delta {
        let what = "validation loss increase, gates.validationLossDelta";
        found.push(loss(what, Measure::Validation(LOSS), Scale::Regression, Band::at_most(delta.value())));
    }
    if let Some(reach) = &gates.validation_loss_within {
        let what = "relative validation loss difference, gates.validationLossWithin";
        found.push(loss(what, Measure::Validation(LOSS), Scale::RelativeRegression, Band::within(reach.value())));
    }
    if let Some(reach) = &gates.training_loss_within {
        let what = "relative training loss difference, gates.trainingLossWithin";
        found.push(loss(what, Measure::TrainingLoss, Scale::RelativeRegression, Band::within(reach.value())));
    }
    if !gates.has_quality() {
        let what = "relative validation loss increase, by default as no gate on quality is declared";
        let band = Band::at_most(DEFAULT_RELATIVE_MARGIN);
        found.push(loss(what, Measure::Validation(LOSS), Scale::RelativeRegression, band));
    }
    found.extend(gates.validation_metrics.iter().flat_map(of_metric));
    found
}

fn of_metric(gate: &MetricGate) -> Vec<Requirement<'_>> {
    let criterion = |what: &str, scale, band| Requirement {
        what: format!("{what} {}, gates.validationMetrics ({} is better)", gate.name, gate.better),
        measure: Measure::Validation(&gate.name),
        better: gate.better,
        scale,
        band,
    };
    let limit = |most: &Decimal| Band::at_most(most.value());
    let relative = gate.max_relative_regression.as_ref();
    let either = gate.max_relative_difference.as_ref();
    let absolute = gate.max_regression.as_ref();
    let bounded = gate.min.is_some() || gate.max.is_some();
    let values = || criterion("value of", Scale::Value, Band::between(gate.min.as_ref(), gate.max.as_ref()));
    let regressions = [
        relative.map(|most| criterion("relative regression of", Scale::RelativeRegression, limit(most))),
        either.map(|most| criterion("relative difference of", Scale::RelativeRegression, Band::within(most.value()))),
        absolute.map(|most| criterion("regression of", Scale::Regression, limit(most))),
        bounded.then(values),
    ];
    regressions.into_iter().flatten().collect()
}

/// A metric that the gates require and a quality launch did not report; its human-readable name.
pub(crate) fn missing_measure(
    spec: &TrainingJobSpec,
    validation: impl Fn(&str) -> bool,
    training_loss: bool,
) -> Option<String> {
    let criteria = criteria(&spec.gates);
    let gated = criteria.iter().map(|criterion| &criterion.measure);
    let mut needed = std::iter::once(&Measure::Validation(LOSS)).chain(gated);
    needed.find_map(|measure| match measure {
        Measure::Validation(name) => (!validation(name)).then(|| format!("validation metric \"{name}\"")),
        Measure::TrainingLoss => (!training_loss).then(|| "training loss".to_owned()),
    })
}

/// Whether a quality launch in the evidence has what the gates require: of one that ran before a gate was added, the
/// status does not hold its metric.
pub(crate) fn is_complete(spec: &TrainingJobSpec, launch: &LaunchStatus) -> bool {
    missing_measure(spec, |name| launch.measured.metric(name).is_some(), launch.measured.loss.is_some()).is_none()
}

/// The baseline's launch and the candidate's, of each seed.
type Pairs<'a> = Vec<(&'a LaunchStatus, &'a LaunchStatus)>;

/// The candidate's quality launches for look number `look`, paired with the baseline's, and the missing launches.
fn paired<'a>(candidate: &Comparison<'a>, baseline: &Comparison<'a>, look: u32) -> (Pairs<'a>, Vec<Launch>) {
    let (mut pairs, mut missing) = (Vec::new(), Vec::new());
    let spec = candidate.draft.spec;
    let budget = budget_of(spec, look);
    let done = |launch: &&LaunchStatus| {
        let at_end = || evidence::early(&launch.measured, &budget).is_none();
        launch.outcome == Outcome::Done && is_complete(spec, launch) && at_end()
    };
    for index in 0..quality_seeds(spec) {
        let a = baseline.find_at(LaunchKind::Quality, look, Arm::Control, index).filter(done);
        let b = candidate.find_at(LaunchKind::Quality, look, Arm::Candidate, index).filter(done);
        if let (Some(a), Some(b)) = (a, b) {
            pairs.push((a, b));
            continue;
        }
        missing.extend(a.is_none().then(|| baseline.launch_at(LaunchKind::Quality, look, Arm::Control, index)));
        missing.extend(b.is_none().then(|| candidate.launch_at(LaunchKind::Quality, look, Arm::Candidate, index)));
    }
    (pairs, missing)
}

/// The first complete launch whose newest validation is from before its end, of any look. To repeat it would give the
/// same again.
fn validated_early(candidate: &Comparison<'_>, baseline: &Comparison<'_>) -> Option<Verdict> {
    let spec = candidate.draft.spec;
    let looks = (0..quality_looks(spec)).flat_map(|look| (0..quality_seeds(spec)).map(move |index| (look, index)));
    looks.into_iter().find_map(|(look, index)| {
        let of = |comparison: &Comparison<'_>, arm| {
            let launch = comparison.find_at(LaunchKind::Quality, look, arm, index)?;
            let found = evidence::early(&launch.measured, &budget_of(spec, look));
            found.filter(|_| launch.outcome == Outcome::Done).map(|found| (launch.name.clone(), found))
        };
        let (name, EarlyValidation { validated, end }) =
            of(baseline, Arm::Control).or_else(|| of(candidate, Arm::Candidate))?;
        let message = format!(
            "launch {name}: the newest validation is from {validated} of {end} items, not of the trained model: let the script \
             evaluate after its last step, for example by setting its evaluation interval to $(launch.evalSteps), and report the \
             step of each evaluation"
        );
        Some(Verdict::Unsupported { reason: Reason::ValidatedEarly, message })
    })
}

/// Why the pairs allow no verdict although they are complete: what they evaluated is not the result of a training.
fn untrained(criteria: &[Requirement<'_>], pairs: &Pairs<'_>) -> Option<(Reason, String)> {
    let all = pairs.iter().flat_map(|(a, b)| [*a, *b]);
    if let Some((name, share)) = all.into_iter().find_map(|it| Some((&it.name, evidence::initial_weights(it)?))) {
        let message = format!(
            "launch {name} evaluated a moving average of which {:.1} % are initial weights: raise analysis.qualityItems, or lower \
             settings.ema",
            share * 100.0
        );
        return Some((Reason::InitialWeights, message));
    }
    criteria.iter().find_map(|criterion| {
        let known: Vec<f64> = pairs.iter().filter_map(|(a, _)| criterion.learnt(a)).collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let has_learnt = mean >= LEARNT_MARGINS;
        (!known.is_empty() && !has_learnt).then(|| {
            let how = if criterion.band.is_bounded() { "changed" } else { "improved" };
            let message = format!(
                "{}: the baseline itself has {how} by {mean:.1} times what is allowed since its first validation, and at least \
                 {LEARNT_MARGINS} times is needed to see whether a phase learns as well: raise analysis.qualityItems, or narrow the gate",
                criterion.what
            );
            (Reason::ReferenceUntrained, message)
        })
    })
}

/// What a verdict that passed cannot exclude.
pub(super) fn caveat(subject: &Subject<'_>) -> Option<String> {
    if !subject.changes_numerics() {
        return None;
    }
    let (_, pairs) = newest(&subject.comparison, &baseline(&subject.comparison))?;
    let criteria = criteria(&subject.spec().gates);
    let known = criteria.iter().any(|criterion| pairs.iter().any(|(a, _)| criterion.learnt(a).is_some()));
    let margins = criteria.iter().any(|criterion| criterion.scale != Scale::Value);
    let notes = [
        (pairs.len() == 1).then_some(ONE_SEED),
        (margins && !known).then_some("no validation before the first step shows what the baseline has learnt"),
    ];
    let notes: Vec<_> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The pairs of the newest look that is complete, and its number.
fn newest<'a>(candidate: &Comparison<'a>, baseline: &Comparison<'a>) -> Option<(u32, Pairs<'a>)> {
    (0..quality_looks(candidate.draft.spec)).rev().find_map(|look| {
        let (pairs, missing) = paired(candidate, baseline, look);
        (missing.is_empty() && !pairs.is_empty()).then_some((look, pairs))
    })
}

/// Type I error rate of look number `look` of `looks`: the last look has half of it, the others share the other half.
/// By the union bound, the total is at most that of the verdict, for any correlation of the looks.
fn error(analysis: &Analysis, look: u32, looks: u32) -> f64 {
    match looks - 1 {
        0 => alpha(analysis),
        _ if look == looks - 1 => alpha(analysis) / 2.0,
        early => alpha(analysis) / 2.0 / f64::from(early),
    }
}

/// Confidence of the bounds of a quality, 0 to 1, each one-sided: the lowest of all looks, and the highest.
pub fn confidence(spec: &TrainingJobSpec) -> RangeInclusive<f64> {
    let looks = quality_looks(spec);
    let each = (0..looks).map(|look| 1.0 - error(&spec.analysis, look, looks));
    let (lowest, highest) = each.fold((1.0f64, 0.0f64), |(low, high), it| (low.min(it), high.max(it)));
    lowest..=highest
}

/// Result of a look before the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    /// Every interval lies in its band.
    Pass,
    /// An interval lies outside of its band as a whole.
    Fail,
    /// Neither.
    Unclear,
}

impl Early {
    /// The result of two looks in a row. One look alone may show a stage of the training that passes.
    fn and(self, next: Self) -> Self {
        if self == next { self } else { Self::Unclear }
    }
}

/// The result of one criterion at a look.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    band: Band,
    /// At the error rate of the look: a subject passes only if each criterion does, so that none of them needs a
    /// correction.
    interval: Option<Interval>,
    /// At the error rate divided by the number of criteria, each of which may fail the subject (Bonferroni).
    to_fail: Option<Interval>,
}

impl Judged {
    fn position(&self) -> Option<Position> {
        self.interval.as_ref().map(|interval| self.band.judge(interval))
    }

    /// Whether the interval lies outside as a whole; without an interval, whether the estimate does.
    fn fails(&self) -> bool {
        self.to_fail.as_ref().is_some_and(|interval| match interval.bounds {
            Some(_) => self.band.excludes(interval),
            None => !self.band.contains(interval.mean),
        })
    }
}

/// Judges a look before the last one.
fn early(judged: &[Judged]) -> Early {
    let inside = |criterion: &Judged| criterion.position() == Some(Position::Inside);
    match () {
        // Without an interval nothing is clear.
        () if judged.iter().any(|it| it.interval.is_none_or(|interval| interval.bounds.is_none())) => Early::Unclear,
        () if judged.iter().any(Judged::fails) => Early::Fail,
        () if judged.iter().all(inside) => Early::Pass,
        () => Early::Unclear,
    }
}

/// The original baseline, whose quality launches are shared by all phases; see [`mod@reference`] for their settings.
fn baseline<'a>(candidate: &Comparison<'a>) -> Comparison<'a> {
    let draft = candidate.draft;
    let settings = reference_settings(draft);
    let evidence = draft.status.baseline.as_ref().map_or(&[][..], |baseline| &baseline.launches);
    Comparison::new(draft, (Task::Baseline, EvidenceTarget::Baseline), (settings.clone(), settings), evidence)
}

/// The values of a criterion, one for each seed, and their interval. With one seed there are no bounds.
fn measured(criterion: &Requirement<'_>, pairs: &[(&LaunchStatus, &LaunchStatus)], error: f64) -> Option<Interval> {
    let value =
        |(a, b): &(&LaunchStatus, &LaunchStatus)| criterion.scaled(criterion.of_launch(a), criterion.of_launch(b));
    interval(&pairs.iter().map(value).collect::<Vec<_>>(), error)
}

/// Human-readable result of a requirement.
fn result(criterion: &Requirement<'_>, interval: &Interval) -> String {
    let bounds = match interval.bounds {
        Some((lower, upper)) => format!(" [{}, {}]", significant(lower), significant(upper)),
        None => format!(", {ONE_SEED}"),
    };
    format!("{}: {}{bounds}, allowed: {}", criterion.what, significant(interval.mean), criterion.band)
}

/// Fails a subject with changed numerics whose quality is worse than that of the original baseline beyond the gates.
pub(super) fn regression(subject: &Subject<'_>) -> Option<Verdict> {
    if !subject.changes_numerics() {
        return None;
    }
    let (candidate, baseline) = (&subject.comparison, baseline(&subject.comparison));
    if let Some(refused) = validated_early(candidate, &baseline) {
        return Some(refused);
    }
    let analysis = &subject.spec().analysis;
    let looks = quality_looks(subject.spec());
    let run = |look| subject.run(Purpose::Quality, paired(candidate, &baseline, look).1);
    let Some((look, pairs)) = newest(candidate, &baseline) else { return Some(run(0)) };
    let criteria = criteria(&subject.spec().gates);
    let at = |look: u32, pairs: &Pairs<'_>| judged(&criteria, pairs, error(analysis, look, looks));
    if look + 1 == looks {
        return match untrained(&criteria, &pairs) {
            Some((reason, message)) => Some(Verdict::Inconclusive { reason, message }),
            None => verdict(&criteria, &at(look, &pairs)),
        };
    }
    let result = |look: u32, pairs: &Pairs<'_>| match untrained(&criteria, pairs) {
        Some(_) => Early::Unclear,
        None => early(&at(look, pairs)),
    };
    let before = look.checked_sub(1).map(|look| (look, paired(candidate, &baseline, look).0));
    let before = before.map_or(Early::Unclear, |(look, pairs)| result(look, &pairs));
    match before.and(result(look, &pairs)) {
        Early::Pass => None,
        Early::Fail => verdict(&criteria, &at(look, &pairs)),
        Early::Unclear => Some(run(look + 1)),
    }
}

/// The result of each criterion at the error rate of a look.
fn judged(criteria: &[Requirement<'_>], pairs: &Pairs<'_>, error: f64) -> Vec<Judged> {
    let each = error / criteria.len().max(1) as f64;
    let one = |criterion: &Requirement<'_>| Judged {
        band: criterion.band,
        interval: measured(criterion, pairs, error),
        to_fail: measured(criterion, pairs, each),
    };
    criteria.iter().map(one).collect()
}

/// The verdict of a look that decides.
fn verdict(criteria: &[Requirement<'_>], judged: &[Judged]) -> Option<Verdict> {
    let text = |criterion: &Requirement<'_>, interval: Option<&Interval>| match interval {
        Some(interval) => result(criterion, interval),
        None => format!("{}: not measured", criterion.what),
    };
    let all = || criteria.iter().zip(judged);
    if let Some((criterion, failed)) = all().find(|(_, judged)| judged.fails()) {
        let (trigger, reason) = (Some(Trigger::QualityBelowThreshold), Reason::QualityBelowThreshold);
        let text = text(criterion, failed.to_fail.as_ref());
        let message = match criteria.len() {
            0 | 1 => text,
            count => format!("{text} (the interval allows for {count} gates, each of which could have failed it)"),
        };
        return Some(Verdict::Fails { trigger, reason, message });
    }
    let first = |wanted: Option<Position>| all().find(|(_, judged)| judged.position() == wanted);
    const OUTSIDE: &str = "the estimate is beyond what is allowed, so a narrower interval would rather roll it back (more \
                           seeds or more qualityItems narrow it)";
    const INSIDE: &str = "the estimate is within what is allowed, so a narrower interval would rather accept it (more \
                          seeds or more qualityItems narrow it)";
    let unclear = [
        (Some(Position::Outside), Reason::QualityUnclear, OUTSIDE),
        (None, Reason::GateUnderpowered, "there is nothing to judge by"),
        (Some(Position::PartlyInside), Reason::GateUnderpowered, INSIDE),
    ];
    unclear.into_iter().find_map(|(position, reason, likely)| {
        let (criterion, judged) = first(position)?;
        let message = format!("{}; {likely}", text(criterion, judged.interval.as_ref()));
        Some(Verdict::Inconclusive { reason, message })
    })
}

/// The newest complete look, converted for the status; `None` before there is one.
pub(crate) fn status(candidate: &Comparison<'_>) -> Option<QualityStatus> {
    let (look, pairs) = newest(candidate, &baseline(candidate))?;
    let spec = candidate.draft.spec;
    let error = error(&spec.analysis, look, quality_looks(spec));
    let change = |name, scale| {
        let (what, measure, better) = (String::new(), Measure::Validation(name), Better::Smaller);
        let criterion = Requirement { what, measure, better, scale, band: Band::between(None, None) };
        measured(&criterion, &pairs, error)
    };
    let loss = change(LOSS, Scale::Regression)?;
    let mean_of = |name| Decimal::from_f64(change(name, Scale::RelativeRegression)?.mean);
    let gated = spec.gates.validation_metrics.iter();
    Some(QualityStatus {
        loss_delta: Decimal::from_f64(loss.mean)?,
        loss_delta_upper: loss.bounds.and_then(|(_, upper)| Decimal::from_f64(upper)),
        metrics: gated.filter_map(|gate| Some((gate.name.clone(), mean_of(&gate.name)?))).collect::<BTreeMap<_, _>>(),
        seeds: pairs.len() as u32,
        items: pairs.iter().map(|(a, b)| a.measured.items.min(b.measured.items)).min().unwrap_or(0),
    })
}

/// The violation of a bound on a value itself by the validation of a dry run. Without a baseline, nothing else can be
/// compared.
pub(super) fn values_of_dry_run(run: &DryRun<'_>) -> Option<String> {
    let criteria = criteria(&run.spec.gates).into_iter().filter(|criterion| criterion.scale == Scale::Value);
    criteria.into_iter().find_map(|criterion| {
        let Measure::Validation(name) = criterion.measure else { return None };
        let Some(value) = run.result.measured.metric(name) else {
            return Some(unmeasured("gates.validationMetrics", &format!("validation metric {name}")));
        };
        (!criterion.band.contains(*value))
            .then(|| format!("{}: {}, allowed: {}", criterion.what, significant(*value), criterion.band))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(json: serde_json::Value) -> Gates {
        serde_json::from_value(json).unwrap()
    }

    fn found(gates: &Gates, baseline: f64, candidate: f64) -> Vec<bool> {
        criteria(gates).iter().map(|c| c.band.contains(c.scaled(baseline, candidate))).collect()
    }

    #[test]
    fn a_metric_has_a_direction_and_relative_absolute_and_fixed_bounds() {
        let larger = |bound: &str, value: &str| {
            gates(serde_json::json!({"validationMetrics": [{"name": "accuracy", "better": "Larger", bound: value}]}))
        };
        let relative = larger("maxRelativeRegression", "0.03");
        assert_eq!(found(&relative, 0.8, 0.78), [true]);
        assert_eq!(found(&relative, 0.8, 0.77), [false]);
        assert_eq!(found(&relative, 0.8, 0.99), [true], "better is never a regression");
        let absolute = larger("maxRegression", "0.01");
        assert_eq!(found(&absolute, 0.8, 0.791), [true]);
        assert_eq!(found(&absolute, 0.8, 0.789), [false]);
        let least = larger("min", "0.75");
        assert_eq!(found(&least, 0.99, 0.75), [true]);
        assert_eq!(found(&least, 0.7, 0.74), [false]);
        let most = gates(serde_json::json!({"validationMetrics": [{"name": "nrmse", "max": "0.1"}]}));
        assert_eq!((found(&most, 1.0, 0.1), found(&most, 0.01, 0.2)), (vec![true], vec![false]));
    }

    #[test]
    fn a_loss_within_a_band_may_neither_rise_nor_fall() {
        let both = gates(serde_json::json!({"validationLossWithin": "0.01", "trainingLossWithin": "0.02"}));
        assert_eq!(found(&both, 2.0, 2.019), [true, true]);
        assert_eq!(found(&both, 2.0, 2.03), [false, true]);
        assert_eq!(found(&both, 2.0, 1.97), [false, true]);
        assert_eq!(found(&both, 2.0, 1.9), [false, false]);
    }

    #[test]
    fn without_a_gate_the_validation_loss_has_a_margin() {
        assert_eq!(found(&Gates::default(), 1.0, 1.009), [true]);
        assert_eq!(found(&Gates::default(), 1.0, 1.011), [false]);
        let only_training = gates(serde_json::json!({"trainingLossWithin": "0.5"}));
        assert_eq!(found(&only_training, 1.0, 1.011), [true, false], "a gate on the training loss does not replace it");
    }

    #[test]
    fn the_looks_spend_the_error_and_no_more() {
        let analysis = Analysis::default();
        for looks in 1..=5 {
            let spent: f64 = (0..looks).map(|look| error(&analysis, look, looks)).sum();
            assert!((spent - alpha(&analysis)).abs() < 1e-12, "{looks} looks spend {spent}");
        }
    }
}
