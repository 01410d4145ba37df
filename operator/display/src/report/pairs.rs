//! What a comparison measured: its pairs of launches, and launches without a partner.

use crate::together::TOGETHER;
use pawl_api::TrainingJobStatus;
use pawl_api::spec::{Phase, TrainingJobSpec};
use pawl_api::status::{BundleStatus, LaunchStatus, PhaseState, PhaseStatus, QualityStatus, Speedup};
use pawl_contract::attempt::AttemptName;
use pawl_contract::disturbance::{DisturbanceKind, from_outside};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Disturbance, Measured};
use pawl_contract::plan::LaunchKind;
use pawl_decision::{CountedPair, NotCounted, confirmation, counted, loss_difference};
use std::collections::BTreeMap;

/// A comparison of two settings: of a phase with the settings accepted before it, or of all accepted phases with the
/// baseline.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// Name of the phase, or [`TOGETHER`].
    pub name: &'a str,
    /// Whether it has a verdict.
    pub is_final: bool,
    /// Whether its settings were accepted.
    pub is_accepted: bool,
    /// Its evidence.
    pub launches: &'a [LaunchStatus],
    /// Its speedup.
    pub speedup: Option<&'a Speedup>,
    /// Its quality.
    pub quality: Option<&'a QualityStatus>,
    /// The speedup by which it is decided when enough is measured, and which pairs count, a ratio: `minSpeedup` of a
    /// phase, `gates.overallSpeedup` of all together.
    required: Option<f64>,
    /// The speedup that it must reach, a ratio: [`Self::required`], or of all together without such a gate, what
    /// confirms the accepted phases. `None` where any speedup is enough.
    pub needed: Option<f64>,
    /// Its complete pairs, by number. Which of them count is what the verdict was reached by.
    pub pairs: Vec<Pair>,
    /// Its launches whose partner will not run any more, by the number of the pair. Another pair may take the place of
    /// each.
    pub half_pairs: Vec<HalfPair>,
}

/// Those of all phases, in order, and then that of all accepted phases together, as far as the status has them.
pub fn comparisons<'a>(spec: &TrainingJobSpec, status: &'a TrainingJobStatus) -> Vec<Comparison<'a>> {
    let phases = status.phases.iter().map(|phase| Comparison::of_phase(phase, spec));
    let bundle = status.bundle.iter().map(|bundle| Comparison::of_bundle(bundle, spec, status));
    phases.chain(bundle).map(|it| it.with_pairs(spec, status)).collect()
}

impl<'a> Comparison<'a> {
    /// That of a phase, without pairs.
    fn of_phase(phase: &'a PhaseStatus, spec: &TrainingJobSpec) -> Self {
        let required = spec.phases.iter().find(|written| written.name == phase.name).map(Phase::min_speedup);
        Self {
            name: &phase.name,
            is_final: phase.state.is_final(),
            is_accepted: phase.state == PhaseState::Accepted,
            launches: &phase.launches,
            speedup: phase.speedup.as_ref(),
            quality: phase.quality.as_ref(),
            required,
            needed: required,
            pairs: Vec::new(),
            half_pairs: Vec::new(),
        }
    }

    /// That of all accepted phases together, without pairs.
    fn of_bundle(bundle: &'a BundleStatus, spec: &TrainingJobSpec, status: &TrainingJobStatus) -> Self {
        let required = spec.gates.overall_speedup.as_ref().map(|gate| gate.value());
        Self {
            name: TOGETHER,
            is_final: bundle.state.is_final(),
            is_accepted: bundle.state == PhaseState::Accepted,
            launches: &bundle.launches,
            speedup: bundle.speedup.as_ref(),
            quality: bundle.quality.as_ref(),
            required,
            needed: required.or_else(|| confirmation(spec, status)),
            pairs: Vec::new(),
            half_pairs: Vec::new(),
        }
    }

    fn with_pairs(self, spec: &TrainingJobSpec, status: &TrainingJobStatus) -> Self {
        let counted = counted(self.launches, self.speedup, self.required, &spec.analysis);
        let (pairs, half_pairs) = (counted.iter().filter_map(pair).collect(), self.half_pairs(status));
        Self { pairs, half_pairs, ..self }
    }

    /// The pairs that count.
    pub fn counted(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(|pair| pair.not_counted.is_none())
    }

    fn half_pairs(&self, status: &TrainingJobStatus) -> Vec<HalfPair> {
        let mut found: BTreeMap<u32, Vec<&LaunchStatus>> = BTreeMap::new();
        for launch in self.launches.iter().filter(|launch| launch.kind == LaunchKind::Measure) {
            found.entry(launch.pair).or_default().push(launch);
        }
        let alone = found.into_values().filter(|of_pair| of_pair.iter().all(|launch| launch.arm == of_pair[0].arm));
        let newest = alone.filter_map(|of_pair| of_pair.last().copied());
        newest.filter_map(|launch| Some(HalfPair { number: launch.pair, why: self.alone(launch, status)? })).collect()
    }

