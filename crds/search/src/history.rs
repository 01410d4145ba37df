//! What is known of the trials of a search.

use crate::pareto;
use crate::space::Point;

/// Direction in which an objective is optimized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Smaller is better.
    Minimize,
    /// Larger is better.
    Maximize,
}

/// Why no value of a trial's objective exists, because of its point: samplers learn to avoid it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Memory of a GPU or of the host was exhausted, or predicted to be.
    OutOfMemory,
    /// The loss or the objective was not finite.
    NonFinite,
    /// The trainer does not support the settings.
    Unsupported,
    /// The program failed by itself, more than once in the same way.
    Crashed,
}

/// Where a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or is about to.
    Running,
    /// It waits with a checkpoint for its promotion.
    Paused,
    /// It reached its full resource; its values are final.
    Complete,
    /// The scheduler ended it early.
    Stopped,
    /// Its point cannot be measured.
    Infeasible(Cause),
    /// It ended without a result for a reason that is not its point, such as a budget of retries: samplers ignore it.
    Abandoned,
}

impl Cause {
    /// Its name in exports and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "OutOfMemory",
            Self::NonFinite => "NonFinite",
            Self::Unsupported => "Unsupported",
            Self::Crashed => "Crashed",
        }
    }
}

impl State {
    /// The names of all states.
    pub const NAMES: [&str; 6] = ["Running", "Paused", "Complete", "Pruned", "Infeasible", "Abandoned"];

    /// Its name in metrics, exports and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Complete => "Complete",
            Self::Stopped => "Pruned",
            Self::Infeasible(_) => "Infeasible",
            Self::Abandoned => "Abandoned",
        }
    }
}

/// The first objective, measured after an amount of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Epochs, or another unit of training, since the start of the trial; positive.
    pub resource: u32,
    /// The objective.
    pub value: f64,
}

/// A trial of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Number in its stage, from 0.
    pub number: u32,
    /// Its settings.
    pub point: Point,
    /// Where it is.
    pub state: State,
    /// Amount of training after which the scheduler decides on it again.
    pub target: u32,
    /// Intermediate values of the first objective, in any order; a resource that is reported twice counts once.
    pub reports: Vec<Report>,
    /// Final values of the objectives, of a complete trial.
    pub values: Vec<f64>,
}

/// What a sampler learns from a trial: smaller is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// The final value.
    Final(f64),
    /// The value after `resource`, of a trial that was ended early.
    Partial {
        /// Amount of training.
        resource: u32,
        /// Value after it.
        value: f64,
    },
    /// The point cannot be measured.
    Infeasible,
    /// Not known yet.
    Pending,
}

/// A point and what is known of its loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The point.
    pub point: Point,
    /// Its loss.
    pub loss: Loss,
}

impl Goal {
    /// `value` as a loss: smaller is better.
    pub fn loss(self, value: f64) -> f64 {
        match self {
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }
}

impl Trial {
    /// A trial that starts, to be trained up to `target`.
    pub fn new(number: u32, point: Point, target: u32) -> Self {
        Self { number, point, state: State::Running, target, reports: Vec::new(), values: Vec::new() }
    }

    /// Whether it takes no further step.
    pub fn ended(&self) -> bool {
        !matches!(self.state, State::Running | State::Paused)
    }

    /// The newest report: that with the largest resource.
    pub fn newest(&self) -> Option<Report> {
        self.reports.iter().copied().max_by_key(|report| report.resource)
    }

    /// The value reported after `resource`. One that was reported later says nothing of it.
    pub fn after(&self, resource: u32) -> Option<f64> {
        self.reports.iter().find(|report| report.resource == resource).map(|report| report.value)
    }

    /// The first value reported after at least `resource`.
    pub fn at(&self, resource: u32) -> Option<f64> {
        let reached = self.reports.iter().filter(|report| report.resource >= resource);
        reached.min_by_key(|report| report.resource).map(|report| report.value)
    }

    /// The losses of a complete trial whose values are finite.
    pub fn losses(&self, goals: &[Goal]) -> Option<Vec<f64>> {
        let complete = self.state == State::Complete && self.values.len() == goals.len();
        let finite = self.values.iter().all(|value| value.is_finite());
        (complete && finite).then(|| goals.iter().zip(&self.values).map(|(goal, value)| goal.loss(*value)).collect())
    }
}

/// The trials as observations, by trial number. With several objectives, the loss of a complete trial is the number of
/// its non-dominated front and, within a front, smaller where the front is less crowded.
pub fn observations(trials: &[Trial], goals: &[Goal]) -> Vec<Observation> {
    let mut sorted: Vec<_> = trials.iter().filter(|trial| trial.state != State::Abandoned).collect();
    sorted.sort_by_key(|trial| trial.number);
    let losses: Vec<_> = sorted.iter().map(|trial| trial.losses(goals)).collect();
    let known: Vec<_> = losses.iter().flatten().cloned().collect();
    let mut scalars =
        if goals.len() == 1 { known.iter().map(|losses| losses[0]).collect::<Vec<_>>() } else { pareto::order(&known) }
            .into_iter();
    let observe = |(trial, losses): (&Trial, &Option<Vec<f64>>)| {
        let loss = match (trial.state, losses) {
            (_, Some(_)) => scalars.next().map_or(Loss::Infeasible, Loss::Final),
            (State::Complete | State::Infeasible(_), None) => Loss::Infeasible,
            (State::Running | State::Paused | State::Stopped | State::Abandoned, None) => early(trial, goals),
        };
        Observation { point: trial.point.clone(), loss }
    };
    sorted.into_iter().zip(&losses).map(observe).collect()
}

/// The loss of a trial without final values.
fn early(trial: &Trial, goals: &[Goal]) -> Loss {
    match (trial.state, trial.newest()) {
        (State::Running, _) | (State::Paused, None) => Loss::Pending,
        (_, None) => Loss::Infeasible,
        (_, Some(report)) if !report.value.is_finite() => Loss::Infeasible,
        (_, Some(Report { resource, value })) => {
            Loss::Partial { resource, value: goals.first().map_or(value, |goal| goal.loss(value)) }
        }
    }
}
