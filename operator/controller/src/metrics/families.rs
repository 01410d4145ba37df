//! The metric families computed from the samples of the jobs.

use super::exposition::Exposition;
use super::exposition::Kind::{self, Counter, Gauge};
use crate::key::Key;
use crate::sample::phases::PhaseSample;
use crate::sample::search::SearchSample;
use crate::sample::{Bounds, Sample};
use pawl_api::status::{PhaseState, Purpose, SearchState, Stage};
use pawl_search::history::State;

/// A metric family, and how to get its series of one job, phase or stage of a search.
pub(super) struct Family<T> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    series: fn(&T, &mut Row<'_>),
}

const fn family<T>(name: &'static str, kind: Kind, help: &'static str, series: fn(&T, &mut Row<'_>)) -> Family<T> {
    Family { name, kind, help, series }
}

/// Every stage, so that a fleet without failed jobs shows a 0.
const STAGES: [Stage; 8] = [
    Stage::Pending,
    Stage::Preflight,
    Stage::Optimizing,
    Stage::Searching,
    Stage::Training,
    Stage::Complete,
    Stage::Failed,
    Stage::Suspended,
];

#[rustfmt::skip]
static JOBS: [Family<Sample>; 18] = [
    family("pawl_job_stage", Gauge, "1 for the current stage of the job.",
        |job, row| row.put("stage", stage(job.stage), 1.0)),
    family("pawl_job_condition", Gauge, "1 for each condition that is True.",
        |job, row| for (kind, reason) in &job.conditions {
            row.put_all(&[("condition", kind), ("reason", reason)], 1.0);
        }),
    family("pawl_job_start_timestamp_seconds", Gauge, "Start time of the job.",
        |job, row| row.some(job.started)),
    family("pawl_job_completion_timestamp_seconds", Gauge, "Completion time of the job.",
        |job, row| row.some(job.completed)),
    family("pawl_job_pending_since_timestamp_seconds", Gauge, "Time since which not all pods of the gang are running.",
        |job, row| row.some(job.pending_since)),
    family("pawl_job_attempts_total", Counter, "Number of attempts.",
        |job, row| row.some(Some(f64::from(job.attempts)))),
    family("pawl_job_restarts_total", Counter, "Restarts of the training after infrastructure failures.",
        |job, row| row.some(job.restarts.map(f64::from))),
    family("pawl_job_speedup_ratio", Gauge, "Speedup over the baseline.",
        |job, row| {
            row.bounds(&job.speedup);
            row.some_with("bound", "goal", job.goal);
        }),
    family("pawl_job_items", Gauge, "Processed items.",
        |job, row| row.some(job.items)),
    family("pawl_job_items_goal", Gauge, "Target number of items.",
        |job, row| row.some(job.items_goal)),
    family("pawl_job_items_per_second", Gauge, "Items per second of the whole gang.",
        |job, row| {
            row.some_with("kind", "measured", job.measured_speed);
            row.some_with("kind", "promised", job.promised_speed);
            row.some_with("kind", "baseline", job.baseline_speed);
        }),
    family("pawl_job_eta_timestamp_seconds", Gauge, "Estimated completion time of the training.",
        |job, row| row.some(job.eta)),
    family("pawl_goodput_ratio", Gauge, "Fraction of training GPU time spent on productive steps.",
        |job, row| row.some(job.goodput)),
    family("pawl_job_checkpoint_interval_seconds", Gauge, "Configured checkpoint interval (spec.train.checkpoint.every).",
        |job, row| row.some(job.saving.as_ref().map(|saving| saving.interval))),
    family("pawl_job_unsaved_since_timestamp_seconds", Gauge,
        "Time of the newest reported checkpoint, or of the start of training.",
        |job, row| row.some(job.saving.as_ref().map(|saving| saving.since))),
    family("pawl_gpu_hours_total", Counter, "GPU hours (process hours on the CPU).",
        |job, row| for (what, hours) in &job.hours {
            row.put("purpose", purpose(*what), *hours);
        }),
    family("pawl_cost_total", Counter, "Cost so far.",
        |job, row| row.some_with("currency", &job.currency, job.spent)),
    family("pawl_cost_saved", Gauge, "Estimated savings compared with training with the baseline settings, net of measurement costs.",
        |job, row| row.some_with("currency", &job.currency, job.saved)),
];

#[rustfmt::skip]
static PHASES: [Family<PhaseSample>; 7] = [
    family("pawl_phase_state", Gauge, "1 for the current state of the phase.",
        |phase, row| row.put("state", state(phase.state), 1.0)),
    family("pawl_phase_index", Gauge, "Index of the phase in the manifest, starting at 1.",
        |phase, row| row.some(Some(phase.index))),
    family("pawl_phase_speedup_ratio", Gauge, "Speedup of the phase over the previously accepted settings.",
        |phase, row| {
            row.bounds(&phase.speedup);
            row.some_with("bound", "minimum", phase.minimum);
            row.some_with("bound", "expected", phase.expected);
        }),
    family("pawl_phase_pairs", Gauge, "Pairs measured.",
        |phase, row| row.some(phase.pairs)),
    family("pawl_phase_fallback", Gauge, "Number of fallbacks used.",
        |phase, row| row.some(phase.fallback)),
    family("pawl_phase_quality_loss_delta", Gauge, "Increase of the validation loss over the baseline.",
        |phase, row| {
            row.bounds(&phase.loss_delta);
            row.some_with("bound", "limit", phase.loss_limit);
        }),
    family("pawl_phase_memory_bytes", Gauge, "Peak memory of the phase's launches.",
        |phase, row| {
            row.some_with("kind", "measured", phase.memory);
            row.some_with("kind", "predicted", phase.predicted_memory);
        }),
];

#[rustfmt::skip]
static SEARCHES: [Family<SearchSample>; 4] = [
    family("pawl_search_state", Gauge, "1 for the current state of the stage of the search.",
        |search, row| row.put("state", search_state(search.state), 1.0)),
    family("pawl_search_trials", Gauge, "Number of trials by state.",
        |search, row| for (state, count) in State::NAMES.iter().zip(search.trials) {
            row.put("state", state, f64::from(count));
        }),
    family("pawl_search_trials_goal", Gauge, "Number of trials in the manifest.",
        |search, row| row.some(search.goal)),
    family("pawl_search_objective", Gauge, "Objectives of the winner or, until there is one, of the best complete trial.",
        |search, row| for (metric, value) in &search.objectives {
            row.put("metric", metric, *value);
        }),
];

/// Names of all families here.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let phases = PHASES.iter().map(|family| family.name);
    let searches = SEARCHES.iter().map(|family| family.name);
    ["pawl_trainingjobs"].into_iter().chain(JOBS.iter().map(|family| family.name)).chain(phases).chain(searches)
}

