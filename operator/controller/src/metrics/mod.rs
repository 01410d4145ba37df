//! What the operator shows to Prometheus, at `GET /metrics`.
//!
//! Two kinds of series. What *happened* is counted in a registry ([`counters`](self)): a restart of the operator starts
//! these at zero, which `rate` and `increase` know. What a job *is* is kept as one small sample for each job, and
//! written out when Prometheus asks: the samples of a deleted job go, and with them all of its series; a restart loses
//! none of it, because all of it is read from the job's status. Only the leader has samples.
//!
//! Scrape with `honorLabels: true`: `namespace` and `job` below name the `TrainingJob`, not the operator.
//! Labels are bounded: by the number of live jobs and their phases (at most 50 each), else by enums of this program.
//!
//! # The operator
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_build_info` | gauge | `version` | always 1 |
//! | `pawl_leader` | gauge | | 1 while this replica acts, else 0 |
//! | `pawl_reconcile_duration_seconds` | histogram | | time of one reconcile |
//! | `pawl_reconcile_errors_total` | counter | `kind` | reconciles that failed; `kind` is one of a few words |
//! | `pawl_api_requests_total` | counter | `verb`, `resource`, `code` | requests to the API server; `code` is the HTTP status, or `timeout`, `fenced`, `error` |
//! | `pawl_api_request_duration_seconds` | histogram | `verb` | time to the head of the answer; watches excluded |
//! | `pawl_live_requests_total` | counter | `outcome` | questions to agents: `ok`, `unreachable`, `timeout`, `refused`, `invalid` |
//! | `process_*` | | | memory, processor time, open files of the operator |
//!
//! # What happened
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_rollbacks_total` | counter | `reason`, `scope` | phases reverted; `scope` is `Phase`, `Dependents` or `All` |
//! | `pawl_attempts_total` | counter | `purpose`, `outcome` | attempts that ended: `Completed`, `Stopped`, `Lost` |
//! | `pawl_attempt_duration_seconds` | histogram | `purpose` | from the decision to the end of an attempt |
//!
//! `purpose` is `Preflight`, `Speed`, `Quality`, `Bundle`, `LeaveOneOut` or `Train`.
//!
//! # Each job (labels `namespace`, `job`, and those named)
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_trainingjobs` | gauge | only `stage` | jobs in each stage; every stage is there, also with 0 |
//! | `pawl_job_stage` | gauge | `stage` | 1 for the stage that the job is in; no series for the others |
//! | `pawl_job_condition` | gauge | `condition`, `reason` | 1 for each condition that is True; no series for the others |
//! | `pawl_job_start_timestamp_seconds` | gauge | | when the job began |
//! | `pawl_job_completion_timestamp_seconds` | gauge | | when the job ended |
//! | `pawl_job_pending_since_timestamp_seconds` | gauge | | since when the gang waits for all of its pods; absent while none waits |
//! | `pawl_job_attempts_total` | counter | | attempts so far |
//! | `pawl_job_restarts_total` | counter | | restarts of the training after infrastructure failures |
//! | `pawl_job_speedup_ratio` | gauge | `bound` | speedup over the baseline: `estimate`, `lower` and `upper` (of the bundle), `goal` |
//! | `pawl_job_items` | gauge | | items trained |
//! | `pawl_job_items_goal` | gauge | | items to train, when the manifest counts items |
//! | `pawl_job_items_per_second` | gauge | `kind` | `measured` in training, `promised` by the evidence, `baseline` |
//! | `pawl_job_eta_timestamp_seconds` | gauge | | when the training will be done |
//! | `pawl_goodput_ratio` | gauge | | share of device time that went into steps that count |
//! | `pawl_job_checkpoint_interval_seconds` | gauge | | time between checkpoints, as the manifest says; while it trains |
//! | `pawl_job_unsaved_since_timestamp_seconds` | gauge | | when the newest checkpoint was heard of, or training began; while it trains |
//! | `pawl_gpu_hours_total` | counter | `purpose` | device hours (process hours on the CPU) |
//! | `pawl_cost_total` | counter | `currency` | money so far, when the manifest has a price |
//! | `pawl_cost_saved` | gauge | `currency` | money saved compared with training with the baseline, less what judging cost |
//!
//! # Each phase (labels `namespace`, `job`, `phase`, and those named)
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_phase_state` | gauge | `state` | 1 for the state that the phase is in; no series for the others |
//! | `pawl_phase_index` | gauge | | place in the manifest, from 1 |
//! | `pawl_phase_speedup_ratio` | gauge | `bound` | `estimate`, `lower`, `upper` as measured; `minimum` (the gate) and `expected` of the manifest |
//! | `pawl_phase_pairs` | gauge | | pairs measured |
//! | `pawl_phase_rung` | gauge | | fallbacks taken |
//! | `pawl_phase_quality_loss_delta` | gauge | `bound` | increase of the validation loss: `estimate`, `upper`; `limit` (the gate) |
//! | `pawl_phase_memory_bytes` | gauge | `kind` | `measured` peak, `predicted` |

