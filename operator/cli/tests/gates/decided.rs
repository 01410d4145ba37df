//! The decision core with a trainer that is a function: all that is decided about one phase and about the job.

use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, Stage, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, Observed};
use std::collections::BTreeMap;

/// Decides about `job` up to its training; launches end at once, with what `trainer` reports.
pub fn judged(job: &TrainingJob, trainer: &dyn Fn(&LaunchPlan) -> LaunchResult) -> TrainingJobStatus {
    let mut status = TrainingJobStatus::default();
    let mut attempts: BTreeMap<String, AttemptFacts> = BTreeMap::new();
    for second in 0..500 {
        let now = jiff::Timestamp::from_second(1_780_000_000 + second).unwrap();
        let observed = Observed { attempts: attempts.values().cloned().collect(), ..Observed::default() };
        let decision = decide(job, &status, &observed, now);
        status = decision.status;
        if matches!(status.stage, Stage::Training | Stage::Complete | Stage::Failed | Stage::Suspended) {
            return status;
        }
        for action in decision.actions {
            match action {
                Action::Start { plan, plan_hash } => {
                    attempts.entry(plan.attempt.clone()).or_insert_with(|| ended(&plan, plan_hash, trainer));
                }
                Action::Stop { attempt, .. } | Action::Release { attempt } => _ = attempts.remove(&attempt),
            }
        }
    }
    panic!("nothing is decided: {status:#?}");
}

/// An attempt whose launches have ended.
fn ended(plan: &AttemptPlan, plan_hash: String, trainer: &dyn Fn(&LaunchPlan) -> LaunchResult) -> AttemptFacts {
    let mut results = Vec::new();
    for launch in &plan.launches {
        let result = trainer(launch);
        let failed = result.outcome != Outcome::Done;
        results.push(result);
        if failed && plan.stop_on_failure {
            break;
        }
    }
    AttemptFacts {
        name: plan.attempt.clone(),
        plan_hash,
        state: AttemptState::Ended(Ending::Completed),
        placement: "here".to_owned(),
        trainer: String::new(),
        results,
        progress: None,
    }
}

/// Whether everything was accepted, and why or why not.
pub fn verdict(status: &TrainingJobStatus) -> (bool, String) {
    if let Some(failure) = &status.failure {
        return (false, format!("{}: {}", failure.reason, failure.message));
    }
    let mut accepted = true;
    let mut texts = Vec::new();
    for phase in &status.phases {
        accepted &= phase.state == PhaseState::Accepted;
        texts.push(format!("{} {}: {}", phase.state, phase.reason, phase.message));
    }
    if let Some(bundle) = &status.bundle {
        accepted &= bundle.reason == "GoalMet";
        texts.push(format!("together {}: {}", bundle.reason, bundle.message));
    }
    (accepted, texts.join("; "))
}
