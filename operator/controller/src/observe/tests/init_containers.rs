//! Init containers that fail, and those that a deletion ends.

use super::*;

/// As when its node lost its power while the init container ran.
#[test]
fn a_gang_whose_init_container_was_lost_is_replaced_at_once_and_did_not_fail() {
    let unknown = "ContainerStatusUnknown: The container could not be located";
    let stuck = PodFacts { node: "node-1".to_owned(), ..waiting(1, unknown) };
    assert_eq!(state(vec![running(0), stuck.clone()]), AttemptState::Leaving(Leaving::Broken));
    assert_eq!(state(vec![waiting(0, ""), stuck]), AttemptState::Leaving(Leaving::Broken));
    let both = vec![gone(running(0)), gone(never_started(unknown))];
    assert!(matches!(state(both), AttemptState::Ended(Ending::Disrupted(_))));
    let alone = vec![never_started(unknown), exited(1, 40)];
    assert_eq!(state(alone), disrupted(&format!("pod toy-1-0: {unknown}")));
}

/// The kubelet ends init containers of a pod that is drained, preempted or deleted by a person.
#[test]
fn a_pod_that_is_deleted_while_its_init_container_runs_did_not_fail() {
    let ended = Hindrance::of_init_container("fetch", 143, "Error", None);
    let over = PodEnd { exit: None, cause: Cause::NotStarted(ended.clone()), ..PodEnd::default() };
    let all = |first: PodFacts| facts(vec![first, exited(1, 40)]);
    let end = |facts: AttemptFacts| seen(facts, None).state;
    let failed = pod(0, Stand::Ended(over.clone()));
    assert_eq!(end(all(failed)), lost("pod toy-1-0: init container fetch exited with 143: Error"));
    for stand in [Stand::Ended(over), Stand::Waiting { problem: Some(ended) }] {
        let by_a_person = all(gone(pod(0, stand)));
        assert_eq!(end(by_a_person.clone()), disrupted("pod toy-1-0 was deleted"));
        let by_kueue = AttemptFacts { gang: Some(GangFacts { taken: true, deleting: true, ..gang() }), ..by_a_person };
        let state = end(by_kueue);
        assert!(matches!(state, AttemptState::Ended(Ending::Preempted | Ending::Disrupted(_))), "{state:?}");
    }
    // One that failed by itself is deleted, too: by the Job controller.
    let failed = Hindrance::of_init_container("fetch", 2, "Error", None);
    let over = PodEnd { exit: None, cause: Cause::NotStarted(failed.clone()), ..PodEnd::default() };
    for stand in [Stand::Ended(over), Stand::Waiting { problem: Some(failed) }] {
        let AttemptState::Ended(Ending::Lost(message)) = end(all(gone(pod(0, stand)))) else { panic!("a disruption") };
        assert!(message.contains("init container fetch exited with 2"), "{message}");
    }
}
