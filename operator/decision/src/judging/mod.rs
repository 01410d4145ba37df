//! What judging takes, before anything is measured.

mod text;

pub(crate) use text::{counted, shown};

use crate::comparison::Comparison;
use crate::draft::Draft;
use crate::launch::{EvidenceTarget, quality, quality_looks, quality_seeds};
use crate::revision::patch;
use crate::statistics::sequential::looks;
use crate::task::Task;
use jiff::Timestamp;
use pawl_api::spec::{JudgingBudget, Numerics, Phase, Pin, Role, TrainingJobSpec};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::effect::no_effect;
use pawl_contract::settings::Settings;

/// Looks of the quality gates after which a clear result is known: two in a row must agree.
pub(crate) const CLEAR_LOOKS: u32 = 2;

/// Launches, and what they train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of launches, without preflights.
    pub launches: u64,
    /// Steps of the measurements, and of the quality launches whose length is in items.
    pub steps: u64,
    /// Items of these steps.
    pub items: u64,
    /// Epochs of the quality launches whose length is in epochs.
    pub epochs: u64,
}

/// What a part of judging takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// `baseline`, the name of a phase, or `all together`.
    pub name: String,
    /// If each phase is as fast as its `expectedSpeedup`, and each result is clear as early as it can be.
    pub probably: Amount,
    /// If no result is clear before its last launch, each fallback is taken, no phase shows equal losses, and each
    /// phase is reverted by the evaluation of all together. Repetitions of disturbed and failed launches are not
    /// counted.
    pub most: Amount,
}

/// What judging takes beside the training, from the manifest alone. Returned by [`judging`].
#[derive(Clone, Debug, PartialEq)]
pub struct Judging {
    /// Parts in order. Empty: nothing is judged.
    pub parts: Vec<Part>,
    /// Items of the training, if its length is in items.
    pub items: Option<u64>,
    /// Epochs of the training, if its length is in epochs.
    pub epochs: Option<u32>,
    /// Product of the `expectedSpeedup` of the phases that are judged; `None` if one of them has none.
    pub promised: Option<f64>,
    /// `analysis.budgetPercent` as it is given. The parts are without this limit.
    pub budget: Option<JudgingBudget>,
    /// What judging probably takes, in items and epochs at the speed of the baseline.
    time: (f64, f64),
}

/// Judging that cannot pay for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Probable time of judging, as a share of that of the training with the baseline.
    pub cost: f64,
    /// Largest share of that time which the phases can save.
    pub saves: f64,
    /// Length of the training from which on it may pay, in the unit in which the training has its own: items or epochs.
    /// `None`: none is long enough, as the phases save nothing.
    pub pays_from: Option<u64>,
}

impl Judging {
    /// The sum of all parts: what is probable, and what is at most possible.
    pub fn total(&self) -> (Amount, Amount) {
        self.parts
            .iter()
            .fold(Default::default(), |(probably, most), part| (sum(probably, part.probably), sum(most, part.most)))
    }

    /// Whether judging costs more than the phases save even if every promise holds. Of a phase without
    /// `expectedSpeedup` nothing is known, so that all time may be saved. `None` if it may pay, or if the manifest does
    /// not tell: the number of items in an epoch is not known before a launch.
    ///
    /// ```
    /// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
    ///     "metadata": {"name": "toy"},
    ///     "spec": {
    ///         "workload": {"command": ["train"]},
    ///         "settings": {"batchPerGpu": 8},
    ///         "phases": [{"name": "compile", "expectedSpeedup": "1.1", "settings": {"compile": "Graph"}}],
    ///         "train": {"items": 1000},
    ///     },
    /// }))?;
    /// let loss = pawl_decision::judging(&job).loss().unwrap();
    /// assert!(loss.cost > loss.saves);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn loss(&self) -> Option<Loss> {
        // Each sum leaves out what is in the other unit, and is thus at most the cost.
        let (items, epochs) = self.time;
        let (judged, training) = match (self.items, self.epochs) {
            (Some(training), _) => (items, training.max(1) as f64),
            (None, Some(training)) => (epochs, f64::from(training.max(1))),
            (None, None) => return None,
        };
        let cost = judged / training;
        let saves = self.promised.map_or(1.0, |promised| (1.0 - 1.0 / promised).max(0.0));
        let pays_from = (saves > 0.0).then(|| (judged / saves).ceil() as u64);
        (!self.parts.is_empty() && cost > saves).then_some(Loss { cost, saves, pays_from })
    }
}

