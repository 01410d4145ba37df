//! The input of a report: manifest, status, events and measurements of launches, independent of the shell.

use crate::event::EventRecord;
use crate::provenance::MeasuredWith;
use crate::together::TOGETHER;
use pawl_api::status::LaunchStatus;
use pawl_api::title::Title;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::details::Details;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::record::{Launched, Record};
use pawl_contract::report::{LaunchResult, LossPoint, Report};

/// A finished launch and its measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedLaunch {
    /// Its title, such as `compile: pair 2 of 3, control`.
    pub title: String,
    /// Name of the launch and of its directory.
    pub name: String,
    /// Name of its attempt; empty when unknown.
    pub attempt: String,
    /// Its purpose.
    pub kind: LaunchKind,
    /// Seed of weights and data order.
    pub seed: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Message of the trainer; empty after success.
    pub message: String,
    /// Its measurements.
    pub measured: Measured,
    /// Further measurements, if its report is available.
    pub details: Details,
    /// The training loss curve, if its report is available.
    pub losses: Vec<LossPoint>,
    /// Its evaluations, if its record is available.
    pub evaluations: Vec<Validation>,
}

impl FinishedLaunch {
    /// The launch of `plan` in the attempt `attempt`, with its complete report.
    pub fn reported(attempt: &str, plan: &LaunchPlan, report: &Report) -> Self {
        let LaunchResult { launch, outcome, measured, .. } = LaunchResult::from(report);
        Self {
            title: plan.display_title().to_owned(),
            name: launch,
            attempt: attempt.to_owned(),
            kind: plan.kind,
            seed: plan.seed,
            outcome,
            message: report.message.clone(),
            measured,
            details: report.details.clone(),
            losses: report.losses.clone(),
            evaluations: Vec::new(),
        }
    }

    /// The launches of an attempt, from the record in the job's storage.
    pub fn recorded(record: &Record) -> Vec<Self> {
        let finished = |launched: &Launched| {
            let plan = record.planned().find(|plan| plan.launch == launched.report.launch)?;
            Some(Self::reported(&record.begun.attempt, plan, &launched.report).with_record(launched))
        };
        record.launches.iter().filter_map(finished).collect()
    }

    /// The launch with what its record has beyond its report: all evaluations and, of a training, more points of its
    /// curve.
    #[must_use]
    pub fn with_record(self, launched: &Launched) -> Self {
        let finer = self.kind == LaunchKind::Train && launched.curve.len() > self.losses.len();
        let losses = if finer { launched.curve.clone() } else { self.losses };
        Self { losses, evaluations: launched.evaluations.clone(), ..self }
    }

    /// A launch from the evidence in the status.
    fn from_status(title: &Title<'_>, launch: &LaunchStatus) -> Self {
        Self {
            title: title.to_string(),
            name: launch.name.clone(),
            attempt: String::new(),
            kind: launch.kind,
            seed: launch.seed.into(),
            outcome: launch.outcome,
            message: launch.message.clone(),
            measured: Measured::from(&launch.measured),
            details: Details::default(),
            losses: Vec::new(),
            evaluations: Vec::new(),
        }
    }
}

/// The evidence about a job.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The manifest; its `status` is ignored.
    pub job: TrainingJob,
    /// The status.
    pub status: TrainingJobStatus,
    /// The events, oldest first.
    pub events: Vec<EventRecord>,
    /// The finished launches, oldest first.
    pub launches: Vec<FinishedLaunch>,
    /// What its attempts were measured with, oldest first, as far as that is known.
    pub measured_with: Vec<MeasuredWith>,
    /// The words of a user's command with the settings in effect, if `pawl tune` has tuned it.
    pub command: Option<Vec<String>>,
}

impl Evidence {
    /// Name of the job.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Combines the status with the launches whose reports are available: all of them for a local run, on a cluster
    /// those in the records of the job, if they were copied. Other launches are taken from the evidence in the status.
    pub fn new(
        job: TrainingJob,
        status: TrainingJobStatus,
        events: Vec<EventRecord>,
        reported: Vec<FinishedLaunch>,
    ) -> Self {
        let mut launches = reported;
        for (title, launch) in judged(&status) {
            let mut is_reported = false;
            // One that was stopped and run again has several reports.
            for known in launches.iter_mut().filter(|known| known.name == launch.name) {
                known.title = title.to_string();
                is_reported = true;
            }
            if !is_reported {
                launches.push(FinishedLaunch::from_status(&title, launch));
            }
        }
        Self { job, status, events, launches, measured_with: Vec::new(), command: None }
    }

    /// This with what the attempts were measured with, oldest first.
    #[must_use]
    pub fn with(self, measured_with: Vec<MeasuredWith>) -> Self {
        Self { measured_with, ..self }
    }

    /// This with the words of a user's command that has the settings in effect.
    #[must_use]
    pub fn with_command(self, command: Option<Vec<String>>) -> Self {
        Self { command, ..self }
    }

    /// A launch by name. Of one that was stopped and run again, the newest end that was not a stop.
    pub fn launch(&self, name: &str) -> Option<&FinishedLaunch> {
        let newest = self.launches.iter().filter(|finished| finished.name == name);
        newest.max_by_key(|finished| finished.outcome != Outcome::Stopped)
    }

    /// The training launches, oldest first.
    pub fn training(&self) -> impl Iterator<Item = &FinishedLaunch> {
        self.launches.iter().filter(|finished| finished.kind == LaunchKind::Train)
    }
}

/// The launches in the status, with their titles.
fn judged(status: &TrainingJobStatus) -> Vec<(Title<'_>, &LaunchStatus)> {
    let baseline = status.baseline.iter().map(|baseline| ("baseline", 0, &baseline.launches));
    let phases = status.phases.iter().map(|phase| (phase.name.as_str(), phase.fallback, &phase.launches));
    let bundle = status.bundle.iter().map(|bundle| (TOGETHER, 0, &bundle.launches));
    let all = baseline.chain(phases).chain(bundle);
    let titled = all.flat_map(|(subject, fallback, launches)| {
        launches.iter().map(move |launch| (Title::of_evidence(subject, fallback, launches, launch), launch))
    });
    titled.collect()
}
