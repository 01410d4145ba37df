//! The cause of a slow-down in training: pairs of launches with and without the accepted phases, on the same devices,
//! before a phase is rolled back for it. A machine that is slow is slow with and without a phase.
//!
//! The training waits at a checkpoint. `training.slowdown` in the status states the intent and holds the evidence, so
//! that a crash between any two writes leads to the same end:
//!
//! 1. All phases that may be reverted: if the settings are as fast relative to those without any of them as was
//!    measured, no phase is the cause.
//! 2. Otherwise each of them, the newest first: the first without which the training would not be slow is rolled back.
//!
//! Each result is by one pair, but a phase is only blamed by two. After a slow-down that no phase explains, nothing is
//! measured again before a number of windows that doubles each time.

use crate::bundle;
use crate::comparison::{Comparison, Pair};
use crate::draft::{Draft, bounded};
use crate::gates::quality::reference::reference_settings;
use crate::gates::safety::description;
use crate::gates::{RunningTraining, throughput};
use crate::launch::{EvidenceTarget, Work};
use crate::observed::AttemptFacts;
use crate::reason::Reason;
use crate::revert::{Blame, gone_with, revert_by_scope, suspects};
use crate::revision::{accepted, revision};
use crate::statistics::median;
use crate::statistics::outside::unrest;
use crate::step::{Next, Step};
use crate::task::Task;
use pawl_api::status::{Arm, Purpose, SlowMachine, SlowdownStatus, Speedup, TrainingStatus};
use pawl_contract::decimal::Decimal;
use pawl_contract::exit::Outcome;
use pawl_contract::progress::Progress;
use pawl_contract::settings::Settings;
use std::collections::BTreeSet;

/// Pairs that blame a phase; one pair clears it.
const PAIRS: usize = 2;
/// Failures of a comparison after which the training resumes without it: it waits meanwhile.
const FAILURES: u32 = 2;
/// Pairs with a launch that was not steady after which the training resumes likewise: each is replaced by another pair.
const UNSTEADY: usize = 2;
/// Windows until the next slow-down is measured, in multiples of `train.guard.windows`; doubled each time, this many
/// times at most.
const QUIET: u32 = 16;
const DOUBLINGS: u32 = 10;

/// The result of one comparison.
enum Finding {
    /// More launches are needed.
    More(Work),
    /// As fast relative to the control as was measured before.
    Cleared(String),
    /// Slower relative to the control than was measured before.
    Blamed(String),
    /// There is no such pair.
    Unclear(String),
}

/// What was measured earlier: the logarithm of the speedup, and the reach of one more pair below it.
struct Known {
    speedup: f64,
    reach: f64,
}

impl Draft<'_> {
    /// The slow-down whose cause is being measured.
    pub fn slowdown(&self) -> Option<&SlowdownStatus> {
        self.status.training.as_ref()?.slowdown.as_ref()
    }

    fn training_mut(&mut self) -> &mut TrainingStatus {
        self.status.training.get_or_insert_with(TrainingStatus::default)
    }
}

/// States the intent to measure the cause of a slow-down: the training is stopped at a checkpoint for it.
pub(crate) fn begin(draft: &mut Draft<'_>, facts: &AttemptFacts, progress: &Progress, message: &str) {
    let Some(training) = &draft.status.training else { return };
    let (spec, baseline, placement) = (draft.spec, draft.status.baseline.as_ref(), facts.placement.as_str());
    let reference = reference_settings(draft);
    let watched = RunningTraining { spec, baseline, reference, training, placement, progress };
    let (expected, found) = (throughput::expected(&watched), throughput::found(&watched));
    let slowdown = SlowdownStatus {
        revision: training.revision.clone(),
        items_per_second: found.and_then(Decimal::from_f64),
        promised_items_per_second: expected.and_then(Decimal::from_f64),
        placement: facts.placement.clone(),
        message: bounded(message),
        ..SlowdownStatus::default()
    };
    let training = draft.training_mut();
    training.slowdowns = training.slowdowns.saturating_add(1);
    training.slowdown = Some(slowdown);
    let message = format!("{message}: measured with and without the accepted phases before one is rolled back");
    draft.normal(Reason::SlowdownCheck, message, None);
}

