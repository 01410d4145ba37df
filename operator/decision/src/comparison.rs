//! Pairs of launches: complete, excluded and missing ones.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::launch::{EvidenceTarget, Launch, budget, quality, quality_looks, seed, tag, tag_of, with_utilization};
use crate::revision::patch;
use crate::statistics::disturbed::{Launches, NotCounted};
use crate::task::Task;
use crate::trainer::comparable;
use pawl_api::status::{Arm, LaunchStatus};
use pawl_contract::attempt::AttemptName;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Disturbance;
use pawl_contract::plan::{Budget, LaunchKind, WindowLimit};
use pawl_contract::settings::Settings;
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Which pairs begin with the control: bit `i` of an order is pair `i`. A comparison takes one of these orders at
/// random, or its opposite.
///
/// A fixed order resonates: ABBA with a load whose period is four launches, ABAB with a drift. A random order of each
/// pair by itself is in one task of four the same in the first three pairs, which a drift then decides. This mixture
/// has the smallest worst case found over linear drift and loads of all periods from 2 to 24 launches, ten times as
/// strong as the noise, with the looks of the default analysis: see `simulation::speed`.
const ORDERS: [u8; 16] = [
    0b000_0100, 0b000_1011, 0b000_1011, 0b000_1011, 0b000_1110, 0b010_0001, 0b010_0001, 0b010_0001, 0b010_0001,
    0b010_0001, 0b010_0100, 0b010_0100, 0b010_1100, 0b010_1110, 0b010_1110, 0b011_0001,
];

/// Whether pair `index` of a task begins with its control.
pub(crate) fn control_first(task: &str, index: u32) -> bool {
    let random = u32::from_str_radix(&fingerprint(&json!(["order", task]), 8), 16).unwrap_or_default();
    let (order, opposite, rest) = (random & 15, random >> 4 & 1 == 1, random >> 5);
    let first = match index {
        0..7 => ORDERS[order as usize] >> index & 1 == 1,
        // Pairs that replace others.
        _ => rest >> (index % 27) & 1 == 1,
    };
    first != opposite
}

/// Steps whose batches the loaders of a rank prepare ahead.
fn queue_steps(settings: &Settings, world_size: u32) -> u64 {
    settings.queue_steps(settings.accumulation(world_size).unwrap_or(1))
}

/// Pairs with a larger index are ignored: they are from a corrupt status.
const MAX_INDEX: u32 = 1024;

/// A comparison of two settings. Only launches with exactly these settings are evidence.
pub(crate) struct Comparison<'a> {
    pub draft: &'a Draft<'a>,
    /// The task: prefix of launch names, and unit of counting retries.
    pub task: Task,
    pub target: EvidenceTarget,
    pub control: Settings,
    pub candidate: Settings,
    pub evidence: &'a [LaunchStatus],
    tags: RefCell<BTreeMap<(LaunchKind, u32, bool, u32), String>>,
}

/// Two launches that may be compared.
pub(crate) struct Pair<'a> {
    pub control: &'a LaunchStatus,
    pub candidate: &'a LaunchStatus,
}

impl<'a> Comparison<'a> {
    pub fn new(
        draft: &'a Draft<'a>,
        (task, target): (Task, EvidenceTarget),
        (control, candidate): (Settings, Settings),
        evidence: &'a [LaunchStatus],
    ) -> Self {
        Self { draft, task, target, control, candidate, evidence, tags: RefCell::default() }
    }

    fn settings(&self, arm: Arm) -> &Settings {
        match arm {
            Arm::Control => &self.control,
            Arm::Candidate => &self.candidate,
        }
    }

    /// The phase's fallback in effect, from 1; 0: none.
    pub fn fallback(&self) -> u32 {
        self.draft.subject(self.target).1
    }

    /// Looks at launches of this kind, each with a budget of its own.
    fn looks(&self, kind: LaunchKind) -> u32 {
        if kind == LaunchKind::Quality { quality_looks(self.draft.spec) } else { 1 }
    }

