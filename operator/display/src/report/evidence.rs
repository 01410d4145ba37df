//! What a report is made of: manifest, status, events, and what launches measured, wherever the job ran.

use crate::event::EventRecord;
use pawl_api::status::{Arm, LaunchStatus};
use pawl_api::title::Title;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::{LaunchResult, LossPoint, Report};
use std::collections::BTreeMap;

/// A launch that finished, and what it measured.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedLaunch {
    /// What it is, such as `compile: pair 2 of 3, control`.
    pub title: String,
    /// Name of the launch: of its files, too.
    pub name: String,
    /// Name of its attempt; empty when that is not known any more.
    pub attempt: String,
    /// What it was for.
    pub kind: LaunchKind,
    /// Seed of weights and data order.
    pub seed: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What the trainer said, unless all was well.
    pub message: String,
    /// What was measured.
    pub measured: Measured,
    /// The training loss curve, where its report is at hand.
    pub losses: Vec<LossPoint>,
}

impl FinishedLaunch {
    /// The launch that `plan` asked for in the attempt `attempt`, and its whole report.
    pub fn reported(attempt: &str, plan: &LaunchPlan, report: &Report) -> Self {
        let LaunchResult { launch, outcome, measured, .. } = LaunchResult::from(report);
        Self {
            title: plan.shown().to_owned(),
            name: launch,
            attempt: attempt.to_owned(),
            kind: plan.kind,
            seed: plan.seed,
            outcome,
            message: report.message.clone(),
            measured,
            losses: report.losses.clone(),
        }
    }

    /// A launch of which the status keeps what was measured.
    fn kept(title: &Title<'_>, launch: &LaunchStatus) -> Self {
        Self {
            title: title.to_string(),
            name: launch.name.clone(),
            attempt: String::new(),
            kind: launch.kind,
            seed: launch.seed.into(),
            outcome: launch.outcome,
            message: launch.message.clone(),
            measured: Measured::from(&launch.measured),
            losses: Vec::new(),
        }
    }
}

/// Everything that is known of a job.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The manifest as it runs; its own `status` is not read.
    pub job: TrainingJob,
    /// What Pawl believes, and why.
    pub status: TrainingJobStatus,
    /// What happened, oldest first.
    pub events: Vec<EventRecord>,
    /// The launches that finished, oldest first.
    pub launches: Vec<FinishedLaunch>,
}

/// A pair of launches whose speeds may be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Number of the pair, from 0.
    pub number: u32,
    /// Seed of both.
    pub seed: u32,
    /// Items per second with the settings accepted so far.
    pub control: f64,
    /// Items per second with the phase.
    pub candidate: f64,
}

impl Pair {
    /// Candidate over control.
    pub fn ratio(&self) -> f64 {
        self.candidate / self.control
    }
}

impl Evidence {
    /// Name of the job.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// What the status knows of a job, and the launches whose reports are at hand: all of them where the job ran on this
    /// machine, none where it ran on a cluster, whose pods take their reports with them. Of any other launch there is what
    /// the status keeps.
    pub fn new(
        job: TrainingJob,
        status: TrainingJobStatus,
        events: Vec<EventRecord>,
        reported: Vec<FinishedLaunch>,
    ) -> Self {
        let mut launches = reported;
        for (title, launch) in judged(&status) {
            match launches.iter_mut().find(|known| known.name == launch.name) {
                Some(known) => known.title = title.to_string(),
                None => launches.push(FinishedLaunch::kept(&title, launch)),
            }
        }
        Self { job, status, events, launches }
    }

    /// A launch by name.
    pub fn launch(&self, name: &str) -> Option<&FinishedLaunch> {
        self.launches.iter().find(|finished| finished.name == name)
    }

    /// The launches that trained for real, oldest first.
    pub fn training(&self) -> impl Iterator<Item = &FinishedLaunch> {
        self.launches.iter().filter(|finished| finished.kind == LaunchKind::Train)
    }
}

/// The launches that the status keeps as evidence, and what they are.
fn judged(status: &TrainingJobStatus) -> Vec<(Title<'_>, &LaunchStatus)> {
    let baseline = status.baseline.iter().map(|baseline| ("baseline", 0, &baseline.launches));
    let phases = status.phases.iter().map(|phase| (phase.name.as_str(), phase.rung, &phase.launches));
    let bundle = status.bundle.iter().map(|bundle| ("all together", 0, &bundle.launches));
    let all = baseline.chain(phases).chain(bundle);
    let titled = all.flat_map(|(subject, rung, launches)| {
        launches.iter().map(move |launch| (Title::of_evidence(subject, rung, launches, launch), launch))
    });
    titled.collect()
}

/// The complete pairs among `launches`, by number.
pub fn pairs(launches: &[LaunchStatus]) -> Vec<Pair> {
    let mut found: BTreeMap<u32, (Option<f64>, Option<f64>, u32)> = BTreeMap::new();
    for launch in launches.iter().filter(|launch| launch.kind == LaunchKind::Measure) {
        let Some(speed) =
            launch.measured.items_per_second.as_ref().map(|speed| speed.value()).filter(|&speed| speed > 0.0)
        else {
            continue;
        };
        let pair = found.entry(launch.pair).or_default();
        pair.2 = launch.seed;
        match launch.arm {
            Arm::Control => pair.0 = Some(speed),
            Arm::Candidate => pair.1 = Some(speed),
        }
    }
    let complete = found.into_iter().filter_map(|(number, (control, candidate, seed))| {
        Some(Pair { number, seed, control: control?, candidate: candidate? })
    });
    complete.collect()
}
