//! The shortest shell around `decide`: what is started has ended at once, but for a training, whose progress the
//! simulation reports.

use crate::action::Action;
use crate::decide;
use crate::observed::{AttemptFacts, AttemptState, Ending, Observed};
use jiff::{SignedDuration, Timestamp};
use pawl_api::spec::{JudgingBudget, TrainingJobSpec};
use pawl_api::status::PhaseState;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What becomes of a launch.
pub(crate) type Trainer<'t> = Box<dyn FnMut(&LaunchPlan) -> LaunchResult + 't>;

/// A job, and what surrounds it.
pub(crate) struct Shell<'t> {
    job: TrainingJob,
    pub status: TrainingJobStatus,
    now: Timestamp,
    attempts: BTreeMap<String, AttemptFacts>,
    trainer: Trainer<'t>,
    /// Numbers of events by their reason.
    pub events: BTreeMap<String, u32>,
}

/// A launch that ended well, with the losses of the training and of the validation.
pub(crate) fn done(plan: &LaunchPlan, items_per_second: f64, loss: f64) -> LaunchResult {
    let items = plan.budget.items.unwrap_or(700);
    let metrics = BTreeMap::from([("loss".to_owned(), loss)]);
    let measured = Measured {
        steps: 70,
        items,
        items_per_second: (plan.kind != LaunchKind::Preflight).then_some(items_per_second),
        loss: Some(loss),
        validation: Some(Validation { items, metrics }),
        peak_memory_bytes: Some(10 << 30),
        wall_seconds: Some(60.0),
        ..Measured::default()
    };
    LaunchResult {
        measured: measured.rounded(),
        items_per_epoch: Some(10_000),
        ..LaunchResult::bare(&plan.launch, Outcome::Done)
    }
}

/// A phase that does what the simulation says of its settings.
pub(crate) fn phase(index: usize) -> Value {
    json!({"name": format!("p{index}"), "settings": {"workload": {format!("p{index}"): 1}}})
}

/// Numbers of the phases in the settings of a launch.
pub(crate) fn active(plan: &LaunchPlan) -> impl Iterator<Item = usize> {
    let settings = plan.settings.workload.iter().flatten();
    settings.filter_map(|(name, _)| name.strip_prefix('p')?.parse().ok())
}

impl<'t> Shell<'t> {
    /// A job with one GPU and these parts of its spec.
    pub fn new(spec: Value, trainer: Trainer<'t>) -> Self {
        let mut whole = json!({"workload": {"name": "ups"}, "settings": {"batchPerGpu": 8}});
        let (Value::Object(whole), Value::Object(spec)) = (&mut whole, spec) else { panic!("a spec is an object") };
        whole.extend(spec);
        let mut spec: TrainingJobSpec = serde_json::from_value(Value::Object(whole.clone())).expect("the spec is one");
        // What is simulated is judged in full, whatever the training is; simulations of the budget give theirs.
        spec.analysis.budget_percent.get_or_insert(JudgingBudget::Unlimited);
        Self {
            job: TrainingJob::new("job", spec),
            status: TrainingJobStatus::default(),
            now: Timestamp::UNIX_EPOCH,
            attempts: BTreeMap::new(),
            trainer,
            events: BTreeMap::new(),
        }
    }

    /// Decides until nothing moves any more.
    pub fn run(&mut self) -> &mut Self {
        for _ in 0..5_000 {
            if !self.decide() {
                return self;
            }
        }
        panic!("it never ends: {:#?}", self.status);
    }

    fn decide(&mut self) -> bool {
        let observed = Observed { attempts: self.attempts.values().cloned().collect(), ..Observed::default() };
        let decision = decide(&self.job, &self.status, &observed, self.now);
        let mut moved = decision.status != self.status;
        self.status = decision.status;
        for event in decision.events {
            *self.events.entry(event.reason).or_default() += 1;
        }
        for action in decision.actions {
            moved |= self.carry_out(action);
        }
        if !moved
            && self.attempts.is_empty()
            && let Some(wait) = decision.requeue_after
        {
            self.wait(SignedDuration::try_from(wait).expect("waits are short"));
            return true;
        }
        moved
    }

    fn wait(&mut self, time: SignedDuration) {
        self.now = self.now.checked_add(time).expect("simulations are short");
    }

    fn carry_out(&mut self, action: Action) -> bool {
        match action {
            Action::Start { plan, plan_hash } if !self.attempts.contains_key(&plan.attempt) => {
                let mut facts = AttemptFacts {
                    name: plan.attempt,
                    plan_hash,
                    state: AttemptState::Running,
                    placement: "node".to_owned(),
                    trainer: "sha256:aaaaaaaaaaaaaaaa".to_owned(),
                    results: Vec::new(),
                    progress: None,
                };
                for launch in &plan.launches {
                    if launch.kind == LaunchKind::Train {
                        facts.progress = Some(Progress::at_start(&launch.launch, launch.kind));
                        break;
                    }
                    facts.results.push((self.trainer)(launch));
                }
                if facts.progress.is_none() {
                    facts.state = AttemptState::Ended(Ending::Completed);
                }
                self.attempts.insert(facts.name.clone(), facts);
                true
            }
            Action::Start { .. } => false,
            Action::Stop { attempt, .. } => {
                let Some(facts) = self.attempts.get_mut(&attempt) else { return false };
                let running = facts.state == AttemptState::Running;
                if running {
                    (facts.state, facts.progress) = (AttemptState::Ended(Ending::Stopped), None);
                }
                running
            }
            Action::Release { attempt } => self.attempts.remove(&attempt).is_some(),
        }
    }

    /// Reports progress of the training, and decides on what follows.
    pub fn trains(&mut self, report: impl FnOnce(&mut Progress)) {
        let running = self.attempts.values_mut().find_map(|facts| facts.progress.as_mut());
        report(running.expect("a training runs"));
        self.wait(SignedDuration::from_secs(10));
        self.run();
    }

    /// Number of phases in this state.
    pub fn count(&self, state: PhaseState) -> usize {
        self.status.phases.iter().filter(|phase| phase.state == state).count()
    }

    /// What became of the only phase.
    pub fn verdict(&self) -> &'static str {
        if self.count(PhaseState::Accepted) > 0 {
            "accepted"
        } else if self.count(PhaseState::RolledBack) > 0 {
            "rolled back"
        } else {
            "inconclusive"
        }
    }
}