/// A family of any kind.
#[derive(Clone, Copy)]
pub(super) enum Any {
    Job(&'static Family<Sample>),
    Phase(&'static Family<PhaseSample>),
    Search(&'static Family<SearchSample>),
}

/// The family of this number, from 0; `None` after the last one.
pub(super) fn nth(number: usize) -> Option<Any> {
    let all = JOBS.iter().map(Any::Job).chain(PHASES.iter().map(Any::Phase));
    all.chain(SEARCHES.iter().map(Any::Search)).nth(number)
}

impl Any {
    /// Begins the family: the series of all jobs follow.
    pub(super) fn begin(self, out: &mut Exposition) {
        let (name, kind, help) = self.head();
        out.family(name, kind, help);
    }

    /// Goes on with the family in another text.
    pub(super) fn resume(self, out: &mut Exposition) {
        out.resume(self.head().0);
    }

    fn head(self) -> (&'static str, Kind, &'static str) {
        match self {
            Self::Job(Family { name, kind, help, .. }) => (name, *kind, help),
            Self::Phase(Family { name, kind, help, .. }) => (name, *kind, help),
            Self::Search(Family { name, kind, help, .. }) => (name, *kind, help),
        }
    }

    /// Writes the series of a job.
    pub(super) fn write(self, Key { namespace, name: job }: &Key, sample: &Sample, out: &mut Exposition) {
        let labels = vec![("namespace", namespace.as_str()), ("job", job)];
        let mut row = Row { out, labels };
        match self {
            Self::Job(family) => (family.series)(sample, &mut row),
            Self::Phase(family) => {
                for (name, phase) in sample.phases.iter() {
                    row.labels.truncate(2);
                    row.labels.push(("phase", name));
                    (family.series)(&phase, &mut row);
                }
            }
            Self::Search(family) => {
                for search in &sample.searches {
                    row.labels.truncate(2);
                    row.labels.push(("search", &search.name));
                    (family.series)(search, &mut row);
                }
            }
        }
    }
}

/// Writes the number of jobs by stage.
pub(super) fn write_stages<'a>(samples: impl Iterator<Item = &'a Sample>, out: &mut Exposition) {
    out.family("pawl_trainingjobs", Gauge, "Number of jobs by stage.");
    let mut counts = STAGES.map(|stage| (stage, 0_u32));
    for sample in samples {
        counts.iter_mut().filter(|(stage, _)| *stage == sample.stage).for_each(|(_, count)| *count += 1);
    }
    for (each, count) in counts {
        out.series(&[("stage", stage(each))], f64::from(count));
    }
}

/// The series of one job, phase or stage of a search in the family being written.
pub(super) struct Row<'a> {
    out: &'a mut Exposition,
    labels: Vec<(&'static str, &'a str)>,
}

impl Row<'_> {
    fn put_all(&mut self, labels: &[(&'static str, &str)], value: f64) {
        let all: Vec<(&str, &str)> = self.labels.iter().chain(labels).copied().collect();
        self.out.series(&all, value);
    }

    fn put(&mut self, label: &'static str, is: &str, value: f64) {
        self.put_all(&[(label, is)], value);
    }

    fn some(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.put_all(&[], value);
        }
    }

    fn some_with(&mut self, label: &'static str, is: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.put(label, is, value);
        }
    }

