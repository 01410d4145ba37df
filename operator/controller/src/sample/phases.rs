//! The part of a job's sample about its phases: a column for each measure, because most phases lack most of them.

use super::{Bounds, number};
use pawl_api::TrainingJob;
use pawl_api::spec::Phase;
use pawl_api::status::{PhaseState, PhaseStatus};

/// The metric values of the phases of a job.
#[derive(Debug)]
pub(crate) struct Phases {
    /// One after the other.
    names: Box<str>,
    /// Where each ends.
    ends: Box<[u32]>,
    states: Box<[PhaseState]>,
    columns: [Column; MEASURES.len()],
}

/// The metric values of a phase.
#[derive(Debug)]
pub(crate) struct PhaseSample {
    /// From 1.
    pub(crate) index: f64,
    pub(crate) state: PhaseState,
    pub(crate) speedup: Bounds,
    pub(crate) pairs: Option<f64>,
    pub(crate) minimum: Option<f64>,
    pub(crate) expected: Option<f64>,
    pub(crate) fallback: Option<f64>,
    pub(crate) loss_delta: Bounds,
    pub(crate) loss_limit: Option<f64>,
    pub(crate) memory: Option<f64>,
    pub(crate) predicted_memory: Option<f64>,
}

/// A measure of all phases.
#[derive(Debug)]
enum Column {
    /// All have this one, or none has one.
    Same(Option<f64>),
    /// One of each phase; not a number: it has none.
    Each(Box<[f64]>),
}

/// A phase, and what the manifest says of it.
struct Source<'a> {
    job: &'a TrainingJob,
    spec: Option<&'a Phase>,
    status: &'a PhaseStatus,
}

/// The measures, in the order in which [`Phases::iter`] takes them.
const MEASURES: [fn(&Source<'_>) -> Option<f64>; 12] = [
    |it| Some(it.status.speedup.as_ref()?.estimate.value()),
    |it| number(it.status.speedup.as_ref()?.lower.as_ref()),
    |it| number(it.status.speedup.as_ref()?.upper.as_ref()),
    |it| Some(f64::from(it.status.speedup.as_ref()?.pairs)),
    |it| it.spec.map(Phase::min_speedup),
    |it| number(it.spec?.expected_speedup.as_ref()),
    |it| Some(f64::from(it.status.effective_fallback())),
    |it| Some(it.status.quality.as_ref()?.loss_delta.value()),
    |it| number(it.status.quality.as_ref()?.loss_delta_upper.as_ref()),
    |it| it.status.quality.as_ref().and_then(|_| number(it.job.spec.gates.validation_loss_delta.as_ref())),
    |it| it.status.measured.peak_memory_bytes.map(|bytes| bytes as f64),
    |it| it.status.measured.predicted_memory_bytes.map(|bytes| bytes as f64),
];

impl Phases {
    pub(super) fn new(job: &TrainingJob, phases: &[PhaseStatus]) -> Self {
        let mut names = String::new();
        let end = |phase: &PhaseStatus| {
            names.push_str(&phase.name);
            names.len() as u32
        };
        let ends = phases.iter().map(end).collect();
        let spec = |status: &PhaseStatus| job.spec.phases.iter().find(|spec| spec.name == status.name);
        let sources: Vec<_> = phases.iter().map(|status| Source { job, spec: spec(status), status }).collect();
        Self {
            names: names.into(),
            ends,
            states: phases.iter().map(|phase| phase.state).collect(),
            columns: MEASURES.map(|measure| Column::new(sources.iter().map(measure))),
        }
    }

    /// The name and the values of each phase, in the order of the manifest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, PhaseSample)> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let names = begins.zip(&self.ends).map(|(begin, end)| &self.names[begin as usize..*end as usize]);
        names.zip(&*self.states).enumerate().map(|(row, (name, state))| {
            let [
                estimate,
                lower,
                upper,
                pairs,
                minimum,
                expected,
                fallback,
                loss,
                loss_upper,
                loss_limit,
                memory,
                predicted,
            ] = self.columns.each_ref().map(|column| column.get(row));
            let sample = PhaseSample {
                index: row as f64 + 1.0,
                state: *state,
                speedup: Bounds { estimate, lower, upper },
                pairs,
                minimum,
                expected,
                fallback,
                loss_delta: Bounds { estimate: loss, lower: None, upper: loss_upper },
                loss_limit,
                memory,
                predicted_memory: predicted,
            };
            (name, sample)
        })
    }
}

impl Column {
    fn new(values: impl Iterator<Item = Option<f64>>) -> Self {
        let values: Vec<Option<f64>> = values.collect();
        match values.first() {
            None => Self::Same(None),
            Some(first) if values.iter().all(|value| value == first) => Self::Same(*first),
            Some(_) => Self::Each(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect()),
        }
    }

    fn get(&self, row: usize) -> Option<f64> {
        match self {
            Self::Same(value) => *value,
            Self::Each(values) => values.get(row).copied().filter(|value| !value.is_nan()),
        }
    }
}
