//! A job and its cluster, as a shell without I/O sees them: decisions are taken, stored and carried out.

use jiff::{SignedDuration, Timestamp};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::LaunchResult;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, Observed};
use std::collections::BTreeMap;

/// An attempt that exists.
pub struct Attempt {
    /// What is observed of it.
    pub facts: AttemptFacts,
    /// Its plan.
    pub plan: AttemptPlan,
}

impl Attempt {
    /// Adds the result of the next launch that has none. Returns whether there was one.
    pub fn report(&mut self, result: LaunchResult) -> bool {
        let known = &self.facts.results;
        let next = self.plan.launches.iter().find(|plan| known.iter().all(|result| result.launch != plan.launch));
        let Some(next) = next else { return false };
        self.facts.results.push(LaunchResult { launch: next.launch.clone(), ..result });
        true
    }
}

/// A job, its stored status, and its attempts.
pub struct Story<'j> {
    job: &'j TrainingJob,
    status: TrainingJobStatus,
    now: Timestamp,
    attempts: BTreeMap<String, Attempt>,
}

impl<'j> Story<'j> {
    /// The job with a stored status, before any attempt.
    pub fn new(job: &'j TrainingJob, status: TrainingJobStatus) -> Self {
        let now = Timestamp::from_second(1_800_000_000).expect("a time in range");
        Self { job, status, now, attempts: BTreeMap::new() }
    }

    /// Decides, stores the status and carries the decision out. Panics where a promise of `decide` is broken: equal
    /// arguments give equal decisions, and a status can be stored and read.
    pub fn decide(&mut self) {
        let attempts = self.attempts.values().map(|attempt| attempt.facts.clone()).collect();
        let observed = Observed { attempts, ..Observed::default() };
        let decision = decide(self.job, &self.status, &observed, self.now);
        assert!(
            decision == decide(self.job, &self.status, &observed, self.now),
            "two decisions on the same facts differ"
        );
        self.status = stored(&decision.status);
        for action in decision.actions {
            match action {
                Action::Start { plan, plan_hash } => {
                    let name = plan.attempt.clone();
                    let facts = AttemptFacts {
                        name: name.clone(),
                        plan_hash,
                        state: AttemptState::Running,
                        placement: "node-a/gpu:0".to_owned(),
                        trainer: "pawl 0.1.0".to_owned(),
                        results: Vec::new(),
                        progress: None,
                    };
                    self.attempts.entry(name).or_insert(Attempt { facts, plan });
                }
                Action::Stop { attempt, .. } => {
                    if let Some(attempt) = self.attempts.get_mut(&attempt) {
                        attempt.facts.state = AttemptState::Ended(Ending::Stopped);
                    }
                }
                Action::Release { attempt } => drop(self.attempts.remove(&attempt)),
            }
        }
    }

    /// The attempts, to change what is observed of them.
    pub fn attempts(&mut self) -> impl Iterator<Item = &mut Attempt> {
        self.attempts.values_mut()
    }

    /// Lets `seconds` pass.
    pub fn wait(&mut self, seconds: u32) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds.into())).unwrap_or(Timestamp::MAX);
    }
}

/// The status as the API server returns it.
fn stored(status: &TrainingJobStatus) -> TrainingJobStatus {
    let value = serde_json::to_value(status).expect("a status is JSON");
    let read: TrainingJobStatus = serde_json::from_value(value.clone())
        .unwrap_or_else(|error| panic!("a status cannot be read again: {error}: {value}"));
    let again = serde_json::to_value(&read).expect("a status is JSON");
    assert!(again == value, "a status changes when it is stored: {value} became {again}");
    read
}