/// Requests the launches that find the cause of the slow-down, if there is one, and acts on their result.
pub(crate) fn advance(draft: &mut Draft<'_>, settings: &Settings) -> Step {
    let Some(slowdown) = draft.slowdown().cloned() else { return Step::Pass };
    if !draft.spec.train.guard.enabled || slowdown.revision != revision(settings) {
        draft.training_mut().slowdown = None;
        return Step::Moved;
    }
    let all = suspects(draft, Blame::Newest);
    let name = |index: usize| draft.spec.phases[index].name.clone();
    let left: Vec<usize> = all.iter().copied().filter(|index| !slowdown.cleared.contains(&name(*index))).collect();
    let Some(newest) = left.first().copied() else {
        let why = "without any one of its phases it is as slow";
        return explained_by_no_phase(draft, &slowdown, Reason::SlowdownUnexplained, why);
    };
    // Without any phase first: that pair tells a slow machine from a slow phase, whatever the number of phases.
    let suspect = (slowdown.by_a_phase || all.len() == 1).then_some(newest);
    match compare(draft, &slowdown, settings, suspect) {
        Finding::More(work) => Step::Go(Next::Run(work)),
        Finding::Unclear(why) => explained_by_no_phase(draft, &slowdown, Reason::SlowdownUnexplained, &why),
        Finding::Cleared(why) if suspect.is_none() || all.len() == 1 => {
            let (reason, what) = match was_slow(&slowdown) {
                true => (Reason::SlowMachine, "the machine is slow"),
                false => (Reason::SlowdownUnexplained, "these launches were not slow"),
            };
            explained_by_no_phase(draft, &slowdown, reason, &format!("{why}: {what}"))
        }
        Finding::Cleared(_) => {
            let cleared = name(newest);
            clear(draft, |slowdown| slowdown.cleared.push(cleared))
        }
        Finding::Blamed(_) if suspect.is_none() => clear(draft, |slowdown| slowdown.by_a_phase = true),
        Finding::Blamed(why) => {
            draft.training_mut().slowdown = None;
            let message = format!("{}; {why}", slowdown.message);
            revert_by_scope(draft, newest, Reason::ThroughputBelowPromise, &message);
            Step::Moved
        }
    }
}

/// Goes on to the next comparison.
fn clear(draft: &mut Draft<'_>, record: impl FnOnce(&mut SlowdownStatus)) -> Step {
    if let Some(slowdown) = draft.training_mut().slowdown.as_mut() {
        record(slowdown);
        slowdown.launches.clear();
    }
    Step::Moved
}

/// Logarithm of the slow-down of the training.
fn lost(slowdown: &SlowdownStatus) -> f64 {
    let speed = |speed: &Option<Decimal>| speed.as_ref().map_or(f64::NAN, Decimal::value);
    (speed(&slowdown.promised_items_per_second) / speed(&slowdown.items_per_second)).ln()
}

/// Whether the settings in effect were slow in the comparison too, and not only in the training before.
fn was_slow(slowdown: &SlowdownStatus) -> bool {
    let promised = slowdown.promised_items_per_second.as_ref().map_or(f64::NAN, Decimal::value);
    let with = slowdown.launches.iter().filter(|launch| launch.arm == Arm::Candidate);
    let found = median(with.filter_map(|launch| launch.measured.items_per_second.as_ref()).map(Decimal::value));
    found.is_some_and(|found| (promised / found).ln() > lost(slowdown) / 2.0)
}

/// Reports the slow-down, and resumes the training: from now on it is compared with its own speed on these devices.
fn explained_by_no_phase(draft: &mut Draft<'_>, slowdown: &SlowdownStatus, reason: Reason, why: &str) -> Step {
    let windows = draft.spec.train.guard.windows.max(1);
    let message = format!("{}; {why}; no phase is rolled back", slowdown.message);
    let training = draft.training_mut();
    let times = training.slowdowns.saturating_sub(1).min(DOUBLINGS);
    training.slowdown = None;
    training.quiet_windows = windows.saturating_mul(QUIET << times);
    training.degraded = bounded(&message);
    let speed = slowdown.items_per_second.clone();
    let machine = |items_per_second| SlowMachine { placement: slowdown.placement.clone(), items_per_second };
    training.slow_machine = speed.map(machine);
    draft.warning(reason, message, None);
    Step::Moved
}