pub(crate) fn sum(one: Amount, other: Amount) -> Amount {
    Amount {
        launches: one.launches.saturating_add(other.launches),
        steps: one.steps.saturating_add(other.steps),
        items: one.items.saturating_add(other.items),
        epochs: one.epochs.saturating_add(other.epochs),
    }
}

pub(crate) fn times(amount: Amount, count: u64) -> Amount {
    Amount {
        launches: amount.launches.saturating_mul(count),
        steps: amount.steps.saturating_mul(count),
        items: amount.items.saturating_mul(count),
        epochs: amount.epochs.saturating_mul(count),
    }
}

/// The launches that the verdicts on the phases need, probably and at most, as if each phase were accepted. The trials
/// of a search are not counted: see [`searching`](crate::searching).
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {
///         "workload": {"command": ["train"]},
///         "phases": [{"name": "compile", "settings": {"compile": "Graph"}}],
///     },
/// }))?;
/// let (probably, most) = pawl_decision::judging(&job).total();
/// // Three pairs of the phase, and three of all phases together.
/// assert_eq!(probably.launches, 12);
/// assert!(most.launches > probably.launches);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn judging(job: &TrainingJob) -> Judging {
    let status = TrainingJobStatus::default();
    let draft = Draft::new(job, Vec::new(), &status, Timestamp::UNIX_EPOCH);
    Ladder::new(&draft).climb()
}

/// The phases so far, as if all of them were accepted.
struct Ladder<'a> {
    draft: &'a Draft<'a>,
    spec: &'a TrainingJobSpec,
    settings: Settings,
    /// Speed of these settings by their promises, as a multiple of the baseline's.
    speed: f64,
    /// Speed of the baseline's quality launches: that of the phases before the first change of the numerics.
    reference: f64,
    /// Names of the phases in the settings.
    accepted: Vec<&'a str>,
    /// Number of phases that are judged.
    judged: u64,
    changes: bool,
    /// Whether the newest phase has quality launches with these settings.
    newest_changes: bool,
    promised: Option<f64>,
    /// The largest measurement of any settings.
    largest: Amount,
    time: (f64, f64),
    parts: Vec<Part>,
}

impl<'a> Ladder<'a> {
    fn new(draft: &'a Draft<'a>) -> Self {
        let spec = draft.spec;
        Self {
            draft,
            spec,
            settings: spec.settings.clone(),
            speed: 1.0,
            reference: 1.0,
            accepted: Vec::new(),
            judged: 0,
            changes: false,
            newest_changes: false,
            promised: Some(1.0),
            largest: Amount::default(),
            time: (0.0, 0.0),
            parts: Vec::new(),
        }
    }

    fn climb(mut self) -> Judging {
        for phase in &self.spec.phases {
            self.phase(phase);
        }
        if self.judged > 0 {
            self.together();
            self.baseline();
        }
        let (items, epochs) = (self.spec.train.items, self.spec.train.epochs);
        let budget = self.spec.analysis.budget_percent;
        Judging { parts: self.parts, items, epochs, promised: self.promised, budget, time: self.time }
    }

    fn phase(&mut self, phase: &'a Phase) {
        let control = self.settings.clone();
        let candidate = control.with(&patch(phase, 0));
        let idle = || {
            phase.role != Role::Enabler && no_effect(&control, &patch(phase, 0), self.spec.effect_trainer()).is_some()
        };
        match phase.pin {
            Some(Pin::RolledBack) => return,
            Some(Pin::Accepted) => return self.accept(phase, candidate, 1.0),
            Some(Pin::DryRun) | None => {}
        }
        let changed = phase.numerics == Numerics::Changed;
        let most = (0..=phase.fallbacks.len() as u32).map(|fallback| {
            let settings = control.with(&patch(phase, fallback));
            let pairs = times(self.pair(&control, &settings), self.last_look());
            sum(pairs, self.quality(&settings, quality_looks(self.spec)))
        });
        let most = most.fold(Amount::default(), sum);
        let mut part = Part { name: phase.name.clone(), probably: Amount::default(), most };
        self.judged += 1;
        let conflicts = self.accepted.iter().any(|name| phase.conflicts_with.iter().any(|other| other == name));
        if conflicts || idle() {
            self.parts.push(part);
            return;
        }
        let promise = phase.expected_speedup.as_ref().map(|speedup| speedup.value()).filter(|speedup| *speedup > 0.0);
        let factor = promise.unwrap_or(1.0);
        self.promised = self.promised.zip(promise).map(|(all, own)| all * own);
        let pairs = self.first_look();
        let (of_control, of_candidate) = self.measurements(&control, &candidate);
        part.probably = times(sum(of_control, of_candidate), pairs);
        self.spend(times(of_control, pairs), self.speed);
        self.spend(times(of_candidate, pairs), self.speed * factor);
        if changed {
            let quality = self.quality(&candidate, CLEAR_LOOKS);
            part.probably = sum(part.probably, quality);
            self.spend(quality, self.speed * factor);
            self.changes = true;
        }
        self.parts.push(part);
        if phase.pin.is_none() {
            self.newest_changes = changed;
            self.accept(phase, candidate, factor);
        }
    }