    /// The budget of a launch for look number `look`.
    fn budget(&self, kind: LaunchKind, look: u32) -> Budget {
        let spec = self.draft.spec;
        let budget = if kind == LaunchKind::Quality { quality(spec, look) } else { budget(spec, kind) };
        match (kind, self.target) {
            // The gate on the utilization is one of all accepted phases together.
            (LaunchKind::Measure, EvidenceTarget::Bundle) => self.beyond_queues(with_utilization(spec, budget)),
            (LaunchKind::Measure, _) => self.beyond_queues(budget),
            (_, _) => budget,
        }
    }

    /// Warm-up and window twice as long as the longer queue of both arms: what the loaders have prepared before the
    /// first step is used up then, unless they are almost fast enough.
    fn beyond_queues(&self, budget: Budget) -> Budget {
        let world = self.draft.spec.trainer.world_size();
        lengthened(budget, queue_steps(&self.control, world).max(queue_steps(&self.candidate, world)))
    }

    /// Steps of a measurement before its window.
    pub fn warmup_steps(&self) -> u64 {
        self.budget(LaunchKind::Measure, 0).warmup_steps.unwrap_or_default()
    }

    /// Steps of a measurement that is not ended by time, its warm-up included.
    pub fn measured_steps(&self) -> u64 {
        let budget = self.budget(LaunchKind::Measure, 0);
        budget.warmup_steps.unwrap_or_default() + budget.window_steps.unwrap_or_default()
    }

    /// The tag of a launch of this comparison.
    fn tag(&self, (kind, look): (LaunchKind, u32), arm: Arm, index: u32) -> String {
        let spec = self.draft.spec;
        let seed = seed(spec, index);
        let key = (kind, look, arm == Arm::Candidate, seed);
        let fresh = || tag(spec, kind, self.settings(arm), seed, &self.budget(kind, look));
        self.tags.borrow_mut().entry(key).or_insert_with(fresh).clone()
    }

