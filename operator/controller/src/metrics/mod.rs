//! The operator's Prometheus metrics, at `GET /metrics`.
//!
//! There are two kinds of series. Events are counted in a registry ([`counters`](self)): a restart of the operator
//! resets these to zero, which `rate` and `increase` handle. The state of a job is kept as one small sample per job and
//! rendered on each scrape: deleting a job removes its sample and all of its series. A restart loses no state, because
//! it is read from the job's status. Only the leader has samples.
//!
//! Scrape with `honorLabels: true`: `namespace` and `job` below name the `TrainingJob`, not the operator. Label
//! cardinality is bounded by the number of existing jobs, their phases (at most 50 each) and the stages of their
//! searches (at most 8 each, with at most 4 objectives), else by enums.
//!
//! # The operator
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_build_info` | gauge | `version` | always 1 |
//! | `pawl_leader` | gauge | | 1 while this replica holds the leader election lease, else 0 |
//! | `pawl_reconcile_duration_seconds` | histogram | | duration of a reconcile |
//! | `pawl_reconcile_errors_total` | counter | `kind` | failed reconciles; `kind` is the kind of error, from a fixed set |
//! | `pawl_watch_errors_total` | counter | `namespace`, `resource` | failed lists and watches; `namespace` is empty where all are watched |
//! | `pawl_api_requests_total` | counter | `verb`, `resource`, `code` | requests to the API server; `code` is the HTTP status, or `timeout`, `fenced`, `error` |
//! | `pawl_api_request_duration_seconds` | histogram | `verb` | time to the response header; watches excluded |
//! | `pawl_clock_offset_seconds` | gauge | | the API server's clock minus that of the operator's machine; 0 while they may be the same |
//! | `pawl_namespace_of_another_operator` | gauge | `namespace` | 1 for each namespace in which another operator acts, so that this one does nothing there; no series for the others |
//! | `pawl_node_refusals_total` | counter | `node` | gangs of which a node did not accept a pod; only nodes that refused one |
//! | `pawl_live_requests_total` | counter | `outcome` | progress requests to agents: `ok`, `unreachable`, `timeout`, `refused`, `invalid` |
//! | `process_*` | | | memory, CPU time and open files of the operator |
//!
//! # Events
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_rollbacks_total` | counter | `reason`, `scope` | rolled-back phases; `scope` is `Phase`, `Dependents` or `All` |
//! | `pawl_attempts_total` | counter | `purpose`, `outcome` | finished attempts: `Completed`, `Stopped`, `Preempted`, `Lost` |
//! | `pawl_attempt_duration_seconds` | histogram | `purpose` | time from the decision to the end of an attempt |
//!
//! `purpose` is `Preflight`, `Speed`, `Quality`, `Bundle`, `LeaveOneOut`, `Search` or `Train`.
//!
//! # Per job (labels `namespace`, `job`, and those listed)
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_trainingjobs` | gauge | only `stage` | number of jobs by stage; every stage has a series, also with 0 |
//! | `pawl_job_stage` | gauge | `stage` | 1 for the current stage of the job; no series for the others |
//! | `pawl_job_condition` | gauge | `condition`, `reason` | 1 for each condition that is True; no series for the others |
//! | `pawl_job_start_timestamp_seconds` | gauge | | start time of the job |
//! | `pawl_job_completion_timestamp_seconds` | gauge | | completion time of the job |
//! | `pawl_job_pending_since_timestamp_seconds` | gauge | | time since which not all pods of the gang are running; absent while all are |
//! | `pawl_job_attempts_total` | counter | | number of attempts |
//! | `pawl_job_restarts_total` | counter | | restarts of the training after infrastructure failures |
//! | `pawl_job_speedup_ratio` | gauge | `bound` | speedup over the baseline: `estimate`, `lower` and `upper` (of the bundle), `goal` |
//! | `pawl_job_items` | gauge | | processed items |
//! | `pawl_job_items_goal` | gauge | | target number of items, when the manifest sets one |
//! | `pawl_job_items_per_second` | gauge | `kind` | `measured` in training, `promised` (expected from the measurements), `baseline` |
//! | `pawl_job_eta_timestamp_seconds` | gauge | | estimated completion time of the training |
//! | `pawl_goodput_ratio` | gauge | | fraction of training GPU time spent on productive steps |
//! | `pawl_job_checkpoint_interval_seconds` | gauge | | configured checkpoint interval (`spec.train.checkpoint.every`); during training |
//! | `pawl_job_unsaved_since_timestamp_seconds` | gauge | | time of the newest reported checkpoint, or of the start of training; during training |
//! | `pawl_gpu_hours_total` | counter | `purpose` | GPU hours (process hours on the CPU) |
//! | `pawl_cost_total` | counter | `currency` | cost so far, when the manifest has a price |
//! | `pawl_cost_saved` | gauge | `currency` | estimated savings compared with training with the baseline settings, net of measurement costs |
//!
//! # Per phase (labels `namespace`, `job`, `phase`, and those listed)
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_phase_state` | gauge | `state` | 1 for the current state of the phase; no series for the others |
//! | `pawl_phase_index` | gauge | | index of the phase in the manifest, starting at 1 |
//! | `pawl_phase_speedup_ratio` | gauge | `bound` | `estimate`, `lower`, `upper` as measured; `minimum` (the gate) and `expected` of the manifest |
//! | `pawl_phase_pairs` | gauge | | pairs measured |
//! | `pawl_phase_fallback` | gauge | | number of fallbacks used |
//! | `pawl_phase_quality_loss_delta` | gauge | `bound` | increase of the validation loss: `estimate`, `upper`; `limit` (the gate) |
//! | `pawl_phase_memory_bytes` | gauge | `kind` | `measured` peak, `predicted` |
//!
//! # Per stage of a search that has begun (labels `namespace`, `job`, `search`, and those listed)
//!
//! | metric | type | labels | meaning |
//! |---|---|---|---|
//! | `pawl_search_state` | gauge | `state` | 1 for the current state of the stage: `Running`, `Repeating` or `Done` |
//! | `pawl_search_trials` | gauge | `state` | trials by state: `Running`, `Paused`, `Complete`, `Pruned`, `Infeasible`, `Abandoned` |
//! | `pawl_search_trials_goal` | gauge | | number of trials in the manifest |
//! | `pawl_search_objective` | gauge | `metric` | objectives of the winner or, until there is one, of the best complete trial |

