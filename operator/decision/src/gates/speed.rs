//! Speed: the lower confidence bound must be at least the threshold, `minSpeedup` of a phase or `gates.overallSpeedup`.

use super::{Subject, Verdict};
use crate::comparison::Comparison;
use crate::launch::Launch;
use crate::reason::Reason;
use crate::revision::accepted;
use crate::statistics::disturbed::Launches;
use crate::statistics::outside::unrest;
use crate::statistics::sequential::{
    Interval, Sequential, Weighed, alpha, looks, ratio, required, sequential, share_of_t, tested,
};
use pawl_api::spec::{Analysis, OnInconclusive, Phase, Pin, TrainingJobSpec, Trigger};
use pawl_api::status::{Arm, Purpose, Speedup, TrainingJobStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use std::fmt;
use std::ops::Range;

/// Share of the window spent waiting for data above which low speed is attributed to the data loader, not to the phase.
const LOADER_BOUND_SHARE: f64 = 0.25;

/// The required speedup, and the field that sets it.
struct Threshold {
    value: f64,
    field: &'static str,
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.value)
    }
}

/// The required speedup of the subject, if any.
fn threshold(subject: &Subject<'_>) -> Option<Threshold> {
    match subject.phase {
        Some(phase) => Some(Threshold { value: phase.min_speedup(), field: "minSpeedup" }),
        None => {
            let gate = subject.spec().gates.overall_speedup.as_ref()?;
            Some(Threshold { value: gate.value(), field: "gates.overallSpeedup" })
        }
    }
}

/// How fast all accepted phases together must be shown to be by pairs that have not selected them, whatever the goal
/// is, a ratio: as fast as the baseline, except for what a phase may cost by its own `minSpeedup`. `None` if nothing
/// was selected, or if a person has decided that it is accepted without proof.
pub fn confirmation(spec: &TrainingJobSpec, status: &TrainingJobStatus) -> Option<f64> {
    if !was_selected(status) || spec.analysis.on_inconclusive == OnInconclusive::Accept {
        return None;
    }
    let phases = spec.phases.iter().zip(&status.phases);
    let mut least = 1.0;
    for (phase, _) in phases.filter(|(_, status)| accepted(status)) {
        if phase.pin == Some(Pin::Accepted) {
            return None;
        }
        least *= phase.min_speedup().min(1.0);
    }
    Some(least)
}

/// Whether chance had more than one opportunity to accept something: several phases, or fallbacks, were judged.
fn was_selected(status: &TrainingJobStatus) -> bool {
    let judged = status.phases.iter().filter(|phase| !phase.launches.is_empty());
    judged.map(|phase| phase.fallback + 1).sum::<u32>() > 1
}

/// Result of the sequential test of the pairs against a threshold, and the missing launches for the next interim
/// analysis.
pub(crate) fn compare(comparison: &Comparison<'_>, threshold: f64) -> (Sequential, Vec<Launch>) {
    let analysis = &comparison.draft.spec.analysis;
    let outcome = sequential(&comparison.pairs(0).0, threshold, analysis);
    let missing = match outcome {
        Sequential::More(wanted) => comparison.pairs(wanted).1,
        Sequential::Above(_) | Sequential::Below(_) | Sequential::Undecided(_) => Vec::new(),
    };
    (outcome, missing)
}

/// The interval, converted for the status.
pub(crate) fn status(interval: &Interval) -> Option<Speedup> {
    Some(Speedup {
        estimate: Decimal::from_f64(interval.mean)?,
        lower: interval.bounds.and_then(|(lower, _)| Decimal::from_f64(lower)),
        upper: interval.bounds.and_then(|(_, upper)| Decimal::from_f64(upper)),
        pairs: interval.count as u32,
        disturbed: interval.unrest.map_or(0, |unrest| unrest.pairs as u32),
    })
}

/// Human-readable text of the interval.
pub(crate) fn shown(interval: &Interval) -> String {
    let repeated = match interval.repeated {
        0 => None,
        1 => Some("1 disturbed pair was repeated".to_owned()),
        count => Some(format!("{count} disturbed pairs were repeated")),
    };
    let unrest = interval.unrest.map(|unrest| unrest.among(interval.count));
    let notes: Vec<String> = repeated.into_iter().chain(unrest).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    match interval.bounds {
        Some(bounds) => {
            format!("speedup {:.3} {} from {} pairs{notes}", interval.mean, between(bounds), interval.count)
        }
        None => format!("speedup {:.3} from a single pair (SinglePair: no interval){notes}", interval.mean),
    }
}

/// Away from the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outward {
    /// As a lower bound is rounded.
    Down,
    /// As an upper bound is rounded.
    Up,
}

