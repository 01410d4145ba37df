//! What a search takes at most, before anything is trained.

use super::launches::{fresh_seeds, seeds};
use super::parts;
use crate::judging::{Amount, counted, shown, sum, times};
use crate::launch::{budget, with_utilization};
use pawl_api::TrainingJob;
use pawl_api::search::full;
use pawl_api::spec::{Pruner, Search, SearchBudget, TrainingJobSpec};
use pawl_contract::plan::LaunchKind;

/// What a search takes at most: if no trial ends early. Checks of settings, repetitions of failed launches, and what a
/// trainer that cannot resume trains again are not counted. Returned by [`searching`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Searching {
    /// Its stages in order. Empty: nothing is searched.
    pub stages: Vec<StageAmount>,
}

/// What a stage of a search takes at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageAmount {
    /// Its name.
    pub name: String,
    /// The measurement of trial 0 before the trials, with `dryRun`.
    pub dry_run: Amount,
    /// Number of trials.
    pub trials: u64,
    /// What the trials take.
    pub of_trials: Amount,
    /// The best trials, with further seeds.
    pub finalists: Repetitions,
    /// The best one of them and the accepted settings, with fresh seeds.
    pub comparison: Repetitions,
    /// Fields that may end the stage or a trial earlier.
    pub ended_by: Vec<&'static str>,
}

/// Settings that are trained again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetitions {
    /// Number of settings; 0: nothing is repeated.
    pub settings: u64,
    /// Number of seeds with which each is trained.
    pub seeds: u64,
    /// What that takes.
    pub amount: Amount,
}

impl Repetitions {
    fn new(search: &Search, settings: u64, seeds: u64) -> Self {
        Self { settings, seeds, amount: times(complete(search), settings * seeds) }
    }
}

/// What the search of a job takes at most, by its manifest alone.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {
///         "workload": {"command": ["train"]},
///         "search": [{
///             "name": "rates", "trials": 8, "epochs": 9,
///             "objectives": [{"metric": "loss", "goal": "Minimize"}],
///             "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
///         }],
///     },
/// }))?;
/// let total = pawl_decision::searching(&job).total();
/// // With three seeds: each trial, three finalists with two further seeds, and three seeds of two settings.
/// assert_eq!((total.launches, total.epochs), (8 + 6 + 6, 20 * 9));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn searching(job: &TrainingJob) -> Searching {
    let spec = &job.spec;
    Searching { stages: (0..spec.search.len()).map(|index| StageAmount::new(spec, index)).collect() }
}

impl StageAmount {
    fn new(spec: &TrainingJobSpec, index: usize) -> Self {
        let search = &spec.search[index];
        let trials = u64::from(search.trials);
        let launches = (0..search.trials).map(|number| parts::most(spec, search, number)).sum();
        // A trial that is continued is not trained again.
        let of_trials = Amount { launches, ..times(complete(search), trials) };
        // As `finals::conclude` and `compare::begin` decide.
        let judged = index + 1 == spec.search.len() && search.objectives.len() == 1;
        let finalists = u64::from(search.finalists).min(trials);
        let further = seeds(spec, search).len() as u64 - 1;
        let repeats = judged && finalists > 1 && further > 0;
        // The only trial has the accepted settings.
        let compares = judged && (trials > 1 || index > 0);
        let fresh = fresh_seeds(spec, search).len() as u64;
        Self {
            name: search.name.clone(),
            dry_run: if search.dry_run { dry_run(spec) } else { Amount::default() },
            trials,
            of_trials,
            finalists: Repetitions::new(search, if repeats { finalists } else { 0 }, further),
            comparison: Repetitions::new(search, if compares { 2 } else { 0 }, fresh),
            ended_by: ended_by(search),
        }
    }

    /// All that the stage takes.
    pub fn total(&self) -> Amount {
        let parts = [self.dry_run, self.of_trials, self.finalists.amount, self.comparison.amount];
        parts.into_iter().fold(Amount::default(), sum)
    }

    fn text(&self) -> String {
        let mut parts = vec![format!("{} ({})", counted(self.trials, "trial", "trials"), shown(self.of_trials))];
        if self.dry_run != Amount::default() {
            parts.insert(0, format!("a dry run ({})", shown(self.dry_run)));
        }
        let Repetitions { settings, seeds, amount } = self.finalists;
        if settings > 0 {
            let seeds = counted(seeds, "further seed", "further seeds");
            parts.push(format!("the best {settings} trials with {seeds} ({})", shown(amount)));
        }
        let Repetitions { settings, seeds, amount } = self.comparison;
        if settings > 0 {
            let seeds = counted(seeds, "fresh seed", "fresh seeds");
            parts.push(format!("the best one and the accepted settings with {seeds} ({})", shown(amount)));
        }
        let ended_by = match &self.ended_by[..] {
            [] => String::new(),
            fields => format!("; less where {} ends it earlier", fields.join(" or ")),
        };
        format!("{}: at most {}{ended_by}", self.name, parts.join(", "))
    }
}

impl Searching {
    /// What all stages take.
    pub fn total(&self) -> Amount {
        self.stages.iter().map(StageAmount::total).fold(Amount::default(), sum)
    }

    /// What the search takes, in total, then of each stage, as text for a person. Empty: nothing is searched.
    pub fn lines(&self) -> Vec<String> {
        if self.stages.is_empty() {
            return Vec::new();
        }
        let trials = self.stages.iter().map(|stage| stage.trials).sum();
        let total = format!("search: at most {}: {}", counted(trials, "trial", "trials"), shown(self.total()));
        std::iter::once(total).chain(self.stages.iter().map(|stage| format!("search: {}", stage.text()))).collect()
    }
}

/// A launch that trains completely.
fn complete(search: &Search) -> Amount {
    let (epochs, items) = if search.epochs.is_some() { (full(search), 0) } else { (0, full(search)) };
    Amount { launches: 1, items: items.into(), epochs: epochs.into(), ..Amount::default() }
}

fn dry_run(spec: &TrainingJobSpec) -> Amount {
    let budget = with_utilization(spec, budget(spec, LaunchKind::Measure));
    let steps = budget.warmup_steps.unwrap_or_default() + budget.window_steps.unwrap_or_default();
    Amount { launches: 1, steps, ..Amount::default() }
}

fn ended_by(search: &Search) -> Vec<&'static str> {
    let fields = [
        ("pruner", search.pruner != Pruner::None),
        ("patience", search.patience.is_some()),
        ("budget", search.budget != SearchBudget::default()),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
}