mod counters;
mod exposition;
mod families;
mod pages;
mod requests;

#[cfg(test)]
mod tests;

pub use pages::Pages;
pub use requests::Counted;

use crate::jobs::Jobs;
use crate::key::Key;
use crate::layer::AroundLayer;
use crate::sample::Sample;
use counters::Counters;
use jiff::{SignedDuration, Timestamp};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_decision::observed::Observed;
use std::sync::Arc;
use std::time::Duration;

/// The metrics of one operator process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    counters: Arc<Counters>,
    jobs: Jobs,
}

/// Outcome of a progress request to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveOutcome {
    /// A valid response.
    Ok,
    /// No connection.
    Unreachable,
    /// Timeout.
    Timeout,
    /// A status code other than 200.
    Refused,
    /// A response that is too long, not valid JSON, or from another attempt.
    Invalid,
}

impl Metrics {
    /// Metrics of a new process; the samples are kept in the state of the jobs.
    pub fn new(jobs: Jobs) -> Self {
        Self { counters: Arc::new(Counters::new()), jobs }
    }

    /// Updates the metrics of a job after its status was written, or found unchanged.
    ///
    /// `before` is the status that the decision started from; changes since then are counted, so call this once for
    /// each status that was written. `observed` are the facts that the decision was based on.
    pub fn job(
        &self,
        job: &TrainingJob,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        observed: &Observed,
        now: Timestamp,
    ) {
        self.counters.changed(job, before, after, observed, now);
        self.jobs.entry(&Key::of(job), |state| {
            state.sample = Some(Sample::new(job, after, observed, state.sample.as_ref(), now));
        });
    }

    /// Counts a reconcile. `error` is the kind of the error that ended it, from a fixed set.
    pub fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.counters.reconciled(took, error);
    }

    /// Counts a list or watch that failed.
    pub fn watch_failed(&self, namespace: &str, resource: &str) {
        self.counters.watch_failed(namespace, resource);
    }

    /// Sets whether this replica holds the leader election lease.
    pub fn leading(&self, leading: bool) {
        self.counters.leader.set(i64::from(leading));
    }

    /// Counts a progress request to an agent.
    pub fn live(&self, outcome: LiveOutcome) {
        self.counters.live(outcome);
    }

    /// Sets how far the API server's clock is ahead of this machine's.
    pub fn clock_offset(&self, offset: SignedDuration) {
        self.counters.clock_offset(offset.as_secs_f64());
    }

    /// Sets whether another operator acts in a namespace.
    pub fn of_another(&self, namespace: &str, is: bool) {
        self.counters.of_another(namespace, is);
    }

    /// Counts a gang of which a node did not accept a pod.
    pub fn refused_by(&self, node: &str) {
        self.counters.refused_by(node);
    }

    /// A layer of the Kubernetes client that counts its requests.
    pub fn count_requests(&self) -> AroundLayer<Counted> {
        AroundLayer(Counted(self.counters.clone()))
    }

    /// All metrics in Prometheus' text format, version 0.0.4, page by page.
    pub fn pages(&self) -> Pages {
        Pages::new(self.clone())
    }

    /// The whole text.
    #[cfg(test)]
    pub(crate) fn render(&self) -> String {
        self.pages().collect()
    }
}
