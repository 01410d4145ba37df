//! A world without machines: the shortest shell that keeps the contract, and a trainer that is a function.
//!
//! Every decision is checked on the way: made again it changes nothing, at most one attempt is alive, the settings in
//! effect are the baseline and the accepted patches.

use jiff::{SignedDuration, Timestamp};
use pawl_api::spec::JudgingBudget;
use pawl_api::status::{PhaseState, PhaseStatus, Stage};
use pawl_api::{TrainingJob, TrainingJobSpec, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_contract::settings::Settings;
use pawl_decision::action::{Action, Decision, Event};
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, Observed};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The trial whose launches an attempt of a search runs; the attempt's name otherwise.
pub fn trial_of(plan: &AttemptPlan) -> String {
    match plan.launches.first() {
        Some(launch) if launch.launch.starts_with("search-") => {
            launch.launch.split('-').take(4).collect::<Vec<_>>().join("-")
        }
        _ => plan.attempt.clone(),
    }
}

/// What the trainer does with a launch, given how often it ran before.
pub type Trainer = Box<dyn FnMut(&LaunchPlan, usize) -> LaunchResult>;

/// An attempt of this world.
pub struct Attempt {
    pub plan: AttemptPlan,
    pub facts: AttemptFacts,
}

/// The world.
pub struct World {
    pub job: TrainingJob,
    pub status: TrainingJobStatus,
    pub now: Timestamp,
    pub attempts: BTreeMap<String, Attempt>,
    pub events: Vec<Event>,
    /// Launches that ran, in order.
    pub ran: Vec<LaunchPlan>,
    pub trainer: Trainer,
    /// Which devices the next attempt gets.
    pub placement: String,
    /// Which build of the trainer the next attempt runs.
    pub build: String,
    /// Attempts whose pods were made from an earlier template.
    pub outdated: Vec<String>,
    /// In which order attempts that run at the same time advance: the state of a generator of random numbers.
    pub order: u64,
}

