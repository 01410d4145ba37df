//! Counters and histograms of events, in a registry.

use super::LiveOutcome;
use super::families::purpose;
use jiff::Timestamp;
use pawl_api::spec::Scope;
use pawl_api::status::{AttemptStatus, PhaseState, StopCause};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_decision::observed::{AttemptState, Ending, Observed};
use prometheus::core::Collector;
#[cfg(target_os = "linux")]
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use std::time::Duration;

/// Seconds: a reconcile that writes nothing takes under a millisecond, one that waits for the API server a second.
const RECONCILE_BUCKETS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0];
/// Seconds.
const REQUEST_BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0];
/// Seconds: from a failed start to a day of training.
const ATTEMPT_BUCKETS: [f64; 11] =
    [1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 3.0 * 3600.0, 12.0 * 3600.0, 24.0 * 3600.0];

/// The registry and its metrics.
pub(super) struct Counters {
    registry: Registry,
    pub(super) leader: IntGauge,
    clock_offset: Gauge,
    of_another: IntGaugeVec,
    node_refusals: IntCounterVec,
    reconcile_seconds: Histogram,
    reconcile_errors: IntCounterVec,
    watch_errors: IntCounterVec,
    api_requests: IntCounterVec,
    api_seconds: HistogramVec,
    live_requests: IntCounterVec,
    rollbacks: IntCounterVec,
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
}

/// Registers a metric made from literals of this file: names, help and labels are known to be valid.
fn registered<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("a valid metric");
    registry.register(Box::new(metric.clone())).expect("a name of its own");
    metric
}