/// Compares the settings in effect with those without the phase at `suspect`, or without any phase.
fn compare(draft: &Draft<'_>, slowdown: &SlowdownStatus, settings: &Settings, suspect: Option<usize>) -> Finding {
    let phase = suspect.map(|index| draft.spec.phases[index].name.clone());
    let number = draft.status.training.as_ref().map_or(0, |training| training.slowdowns);
    let task = Task::Slowdown { number, phase: phase.clone() };
    let failures = draft.failures(&task.to_string());
    let gone = gone(draft, suspect);
    let control = draft.tuned_with(|index, phase| accepted(phase) && !gone.contains(&index));
    let comparison =
        Comparison::new(draft, (task, EvidenceTarget::Slowdown), (control, settings.clone()), &slowdown.launches);
    if let Some(launch) = slowdown.launches.iter().find(|launch| launch.outcome != Outcome::Done) {
        return Finding::Unclear(format!("its cause could not be measured: {}", description(launch)));
    }
    let of = phase.as_deref().unwrap_or("any phase");
    let (pairs, _) = comparison.pairs(0);
    let blames = |pair: &Pair<'_>| blames(draft, slowdown, suspect, pair);
    let shown = pairs.first().map(|pair| {
        let known = known(draft, suspect);
        format!(
            "with and without {of} on the same devices: {:.3}x, measured before: {:.3}x",
            ratio(pair),
            known.speedup.exp()
        )
    });
    if let Some(shown) = shown.as_ref().filter(|_| !pairs.iter().take(PAIRS).all(blames)) {
        return Finding::Cleared(shown.clone());
    }
    let wanted = if pairs.is_empty() { 1 } else { PAIRS };
    if let Some(shown) = shown.filter(|_| pairs.len() >= PAIRS) {
        return Finding::Blamed(shown);
    }
    let unsteady = comparison.unsteady();
    if unsteady.len() >= UNSTEADY {
        let count = unsteady.len();
        let note = unrest(unsteady.into_iter()).map(|unrest| format!(" ({})", unrest.among(count)));
        let note = note.unwrap_or_default();
        return Finding::Unclear(format!("its cause could not be measured: {count} pairs were not steady{note}"));
    }
    if failures >= FAILURES {
        return Finding::Unclear(format!("its cause could not be measured: {failures} failures"));
    }
    let (_, mut launches) = comparison.pairs(wanted);
    for launch in &mut launches {
        launch.entitle(draft.spec, &format!("slow training, with and without {of}"), 0);
    }
    let task = comparison.task.to_string();
    Finding::More(Work { purpose: Purpose::LeaveOneOut, phase, task, launches, stop_on_failure: true }.bounded())
}

/// The phases that would be reverted with the phase at `suspect`, or all that may be.
fn gone(draft: &Draft<'_>, suspect: Option<usize>) -> BTreeSet<usize> {
    match suspect {
        Some(index) => gone_with(draft, index, draft.spec.rollback.scope),
        None => suspects(draft, Blame::Newest).into_iter().collect(),
    }
}

/// Whether a pair shows that the phase is the cause: its ratio is closer to the slow-down than to what was measured
/// before, and below the interval of that.
fn blames(draft: &Draft<'_>, slowdown: &SlowdownStatus, suspect: Option<usize>, pair: &Pair<'_>) -> bool {
    let Known { speedup, reach } = known(draft, suspect);
    ratio(pair).ln() < speedup - reach.max(lost(slowdown) / 2.0)
}

/// Ratio of the items per second, candidate over control.
fn ratio(pair: &Pair<'_>) -> f64 {
    let (control, candidate) = pair.speeds();
    candidate / control
}

/// What was measured before about the phase at `suspect`, or about all accepted phases.
fn known(draft: &Draft<'_>, suspect: Option<usize>) -> Known {
    let bundle = draft.status.bundle.as_ref().filter(|bundle| bundle::is_current(draft, bundle));
    let together = bundle.and_then(|bundle| bundle.speedup.as_ref());
    let gone = gone(draft, suspect);
    // The bundle was compared with the baseline, which lacks the phases too that a pin keeps.
    if let Some(together) = together.filter(|_| gone.len() == draft.accepted_names().len()) {
        return Known::of(together);
    }
    let phases = gone.iter().filter_map(|index| draft.status.phases[*index].speedup.as_ref()).map(Known::of);
    phases.fold(Known { speedup: 0.0, reach: 0.0 }, |sum, phase| Known {
        speedup: sum.speedup + phase.speedup,
        reach: sum.reach.hypot(phase.reach),
    })
}

impl Known {
    /// The bound is that of the mean of the pairs; the reach of a single further pair is larger.
    fn of(speedup: &Speedup) -> Self {
        let estimate = speedup.estimate.value().ln();
        let reach = speedup.lower.as_ref().map_or(0.0, |lower| estimate - lower.value().ln());
        Self { speedup: estimate, reach: reach * f64::from(speedup.pairs + 1).sqrt() }
    }
}
