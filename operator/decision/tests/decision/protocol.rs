//! The order in which every shell carries out a decision.

use crate::world::{World, factors};
use pawl_api::TrainingJobStatus;
use pawl_decision::action::{Action, Event};
use pawl_decision::decide;
use pawl_decision::protocol::Shell;
use serde_json::json;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Writes down what it is asked to do, and fails at the step with this number.
#[derive(Default)]
struct Recorder {
    steps: Vec<String>,
    fails_at: Option<usize>,
}

impl Recorder {
    fn step(&mut self, what: String) -> Result<(), String> {
        self.steps.push(what.clone());
        if self.fails_at == Some(self.steps.len()) { Err(what) } else { Ok(()) }
    }
}

impl Shell for Recorder {
    type Error = String;

    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), String> {
        let attempt = status.attempt.map(|attempt| attempt.name).unwrap_or_default();
        self.step(format!("write {attempt}{}", if urgent { " now" } else { "" }))
    }

    async fn act(&mut self, action: Action) -> Result<bool, String> {
        let what = match action {
            Action::Start { plan, .. } => format!("start {}", plan.attempt),
            Action::Stop { attempt, .. } => format!("stop {attempt}"),
            Action::Release { attempt } => format!("release {attempt}"),
        };
        self.step(what).map(|()| true)
    }

    async fn emit(&mut self, event: Event) -> Result<(), String> {
        self.step(format!("emit {}", event.reason))
    }
}

/// The steps of the first decision on a job, and whether it was carried out.
fn steps(fails_at: Option<usize>) -> (Vec<String>, bool) {
    let world = World::new(json!({}), factors(&[]));
    let decision = decide(&world.job, &world.status, &world.observed(), world.now);
    let mut shell = Recorder { fails_at, ..Recorder::default() };
    let carried_out = {
        let future = pin!(decision.carry_out(&mut shell));
        let Poll::Ready(result) = future.poll(&mut Context::from_waker(Waker::noop())) else { panic!("it waits") };
        result
    };
    (shell.steps, carried_out.is_ok())
}

#[test]
fn the_status_is_written_before_the_actions_and_these_come_before_the_events() {
    assert_eq!(
        steps(None),
        (["write job-1 now", "start job-1", "emit AttemptStarted"].map(str::to_owned).into(), true)
    );
}

#[test]
fn a_status_that_is_not_written_starts_nothing() {
    assert_eq!(steps(Some(1)), (vec!["write job-1 now".to_owned()], false));
}

#[test]
fn events_are_emitted_after_a_failed_action() {
    let expected = ["write job-1 now", "start job-1", "emit AttemptStarted"].map(str::to_owned);
    assert_eq!(steps(Some(2)), (expected.into(), false));
}
