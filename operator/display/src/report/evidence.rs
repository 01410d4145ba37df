//! What a report is made of: manifest, status, events, and the whole reports of launches.

use crate::event::EventRecord;
use pawl_api::status::{Arm, LaunchStatus, PhaseStatus};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Validation;
use pawl_contract::report::{LossPoint, Report};
use std::collections::BTreeMap;

/// A launch that finished, and what it found.
#[derive(Clone, Debug)]
pub struct FinishedLaunch {
    /// Name of its attempt; empty when that is not known any more.
    pub attempt: String,
    /// Seed of weights and data order.
    pub seed: u64,
    /// Its report.
    pub report: Report,
}

impl FinishedLaunch {
    /// A launch of which only what the status keeps is known: no curves, no times.
    pub fn from_status(launch: &LaunchStatus) -> Self {
        let value = |number: &Decimal| number.value();
        let loss = launch.loss.as_ref().map(|loss| LossPoint { items: launch.items, loss: loss.value() });
        let metrics: BTreeMap<String, f64> =
            launch.validation.iter().map(|(name, v)| (name.clone(), v.value())).collect();
        let report = Report {
            contract: CONTRACT_VERSION,
            launch: launch.name.clone(),
            kind: launch.kind,
            rank: 0,
            outcome: launch.outcome,
            message: launch.message.clone(),
            steps: 0,
            items: launch.items,
            items_per_second: launch.items_per_second.as_ref().map(value),
            step_seconds: None,
            losses: loss.into_iter().collect(),
            first_validation: None,
            validation: (!metrics.is_empty()).then_some(Validation { items: launch.items, metrics }),
            peak_memory_bytes: launch.memory,
            predicted_memory_bytes: None,
            loader_wait_share: launch.loader_wait_share.as_ref().map(value),
            collective_wait_share: None,
            offload_share: launch.offload_share.as_ref().map(value),
            utilization: launch.utilization.as_ref().map(value),
            items_per_epoch: None,
            last_checkpoint: None,
            best_checkpoint: None,
            failure: None,
            wall_seconds: 0.0,
        };
        Self { attempt: String::new(), seed: u64::from(launch.seed), report }
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

    /// What the status alone knows: the launches are those that it keeps as evidence.
    pub fn from_status(job: TrainingJob, status: TrainingJobStatus, events: Vec<EventRecord>) -> Self {
        let baseline = status.baseline.iter().flat_map(|baseline| &baseline.launches);
        let phases = status.phases.iter().flat_map(|phase| &phase.launches);
        let bundle = status.bundle.iter().flat_map(|bundle| &bundle.launches);
        let launches = baseline.chain(phases).chain(bundle).map(FinishedLaunch::from_status).collect();
        Self { job, status, events, launches }
    }

    /// The report of a launch by name.
    pub fn report(&self, launch: &str) -> Option<&Report> {
        self.launches.iter().find(|finished| finished.report.launch == launch).map(|finished| &finished.report)
    }

    /// The launches that trained for real, oldest first.
    pub fn training(&self) -> impl Iterator<Item = &FinishedLaunch> {
        self.launches.iter().filter(|finished| finished.report.kind == LaunchKind::Train)
    }

    /// The evidence of a launch in the status, by name, with the phase it speaks of.
    pub fn judged(&self, launch: &str) -> Option<(Option<&PhaseStatus>, &LaunchStatus)> {
        let status = &self.status;
        let named = |launches: &'_ [LaunchStatus]| launches.iter().position(|known| known.name == launch);
        for phase in &status.phases {
            if let Some(found) = named(&phase.launches) {
                return Some((Some(phase), &phase.launches[found]));
            }
        }
        let baseline = status.baseline.iter().flat_map(|baseline| &baseline.launches);
        let bundle = status.bundle.iter().flat_map(|bundle| &bundle.launches);
        baseline.chain(bundle).find(|known| known.name == launch).map(|known| (None, known))
    }
}

/// The complete pairs among `launches`, by number.
pub fn pairs(launches: &[LaunchStatus]) -> Vec<Pair> {
    let mut found: BTreeMap<u32, (Option<f64>, Option<f64>, u32)> = BTreeMap::new();
    for launch in launches.iter().filter(|launch| launch.kind == LaunchKind::Measure) {
        let Some(speed) = launch.items_per_second.as_ref().map(|speed| speed.value()).filter(|&speed| speed > 0.0)
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
