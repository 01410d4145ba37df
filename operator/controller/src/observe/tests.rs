mod init_containers;

use super::*;
use crate::facts::{Cause, Finished, GangFacts, Hindrance, NodeSeen, PlanFacts, PodEnd, PodFacts, Stand};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use pawl_contract::report::{LaunchResult, fold};
use pawl_decision::observed::{Ending, Leaving, WaitsFor};
use proptest::prelude::*;
use rstest::rstest;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn pod(index: u32, stand: Stand) -> PodFacts {
    PodFacts {
        name: format!("toy-1-{index}"),
        uid: format!("pod-{index}"),
        gang_uid: "g".to_owned(),
        index,
        node: format!("node-{index}"),
        placed: None,
        address: format!("10.0.0.{index}"),
        image: "sha256:ab12".to_owned(),
        stand,
        deleting: None,
        disruption: String::new(),
        hidden: false,
        gone: false,
        lost: false,
        node_seen: NodeSeen::Unknown,
    }
}

/// As Kubernetes says it: reason and message.
fn hindrance(problem: &str) -> Hindrance {
    match problem.split_once(": ").unwrap_or((problem, "")) {
        (reason @ "Unschedulable", message) => Hindrance::of_scheduling(reason, message),
        (reason, message) => Hindrance::of_container(reason, message),
    }
}

fn running(index: u32) -> PodFacts {
    pod(index, Stand::Running)
}

fn exited(index: u32, code: i32) -> PodFacts {
    pod(index, Stand::Ended(PodEnd { exit: Some(code), cause: Cause::of(code, "Error", ""), ..PodEnd::default() }))
}

/// A pod that the kubelet did not accept.
fn refused_by_node(index: u32) -> PodFacts {
    let cause = Cause::NotStarted(Hindrance::of_pod("UnexpectedAdmissionError", "no device"));
    pod(index, Stand::Ended(PodEnd { exit: None, cause, ..PodEnd::default() }))
}

/// A pod that was evicted for its own use of the disk, whose agent ended as on request.
fn evicted(index: u32, why: &str) -> PodFacts {
    let cause = Cause::OverLimit(why.to_owned());
    pod(index, Stand::Ended(PodEnd { exit: Some(30), cause, ..PodEnd::default() }))
}

/// The first pod, whose container the kubelet could not find when it was deleted.
fn never_started(problem: &str) -> PodFacts {
    pod(0, Stand::Ended(PodEnd { exit: Some(137), cause: Cause::NotStarted(hindrance(problem)), ..PodEnd::default() }))
}

fn out_of_memory(index: u32) -> PodFacts {
    let end = PodEnd { exit: Some(137), cause: Cause::OutOfMemory, ..PodEnd::default() };
    pod(index, Stand::Ended(end))
}

fn waiting(index: u32, problem: &str) -> PodFacts {
    let stand = Stand::Waiting { problem: (!problem.is_empty()).then(|| hindrance(problem)) };
    PodFacts { node: String::new(), ..pod(index, stand) }
}

fn deleted(pod: PodFacts) -> PodFacts {
    PodFacts { deleting: Some(NOW), ..pod }
}

fn gone(pod: PodFacts) -> PodFacts {
    PodFacts { gone: true, ..deleted(pod) }
}

fn gang() -> GangFacts {
    GangFacts {
        uid: "g".to_owned(),
        job_uid: "t".to_owned(),
        plan_hash: "h".to_owned(),
        carries_plan: false,
        token_secret: Some("pawl-token-toy-1".to_owned()),
        template: "t".to_owned(),
        replicas: 2,
        since: NOW,
        started: None,
        suspended: false,
        taken: false,
        finished: None,
        deleting: false,
        gone: false,
        intact: true,
        manager: String::new(),
    }
}

