//! Pod templates that the operator's policy does not allow.

use crate::world::{World, done};
use pawl_api::Policy;
use pawl_api::status::Stage;
use pawl_decision::action::{Action, Decision};
use pawl_decision::decide_under;
use serde_json::json;

fn world() -> World {
    let template = json!({"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]});
    World::new(json!({"trainer": {"podTemplate": template}}), Box::new(|plan, _| done(plan, 100.0)))
}

fn under(policy: &Policy, world: &World) -> Decision {
    decide_under(policy, &world.job.spec, &world.job, &world.status, &world.observed(), world.now)
}

fn starts(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| matches!(action, Action::Start { .. }))
}

fn allowing() -> Policy {
    r#"{"allowedSecrets": ["db"]}"#.parse().unwrap()
}

#[test]
fn a_job_that_refers_to_a_secret_of_others_starts_nothing() {
    let mut world = world();
    let decision = under(&Policy::default(), &world);
    assert!(decision.actions.is_empty(), "{:?}", decision.actions);
    assert_eq!(decision.status.stage, Stage::Failed);
    let failure = decision.status.failure.clone().unwrap();
    assert_eq!(failure.reason, "NotAllowed");
    for part in ["spec.trainer.podTemplate.env[0].valueFrom.secretKeyRef.name", "\"db\"", "policy.allowedSecrets"] {
        assert!(failure.message.contains(part), "{}", failure.message);
    }
    let stalled = decision.status.conditions.iter().find(|condition| condition.type_ == "Stalled").unwrap();
    assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "NotAllowed"));
    assert!(decision.events.iter().any(|event| event.reason == "NotAllowed"));

    // It stays so, in silence, until the policy allows it.
    world.status = decision.status;
    let again = under(&Policy::default(), &world);
    assert!(again.actions.is_empty() && again.events.is_empty() && again.status == world.status);
    let allowed = under(&allowing(), &world);
    assert!(starts(&allowed), "{:?}", allowed.actions);
    assert_eq!(allowed.status.failure, None);
}

#[test]
fn a_stricter_policy_leaves_a_job_that_is_done() {
    let mut world = world();
    world.run();
    assert_eq!(world.status.stage, Stage::Complete);
    let decision = under(&Policy::default(), &world);
    assert!(decision.actions.is_empty() && decision.events.is_empty(), "{decision:?}");
    assert_eq!((decision.status.stage, decision.status.failure), (Stage::Complete, None));
}

#[test]
fn a_stricter_policy_stops_a_running_attempt() {
    let mut world = world();
    let started = under(&allowing(), &world);
    assert!(starts(&started));
    world.status = started.status;
    for action in started.actions {
        world.carry_out(action);
    }
    let decision = under(&Policy::default(), &world);
    assert!(decision.actions.iter().any(|action| matches!(action, Action::Stop { .. })), "{:?}", decision.actions);
    assert!(!starts(&decision));
    assert_eq!(decision.status.failure.unwrap().reason, "NotAllowed");
}