/// A job with one GPU and these parts of its spec. Its phases are judged in full if they give no budget: trainings are
/// short here.
pub fn job(spec: Value) -> TrainingJob {
    let mut whole = json!({
        "workload": {"name": "ups"},
        "settings": {"batchPerGpu": 8},
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    // Without a generation nothing is validated again: worlds may hold specs that both shells refuse.
    let mut spec: TrainingJobSpec = serde_json::from_value(whole).unwrap();
    spec.analysis.budget_percent.get_or_insert(JudgingBudget::Unlimited);
    TrainingJob::new("job", spec)
}

/// A launch that ended well: speed from `speed`, losses that only the seed moves.
pub fn done(plan: &LaunchPlan, items_per_second: f64) -> LaunchResult {
    let loss = 1.0 + plan.seed as f64 * 1e-4;
    // 10 items a step, and as many steps as the window has to last.
    let lasting = plan.budget.min_window_seconds.map_or(0, |seconds| (seconds * items_per_second / 10.0).ceil() as u64);
    let steps = 70.max(20 + lasting);
    let items = plan.budget.items.unwrap_or(10 * steps);
    let metrics = BTreeMap::from([("loss".to_owned(), loss), ("nrmse".to_owned(), loss / 10.0)]);
    let measured = Measured {
        steps,
        items,
        items_per_second: (plan.kind != LaunchKind::Preflight).then_some(items_per_second),
        loss: Some(loss),
        validation: Some(Validation { items, metrics }),
        peak_memory_bytes: Some(10 << 30),
        predicted_memory_bytes: Some(10 << 30),
        loader_wait_share: Some(0.01),
        offload_share: Some(0.0),
        utilization: Some(0.9),
        wall_seconds: Some(36.0),
        ..Measured::default()
    };
    LaunchResult { measured, items_per_epoch: Some(10_000), ..LaunchResult::bare(&plan.launch, Outcome::Done) }
}

/// A launch that ended otherwise.
pub fn ended(plan: &LaunchPlan, outcome: Outcome) -> LaunchResult {
    let well = done(plan, 0.0);
    LaunchResult {
        outcome,
        message: format!("{outcome:?} as planted"),
        measured: Measured { items_per_second: None, loss: None, validation: None, ..well.measured.clone() },
        failed_at_items: Some(500),
        ..well
    }
}

/// Items per second: 100, times the factor of every setting that `factors` names by its JSON.
pub fn speed(settings: &Settings, factors: &[(&str, f64)]) -> f64 {
    let text = serde_json::to_string(settings).unwrap();
    100.0 * factors.iter().filter(|(needle, _)| text.contains(needle)).map(|(_, factor)| factor).product::<f64>()
}

/// A small deterministic disturbance, a pure function of the launch.
pub fn noise(plan: &LaunchPlan, scale: f64) -> f64 {
    let hash = plan.launch.bytes().fold(1469598103934665603u64, |h, b| (h ^ u64::from(b)).wrapping_mul(1099511628211));
    1.0 + scale * ((hash >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
}

/// A trainer whose speed is a product of factors, with a little noise.
pub fn factors(factors: &'static [(&'static str, f64)]) -> Trainer {
    Box::new(move |plan, _| done(plan, speed(&plan.settings, factors) * noise(plan, 0.002)))
}

impl World {
    pub fn new(spec: Value, trainer: Trainer) -> Self {
        Self {
            job: job(spec),
            status: TrainingJobStatus::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            attempts: BTreeMap::new(),
            events: Vec::new(),
            ran: Vec::new(),
            trainer,
            placement: "node-0".to_owned(),
            build: "sha256:aaaaaaaaaaaaaaaa".to_owned(),
            outdated: Vec::new(),
            order: 0,
        }
    }

    /// Changes the spec, as a person would.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let mut spec = serde_json::to_value(&self.job.spec).unwrap();
        change(&mut spec);
        self.job.spec = serde_json::from_value(spec).unwrap();
        self.job.metadata.generation = self.job.metadata.generation.map(|generation| generation + 1);
    }

    pub fn observed(&self) -> Observed {
        Observed {
            attempts: self.attempts.values().map(|attempt| attempt.facts.clone()).collect(),
            outdated: self.outdated.clone(),
            ..Observed::default()
        }
    }

    pub fn alive(&self) -> Vec<&Attempt> {
        self.attempts.values().filter(|attempt| !matches!(attempt.facts.state, AttemptState::Ended(_))).collect()
    }

    /// Decides, checks the decision, writes the status and carries the decision out. `true` when anything moved.
    pub fn decide(&mut self) -> bool {
        let observed = self.observed();
        let decision = decide(&self.job, &self.status, &observed, self.now);
        self.check(&decision, &observed);
        let mut moved = decision.status != self.status;
        self.status = decision.status;
        for action in decision.actions {
            moved |= self.carry_out(action);
        }
        self.events.extend(decision.events);
        self.check_alive();
        // While a launch runs, the clock is that of its work.
        let runs = self.attempts.values().any(|attempt| attempt.facts.state == AttemptState::Running);
        if !moved
            && !runs
            && let Some(wait) = decision.requeue_after
        {
            self.now = self.now.checked_add(SignedDuration::try_from(wait).unwrap()).unwrap();
            return self.alive().is_empty();
        }
        moved
    }

    /// Several attempts are alive only of a search, as many as its `parallelism`, and one for each trial.
    fn check_alive(&self) {
        let alive = self.alive();
        let trials: BTreeSet<String> = alive.iter().map(|attempt| trial_of(&attempt.plan)).collect();
        assert_eq!(trials.len(), alive.len(), "two gangs for one trial: {trials:?}");
        let of_search = trials.iter().all(|trial| trial.starts_with("search-"));
        let most = self.job.spec.search.iter().map(|search| search.parallelism as usize).max().unwrap_or(1);
        // Those of a parallelism that was lowered since end as they began.
        let most = most.max(self.status.under_way().count());
        assert!(alive.len() <= if of_search { most } else { 1 }, "too many attempts: {trials:?}");
    }

    fn check(&self, decision: &Decision, observed: &Observed) {
        let again = decide(&self.job, &decision.status, observed, self.now);
        assert_eq!(again.status, decision.status, "deciding again changed the status");
        assert_eq!(again.events, [], "deciding again emitted an event");
        let spec = &self.job.spec;
        let mut expected = spec.settings.clone();
        for (phase, status) in spec.phases.iter().zip(&decision.status.phases) {
            assert_eq!(phase.name, status.name);
            if status.state == PhaseState::Accepted {
                expected = expected.with(&phase.settings);
                if let Some(fallback) = (status.effective_fallback() as usize).checked_sub(1) {
                    expected = expected.with(&phase.fallbacks[fallback].settings);
                }
            }
        }
        let last = decision.status.search.last().and_then(|last| last.comparison.as_ref());
        let replaced = !last.is_some_and(|comparison| comparison.kept);
        let winners = decision.status.search.iter().filter_map(|stage| stage.winner.as_ref());
        for winner in winners.filter(|_| replaced) {
            expected = pawl_api::search::with(&expected, &spec.workload, &winner.parameters);
        }
        assert_eq!(decision.status.effective_settings.as_ref(), Some(&expected));
    }

    pub fn carry_out(&mut self, action: Action) -> bool {
        match action {
            Action::Start { plan, plan_hash } => {
                if self.attempts.contains_key(&plan.attempt) {
                    return false;
                }
                assert!(plan.launches.len() <= 14, "too many launches for one termination message");
                let facts = AttemptFacts {
                    name: plan.attempt.clone(),
                    plan_hash,
                    state: AttemptState::Running,
                    placement: self.placement.clone(),
                    trainer: self.build.clone(),
                    results: Vec::new(),
                    progress: None,
                };
                self.attempts.insert(plan.attempt.clone(), Attempt { plan, facts });
                true
            }
            Action::Stop { attempt, .. } => self.end(&attempt, Ending::Stopped),
            Action::Release { attempt } => self.attempts.remove(&attempt).is_some(),
        }
    }

    /// The plan of the first attempt, computed again.
    pub fn current_plan(&self) -> Option<AttemptPlan> {
        pawl_decision::plan(&self.job, &self.status, &self.status.attempt.as_ref()?.name)
    }

    /// Ends an attempt that is alive.
    pub fn end(&mut self, name: &str, ending: Ending) -> bool {
        let Some(attempt) = self.attempts.get_mut(name) else { return false };
        if matches!(attempt.facts.state, AttemptState::Ended(_)) {
            return false;
        }
        attempt.facts.state = AttemptState::Ended(ending);
        attempt.facts.progress = None;
        true
    }

    /// Ends the attempt that is alive.
    pub fn end_alive(&mut self, ending: Ending) {
        let name = self.alive()[0].facts.name.clone();
        self.end(&name, ending);
    }

    /// Runs the next launch of an attempt that is alive. `true` when there was something to do.
    pub fn work(&mut self) -> bool {
        let running = |attempt: &&mut Attempt| attempt.facts.state == AttemptState::Running;
        let mut running: Vec<&mut Attempt> = self.attempts.values_mut().filter(running).collect();
        if running.is_empty() {
            return false;
        }
        if self.order != 0 {
            self.order = self.order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        let attempt = running.swap_remove((self.order >> 33) as usize % running.len());
        let broken = attempt.facts.results.iter().any(|result| result.outcome != Outcome::Done);
        let next = attempt.plan.launches.get(attempt.facts.results.len());
        let Some(plan) = next.filter(|_| !(broken && attempt.plan.stop_on_failure)) else {
            attempt.facts.state = AttemptState::Ended(Ending::Completed);
            return true;
        };
        let before = self.ran.iter().filter(|launch| launch.launch == plan.launch).count();
        let result = (self.trainer)(plan, before);
        self.ran.push(plan.clone());
        self.now = self
            .now
            .checked_add(SignedDuration::from_secs(result.measured.wall_seconds.unwrap_or(0.0) as i64))
            .unwrap();
        attempt.facts.results.push(result);
        true
    }

    /// Decides and works until nothing moves any more.
    pub fn run(&mut self) -> &mut Self {
        for _ in 0..5_000 {
            let moved = self.decide();
            let worked = self.work();
            if !moved && !worked {
                return self;
            }
        }
        panic!("it never ends: {:#?}", self.status);
    }

    /// Decides and works until `enough`.
    pub fn run_until(&mut self, enough: impl Fn(&Self) -> bool) -> &mut Self {
        for _ in 0..5_000 {
            if enough(self) {
                return self;
            }
            let moved = self.decide();
            if enough(self) {
                return self;
            }
            let worked = self.work();
            assert!(moved || worked, "it ended before: {:#?}", self.status);
        }
        panic!("it never comes to that");
    }

    /// Lets the clock run and settles what follows.
    pub fn wait(&mut self, seconds: i64) -> &mut Self {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        self
    }

    /// Says something about the training that runs.
    pub fn progress(&mut self, change: impl FnOnce(&mut Progress)) {
        let running = |attempt: &&mut Attempt| attempt.facts.state == AttemptState::Running;
        let attempt = self.attempts.values_mut().find(running).expect("an attempt runs");
        let plan = &attempt.plan.launches[attempt.facts.results.len()];
        let progress = attempt.facts.progress.get_or_insert_with(|| Progress::at_start(&plan.launch, plan.kind));
        change(progress);
    }

    pub fn phase(&self, name: &str) -> &PhaseStatus {
        self.status.phases.iter().find(|phase| phase.name == name).expect("the phase is there")
    }

    /// State, reason and fallback of a phase.
    pub fn verdict(&self, name: &str) -> (PhaseState, &str, u32) {
        let phase = self.phase(name);
        (phase.state, phase.reason.as_str(), phase.fallback)
    }

    /// Reason and message of the failure.
    pub fn failure(&self) -> (&str, &str) {
        assert_eq!(self.status.stage, Stage::Failed, "{:#?}", self.status);
        let failure = self.status.failure.as_ref().unwrap();
        (&failure.reason, &failure.message)
    }

    /// How many launches of this kind ran whose names begin so.
    pub fn launches(&self, kind: LaunchKind, prefix: &str) -> usize {
        self.ran.iter().filter(|plan| plan.kind == kind && plan.launch.starts_with(prefix)).count()
    }

    pub fn count_events(&self, reason: &str) -> usize {
        self.events.iter().filter(|event| event.reason == reason).count()
    }
}

/// A specification with one phase, `fuse`, and `rest`.
pub fn fuse(rest: Value) -> Value {
    let mut spec = json!({"phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}