fn facts(pods: Vec<PodFacts>) -> AttemptFacts {
    let plan = Some(PlanFacts { uid: "p".to_owned(), gang_uid: "g".to_owned(), intact: true });
    AttemptFacts {
        name: "toy-1".to_owned(),
        gang: Some(gang()),
        plan,
        pods,
        refusal: None,
        changed: Some(NOW),
        released: false,
    }
}

fn seen(facts: AttemptFacts, live: Option<&live::Attempt>) -> observed::AttemptFacts {
    let launches = vec!["a".to_owned(), "b".to_owned()];
    let attempt = AttemptStatus { name: "toy-1".to_owned(), launches, ..AttemptStatus::default() };
    // Another attempt runs beside it.
    let other = AttemptStatus { name: "toy-2".to_owned(), launches: vec!["c".to_owned()], ..AttemptStatus::default() };
    let beside =
        live::Attempt { attempt: "toy-2".to_owned(), results: vec![result("c", Outcome::Done)], progress: None };
    let live: Vec<_> = std::iter::once(beside).chain(live.cloned()).map(Arc::new).collect();
    let under_way = [&other, &attempt];
    let scene = Scene {
        job_uid: "t",
        gpus: 4,
        memory: Some("2Gi"),
        under_way: &under_way,
        attempts: &[facts],
        live: &live,
        now: NOW,
    };
    observe(&scene).attempts.remove(0)
}

fn state(pods: Vec<PodFacts>) -> AttemptState {
    seen(facts(pods), None).state
}

fn result(launch: &str, outcome: Outcome) -> LaunchResult {
    serde_json::from_value(serde_json::json!({"launch": launch, "outcome": outcome})).unwrap()
}

fn lost(message: &str) -> AttemptState {
    AttemptState::Ended(Ending::Lost(message.to_owned()))
}

fn disrupted(message: &str) -> AttemptState {
    AttemptState::Ended(Ending::Disrupted(message.to_owned()))
}

#[rstest]
#[case::no_pod_yet(vec![], false)]
#[case::one_to_come(vec![running(0)], false)]
#[case::one_waits(vec![running(0), waiting(1, "")], false)]
#[case::all_run(vec![running(0), running(1)], true)]
fn a_gang_runs_when_all_of_its_pods_do(#[case] pods: Vec<PodFacts>, #[case] runs: bool) {
    let state = state(pods);
    assert_eq!(state == AttemptState::Running, runs, "{state:?}");
    assert!(runs || matches!(state, AttemptState::Pending { .. }), "{state:?}");
}

#[test]
fn why_a_gang_is_pending_is_told() {
    let AttemptState::Pending { message, .. } = state(vec![running(0), waiting(1, "Unschedulable: no GPU")]) else {
        panic!()
    };
    assert_eq!(message, "1 of 2 pods run; pod toy-1-1: Unschedulable: no GPU");
}

#[rstest]
#[case::some_have_devices(vec![running(0), waiting(1, "Unschedulable: no GPU")], WaitsFor::MoreDevices)]
#[case::none_has(vec![waiting(0, "Unschedulable: no GPU"), waiting(1, "Unschedulable: no GPU")], WaitsFor::Devices)]
#[case::a_missing_claim(vec![waiting(0, "Unschedulable: persistentvolumeclaim \"x\" not found")], WaitsFor::Containers)]
#[case::no_volume(vec![waiting(0, "Unschedulable: 0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.")], WaitsFor::Containers)]
#[case::an_image(vec![running(0), waiting(1, "ErrImagePull: x")], WaitsFor::Containers)]
#[case::time(vec![running(0), waiting(1, "")], WaitsFor::Containers)]
#[case::no_pod_is_made(vec![], WaitsFor::Pods)]
#[case::one_is_admitted(vec![running(0)], WaitsFor::MoreDevices)]
fn what_a_gang_waits_for(#[case] pods: Vec<PodFacts>, #[case] expected: WaitsFor) {
    let AttemptState::Pending { waits_for, .. } = state(pods) else { panic!() };
    assert_eq!(waits_for, expected);
}

