//! Pairs of launches: complete, excluded and missing ones.

use crate::draft::Draft;
use crate::launch::{EvidenceTarget, Launch, budget, quality, quality_looks, seed, tag, tag_of};
use crate::trainer::comparable;
use crate::trial::Trial;
use pawl_api::status::{Arm, LaunchStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{Budget, LaunchKind};
use pawl_contract::settings::Settings;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Pairs with a larger index are ignored: they are from a corrupt status.
const MAX_INDEX: u32 = 1024;

/// A comparison of two settings. Only launches with exactly these settings are evidence.
pub(crate) struct Comparison<'a> {
    pub draft: &'a Draft<'a>,
    /// The trial: prefix of launch names, and unit of counting retries.
    pub trial: Trial,
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
        (trial, target): (Trial, EvidenceTarget),
        (control, candidate): (Settings, Settings),
        evidence: &'a [LaunchStatus],
    ) -> Self {
        Self { draft, trial, target, control, candidate, evidence, tags: RefCell::default() }
    }

    fn settings(&self, arm: Arm) -> &Settings {
        match arm {
            Arm::Control => &self.control,
            Arm::Candidate => &self.candidate,
        }
    }

    /// Looks at launches of this kind, each with a budget of its own.
    fn looks(&self, kind: LaunchKind) -> u32 {
        if kind == LaunchKind::Quality { quality_looks(self.draft.spec) } else { 1 }
    }

    /// The budget of a launch for look number `look`.
    fn budget(&self, kind: LaunchKind, look: u32) -> Budget {
        let spec = self.draft.spec;
        if kind == LaunchKind::Quality { quality(spec, look) } else { budget(spec, kind) }
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
        let side = match arm {
            Arm::Control => "a",
            Arm::Candidate => "b",
        };
        let stem = match kind {
            LaunchKind::Preflight => format!("{}-check-{side}", self.trial),
            LaunchKind::Measure => format!("{}-p{index}-{side}", self.trial),
            LaunchKind::Quality => format!("{}-s{index}-{side}", self.trial),
            LaunchKind::Search | LaunchKind::Train => format!("{}-{index}-{side}", self.trial),
        };
        let of = (self.target, arm, index);
        self.draft.launch_with(&stem, (kind, self.budget(kind, look)), self.settings(arm), of)
    }

    /// The valid pairs, in order, and the launches that are missing for `wanted` pairs, in ABBA order, so that drift cancels
    /// out. A pair whose launches ran on different devices is excluded and replaced by another one.
    pub fn pairs(&self, wanted: usize) -> (Vec<Pair<'a>>, Vec<Launch>) {
        let done =
            |arm, index| self.find(LaunchKind::Measure, arm, index).filter(|launch| launch.outcome == Outcome::Done);
        let (mut pairs, mut missing) = (Vec::new(), Vec::new());
        let measured = self.evidence.iter().filter(|launch| launch.kind == LaunchKind::Measure && comparable(launch));
        let end = measured.map(|launch| launch.pair.saturating_add(1)).max().unwrap_or(0).min(MAX_INDEX);
        let mut planned = 0;
        for index in 0.. {
            if index >= end && pairs.len() + planned >= wanted {
                break;
            }
            match (done(Arm::Control, index), done(Arm::Candidate, index)) {
                (Some(control), Some(candidate)) if control.placement == candidate.placement => {
                    pairs.push(Pair { control, candidate });
                }
                (Some(_), Some(_)) => {}
                (control, candidate) if pairs.len() + planned < wanted => {
                    let mut order = [(Arm::Control, control), (Arm::Candidate, candidate)];
                    if index % 2 == 1 {
                        order.reverse();
                    }
                    let absent = order.into_iter().filter(|(_, found)| found.is_none());
                    missing.extend(absent.map(|(arm, _)| self.launch(LaunchKind::Measure, arm, index)));
                    planned += 1;
                }
                _ => {}
            }
        }
        (pairs, missing)
    }
}

impl Pair<'_> {
    /// Ratio of the items per second, candidate over control.
    pub fn ratio(&self) -> f64 {
        let speed =
            |launch: &LaunchStatus| launch.measured.items_per_second.as_ref().map_or(f64::NAN, |speed| speed.value());
        speed(self.candidate) / speed(self.control)
    }
}