impl Counters {
    #[expect(clippy::too_many_lines, reason = "a table of metrics")]
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        // Memory, processor time in whole seconds, and open files of this process, from `/proc`.
        #[cfg(target_os = "linux")]
        registry.register(Box::new(ProcessCollector::for_self())).expect("names of its own");
        let counter = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let histogram = |name: &str, help: &str, buckets: &[f64], labels: &[&str]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            registered(&registry, HistogramVec::new(opts, labels))
        };
        let build = registered(
            &registry,
            IntGaugeVec::new(Opts::new("pawl_build_info", "Version of the operator; always 1."), &["version"]),
        );
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let reconcile = HistogramOpts::new("pawl_reconcile_duration_seconds", "Duration of a reconcile.")
            .buckets(RECONCILE_BUCKETS.to_vec());
        Self {
            leader: registered(
                &registry,
                IntGauge::new("pawl_leader", "1 while this replica holds the leader election lease."),
            ),
            clock_offset: registered(
                &registry,
                Gauge::new("pawl_clock_offset_seconds", "The API server's clock minus this machine's, if they differ."),
            ),
            of_another: registered(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "pawl_namespace_of_another_operator",
                        "1 for each namespace in which another operator acts.",
                    ),
                    &["namespace"],
                ),
            ),
            node_refusals: counter(
                "pawl_node_refusals_total",
                "Gangs of which a node did not accept a pod.",
                &["node"],
            ),
            reconcile_seconds: registered(&registry, Histogram::with_opts(reconcile)),
            reconcile_errors: counter("pawl_reconcile_errors_total", "Failed reconciles.", &["kind"]),
            watch_errors: counter(
                "pawl_watch_errors_total",
                "Failed lists and watches, each of which is repeated.",
                &["namespace", "resource"],
            ),
            api_requests: counter(
                "pawl_api_requests_total",
                "Requests to the API server.",
                &["verb", "resource", "code"],
            ),
            api_seconds: histogram(
                "pawl_api_request_duration_seconds",
                "Time to the response header of the API server; watches excluded.",
                &REQUEST_BUCKETS,
                &["verb"],
            ),
            live_requests: counter("pawl_live_requests_total", "Progress requests to agents.", &["outcome"]),
            rollbacks: counter("pawl_rollbacks_total", "Rolled-back phases.", &["reason", "scope"]),
            attempts: counter("pawl_attempts_total", "Finished attempts.", &["purpose", "outcome"]),
            attempt_seconds: histogram(
                "pawl_attempt_duration_seconds",
                "Time from the decision to the end of an attempt.",
                &ATTEMPT_BUCKETS,
                &["purpose"],
            ),
            registry,
        }
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail, and a family without series is not gathered.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }

    pub(super) fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.reconcile_seconds.observe(took.as_secs_f64());
        if let Some(kind) = error {
            self.reconcile_errors.with_label_values(&[kind]).inc();
        }
    }

    pub(super) fn clock_offset(&self, seconds: f64) {
        self.clock_offset.set(seconds);
    }

    pub(super) fn of_another(&self, namespace: &str, is: bool) {
        if is {
            self.of_another.with_label_values(&[namespace]).set(1);
        } else {
            // There may be none.
            let _ = self.of_another.remove_label_values(&[namespace]);
        }
    }

    pub(super) fn refused_by(&self, node: &str) {
        self.node_refusals.with_label_values(&[node]).inc();
    }

    pub(super) fn watch_failed(&self, namespace: &str, resource: &str) {
        self.watch_errors.with_label_values(&[namespace, resource]).inc();
    }

    pub(super) fn live(&self, outcome: LiveOutcome) {
        let outcome = match outcome {
            LiveOutcome::Ok => "ok",
            LiveOutcome::Unreachable => "unreachable",
            LiveOutcome::Timeout => "timeout",
            LiveOutcome::Refused => "refused",
            LiveOutcome::Invalid => "invalid",
        };
        self.live_requests.with_label_values(&[outcome]).inc();
    }

    /// Counts a request to the API server. `took` is absent for a watch, which lasts as long as its connection.
    pub(super) fn request(&self, verb: &str, resource: &str, code: &str, took: Option<Duration>) {
        self.api_requests.with_label_values(&[verb, resource, code]).inc();
        if let Some(took) = took {
            self.api_seconds.with_label_values(&[verb]).observe(took.as_secs_f64());
        }
    }

    /// Counts the changes between two statuses of a job.
    pub(super) fn changed(
        &self,
        job: &TrainingJob,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        observed: &Observed,
        now: Timestamp,
    ) {
        for phase in after.phases.iter().filter(|phase| phase.state == PhaseState::RolledBack) {
            let was = before.phases.iter().find(|before| before.name == phase.name);
            if was.is_none_or(|was| was.state != PhaseState::RolledBack) {
                self.rollbacks.with_label_values(&[phase.reason.as_str(), scope(job.spec.rollback.scope)]).inc();
            }
        }
        for attempt in before.under_way().filter(|attempt| after.under_way().all(|next| next.name != attempt.name)) {
            let purpose = purpose(attempt.purpose);
            self.attempts.with_label_values(&[purpose, outcome(attempt, observed)]).inc();
            if let Ok(started) = attempt.started.parse::<Timestamp>() {
                let seconds = now.duration_since(started).as_secs_f64().max(0.0);
                self.attempt_seconds.with_label_values(&[purpose]).observe(seconds);
            }
        }
    }
}

/// Ending of an attempt that is no longer in the status.
fn outcome(attempt: &AttemptStatus, observed: &Observed) -> &'static str {
    let facts = observed.attempts.iter().find(|facts| facts.name == attempt.name);
    match facts.map(|facts| &facts.state) {
        Some(AttemptState::Ended(Ending::Completed)) => "Completed",
        Some(AttemptState::Ended(Ending::Stopped)) => "Stopped",
        Some(AttemptState::Ended(Ending::Preempted)) => "Preempted",
        Some(AttemptState::Ended(Ending::Disrupted(_) | Ending::Refused(_))) => "Disrupted",
        Some(AttemptState::Ended(Ending::Lost(_))) => "Lost",
        Some(
            AttemptState::Queued | AttemptState::Pending { .. } | AttemptState::Running | AttemptState::Leaving(_),
        )
        | None => match attempt.stop {
            Some(StopCause::NotWanted | StopCause::SchedulingTimeout | StopCause::Unschedulable) => "Stopped",
            Some(StopCause::Preempted) => "Preempted",
            Some(StopCause::GangBroken) | None => "Disrupted",
        },
    }
}

const fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Phase => "Phase",
        Scope::Dependents => "Dependents",
        Scope::All => "All",
    }
}