#[rstest]
#[case::something_is_missing("serviceaccount \"x\" not found", vec![], WaitsFor::Admission)]
#[case::quota("pods \"toy-1-0-\" is forbidden: exceeded quota: limits, requested: pods=1", vec![], WaitsFor::Quota)]
#[case::quota_for_the_rest("pods \"toy-1-0-\" is forbidden: exceeded quota: limits, requested: pods=1", vec![running(0)], WaitsFor::MoreDevices)]
#[case::all_were_made_since("serviceaccount \"x\" not found", vec![running(0), waiting(1, "")], WaitsFor::Containers)]
fn why_pods_are_not_made(#[case] refusal: &str, #[case] pods: Vec<PodFacts>, #[case] expected: WaitsFor) {
    let refused = AttemptFacts { refusal: Some(Hindrance::of_creation(refusal)), ..facts(pods) };
    let AttemptState::Pending { message, waits_for, .. } = seen(refused.clone(), None).state else { panic!() };
    assert_eq!((waits_for, message.contains(refusal)), (expected, expected != WaitsFor::Containers));
    let stopped = AttemptFacts { gang: Some(GangFacts { deleting: true, ..gang() }), ..refused };
    let is_told = |cause: &str| cause.contains(refusal);
    match (expected, seen(stopped, None).state) {
        (WaitsFor::Admission, AttemptState::Ended(Ending::Lost(cause))) => assert!(is_told(&cause), "{cause}"),
        (WaitsFor::Quota, AttemptState::Ended(Ending::Disrupted(cause))) => assert!(is_told(&cause), "{cause}"),
        (WaitsFor::MoreDevices | WaitsFor::Containers, AttemptState::Leaving(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn gangs_of_another_template_are_named() {
    let of = |template: &str| {
        let gang = GangFacts { template: template.to_owned(), ..gang() };
        let attempts = [AttemptFacts { gang: Some(gang), ..facts(vec![running(0)]) }];
        let attempt = AttemptStatus { name: "toy-1".to_owned(), ..AttemptStatus::default() };
        outdated(&[&attempt], &attempts, |_| "t".to_owned())
    };
    assert_eq!(of("t"), [""; 0]);
    assert_eq!(of(""), [""; 0], "an earlier version made it");
    assert_eq!(of("u"), ["toy-1"]);
}

#[test]
fn a_queue_may_take_its_time() {
    let queued = |pods| {
        let since = NOW - SignedDuration::from_hours(5);
        AttemptFacts { gang: Some(GangFacts { suspended: true, since, ..gang() }), ..facts(pods) }
    };
    assert_eq!(seen(queued(vec![]), None).state, AttemptState::Queued);
    // It was let go, and has its first pod before its batch Job has a start.
    let AttemptState::Pending { since, .. } = seen(queued(vec![waiting(0, "")]), None).state else { panic!() };
    assert_eq!(since, NOW);
}

#[test]
fn what_its_queue_takes_back_has_ended_when_no_pod_can_come_any_more() {
    let pods =
        [vec![exited(0, 30), gone(exited(1, 30))], vec![gone(running(0)), gone(running(1))], vec![gone(exited(0, 30))]];
    for pods in pods {
        let suspended = AttemptFacts { gang: Some(GangFacts { suspended: true, ..gang() }), ..facts(pods) };
        // Its turn came again before anybody looked.
        let let_go = AttemptFacts { gang: Some(GangFacts { taken: true, ..gang() }), ..suspended.clone() };
        for facts in [suspended, let_go] {
            assert_eq!(super::state(&facts, NOW), Some(AttemptState::Leaving(Leaving::Preempted)));
            let deleted = GangFacts { deleting: true, ..facts.gang.clone().unwrap() };
            let facts = AttemptFacts { gang: Some(deleted), ..facts };
            assert_eq!(seen(facts, None).state, AttemptState::Ended(Ending::Preempted));
        }
    }
}

#[rstest]
#[case::it_was_done(vec![exited(0, 0), gone(exited(1, 30))], AttemptState::Ended(Ending::Completed))]
#[case::it_was_killed(vec![out_of_memory(0), gone(exited(1, 30))], lost("pod toy-1-0: its memory limit was reached (OOMKilled)"))]
#[case::it_never_ran(vec![running(0), waiting(1, "ErrImagePull: x")], lost("pod toy-1-1: ErrImagePull: x"))]
#[case::it_was_coming_up(vec![exited(0, 30), waiting(1, "")], disrupted("preempted by Kueue before all of its pods ran"))]
#[case::it_found_no_room(vec![exited(0, 30), waiting(1, "Unschedulable: x")], disrupted("pod toy-1-1: Unschedulable: x"))]
fn what_else_befell_a_gang_counts_more_than_its_queue(#[case] pods: Vec<PodFacts>, #[case] expected: AttemptState) {
    let gang = Some(GangFacts { suspended: true, deleting: true, ..gang() });
    assert_eq!(seen(AttemptFacts { gang, ..facts(pods.into_iter().map(gone).collect()) }, None).state, expected);
}

#[rstest]
#[case::done(vec![exited(0, 0), exited(1, 0)], AttemptState::Ended(Ending::Completed))]
#[case::launch_failed(vec![exited(0, 10), exited(1, 10)], AttemptState::Ended(Ending::Completed))]
#[case::a_peer_was_torn_down_with_it(vec![exited(0, 12), gone(exited(1, 30))], AttemptState::Ended(Ending::Completed))]
#[case::stopped_by_nobody(vec![exited(0, 40), exited(1, 30)], disrupted("pod toy-1-1 was stopped by SIGTERM, though nobody deleted it: a sidecar, its node or a person sent it"))]
#[case::refused_by_its_node(vec![refused_by_node(0), exited(1, 40)], AttemptState::Ended(Ending::Refused("node node-0 did not accept pod toy-1-0: UnexpectedAdmissionError: no device".to_owned())))]
#[case::evicted_for_its_own_disk(vec![evicted(0, "volume \"scratch\" is full"), exited(1, 40)], lost("pod toy-1-0 was evicted: volume \"scratch\" is full"))]
#[case::evicted_and_deleted(vec![gone(evicted(0, "its disk is full")), gone(exited(1, 30))], lost("pod toy-1-0 was evicted: its disk is full"))]
#[case::deleted(vec![exited(0, 40), gone(exited(1, 143))], disrupted("pod toy-1-1 was deleted"))]
#[case::deleted_before_a_report(vec![gone(running(0)), gone(running(1))], disrupted("pod toy-1-0 was deleted"))]
#[case::deleted_before_it_could_start(vec![gone(never_started("ErrImagePull: x")), gone(waiting(1, ""))], lost("pod toy-1-0: ErrImagePull: x"))]
#[case::deleted_before_there_was_room(vec![gone(never_started("Unschedulable: x")), gone(waiting(1, ""))], disrupted("pod toy-1-0: Unschedulable: x"))]
#[case::deleted_after_a_peer_crashed(vec![gone(exited(0, 30)), exited(1, 1)], lost("pod toy-1-1 exited with 1 (Failed)"))]
#[case::deleted_after_a_peer_was_killed(vec![gone(exited(0, 143)), exited(1, 139)], lost("pod toy-1-1: its container was killed by signal 11"))]
#[case::out_of_memory_and_deleted(vec![gone(exited(0, 30)), gone(out_of_memory(1))], lost("pod toy-1-1: its memory limit was reached (OOMKilled)"))]
#[case::lost_a_peer(vec![exited(0, 40), exited(1, 1)], lost("pod toy-1-1 exited with 1 (Failed)"))]
#[case::crashed(vec![exited(0, 1), exited(1, 40)], lost("pod toy-1-0 exited with 1 (Failed)"))]
fn how_a_gang_ended(#[case] pods: Vec<PodFacts>, #[case] wanted: AttemptState) {
    assert_eq!(state(pods), wanted);
}

#[test]
fn a_gang_that_is_deleted_ends_as_stopped() {
    let deleting = AttemptFacts {
        gang: Some(GangFacts { deleting: true, ..gang() }),
        ..facts(vec![exited(0, 30), exited(1, 30)])
    };
    assert_eq!(seen(deleting, None).state, AttemptState::Ended(Ending::Stopped));
}

#[test]
fn what_the_cluster_did_explains_the_rest() {
    let mut evicted = exited(1, 30);
    evicted.disruption = "EvictionByEvictionAPI: drained".to_owned();
    assert_eq!(state(vec![exited(0, 40), evicted]), disrupted("pod toy-1-1: EvictionByEvictionAPI: drained"));
    let cut_off = PodFacts { lost: true, ..deleted(running(1)) };
    assert_eq!(state(vec![exited(0, 40), cut_off]), disrupted("pod toy-1-1: its node node-1 does not answer"));
    assert_eq!(
        state(vec![gone(waiting(0, "Unschedulable: no GPU")), gone(waiting(1, ""))]),
        disrupted("pod toy-1-0: Unschedulable: no GPU")
    );
}

#[test]
fn a_batch_job_that_is_gone_is_told_when_nothing_else_is() {
    let mut facts = facts(vec![]);
    facts.gang = Some(GangFacts { gone: true, ..gang() });
    assert_eq!(seen(facts, None).state, disrupted("its batch Job was deleted before all of its pods ran"));
}

#[test]
fn a_pod_that_does_not_end_needs_somebody() {
    let told = |pod: PodFacts, seconds: i64| {
        let attempts = [facts(vec![running(0), pod])];
        let now = NOW + SignedDuration::from_secs(seconds);
        observe(&Scene {
            job_uid: "t",
            gpus: 4,
            memory: Some("2Gi"),
            under_way: &[],
            attempts: &attempts,
            live: &[],
            now,
        })
        .obstacle
    };
    let seen = |node_seen| PodFacts { node_seen, ..deleted(running(1)) };
    let stuck = || seen(NodeSeen::Unreadable);
    assert_eq!(told(stuck(), 59), "");
    let obstacle = told(stuck(), 61);
    assert!(
        obstacle.contains("kubectl delete pod toy-1-1 --force") && obstacle.contains("rbac.nodes=true"),
        "{obstacle}"
    );
    assert_eq!(told(gone(stuck()), 61), "", "it was deleted by force");
    // How GPU nodes die: a process that no signal ends, on a node that is ready.
    assert_eq!(told(seen(NodeSeen::Ready), 59), "");
    let obstacle = told(seen(NodeSeen::Ready), 61);
    assert!(obstacle.contains("node node-1 is ready") && obstacle.contains("--force"), "{obstacle}");
    let obstacle = told(seen(NodeSeen::NotReady("KubeletNotReady: PLEG is not healthy".to_owned())), 61);
    assert!(obstacle.contains("PLEG is not healthy"), "{obstacle}");
    assert!(told(deleted(running(1)), 61).contains("toy-1-1"), "whatever is known of its node");
    // Its agent is stuck: agents end together.
    assert_eq!(told(exited(1, 1), 600), "");
    let obstacle = told(exited(1, 1), 601);
    assert!(obstacle.contains("pod toy-1-0 has not ended, although another pod of toy-1 has"), "{obstacle}");
    let nowhere = PodFacts { node: String::new(), ..deleted(running(1)) };
    assert!(told(nowhere, 61).contains("a finalizer keeps it"));
}

#[test]
fn nothing_has_ended_while_a_pod_is_alive() {
    let mut facts = facts(vec![exited(0, 0), running(1)]);
    facts.gang = Some(GangFacts { gone: true, ..gang() });
    assert_eq!(seen(facts.clone(), None).state, AttemptState::Leaving(Leaving::Draining));
    // Nor while a pod of an earlier batch Job of this name is.
    facts.gang = Some(GangFacts {
        uid: "g2".to_owned(),
        finished: Some(Finished { failed: true, message: String::new() }),
        ..gang()
    });
    facts.pods = vec![deleted(running(0))];
    assert_eq!(seen(facts, None).state, AttemptState::Leaving(Leaving::Draining));
}

#[test]
fn another_jobs_gang_runs_no_plan_of_this_one() {
    let mut facts = facts(vec![running(0), running(1)]);
    facts.gang = Some(GangFacts { job_uid: "other".to_owned(), ..gang() });
    assert_eq!(seen(facts, None).plan_hash, "");
}

#[rstest]
#[case::whole(vec![running(0), running(1)], AttemptState::Running)]
#[case::done_one_by_one(vec![exited(0, 0), running(1)], AttemptState::Leaving(Leaving::Ending { since: NOW }))]
#[case::ends_by_itself(vec![running(0), exited(1, 10)], AttemptState::Leaving(Leaving::Ending { since: NOW }))]
#[case::killed(vec![running(0), exited(1, 137)], AttemptState::Leaving(Leaving::Broken))]
#[case::out_of_memory(vec![running(0), out_of_memory(1)], AttemptState::Leaving(Leaving::Broken))]
#[case::being_deleted(vec![running(0), deleted(running(1))], AttemptState::Leaving(Leaving::Broken))]
#[case::disrupted(vec![running(0), PodFacts { disruption: "drained".to_owned(), ..running(1) }], AttemptState::Leaving(Leaving::Broken))]
#[case::gone(vec![running(0), gone(running(1))], AttemptState::Leaving(Leaving::Broken))]
#[case::worse_counts(vec![exited(0, 40), running(1), gone(running(1))], AttemptState::Leaving(Leaving::Broken))]
#[case::nothing_to_stop(vec![gone(running(0)), exited(1, 1)], disrupted("pod toy-1-0 was deleted"))]
fn a_broken_gang_is_noticed(#[case] pods: Vec<PodFacts>, #[case] wanted: AttemptState) {
    assert_eq!(state(pods), wanted);
}

#[test]
fn results_survive_their_pod_and_complete_each_other() {
    let mut first = exited(0, 0);
    first.stand =
        Stand::Ended(PodEnd { exit: Some(0), termination: fold(&[result("b", Outcome::Done)]), ..PodEnd::default() });
    let live = live::Attempt {
        attempt: "toy-1".to_owned(),
        results: vec![result("a", Outcome::Done), result("b", Outcome::Failed)],
        progress: None,
    };
    let attempt = seen(facts(vec![gone(first), gone(exited(1, 0))]), Some(&live));
    let results: Vec<_> = attempt.results.iter().map(|r| (r.launch.as_str(), r.outcome)).collect();
    assert_eq!(results, [("a", Outcome::Done), ("b", Outcome::Done)]);
    assert_eq!(attempt.placement, "node-0,node-1/gpu:4");
}

#[test]
fn a_pod_that_ran_out_of_memory_speaks_for_the_launch_that_it_was_certainly_in() {
    let pods = || vec![exited(0, 40), out_of_memory(1)];
    let blamed = |live: Option<&live::Attempt>| {
        let results = seen(facts(pods()), live).results;
        results.into_iter().find(|r| r.outcome == Outcome::HostOutOfMemory).map(|r| r.launch)
    };
    assert_eq!(blamed(None), None);
    let progress = Progress { step: 1, items: 1, ..Progress::at_start("b", LaunchKind::Measure) };
    let live = live::Attempt { attempt: "toy-1".to_owned(), results: vec![], progress: Some(progress) };
    assert_eq!(blamed(Some(&live)).as_deref(), Some("b"));
    // Nothing is said while pods are alive: a rank may still report it.
    assert!(seen(facts(vec![running(0), out_of_memory(1)]), Some(&live)).results.is_empty());
}

#[test]
fn the_build_of_the_trainer_is_the_digest_that_all_pods_run() {
    let of = |images: &[&str]| {
        let pods = (0..).zip(images).map(|(i, image)| PodFacts { image: (*image).to_owned(), ..running(i) });
        seen(facts(pods.collect()), None).trainer
    };
    assert_eq!(of(&["sha256:ab12", "sha256:ab12"]), "sha256:ab12");
    assert_eq!(of(&["sha256:ab12", ""]), "", "not known of all yet");
    assert_eq!(of(&["sha256:ab12"]), "", "the second pod is not there yet");
    assert_eq!(of(&[]), "");
    let mixed = of(&["sha256:ab12", "sha256:cd34"]);
    assert!(mixed.starts_with("mixed ") && mixed.len() == 22, "{mixed}");
    assert_ne!(mixed, of(&["sha256:ab12", "sha256:ef56"]));
}

#[test]
fn a_long_placement_is_told_by_its_hash() {
    let placed = |names: &[&str]| {
        let pods = names.iter().enumerate().map(|(i, name)| PodFacts { node: (*name).to_owned(), ..running(i as u32) });
        placement::placement(&facts(pods.collect()), 8)
    };
    let many = ["a-node-with-a-long-name-0"; 16];
    let whole = placed(&many);
    assert!(whole.len() <= 64 && whole.starts_with("16 nodes "), "{whole}");
    let mut other = many;
    other[7] = "a-node-with-a-long-name-1";
    assert_ne!(placed(&other), whole);
}

fn any_pod() -> impl Strategy<Value = PodFacts> {
    let stand = prop_oneof![
        Just(Stand::Running),
        Just(Stand::Waiting { problem: None }),
        Just(Stand::Waiting { problem: Some(hindrance("x")) }),
        (prop::option::of(0..256i32), any::<bool>()).prop_map(|(exit, oom)| Stand::Ended(PodEnd {
            exit,
            cause: if oom { Cause::OutOfMemory } else { Cause::Exited },
            ..PodEnd::default()
        })),
    ];
    (0..4u32, stand, any::<[bool; 4]>()).prop_map(|(index, stand, [deleting, gone, lost, other])| PodFacts {
        deleting: deleting.then_some(NOW),
        gone,
        lost,
        gang_uid: if other { "old" } else { "g" }.to_owned(),
        ..pod(index, stand)
    })
}

fn any_facts() -> impl Strategy<Value = AttemptFacts> {
    let gang = prop::option::of((1..4u32, any::<[bool; 4]>()).prop_map(
        |(replicas, [suspended, finished, deleting, gone])| {
            let finished = finished.then(|| Finished { failed: true, message: String::new() });
            GangFacts { replicas, suspended, finished, deleting, gone, ..gang() }
        },
    ));
    (gang, prop::collection::vec(any_pod(), 0..5)).prop_map(|(gang, pods)| AttemptFacts { gang, ..facts(pods) })
}

proptest! {
    #[test]
    fn an_attempt_with_a_pod_alive_has_not_ended(facts in any_facts()) {
        let alive = facts.alive().next().is_some();
        let scene = Scene { job_uid: "t", gpus: 0, memory: None, under_way: &[], attempts: &[facts], live: &[], now: NOW };
        for attempt in observe(&scene).attempts {
            prop_assert!(!alive || !matches!(attempt.state, AttemptState::Ended(_)), "{attempt:?}");
        }
    }

    #[test]
    fn an_attempt_that_ended_stays_so_when_more_of_it_goes(facts in any_facts()) {
        let mut later = facts.clone();
        later.pods.iter_mut().for_each(|pod| pod.gone = true);
        if let Some(gang) = &mut later.gang {
            gang.gone = true;
        }
        let ended = |facts| matches!(super::state(facts, NOW), Some(AttemptState::Ended(_)));
        prop_assert!(!ended(&facts) || ended(&later));
    }
}

/// What keeps pods from being made or from running.
fn any_hindrance() -> impl Strategy<Value = Hindrance> {
    prop_oneof![
        Just(Hindrance::of_creation("pods \"toy-1-0\" is forbidden: exceeded quota: small")),
        Just(Hindrance::of_creation("serviceaccount \"x\" not found")),
        Just(hindrance("Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")),
        Just(hindrance("Unschedulable: persistentvolumeclaim \"x\" not found")),
        Just(hindrance("ImagePullBackOff: no such image")),
        Just(Hindrance::of_init_container("agent", 2, "Error", Some("read-only"))),
    ]
}

/// Facts of a gang, of a job that wants it, and whose pods are all its own.
fn lasting(plan_hash: &str) -> impl Strategy<Value = AttemptFacts> {
    let plan_hash = plan_hash.to_owned();
    let refusal = prop::option::of(any_hindrance());
    let problem = prop::option::of(any_hindrance());
    (any_facts(), refusal, problem).prop_map(move |(mut facts, refusal, problem)| {
        let gang = facts.gang.take();
        facts.gang = gang.map(|gang| GangFacts { plan_hash: plan_hash.clone(), ..gang });
        facts.refusal = refusal.filter(|refusal| refusal.reason == "FailedCreate");
        for (index, pod) in (0..).zip(&mut facts.pods) {
            (pod.index, pod.gang_uid) = (index, "g".to_owned());
            if let Stand::Waiting { problem: own @ Some(_) } = &mut pod.stand {
                own.clone_from(&problem);
            }
        }
        facts
    })
}

fn job() -> pawl_api::TrainingJob {
    let phases = serde_json::json!([{"name": "compile", "settings": {"compile": "Graph"}}]);
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "toy", "uid": "t"}, "spec": {"workload": {"name": "ups"}, "phases": phases},
    }))
    .unwrap()
}

