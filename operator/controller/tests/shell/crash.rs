//! The crash matrix: the operator is stopped at every one of its writes, and starts again with new or with stale
//! caches.

use crate::api::{Api, Id, Stop, Store};
use crate::cluster;
use crate::operator::Operator;
use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseState, Stage};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Rounds after which a job must have ended.
const ROUNDS: usize = 600;
/// Rounds of the next operator before a write of the one before arrives.
const LATE: usize = 2;

/// Three phases, one of which is slower and rolled back, and a training.
pub fn job() -> Value {
    json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "toy", "namespace": "default", "generation": 1},
        "spec": {
            // So long that a plan of several launches is an object of its own, and one of few goes with the pods.
            "workload": {"name": "ups", "config": {"note": "x".repeat(500)}},
            "trainer": {"replicas": 2, "gpusPerReplica": 1},
            "settings": {"batchPerGpu": 2, "globalBatch": 8},
            "phases": [
                {"name": "compile", "settings": {"compile": "Graph"}},
                {"name": "recompute", "settings": {"activationCheckpointing": "Full"}},
                {"name": "batch", "settings": {"batchPerGpu": 4}},
            ],
            "analysis": {"budgetPercent": "Unlimited"},
            "train": {"items": 1000},
        },
    })
}

/// The same under the default budget: the slower phase is judged, and what is left does not pay for the others.
fn limited() -> Value {
    let mut job = job();
    let spec = &mut job["spec"];
    spec["phases"].as_array_mut().expect("a list").swap(0, 1);
    spec["analysis"] = json!({});
    spec["train"]["items"] = json!(18_000);
    job
}

/// How fresh the caches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caches {
    /// A reconcile sees all that happened before it.
    Fresh,
    /// A reconcile sees what was there before the reconcile before it; so does one after a restart.
    Behind,
}

/// What happens to the gang of the second attempt while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A pod is killed.
    Killed,
    /// Its queue suspends it.
    Preempted,
    /// Somebody deletes its batch Job and its pods while no operator runs; the garbage collector takes its time over
    /// what else the Job owned.
    Deleted,
}

impl Trouble {
    /// Befalls the gang of `attempt`, once all of its pods run. Returns whether it did.
    pub fn befall(self, store: &mut Store, attempt: &str) -> bool {
        let of = |kind: &str, name: &str| (kind.to_owned(), "default".to_owned(), name.to_owned());
        let is_own = |id: &Id, pod: &Value| id.0 == "pods" && pod["metadata"]["labels"]["pawl.dev/attempt"] == attempt;
        let pods = store.objects.iter().filter(|(id, pod)| is_own(id, pod));
        let pods: Vec<_> = pods.map(|(id, pod)| (id.2.clone(), pod.clone())).collect();
        if pods.len() < 2 || pods.iter().any(|(_, pod)| pod["status"]["phase"] != "Running") {
            return false;
        }
        match self {
            Self::Killed => {
                let (name, mut pod) = pods[1].clone();
                pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"name": "trainer",
                    "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]});
                store.put(of("pods", &name), pod);
            }
            Self::Preempted => {
                let mut job = store.objects[&of("jobs", attempt)].clone();
                job["spec"]["suspend"] = json!(true);
                store.put(of("jobs", attempt), job);
            }
            Self::Deleted => {
                store.remove(&of("jobs", attempt));
                pods.iter().for_each(|(name, _)| store.remove(&of("pods", name)));
                store.garbage_after = 1000;
            }
        }
        true
    }
}

struct End {
    status: Value,
    writes: Vec<String>,
    left: Vec<String>,
}

/// A search of five trials, three at a time.
fn searching() -> Value {
    let mut job = job();
    let spec = &mut job["spec"];
    spec["phases"] = json!([]);
    spec["settings"]["learningRate"] = json!("1e-3");
    spec["search"] = json!([{
        "name": "rates", "trials": 5, "epochs": 1, "sampler": "Random", "parallelism": GANGS, "finalists": 1,
        "objectives": [{"metric": "itemsPerSecond", "goal": "Maximize"}],
        "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
    }]);
    job
}