/// A bound of an interval with so many decimals, rounded outwards: an interval that is shown contains that which was
/// measured, but for a millionth of its last digit.
pub fn outward(bound: f64, direction: Outward, decimals: usize) -> String {
    let scale = 10_f64.powi(decimals as i32);
    let (scaled, nearest) = (bound * scale, (bound * scale).round());
    let whole = match direction {
        // A decimal number with so many decimals stays as it is: 1.1 times 100 is not 110.
        _ if (scaled - nearest).abs() < 1e-6 => nearest,
        Outward::Down => scaled.floor(),
        Outward::Up => scaled.ceil(),
    };
    format!("{:.decimals$}", whole / scale)
}

/// The bounds of an interval; an end that says nothing is open.
fn between((lower, upper): (f64, f64)) -> String {
    match (Speedup::MEANT.contains(&lower), Speedup::MEANT.contains(&upper)) {
        (true, true) => format!("[{}, {}]", outward(lower, Outward::Down, 3), outward(upper, Outward::Up, 3)),
        (true, false) => format!("[{}, ∞]", outward(lower, Outward::Down, 3)),
        (false, true) => format!("[0, {}]", outward(upper, Outward::Up, 3)),
        (false, false) => "(no interval)".to_owned(),
    }
}

/// The upper bound of a speedup in words.
pub(crate) fn at_most(upper: f64) -> String {
    let Range { start, end } = Speedup::MEANT;
    if upper < end {
        format!("its speedup is at most {}", outward(upper.max(start), Outward::Up, 3))
    } else {
        "its pairs do not limit its speedup yet".to_owned()
    }
}

/// The confidence interval of the subject's speedup so far; `None` without pairs.
pub(crate) fn reached(subject: &Subject<'_>) -> Option<Interval> {
    let required = threshold(subject).map(|threshold| threshold.value);
    Some(weighed(&subject.comparison.pairs(0).0, required, &subject.spec().analysis)?.0)
}

/// The interval of these pairs so far, by the speedup that is required, if one is, and why each pair does not count;
/// `None` without pairs. What is measured after a verdict has no entry.
pub(crate) fn weighed(pairs: &[impl Launches], required: Option<f64>, analysis: &Analysis) -> Option<Weighed> {
    let Some(required) = required else { return measured(pairs, analysis) };
    match tested(pairs, required, analysis) {
        (Sequential::Above(found) | Sequential::Below(found) | Sequential::Undecided(found), weighed) => {
            Some((found, weighed))
        }
        (Sequential::More(_), _) => over_all_pairs(pairs, analysis, looks(analysis), share_of_t),
    }
}

/// The speedup that the manifest promises of a phase without its fallbacks.
pub(crate) fn promise(phase: &Phase) -> Option<f64> {
    phase.expected_speedup.as_ref().map(Decimal::value).filter(|promised| *promised > 0.0)
}

/// By which factor the subject lacks its required speedup even at its largest plausible one. `None` if it requires
/// none, or nothing is measured.
pub(crate) fn lacking(subject: &Subject<'_>) -> Option<f64> {
    let (threshold, interval) = (threshold(subject)?, reached(subject)?);
    Some(threshold.value / interval.bounds.map_or(interval.mean, |(_, upper)| upper))
}

/// The interval of a comparison without a threshold: a single analysis at the whole error probability.
fn measured(pairs: &[impl Launches], analysis: &Analysis) -> Option<Weighed> {
    let first = looks(analysis).into_iter().take(1);
    over_all_pairs(pairs, analysis, first, |analysis, _| alpha(analysis))
}

/// The interval over the existing pairs, at the error probability `error` of their number. They are those of the last
/// of the `looks` for which there are enough.
fn over_all_pairs(
    pairs: &[impl Launches],
    analysis: &Analysis,
    looks: impl IntoIterator<Item = usize>,
    error: impl Fn(&Analysis, usize) -> f64,
) -> Option<Weighed> {
    let look = looks.into_iter().filter(|look| *look <= pairs.len()).max();
    ratio(pairs, look.unwrap_or(pairs.len()), |count| error(analysis, count))
}

/// Fails a subject whose speedup is below the threshold, or requests more pairs.
pub(super) fn speedup(subject: &Subject<'_>) -> Option<Verdict> {
    let Some(threshold) = threshold(subject) else { return first_look(subject) };
    let (outcome, missing) = compare(&subject.comparison, threshold.value);
    match outcome {
        Sequential::More(_) if never_steady(&subject.comparison) => Some(not_steady(subject)),
        Sequential::More(_) => Some(subject.run(Purpose::Speed, checked_first(subject, missing))),
        Sequential::Above(_) => None,
        Sequential::Below(interval) => Some(slow(subject, &interval, &threshold)),
        Sequential::Undecided(interval) => undecided(subject, &interval, &threshold),
    }
}