    /// Why a launch has no partner; `None` if that may follow.
    fn alone(&self, launch: &LaunchStatus, status: &TrainingJobStatus) -> Option<Alone> {
        let number = |name: &str| AttemptName::number_of(name);
        let may_run = |launch: &LaunchStatus| status.under_way().any(|other| number(&other.name) == launch.attempt);
        if !self.is_final && (launch.attempt == 0 || may_run(launch)) {
            return None;
        }
        Some(if launch.outcome != Outcome::Done {
            Alone::Failed
        } else if launch.attempt == 0 {
            Alone::Unknown
        } else {
            Alone::AttemptEnded
        })
    }
}

/// A pair with only one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPair {
    /// Index of the pair, from 0.
    pub number: u32,
    /// Why it has no other one.
    pub why: Alone,
}

/// Why a launch has no partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// The attempt that ran it ended before the other one ran.
    AttemptEnded,
    /// It did not end as planned.
    Failed,
    /// The status does not have the other one.
    Unknown,
}

impl Alone {
    /// The reason, for people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::AttemptEnded => "only one launch, its attempt ended before the other",
            Self::Failed => "only one launch, which did not end as planned",
            Self::Unknown => "only one launch is in the status",
        }
    }
}

/// A pair of comparable launches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Index of the pair, from 0.
    pub number: u32,
    /// Seed of both launches.
    pub seed: u32,
    /// Items per second with the settings accepted so far.
    pub control: f64,
    /// Items per second with the phase.
    pub candidate: f64,
    /// Relative difference of the candidate's training losses from the control's, if both have some.
    pub loss: Option<f64>,
    /// What disturbed one of the launches from outside, and its share, 0 to 1.
    pub disturbed: Option<(DisturbanceKind, f64)>,
    /// Whether it is known of both launches how much other programs used the CPUs or the GPU.
    pub observed: bool,
    /// Why the speedup is without the pair; `None` if the pair counts.
    pub not_counted: Option<NotCounted>,
}

impl Pair {
    /// The number of the pair for people, with its mark: `~` if it does not count; of one that counts, `*` if it was
    /// disturbed, `?` if that is not known.
    pub fn label(&self) -> String {
        let mark = match (self.not_counted, self.disturbed, self.observed) {
            (Some(_), ..) => "~",
            (None, Some(_), _) => "*",
            (None, None, true) => "",
            (None, None, false) => "?",
        };
        format!("{}{mark}", self.number + 1)
    }

    /// What is to be said of the pair: whether it counts, and whether it was disturbed.
    pub fn notes(&self) -> String {
        let counts = match self.not_counted {
            Some(NotCounted::Unknown) => NotCounted::Unknown.to_string(),
            Some(why) => format!("does not count: {why}"),
            None => "counts".to_owned(),
        };
        // What a pair does not count for is said already.
        match (self.disturbance(), self.not_counted) {
            (_, Some(NotCounted::Disturbed(..))) => counts,
            (Some(disturbed), _) => format!("{counts}; disturbed: {disturbed}"),
            (None, _) if !self.observed => format!("{counts}; whether other programs disturbed it is not known"),
            (None, _) => counts,
        }
    }

    /// Ratio of the items per second, candidate over control.
    pub fn ratio(&self) -> f64 {
        self.candidate / self.control
    }

    /// `other programs used the CPUs: 41 %`, if it was disturbed.
    pub fn disturbance(&self) -> Option<String> {
        self.disturbed.map(|(kind, share)| format!("{kind}: {:.0} %", share * 100.0))
    }
}

/// A pair with the speeds of both launches.
fn pair(counted: &CountedPair<'_>) -> Option<Pair> {
    let &CountedPair { control, candidate, not_counted } = counted;
    let launches = [control, candidate].map(|launch| Measured::<f64>::from(&launch.measured).disturbance);
    let is_observed = |it: &Disturbance| it.other_cpu_share.is_some() || it.shared_gpu_share.is_some();
    Some(Pair {
        number: candidate.pair,
        seed: candidate.seed,
        control: speed(control)?,
        candidate: speed(candidate)?,
        loss: loss_difference(control, candidate),
        disturbed: from_outside(launches.each_ref()),
        observed: launches.iter().all(is_observed),
        not_counted,
    })
}

fn speed(launch: &LaunchStatus) -> Option<f64> {
    launch.measured.items_per_second.as_ref().map(|speed| speed.value()).filter(|&speed| speed > 0.0)
}