    /// The launch of this comparison in the evidence, however it ended.
    pub fn find(&self, kind: LaunchKind, arm: Arm, index: u32) -> Option<&'a LaunchStatus> {
        self.find_at(kind, self.looks(kind) - 1, arm, index)
    }

    /// As [`Comparison::find`], for look number `look`.
    pub fn find_at(&self, kind: LaunchKind, look: u32, arm: Arm, index: u32) -> Option<&'a LaunchStatus> {
        let fits = |l: &&LaunchStatus| l.kind == kind && l.arm == arm && l.pair == index && comparable(l);
        let mut found = self.evidence.iter().filter(fits).peekable();
        found.peek()?;
        let tag = self.tag((kind, look), arm, index);
        found.find(|launch| tag_of(&launch.name) == tag)
    }

    /// Whether a launch in the evidence is one of this comparison, and the first of its name.
    pub fn includes(&self, launch: &LaunchStatus) -> bool {
        (0..self.looks(launch.kind)).any(|look| {
            let found = self.find_at(launch.kind, look, launch.arm, launch.pair);
            found.is_some_and(|found| std::ptr::eq(found, launch))
        })
    }

    /// All launches of the candidate in the evidence.
    pub fn candidates(&self) -> impl Iterator<Item = &'a LaunchStatus> + '_ {
        let all = self.evidence.iter().filter(|launch| launch.arm == Arm::Candidate && comparable(launch));
        all.filter(|launch| {
            let mut looks = 0..self.looks(launch.kind);
            looks.any(|look| tag_of(&launch.name) == self.tag((launch.kind, look), launch.arm, launch.pair))
        })
    }

    /// A launch to run.
    pub fn launch(&self, kind: LaunchKind, arm: Arm, index: u32) -> Launch {
        self.launch_at(kind, self.looks(kind) - 1, arm, index)
    }

    /// As [`Comparison::launch`], for look number `look`.
    pub fn launch_at(&self, kind: LaunchKind, look: u32, arm: Arm, index: u32) -> Launch {
        let stem = stem(&self.task, kind, arm, index);
        let of = (self.target, arm, index);
        self.draft.launch_with(&stem, (kind, self.budget(kind, look)), self.settings(arm), of)
    }

    /// The pairs with a launch whose window was not steady: what was observed in the control and in the candidate.
    pub fn unsteady(&self) -> Vec<[Disturbance; 2]> {
        let unsteady = |launch: &&LaunchStatus| launch.kind == LaunchKind::Measure && !launch.measured.is_steady();
        let launches = self.evidence.iter().filter(unsteady).filter(|launch| self.includes(launch));
        let pairs: BTreeSet<u32> = launches.map(|launch| launch.pair).collect();
        let of_pair = |pair: u32| {
            let launch = |arm| self.find(LaunchKind::Measure, arm, pair).map(observed).unwrap_or_default();
            [launch(Arm::Control), launch(Arm::Candidate)]
        };
        pairs.into_iter().map(of_pair).collect()
    }

    /// Whether the attempt that ran a launch may still run others.
    fn is_under_way(&self, launch: &LaunchStatus) -> bool {
        let number = |name: &str| AttemptName::parse(name).map(|name| name.number);
        launch.attempt == 0 || self.draft.under_way().any(|attempt| number(&attempt.name) == Some(launch.attempt))
    }

    /// The valid pairs, in order, and the launches that are missing for `wanted` pairs. The order within a pair is
    /// random ([`control_first`]). A pair whose launches ran on different devices or in different attempts, or with a
    /// launch that was not steady, is excluded and replaced by another one: between two attempts, the machine may have
    /// become another one.
    pub fn pairs(&self, wanted: usize) -> (Vec<Pair<'a>>, Vec<Launch>) {
        let done =
            |arm, index| self.find(LaunchKind::Measure, arm, index).filter(|launch| launch.outcome == Outcome::Done);
        let (mut pairs, mut missing) = (Vec::new(), Vec::new());
        let measured = self.evidence.iter().filter(|launch| launch.kind == LaunchKind::Measure && comparable(launch));
        let end = measured.map(|launch| launch.pair.saturating_add(1)).max().unwrap_or(0).min(MAX_INDEX);
        let (mut planned, task) = (0, self.task.to_string());
        for index in 0.. {
            if index >= end && pairs.len() + planned >= wanted {
                break;
            }
            match (done(Arm::Control, index), done(Arm::Candidate, index)) {
                (Some(control), Some(candidate)) if excluded(control, candidate).is_none() => {
                    pairs.push(Pair { control, candidate });
                }
                (Some(_), Some(_)) => {}
                // Its partner can no longer follow in the same attempt.
                (Some(one), None) | (None, Some(one)) if !self.is_under_way(one) => {}
                (control, candidate) if pairs.len() + planned < wanted => {
                    let mut order = [(Arm::Control, control), (Arm::Candidate, candidate)];
                    if !control_first(&task, index) {
                        order.reverse();
                    }
                    let absent = order.into_iter().filter(|(_, found)| found.is_none());
                    missing.extend(absent.map(|(arm, _)| self.launch(LaunchKind::Measure, arm, index)));
                    planned += 1;
                }
                _ => {}
            }
        }
        // What is under way keeps its order, and thus the hash of its plan, also if an earlier version has planned it.
        let under_way = self.draft.under_way().find(|attempt| attempt.task == task);
        let place = |launch: &Launch| under_way?.launches.iter().position(|name| *name == launch.plan.launch);
        missing.sort_by_key(|launch| place(launch).unwrap_or(usize::MAX));
        (pairs, missing)
    }
}