    fn accept(&mut self, phase: &'a Phase, settings: Settings, factor: f64) {
        self.accepted.push(&phase.name);
        self.settings = settings;
        self.speed *= factor;
        if !self.changes {
            self.reference = self.speed;
        }
    }

    /// All accepted phases together, against the baseline.
    fn together(&mut self) {
        let baseline = self.spec.settings.clone();
        let (control, candidate) = self.measurements(&baseline, &self.settings.clone());
        let pairs = self.first_look();
        let mut probably = times(sum(control, candidate), pairs);
        self.spend(times(control, pairs), 1.0);
        self.spend(times(candidate, pairs), self.speed);
        // Those of the newest phase are the same.
        if self.changes && !self.newest_changes {
            let quality = self.quality(&self.settings, CLEAR_LOOKS);
            probably = sum(probably, quality);
            self.spend(quality, self.speed);
        }
        let quality = self.quality(&self.settings, quality_looks(self.spec));
        let evaluation = sum(times(self.largest, 2 * self.last_look()), quality);
        let most = times(evaluation, self.judged);
        self.parts.push(Part { name: "all together".to_owned(), probably, most });
    }

    /// The quality launches of the baseline, with which those of each phase are compared.
    fn baseline(&mut self) {
        let most = self.quality(&self.spec.settings, quality_looks(self.spec));
        let probably = if self.changes { self.quality(&self.spec.settings, CLEAR_LOOKS) } else { Amount::default() };
        self.spend(probably, self.reference);
        self.parts.insert(0, Part { name: "baseline".to_owned(), probably, most });
    }

    fn first_look(&self) -> u64 {
        looks(&self.spec.analysis).first().copied().unwrap_or(1) as u64
    }

    fn last_look(&self) -> u64 {
        looks(&self.spec.analysis).last().copied().unwrap_or(1) as u64
    }

    /// The measurements of a pair.
    fn measurements(&mut self, control: &Settings, candidate: &Settings) -> (Amount, Amount) {
        let name = (Task::Preflight, EvidenceTarget::Bundle);
        let comparison = Comparison::new(self.draft, name, (control.clone(), candidate.clone()), &[]);
        let steps = comparison.measured_steps();
        let of = |settings: &Settings| Amount { launches: 1, steps, items: steps * self.step(settings), epochs: 0 };
        let found = (of(control), of(candidate));
        for Amount { steps, items, .. } in [found.0, found.1] {
            self.largest.launches = 1;
            self.largest.steps = self.largest.steps.max(steps);
            self.largest.items = self.largest.items.max(items);
        }
        found
    }

    fn pair(&mut self, control: &Settings, candidate: &Settings) -> Amount {
        let (control, candidate) = self.measurements(control, candidate);
        sum(control, candidate)
    }

    /// Items of a step; 0 where they are not divisible, which the preflight reports.
    fn step(&self, settings: &Settings) -> u64 {
        settings.items_per_step(self.spec.trainer.world_size()).unwrap_or(0)
    }

    /// The quality launches of one side, of all seeds and the first looks.
    fn quality(&self, settings: &Settings, looks: u32) -> Amount {
        let step = self.step(settings).max(1);
        let of_look = |look| {
            let budget = quality(self.spec, look);
            let items = budget.items.unwrap_or(0);
            Amount { launches: 1, steps: items.div_ceil(step), items, epochs: budget.epochs.map_or(0, u64::from) }
        };
        let all = (0..looks.min(quality_looks(self.spec))).map(of_look).fold(Amount::default(), sum);
        times(all, quality_seeds(self.spec).into())
    }

    /// Adds the time of launches at a speed.
    fn spend(&mut self, amount: Amount, speed: f64) {
        self.time.0 += amount.items as f64 / speed;
        self.time.1 += amount.epochs as f64 / speed;
    }
}