/// Fails accepted phases that are not faster than the baseline in pairs of their own. Each was selected by its pairs:
/// of several phases without effect, chance accepts the one whose pairs it favours, and the same pairs cannot tell
/// that.
pub(super) fn confirmed(subject: &Subject<'_>) -> Option<Verdict> {
    let comparison = &subject.comparison;
    let least = confirmation(subject.spec(), &comparison.draft.status)?;
    let inconclusive = |message| Some(Verdict::Inconclusive { reason: Reason::NotConfirmed, message });
    let (outcome, missing) = compare(comparison, least);
    match outcome {
        Sequential::Above(_) => None,
        Sequential::More(_) if never_steady(comparison) => inconclusive(unsteady(subject)),
        Sequential::More(_) => Some(subject.run(Purpose::Speed, missing)),
        Sequential::Below(interval) => {
            let message = format!("{} is below {least} times the baseline", shown(&interval));
            Some(Verdict::Fails { trigger: None, reason: Reason::NotConfirmed, message })
        }
        Sequential::Undecided(interval) => {
            inconclusive(format!("{}: the confidence interval includes {least} times the baseline", shown(&interval)))
        }
    }
}

/// Without a threshold the speedup is measured up to the first interim analysis, and does not affect the verdict.
/// Disturbed pairs are repeated there, too.
fn first_look(subject: &Subject<'_>) -> Option<Verdict> {
    let first = looks(&subject.spec().analysis).first().copied().unwrap_or(1);
    let wanted = required(&subject.comparison.pairs(0).0, first)?;
    let missing = subject.comparison.pairs(wanted).1;
    let more = !missing.is_empty() && !never_steady(&subject.comparison);
    more.then(|| subject.run(Purpose::Speed, missing))
}

/// Whether so many pairs had a launch that was not steady that others would not be either: most of them, or as many as
/// the test has pairs.
fn never_steady(comparison: &Comparison<'_>) -> bool {
    let looks = looks(&comparison.draft.spec.analysis);
    let (first, last) = (looks.first().copied().unwrap_or(1), looks.last().copied().unwrap_or(1));
    let (steady, unsteady) = (comparison.pairs(0).0.len(), comparison.unsteady().len());
    unsteady >= first.max(2) && unsteady > steady || unsteady >= last.max(2)
}

/// Neither accepted nor rolled back, whatever `analysis.onInconclusive` is: nothing is known about the speed.
fn not_steady(subject: &Subject<'_>) -> Verdict {
    Verdict::Inconclusive { reason: Reason::NotSteady, message: unsteady(subject) }
}

/// How many of the measured pairs are no evidence, and what to do about that. Those of a speedup are the other ones.
fn unsteady(subject: &Subject<'_>) -> String {
    let unsteady = subject.comparison.unsteady();
    let (count, all) = (unsteady.len(), unsteady.len() + subject.comparison.pairs(0).0.len());
    let (note, remedy) = match unrest(unsteady.into_iter()) {
        Some(unrest) => (format!(" ({})", unrest.of_them(count)), "measure without the other programs, or "),
        None => (String::new(), ""),
    };
    format!(
        "{count} of {all} pairs do not count{note}: the speed of a launch still changed within the last window that it \
         could have: {remedy}raise analysis.warmupSteps or analysis.windowSteps"
    )
}

/// Prepends the preflight of the candidate to the launches of a phase, unless it was done.
fn checked_first(subject: &Subject<'_>, missing: Vec<Launch>) -> Vec<Launch> {
    let comparison = &subject.comparison;
    let checked = subject.phase.is_none() || comparison.find(LaunchKind::Preflight, Arm::Candidate, 0).is_some();
    let check = (!checked).then(|| comparison.launch(LaunchKind::Preflight, Arm::Candidate, 0));
    check.into_iter().chain(missing).collect()
}

fn undecided(subject: &Subject<'_>, interval: &Interval, threshold: &Threshold) -> Option<Verdict> {
    let last = looks(&subject.spec().analysis).last().copied().unwrap_or(1);
    let futile = if interval.count < last { ", and further pairs would hardly exclude it" } else { "" };
    let message = format!("{}: the confidence interval includes {threshold}{futile}", shown(interval));
    match (subject.phase, subject.spec().analysis.on_inconclusive) {
        (Some(_), OnInconclusive::Accept) => None,
        (Some(_), OnInconclusive::RollBack) => Some(Verdict::Inconclusive { reason: Reason::SpeedUndecided, message }),
        // A goal counts as missed unless it is shown to be reached.
        (None, _) => Some(Verdict::Fails { trigger: None, reason: Reason::SpeedUndecided, message }),
    }
}