/// The status in which the first attempt was started.
fn started() -> pawl_api::TrainingJobStatus {
    pawl_decision::decide(&job(), &pawl_api::TrainingJobStatus::default(), &Observed::default(), NOW).status
}

proptest! {
    /// A minute after nothing changes any more, or ten where a pod may still be writing a checkpoint.
    #[test]
    fn a_job_that_does_not_progress_says_what_it_waits_for_and_what_to_do(
        facts in lasting(&started().attempt.unwrap().plan_hash)
    ) {
        let deletes = facts.alive().any(|pod| pod.deleting.is_some());
        let is_leaving = matches!(super::state(&facts, NOW), Some(AttemptState::Leaving(_)));
        let late = if is_leaving && !deletes { 601 } else { 61 };
        let mut status = started();
        for seconds in [0, 3, late] {
            let now = NOW + SignedDuration::from_secs(seconds);
            let under_way: Vec<&AttemptStatus> = status.under_way().collect();
            let attempts = std::slice::from_ref(&facts);
            let scene = Scene { job_uid: "t", gpus: 1, memory: None, under_way: &under_way, attempts, live: &[], now };
            let observed = observe(&scene);
            let decision = pawl_decision::decide(&job(), &status, &observed, now);
            status = decision.status;
            let state = observed.attempts.first().map(|attempt| &attempt.state);
            let waits = matches!(state, Some(AttemptState::Queued | AttemptState::Pending { .. } | AttemptState::Leaving(_)));
            if !waits || !decision.actions.is_empty() {
                return Ok(());
            }
        }
        let told = status.conditions.iter().any(|condition| {
            let is_reason = match condition.type_.as_str() {
                "Reconciling" => ["Queued", "GangPending", "PodsRefused", "BackOff"].contains(&condition.reason.as_str()),
                "Stalled" | "Failed" => true,
                _ => false,
            };
            let message = &condition.message;
            // What a pod that does not end needs is a command, most of the time.
            let advises = message.contains("remedy: ") || condition.type_ == "Stalled" && message.contains("kubectl ");
            is_reason && condition.status == "True" && message.contains("toy-1") && advises
        });
        prop_assert!(told, "{facts:#?}: {:#?}", status.conditions);
    }
}