    fn bounds(&mut self, bounds: &Bounds) {
        self.some_with("bound", "estimate", bounds.estimate);
        self.some_with("bound", "lower", bounds.lower);
        self.some_with("bound", "upper", bounds.upper);
    }
}

const fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Pending => "Pending",
        Stage::Preflight => "Preflight",
        Stage::Optimizing => "Optimizing",
        Stage::Searching => "Searching",
        Stage::Training => "Training",
        Stage::Complete => "Complete",
        Stage::Failed => "Failed",
        Stage::Suspended => "Suspended",
    }
}

const fn state(state: PhaseState) -> &'static str {
    match state {
        PhaseState::Pending => "Pending",
        PhaseState::Preflight => "Preflight",
        PhaseState::Measuring => "Measuring",
        PhaseState::Retrying => "Retrying",
        PhaseState::RollingBack => "RollingBack",
        PhaseState::Accepted => "Accepted",
        PhaseState::RolledBack => "RolledBack",
        PhaseState::Unsupported => "Unsupported",
        PhaseState::Skipped => "Skipped",
        PhaseState::Inconclusive => "Inconclusive",
        PhaseState::Error => "Error",
    }
}

const fn search_state(state: SearchState) -> &'static str {
    match state {
        SearchState::Running => "Running",
        SearchState::Repeating => "Repeating",
        SearchState::Done => "Done",
    }
}

/// The label's value for a purpose.
pub(super) const fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Preflight => "Preflight",
        Purpose::Speed => "Speed",
        Purpose::Quality => "Quality",
        Purpose::Bundle => "Bundle",
        Purpose::LeaveOneOut => "LeaveOneOut",
        Purpose::Search => "Search",
        Purpose::Train => "Train",
    }
}