fn slow(subject: &Subject<'_>, interval: &Interval, threshold: &Threshold) -> Verdict {
    let wait = subject.median(|launch| launch.measured.loader_wait_share.as_ref().map(Decimal::value));
    let message = format!("{} is below {threshold}", shown(interval));
    let loader_fallback = |phase: &Phase| {
        let current = subject.comparison.fallback() as usize;
        phase.fallbacks.iter().skip(current).any(|fallback| fallback.when.contains(&Trigger::LoaderBound))
    };
    match wait {
        Some(share) if share > LOADER_BOUND_SHARE && subject.phase.is_some_and(loader_fallback) => Verdict::Fails {
            trigger: Some(Trigger::LoaderBound),
            reason: Reason::LoaderBound,
            message: format!("{message}; steps wait for data {share:.3} of the time (limit {LOADER_BOUND_SHARE})"),
        },
        Some(_) | None => {
            Verdict::Fails { trigger: Some(Trigger::SpeedBelowThreshold), reason: Reason::SpeedBelowThreshold, message }
        }
    }
}

/// The verdict when every gate is passed.
pub(super) fn holds(subject: &Subject<'_>) -> Verdict {
    let Some(threshold) = threshold(subject) else {
        let found = measured(&subject.comparison.pairs(0).0, &subject.spec().analysis);
        let message = found.map(|(interval, _)| shown(&interval)).unwrap_or_default();
        return Verdict::Holds { reason: Reason::GoalMet, message };
    };
    match compare(&subject.comparison, threshold.value).0 {
        Sequential::Undecided(interval) => Verdict::Holds {
            reason: Reason::AcceptedInconclusive,
            message: format!("{}: inconclusive, accepted by analysis.onInconclusive", shown(&interval)),
        },
        Sequential::Above(interval) | Sequential::Below(interval) => Verdict::Holds {
            reason: if interval.bounds.is_some() { Reason::SpeedAboveThreshold } else { Reason::SinglePair },
            message: format!("{} is at least {threshold}", shown(&interval)),
        },
        // Unreachable after the gate `speedup`, which requests more pairs.
        Sequential::More(pairs) => Verdict::Inconclusive {
            reason: Reason::SpeedUndecided,
            message: format!("{pairs} pairs are needed for a verdict"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::outside::Unrest;
    use pawl_contract::disturbance::DisturbanceKind;

    #[test]
    fn a_single_pair_is_labelled() {
        let single = Interval { mean: 1.3, bounds: None, count: 1, repeated: 0, unrest: None };
        assert!(shown(&single).contains("SinglePair"));
        assert_eq!(status(&single).unwrap().lower, None);
    }

    #[test]
    fn bounds_that_say_nothing_are_not_printed() {
        let text = |lower: f64, upper: f64| {
            shown(&Interval { mean: 1.3, bounds: Some((lower, upper)), count: 2, repeated: 0, unrest: None })
        };
        assert_eq!(text(1.2, 1.4), "speedup 1.300 [1.200, 1.400] from 2 pairs");
        assert_eq!(text(0.9, 1e30), "speedup 1.300 [0.900, ∞] from 2 pairs");
        assert_eq!(text(1e-30, 1e30), "speedup 1.300 (no interval) from 2 pairs");
        assert_eq!((at_most(1.4).as_str(), at_most(1e30).contains('0')), ("its speedup is at most 1.400", false));
        assert_eq!(at_most(1e-30), "its speedup is at most 0.001");
    }

    #[test]
    fn a_result_that_rests_on_disturbed_pairs_says_so() {
        let text = |pairs: usize, count: usize, repeated: usize| {
            let unrest = Some(Unrest { pairs, kind: DisturbanceKind::OtherCpu, share: 0.408 });
            shown(&Interval { mean: 1.3, bounds: (count > 1).then_some((1.2, 1.4)), count, repeated, unrest })
        };
        let why = "measured while other programs used the CPUs: 41 %)";
        assert_eq!(text(3, 5, 0), format!("speedup 1.300 [1.200, 1.400] from 5 pairs (3 of 5 pairs were {why}"));
        assert!(text(1, 4, 1).ends_with(&format!("(1 disturbed pair was repeated; 1 of 4 pairs was {why}")));
        assert!(text(1, 1, 0).ends_with(&format!("(it was {why}")));
    }
}