mod counters;
mod exposition;
mod families;
mod process;
mod requests;
mod sample;

#[cfg(test)]
mod tests;

pub use requests::Counted;

use crate::client::around::AroundLayer;
use counters::Counters;
use exposition::Exposition;
use jiff::Timestamp;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_decision::observed::Observed;
use sample::Sample;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Samples by namespace and name.
type Samples = BTreeMap<(String, String), Sample>;

/// The metrics of one operator process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    counters: Arc<Counters>,
    samples: Arc<Mutex<Samples>>,
}

/// How asking an agent went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveOutcome {
    /// It answered.
    Ok,
    /// No connection.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// An answer other than 200.
    Refused,
    /// An answer that is too long, no JSON, or of another attempt.
    Invalid,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics of a process that has done nothing yet.
    pub fn new() -> Self {
        Self { counters: Arc::new(Counters::new()), samples: Arc::default() }
    }

    /// Takes in a job after its status was written, or found to be as it should.
    ///
    /// `before` is the status that the decision started from; what changed since is counted, so call this once for
    /// each status that was written. `observed` are the facts that the decision was made on.
    pub fn job(
        &self,
        job: &TrainingJob,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        observed: &Observed,
        now: Timestamp,
    ) {
        self.counters.changed(job, before, after, observed, now);
        let key = key_of(job);
        let mut samples = self.samples();
        let sample = Sample::new(job, after, observed, samples.get(&key), now);
        samples.insert(key, sample);
    }

    /// Drops all series of a job that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.samples().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Drops the series of all jobs: this replica leads no more.
    pub fn forget_all(&self) {
        self.samples().clear();
    }

    /// Counts a reconcile. `error` says in one word of a few what kind of error ended it.
    pub fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.counters.reconciled(took, error);
    }

    /// Says whether this replica acts.
    pub fn leading(&self, leading: bool) {
        self.counters.leader.set(i64::from(leading));
    }

    /// Counts a question to an agent.
    pub fn live(&self, outcome: LiveOutcome) {
        self.counters.live(outcome);
    }

    /// A layer of the Kubernetes client that counts its requests.
    pub fn count_requests(&self) -> AroundLayer<Counted> {
        AroundLayer(Counted(self.counters.clone()))
    }

    /// All metrics in Prometheus' text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        families::write(&self.samples(), &mut out);
        process::write(&mut out);
        let mut text = out.into_text();
        text.push_str(&self.counters.render());
        text
    }

    /// The samples; each is whole at any time, so a panic elsewhere leaves nothing half done.
    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(job: &TrainingJob) -> (String, String) {
    (job.metadata.namespace.clone().unwrap_or_default(), job.metadata.name.clone().unwrap_or_default())
}
