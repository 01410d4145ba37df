//! Operators that are killed, and operators that wait for that.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, Stage};
use pawl_e2e::job::{status, toy, training, verdicts};
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, scene};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What the job is doing: its stage, and the phases that are not at rest.
fn doing(job: &TrainingJob) -> (Stage, Vec<(String, PhaseState, u32)>) {
    let phases = job.status.iter().flat_map(|status| &status.phases);
    let busy = phases.map(|phase| (phase.name.clone(), phase.state, phase.fallback));
    (stage(job), busy.collect())
}

#[test]
fn killed_in_each_state_it_comes_to_the_same_end_without_repeating_an_attempt() {
    scene(async |scene| {
        let mut operator = Some(Operator::start_alone(scene, None).await);
        scene.apply(&toy(|_| {}));
        let mut killed_in = BTreeSet::new();
        let began = Instant::now();
        loop {
            let job = scene.job("toy").await;
            if matches!(stage(&job), Stage::Complete | Stage::Failed) {
                break;
            }
            if killed_in.insert(format!("{:?}", doing(&job))) {
                operator.take().unwrap().kill();
                operator = Some(Operator::start_alone(scene, None).await);
            }
            assert!(began.elapsed() < Duration::from_secs(300), "killed in {killed_in:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(killed_in.len() >= 6, "killed only in {killed_in:#?}");
        let done = scene.job("toy").await;
        let ends: Vec<_> =
            verdicts(status(&done)).into_iter().map(|(_, state, _, fallback)| (state, fallback)).collect();
        let expected = [(PhaseState::Accepted, 0), (PhaseState::RolledBack, 0), (PhaseState::Accepted, 1)];
        assert_eq!(ends, expected, "{:?}", verdicts(status(&done)));

        // The Job controller made one pod for each attempt, and no other. (The audit log does not say whether a request
        // succeeded whose client was killed meanwhile.)
        let events = scene.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let made = events.iter().filter(|event| event.reason.as_deref() == Some("SuccessfulCreate"));
        let pods: BTreeSet<_> = made.map(|event| event.message.clone().unwrap_or_default()).collect();
        assert_eq!(pods.len(), status(&done).attempts as usize, "{pods:#?}");
    });
}

#[test]
fn another_replica_leads_within_20_seconds_of_a_kill() {
    scene(async |scene| {
        let holder = async || {
            let leases: Api<Lease> = scene.api();
            leases.get_opt("pawl-operator").await.unwrap()?.spec?.holder_identity
        };
        let first = scene.operator().await;
        let leader = scene.until("a leader", Duration::from_secs(20), async || holder().await).await;
        let _second = Operator::start(scene, None).await;
        assert_eq!(holder().await, Some(leader.clone()), "a follower took the lease of a living leader");
        first.kill();
        let killed = Instant::now();
        let look = async || holder().await.filter(|now| *now != leader);
        scene.until("another leader", Duration::from_secs(20), look).await;
        eprintln!("took over after {:.1} s", killed.elapsed().as_secs_f64());
        scene.apply(&toy(|job| {
            job["spec"]["phases"] = serde_json::json!([]);
            job["spec"]["train"]["items"] = 640.into();
        }));
        scene.complete("toy", Duration::from_secs(90)).await;
    });
}

/// One that a person started, or a release of the chart that Helm could not compare.
#[test]
fn a_second_operator_on_the_namespace_does_nothing_until_the_first_one_is_gone() {
    scene(async |scene| {
        let first = Operator::start_alone(scene, None).await;
        scene.apply(&training("shared", 60, |_| {}));
        let runs = |job: &TrainingJob| stage(job) == Stage::Training && job.status.as_ref().unwrap().attempt.is_some();
        scene.healthy_until("shared", "to train", Duration::from_secs(90), runs).await;
        let second = Operator::another(scene).await;
        let of_another = format!("pawl_namespace_of_another_operator{{namespace=\"{}\"}} 1", scene.namespace);
        let says_so = async || second.metrics().await.contains(&of_another).then_some(());
        scene.until("the second one to say so", Duration::from_secs(40), says_so).await;
        let writes = |metrics: &str| {
            let reads = ["get", "list", "watch"].map(|verb| format!("verb=\"{verb}\""));
            let requests = metrics.lines().filter(|line| line.starts_with("pawl_api_requests_total{"));
            requests.filter(|line| !reads.iter().any(|read| line.contains(read))).count()
        };
        assert_eq!(writes(&second.metrics().await), 0, "{}", second.metrics().await);
        let attempts = status(&scene.job("shared").await).attempts;
        first.kill();
        let took = async || (writes(&second.metrics().await) > 0).then_some(());
        let killed = Instant::now();
        scene.until("the second one to take over", Duration::from_secs(230), took).await;
        eprintln!("took over after {:.1} s", killed.elapsed().as_secs_f64());
        let job = scene.complete("shared", Duration::from_secs(120)).await;
        assert_eq!(status(&job).attempts, attempts, "the gang continued");
    });
}

#[test]
fn asked_to_stop_it_gives_the_lease_back_and_exits_with_0() {
    scene(async |scene| {
        let mut operator = scene.operator().await;
        let status = operator.stop(Duration::from_secs(10));
        assert_eq!(status.code(), Some(0), "{}", operator.log());
        let lease = scene.api::<Lease>().get("pawl-operator").await.unwrap().spec.unwrap();
        assert!(lease.holder_identity.is_none_or(|holder| holder.is_empty()));
    });
}