/// The name of a launch without its tag.
pub(crate) fn stem(task: &Task, kind: LaunchKind, arm: Arm, index: u32) -> String {
    let side = match arm {
        Arm::Control => "a",
        Arm::Candidate => "b",
    };
    match kind {
        LaunchKind::Preflight => format!("{task}-check-{side}"),
        LaunchKind::Measure => format!("{task}-p{index}-{side}"),
        LaunchKind::Quality => format!("{task}-s{index}-{side}"),
        LaunchKind::Search | LaunchKind::Train => format!("{task}-{index}-{side}"),
    }
}

/// Why two launches are no evidence as a pair, whatever their speed; `None` if they are.
pub(crate) fn excluded(control: &LaunchStatus, candidate: &LaunchStatus) -> Option<NotCounted> {
    let both = [control, candidate];
    if !both.into_iter().all(comparable) {
        Some(NotCounted::OtherBuild)
    } else if both.into_iter().any(|launch| launch.outcome != Outcome::Done) {
        Some(NotCounted::Failed)
    } else if control.placement != candidate.placement || !in_one_attempt(control, candidate) {
        Some(NotCounted::Apart)
    } else {
        (!both.into_iter().all(|launch| launch.measured.is_steady())).then_some(NotCounted::NotSteady)
    }
}

/// Whether two launches ran in the same attempt, as far as that is known.
fn in_one_attempt(one: &LaunchStatus, other: &LaunchStatus) -> bool {
    one.attempt == other.attempt || one.attempt == 0 || other.attempt == 0
}

/// A measurement whose warm-up and window are at least twice as long as a queue of so many steps.
fn lengthened(budget: Budget, queue: u64) -> Budget {
    let at_least = |known: Option<u64>| known.map(|known| known.max(2 * queue));
    // The default is derived from the settings.
    let window_limit = budget.window_limit.map(|limit| WindowLimit {
        warmup_steps: limit.warmup_steps.max(2 * queue),
        window_steps: limit.window_steps.max(2 * queue),
        ..limit
    });
    Budget {
        warmup_steps: at_least(budget.warmup_steps),
        window_steps: at_least(budget.window_steps),
        window_limit,
        ..budget
    }
}

/// The budgets with which `settings` may have been measured: beside the baseline, and in the comparison of each phase.
pub(crate) fn measured_budgets(draft: &Draft<'_>, settings: &Settings) -> Vec<Budget> {
    let spec = draft.spec;
    let world = spec.trainer.world_size();
    let own = queue_steps(settings, world);
    let phases = spec.phases.iter().zip(&draft.status.phases).enumerate();
    let others = phases.flat_map(|(index, (phase, status))| {
        let control = draft.control(index);
        let candidate = control.with(&patch(phase, status.fallback));
        [control, candidate]
    });
    let others = others.chain([spec.settings.clone(), draft.effective()]);
    let queues: BTreeSet<u64> = others.map(|other| queue_steps(&other, world).max(own)).collect();
    let mut budgets: Vec<Budget> = Vec::new();
    for queue in queues {
        let of_phase = lengthened(budget(spec, LaunchKind::Measure), queue);
        let of_bundle = with_utilization(spec, of_phase.clone());
        for budget in [of_phase, of_bundle] {
            if !budgets.contains(&budget) {
                budgets.push(budget);
            }
        }
    }
    budgets
}

impl Pair<'_> {
    /// Items per second of the control and of the candidate.
    pub fn speeds(&self) -> (f64, f64) {
        let speed =
            |launch: &LaunchStatus| launch.measured.items_per_second.as_ref().map_or(f64::NAN, |speed| speed.value());
        (speed(self.control), speed(self.candidate))
    }
}

impl Launches for Pair<'_> {
    fn speeds(&self) -> (f64, f64) {
        Pair::speeds(self)
    }

    fn disturbances(&self) -> [Disturbance; 2] {
        [self.control, self.candidate].map(observed)
    }
}

/// What else happened on the machine of a launch.
fn observed(launch: &LaunchStatus) -> Disturbance {
    launch.measured.disturbance.filter_map(|share| Some(share.value()))
}