/// Trials of [`searching`] at the same time.
const GANGS: usize = 3;

/// Runs the job to its end, stopping the operator once.
async fn run(stop: Option<(usize, Stop)>, caches: Caches, trouble: Option<Trouble>) -> End {
    run_job(job(), 1, stop, caches, trouble).await.0
}

/// Number of gangs that are alive: at most `most`, each of a trial of its own.
fn gangs_of(store: &Store, most: usize) -> usize {
    let alive = cluster::gangs_alive(store);
    assert!(alive.len() <= most, "{} gangs: {alive:?}", alive.len());
    // The status names an attempt before it is started, and its trial.
    let job = &store.objects[&("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())];
    let status: TrainingJobStatus = serde_json::from_value(job["status"].clone()).unwrap_or_default();
    let named = status.under_way().filter(|attempt| alive.iter().any(|(name, _)| *name == attempt.name));
    let trials: Vec<&str> = named.map(|attempt| attempt.task.as_str()).collect();
    let distinct: BTreeSet<&str> = trials.iter().copied().collect();
    assert_eq!(distinct.len(), trials.len(), "two gangs for one trial");
    alive.len()
}

/// The same for any job, which has at most `most` gangs. Returns as well how many there were.
async fn run_job(
    job: Value,
    most: usize,
    stop: Option<(usize, Stop)>,
    caches: Caches,
    mut trouble: Option<Trouble>,
) -> (End, usize) {
    let mut gangs = 0;
    let mut check = |store: &Store| gangs = gangs.max(gangs_of(store, most));
    let api = Api::default();
    api.store().create(("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned()), job);
    api.store().stop = stop;
    let mut before = api.store().version;
    let mut operator = Operator::start(&api, before);
    let mut quiet = 0;
    let mut arrives = None;
    for round in 0..ROUNDS {
        if arrives == Some(round) {
            api.store().arrive();
            check(&api.store());
        }
        let now = api.store().version;
        operator.catch_up(if caches == Caches::Behind { before } else { now });
        before = now;
        // A failed reconcile is made again: in the next round.
        let failed = operator.reconcile().await.err();
        let mut store = api.store();
        check(&store);
        if store.dead {
            store.dead = false;
            arrives = Some(round + 1 + LATE);
            store.stop = None;
            // The cluster keeps running while the operator is stopped: pods are created, and mount what is there.
            for _ in 0..store.garbage_after.min(3) {
                cluster::step(&mut store);
                check(&store);
            }
            let stale = if caches == Caches::Behind { before } else { store.version };
            drop(store);
            operator = Operator::start(&api, stale);
            continue;
        }
        if let Some(error) = failed {
            assert!(matches!(error.kind(), "stale" | "leaving"), "{error}");
        }
        let rested = store.version;
        cluster::step(&mut store);
        let occurred = trouble.take_if(|trouble| trouble.befall(&mut store, "toy-2"));
        check(&store);
        if occurred == Some(Trouble::Deleted) {
            let version = store.version;
            drop(store);
            operator = Operator::start(&api, version);
            continue;
        }
        quiet = if rested == store.version && rested == now { quiet + 1 } else { 0 };
        if quiet == 3 {
            break;
        }
    }
    assert_eq!(trouble, None, "it never befell the gang");
    (ended(&mut api.store()), gangs)
}

/// What is there after the last object that nobody owns is gone.
fn ended(store: &mut Store) -> End {
    store.garbage_after = 0;
    cluster::step(store);
    assert_eq!(store.unannounced, Vec::<String>::new());
    let job = &store.objects[&("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())];
    let claim = ("persistentvolumeclaims".to_owned(), "default".to_owned(), "toy-storage".to_owned());
    assert!(store.objects.contains_key(&claim), "the storage of the job, with the trained model, is kept");
    let kept = ["trainingjobs", "events", "services", "persistentvolumeclaims"];
    // Tokens go with the job.
    let goes = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"];
    let goes = |kind: &str, object: &Value| kind == "secrets" && goes(object);
    let left =
        store.objects.iter().filter(|((kind, ..), object)| !kept.contains(&kind.as_str()) && !goes(kind, object));
    let left = left.map(|(id, _)| id);
    End {
        status: job["status"].clone(),
        writes: store.writes.clone(),
        left: left.map(|(kind, _, name)| format!("{kind} {name}")).collect(),
    }
}

/// A status without its times, and without the message of a failure, which names a pod.
fn timeless(mut status: Value) -> Value {
    if let Some(retry) = status.get_mut("retry").and_then(Value::as_object_mut) {
        retry.remove("message");
    }
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| {
                    !matches!(
                        name.as_str(),
                        "lastTransitionTime"
                            | "startTime"
                            | "completionTime"
                            | "started"
                            | "eta"
                            | "goodput"
                            | "notBefore"
                    )
                });
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    strip(&mut status);
    status
}

/// What a job costs the API server beside its batch Jobs. ([`cluster::mounted`] fails when two of them have one token.)
#[tokio::test]
async fn all_gangs_of_a_job_take_their_tokens_of_one_secret() {
    for (job, most) in [(job(), 1), (searching(), GANGS)] {
        let (end, _) = run_job(job, most, None, Caches::Fresh, None).await;
        let posts =
            |kind: &str| end.writes.iter().filter(|write| write.starts_with("POST") && write.contains(kind)).count();
        assert!(posts("/jobs") > 2, "{:#?}", end.writes);
        assert_eq!(posts("/secrets"), 1, "{:#?}", end.writes);
    }
}

#[tokio::test]
async fn the_job_ends_as_its_trainers_say() {
    let end = run(None, Caches::Fresh, None).await;
    let status: TrainingJobStatus = serde_json::from_value(end.status).unwrap();
    assert_eq!(status.stage, Stage::Complete);
    let states: Vec<_> = status.phases.iter().map(|phase| phase.state).collect();
    assert_eq!(states, [PhaseState::Accepted, PhaseState::RolledBack, PhaseState::Accepted], "{:#?}", status.phases);
    assert_eq!(status.training.unwrap().restarts, 0);
    assert_eq!(end.left, Vec::<String>::new());
    assert!(end.writes.len() >= 40, "{} writes: {:#?}", end.writes.len(), end.writes);
    let posted =
        |kind: &str| end.writes.iter().filter(|write| write.starts_with("POST") && write.ends_with(kind)).count();
    let (gangs, plans) = (posted("/jobs"), posted("/configmaps"));
    assert!(0 < plans && plans < gangs, "{plans} of {gangs} plans are objects: tests of crashes need both kinds");
}

#[rstest]
#[tokio::test]
async fn stopped_at_any_write_the_operator_comes_to_the_same_end(
    #[values(Caches::Fresh, Caches::Behind)] caches: Caches,
    #[values(Stop::AfterAnswer, Stop::AnswerLost, Stop::NotSent)] stop: Stop,
) {
    let whole = run(None, Caches::Fresh, None).await;
    let wanted = timeless(whole.status);
    for at in 1..=whole.writes.len() {
        let end = run(Some((at, stop)), caches, None).await;
        let case = format!("{stop:?} at write {at} ({}), caches {caches:?}", whole.writes[at - 1]);
        assert_eq!(timeless(end.status), wanted, "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}

#[tokio::test]
async fn so_does_one_that_gives_phases_up_for_the_default_budget() {
    let (whole, _) = run_job(limited(), 1, None, Caches::Fresh, None).await;
    let wanted = timeless(whole.status);
    let reasons: Vec<_> = wanted["phases"].as_array().unwrap().iter().map(|phase| &phase["reason"]).collect();
    assert_eq!(reasons, ["SpeedBelowThreshold", "BudgetSpent", "BudgetSpent"]);
    assert_eq!(wanted["stage"], "Complete");
    for at in 1..=whole.writes.len() {
        let (end, _) = run_job(limited(), 1, Some((at, Stop::AnswerLost)), Caches::Behind, None).await;
        let case = format!("at write {at} ({})", whole.writes[at - 1]);
        assert_eq!(timeless(end.status), wanted, "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}

/// A rolling update while the lease is lost in the middle of a reconcile: the fence lets nothing more through, and what
/// had passed it arrives when the next operator is at work.
#[rstest]
#[tokio::test]
async fn a_write_that_arrives_after_the_lease_was_lost_starts_no_second_gang(
    #[values(Caches::Fresh, Caches::Behind)] caches: Caches,
) {
    let whole = run(None, Caches::Fresh, None).await;
    let wanted = timeless(whole.status);
    for at in 1..=whole.writes.len() {
        let end = run(Some((at, Stop::Late)), caches, None).await;
        let case = format!("write {at} ({}) is late, caches {caches:?}", whole.writes[at - 1]);
        assert_eq!(timeless(end.status), wanted, "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}

#[rstest]
#[tokio::test]
async fn nor_does_it_matter_when_a_gang_is_broken_or_preempted(
    #[values(Trouble::Killed, Trouble::Preempted)] trouble: Trouble,
) {
    let whole = run(None, Caches::Fresh, Some(trouble)).await;
    let wanted = timeless(whole.status);
    assert_eq!(wanted["stage"], "Complete");
    for at in 1..=whole.writes.len() {
        let end = run(Some((at, Stop::AfterAnswer)), Caches::Fresh, Some(trouble)).await;
        let case = format!("at write {at} ({})", whole.writes[at - 1]);
        assert_eq!(timeless(end.status), wanted, "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}

/// A gang that is started again under its name finds the plan and the token of the one before it as long as the garbage
/// collector has not run. ([`cluster::mounted`] fails when a pod reads those of another gang.)
#[rstest]
#[tokio::test]
async fn a_gang_never_reads_what_a_deleted_one_left(
    #[values(Caches::Fresh, Caches::Behind)] caches: Caches,
    #[values(Stop::AfterAnswer, Stop::AnswerLost)] stop: Stop,
) {
    let trouble = Some(Trouble::Deleted);
    let whole = run(None, caches, trouble).await;
    for at in 1..=whole.writes.len() {
        let end = run(Some((at, stop)), caches, trouble).await;
        let case = format!("{stop:?} at write {at} ({}), caches {caches:?}", whole.writes[at - 1]);
        assert_eq!(end.status["stage"], "Complete", "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}

#[rstest]
#[tokio::test]
async fn stopped_at_any_write_a_search_comes_to_the_same_trials(
    #[values(Caches::Fresh, Caches::Behind)] caches: Caches,
    #[values(None, Some(Trouble::Killed), Some(Trouble::Preempted))] trouble: Option<Trouble>,
) {
    let (whole, gangs) = run_job(searching(), GANGS, None, Caches::Fresh, None).await;
    assert_eq!((whole.status["stage"].as_str(), gangs), (Some("Complete"), GANGS));
    let found = |status: &Value| json!([status["stage"], status["search"][0]["trials"], status["search"][0]["winner"]]);
    assert_eq!(whole.status["search"][0]["trials"].as_array().map(Vec::len), Some(5));
    let (disturbed, _) = run_job(searching(), GANGS, None, caches, trouble).await;
    for at in 1..=disturbed.writes.len() {
        let (end, _) = run_job(searching(), GANGS, Some((at, Stop::AnswerLost)), caches, trouble).await;
        let case = format!("at write {at} ({}), caches {caches:?}, {trouble:?}", disturbed.writes[at - 1]);
        assert_eq!(found(&end.status), found(&whole.status), "{case}");
        assert_eq!(end.left, Vec::<String>::new(), "{case}");
    }
}
