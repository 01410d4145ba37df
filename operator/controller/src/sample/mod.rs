//! The sample of a job that is kept between scrapes: numbers and enums, a few hundred bytes and some tens
//! of bytes for each phase.

pub(crate) mod phases;
pub(crate) mod search;

use jiff::Timestamp;
use pawl_api::status::{CheckpointStatus, Purpose, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::decimal::Decimal;
use pawl_decision::observed::{AttemptState, Observed};
use phases::Phases;
use search::SearchSample;

/// The metric values of a job.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) stage: Stage,
    /// Type and reason of the conditions that are True.
    pub(crate) conditions: Vec<(Box<str>, Box<str>)>,
    pub(crate) started: Option<f64>,
    pub(crate) completed: Option<f64>,
    pub(crate) pending_since: Option<f64>,
    pub(crate) attempts: u32,
    pub(crate) restarts: Option<u32>,
    pub(crate) speedup: Bounds,
    pub(crate) goal: Option<f64>,
    pub(crate) items: Option<f64>,
    pub(crate) items_goal: Option<f64>,
    pub(crate) measured_speed: Option<f64>,
    pub(crate) promised_speed: Option<f64>,
    pub(crate) baseline_speed: Option<f64>,
    pub(crate) eta: Option<f64>,
    pub(crate) goodput: Option<f64>,
    pub(crate) saving: Option<Saving>,
    /// GPU hours by purpose.
    pub(crate) hours: Vec<(Purpose, f64)>,
    pub(crate) spent: Option<f64>,
    pub(crate) saved: Option<f64>,
    pub(crate) currency: Box<str>,
    pub(crate) phases: Phases,
    pub(crate) searches: Vec<SearchSample>,
}

/// An estimate with its confidence interval.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) estimate: Option<f64>,
    pub(crate) lower: Option<f64>,
    pub(crate) upper: Option<f64>,
}

/// Checkpointing of a training.
#[derive(Debug)]
pub(crate) struct Saving {
    pub(crate) interval: f64,
    /// Time of the newest reported checkpoint, or of the start of training.
    pub(crate) since: f64,
    checkpoint: Option<CheckpointStatus>,
}

impl Sample {
    /// The sample of a job. `last` is the previous one: it has the time at which the newest checkpoint was reported.
    pub(crate) fn new(
        job: &TrainingJob,
        status: &TrainingJobStatus,
        observed: &Observed,
        last: Option<&Self>,
        now: Timestamp,
    ) -> Self {
        let training = status.training.as_ref();
        let bundle = status.bundle.as_ref().and_then(|bundle| bundle.speedup.as_ref());
        let cost = status.cost.as_ref();
        let holds = status.conditions.iter().filter(|condition| condition.status == "True");
        Self {
            stage: status.stage,
            conditions: holds.map(|c| (c.type_.as_str().into(), c.reason.as_str().into())).collect(),
            started: status.start_time.as_deref().and_then(seconds),
            completed: status.completion_time.as_deref().and_then(seconds),
            pending_since: pending_since(status, observed),
            attempts: status.attempts,
            restarts: training.map(|training| training.restarts),
            speedup: Bounds {
                estimate: number(status.speedup.as_ref()),
                lower: bundle.and_then(|speedup| number(speedup.lower.as_ref())),
                upper: bundle.and_then(|speedup| number(speedup.upper.as_ref())),
            },
            goal: number(job.spec.gates.overall_speedup.as_ref()),
            items: training.map(|training| training.measured.items as f64),
            items_goal: job.spec.train.items.map(|items| items as f64),
            measured_speed: training.and_then(|training| number(training.measured.items_per_second.as_ref())),
            promised_speed: training.and_then(|training| number(training.promised_items_per_second.as_ref())),
            baseline_speed: status
                .baseline
                .as_ref()
                .and_then(|baseline| number(baseline.measured.items_per_second.as_ref())),
            eta: training.and_then(|training| training.eta.as_deref()).and_then(seconds),
            goodput: training.and_then(|training| number(training.goodput.as_ref())),
            saving: (status.stage == Stage::Training).then(|| Saving::new(job, status, last, now)),
            hours: cost.map(hours).unwrap_or_default(),
            spent: cost.and_then(|cost| number(cost.spent.as_ref())),
            saved: cost.and_then(|cost| number(cost.saved.as_ref())),
            currency: job.spec.cost.currency.as_str().into(),
            phases: Phases::new(job, &status.phases),
            searches: search::samples(job, status),
        }
    }
}

impl Saving {
    fn new(job: &TrainingJob, status: &TrainingJobStatus, last: Option<&Sample>, now: Timestamp) -> Self {
        let training = status.training.as_ref();
        let checkpoint = training.and_then(|training| training.last_checkpoint.clone());
        let last = last.and_then(|last| last.saving.as_ref());
        let since = match last {
            Some(last) if last.checkpoint == checkpoint => last.since,
            None if checkpoint.is_none() => training
                .and_then(|training| training.started.as_deref())
                .and_then(seconds)
                .unwrap_or_else(|| timestamp(now)),
            _ => timestamp(now),
        };
        Self { interval: job.spec.train.checkpoint.every.seconds(), since, checkpoint }
    }
}

/// Time since which a running attempt waits for its pods.
fn pending_since(status: &TrainingJobStatus, observed: &Observed) -> Option<f64> {
    let named = |name: &str| status.under_way().any(|attempt| attempt.name == name);
    let since = observed.attempts.iter().filter(|facts| named(&facts.name)).filter_map(|facts| match &facts.state {
        AttemptState::Pending { since, .. } => Some(*since),
        AttemptState::Queued | AttemptState::Running | AttemptState::Leaving(_) | AttemptState::Ended(_) => None,
    });
    since.min().map(timestamp)
}

fn hours(cost: &pawl_api::status::CostStatus) -> Vec<(Purpose, f64)> {
    cost.purposes.iter().map(|(purpose, milliseconds)| (*purpose, *milliseconds as f64 / 3.6e6)).collect()
}

fn number(value: Option<&Decimal>) -> Option<f64> {
    value.map(Decimal::value)
}

/// Seconds since the epoch.
pub(crate) fn timestamp(time: Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1000.0
}

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().map(timestamp)
}
