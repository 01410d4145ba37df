//! Random histories of a training through the operator: edits, an operator that is stopped at any of its writes and
//! starts again with stale caches, gangs that are killed or cut off, damaged checkpoints, an empty or another storage,
//! clocks that jump. Progress that was not worth a write is forgotten with the operator. The status in the API server
//! and the model must agree.
//!
//! Each history is a seed. A failure prints it, and what had happened; `PAWL_HISTORY=SEED` repeats one.
//! `PAWL_HISTORIES=COUNT` tries others than the usual number.

use crate::api::{Api, Id, Stop, Store};
use crate::cluster;
use crate::operator::Operator;
use crate::storage::{Gang, Random, STEP, Storage, advance, diverge, edit, save};
use jiff::Timestamp;
use pawl_api::status::Stage;
use pawl_api::{TrainingJobSpec, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::live::Attempt;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::{LaunchResult, fold};
use pawl_controller::clock::Clock;
use pawl_controller::key::Key;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Histories that are tried: some seconds.
const HISTORIES: u64 = 100;
/// Others that have failed: 295 and 494 resumed what a training had saved after it had diverged, whose report was lost
/// with its pod while the operator was down; 244 deleted what another one had saved before that.
const FAILED: [u64; 3] = [244, 295, 494];
/// Rounds after which a history must have come to an end.
const LONGEST: usize = 3_000;
/// Rounds without a change after which a job rests.
const QUIET: usize = 4;
/// Seconds of a round.
const ROUND: i64 = 60;

fn job() -> Id {
    ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())
}

struct History {
    seed: u64,
    random: Random,
    api: Api,
    operator: Operator,
    /// Seconds since the epoch.
    clock: Arc<AtomicI64>,
    /// Version of the API server at the reconcile before.
    before: u64,
    storage: Storage,
    /// The right storage, while another one is mounted.
    unmounted: Option<Storage>,
    /// The gang whose pod runs.
    gang: Option<Gang>,
    /// Gangs whose pods are gone, and which still run.
    cut_off: Vec<Gang>,
    said: Vec<String>,
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("PAWL_HISTORY={}\n{}", self.seed, self.said.join("\n"));
            println!("{:#}\n{:#?}", self.stored()["status"]["training"], self.storage);
        }
    }
}

/// Starts the operator, with caches as of `version`.
fn operator(api: &Api, version: u64, clock: &Arc<AtomicI64>) -> Operator {
    let clock = Arc::clone(clock);
    let read = move || Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap();
    Operator::start_at(api, version, Clock::of(read))
}

impl History {
    fn new(seed: u64) -> Self {
        let api = Api::default();
        api.store().held = true;
        let object = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "toy", "namespace": "default", "generation": 1},
            "spec": {
                "workload": {"name": "ups", "config": {"loss": "mse"}},
                "trainer": {"replicas": 1, "gpusPerReplica": 1},
                "settings": {"batchPerGpu": STEP, "learningRate": "0.1"},
                "seeds": [1], "train": {"items": 800}, "lifecycle": {"maxRestarts": 100},
            },
        });
        api.store().create(job(), object);
        let clock = Arc::new(AtomicI64::new(Timestamp::now().as_second()));
        let before = api.store().version;
        Self {
            seed,
            random: Random::new(seed),
            operator: operator(&api, before, &clock),
            api,
            clock,
            before,
            storage: Storage::default(),
            unmounted: None,
            gang: None,
            cut_off: Vec::new(),
            said: Vec::new(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    /// The job, as the API server has it.
    fn stored(&self) -> Value {
        self.api.store().objects[&job()].clone()
    }

    fn status(&self) -> TrainingJobStatus {
        serde_json::from_value(self.stored()["status"].clone()).unwrap_or_default()
    }

    /// Changes the spec as a person does.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut object = self.stored();
        change(&mut object["spec"]);
        object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        self.api.store().put(job(), object);
    }

    /// Reconciles, with caches that may be behind.
    async fn reconcile(&mut self) {
        let now = self.api.store().version;
        let behind = self.below(4) == 0;
        self.operator.catch_up(if behind { self.before } else { now });
        self.before = now;
        let failed = self.operator.reconcile().await.err();
        let (dead, version) = {
            let mut store = self.api.store();
            (std::mem::take(&mut store.dead), store.version)
        };
        if dead {
            self.api.store().stop = None;
            let stale = self.below(2) == 0;
            self.say(format!(
                "the operator was stopped, and starts with {} caches",
                if stale { "stale" } else { "new" }
            ));
            self.operator = operator(&self.api, if stale { now } else { version }, &self.clock);
        } else if let Some(error) = failed {
            // Caches that are behind do not show the batch Job of an attempt whose plan is another one by now.
            assert!(["stale", "taken"].contains(&error.kind()), "{error}");
            self.say(format!("reconcile: {error}"));
        }
        self.storage.seen(&self.status());
    }

    /// The pods that run a training: id, object, and the launch.
    fn trainings(store: &Store) -> Vec<(Id, Value, LaunchPlan)> {
        let pods = store.objects.iter().filter(|(id, pod)| id.0 == "pods" && cluster::alive(pod));
        let running = pods.filter(|(_, pod)| pod["status"]["phase"] == "Running");
        let planned = running.filter_map(|(id, pod)| {
            let gang = pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"].as_str().unwrap();
            let plan = cluster::mounted(store, id, gang)?;
            let launch = plan.launches.into_iter().find(|launch| launch.kind == LaunchKind::Train)?;
            Some((id.clone(), pod.clone(), launch))
        });
        planned.collect()
    }

    /// The pod of an attempt, while it runs a training.
    fn pod(&self, attempt: &str) -> Option<(Id, Value)> {
        let trainings = Self::trainings(&self.api.store());
        trainings.into_iter().find(|(_, _, launch)| launch.attempt == attempt).map(|(id, pod, _)| (id, pod))
    }

    /// The pod of an attempt ends; without a result, nobody hears of what its launch did.
    fn end(&self, attempt: &str, code: i32, result: Option<LaunchResult>) {
        let Some((id, mut pod)) = self.pod(attempt) else { return };
        cluster::end(&mut pod, code, &result.map(|result| fold(&[result])).unwrap_or_default());
        self.api.store().put(id, pod);
    }

    /// One step of the rest of the cluster.
    fn step(&mut self) {
        let trainings = Self::trainings(&self.api.store());
        assert!(trainings.len() < 2, "two gangs train");
        if let Some(gang) =
            self.gang.take_if(|gang| trainings.iter().all(|(.., launch)| launch.attempt != gang.attempt))
        {
            self.say(format!("the pod of {} is gone", gang.attempt));
            self.cut_off.push(gang);
        }
        let stopped = trainings.first().is_some_and(|(_, pod, _)| !pod["metadata"]["deletionTimestamp"].is_null());
        if let Some(mut gang) = self.gang.take_if(|_| stopped) {
            // It writes what it has; the pod may be killed before it says so.
            save(&mut self.storage, &mut gang);
            let result = gang.report(&self.storage, LaunchResult::bare(&gang.plan.launch, Outcome::Stopped));
            let heard = self.below(3) > 0;
            self.say(format!("{} is stopped at {}, heard: {heard}", gang.attempt, gang.items));
            self.end(&gang.attempt, 30, heard.then_some(result));
        }
        cluster::step(&mut self.api.store());
        self.fail_jobs();
        let next = Self::trainings(&self.api.store());
        let next = next.into_iter().find(|(_, pod, _)| pod["metadata"]["deletionTimestamp"].is_null());
        if let Some((.., launch)) = next.filter(|_| self.gang.is_none()) {
            self.launch(launch);
        }
    }

    fn launch(&mut self, plan: LaunchPlan) {
        let attempt = plan.attempt.clone();
        let rate = plan.settings.flat().get("learningRate").cloned();
        match Gang::start(&mut self.storage, attempt.clone(), plan) {
            Ok(gang) => {
                self.say(format!("{attempt} begins at {} with {rate:?}", gang.items));
                self.gang = Some(gang);
            }
            Err(result) => {
                self.say(format!("{attempt}: {} {}", result.outcome, result.message));
                self.end(&attempt, 1, Some(*result));
            }
        }
    }

    /// The gang trains some steps and saves; `seen`: its agent answers.
    fn train(&mut self, seen: bool) {
        let steps = 5 + self.below(20);
        let Some(mut gang) = self.gang.take() else { return };
        advance(&mut gang, steps);
        let saved = save(&mut self.storage, &mut gang);
        if gang.is_done() {
            let mut result = gang.report(&self.storage, LaunchResult::bare(&gang.plan.launch, Outcome::Done));
            (result.measured.items_per_second, result.measured.wall_seconds) = (Some(100.0), Some(1.0));
            self.say(format!("{} is done at {}", gang.attempt, gang.items));
            return self.end(&gang.attempt, 0, Some(result));
        }
        if saved && seen {
            let progress = Some(gang.progress(&self.storage));
            let answer = Attempt { attempt: gang.attempt.clone(), results: Vec::new(), progress };
            self.operator.hear(&Key::new("default", "toy"), answer);
        }
        self.gang = Some(gang);
    }

    /// What may happen at any time.
    fn happen(&mut self) {
        match self.below(22) {
            0..=5 => self.train(true),
            6 | 7 => self.train(false),
            8 => self.kill(),
            9 => self.partition(),
            10 => self.diverge(),
            11 => {
                if let Some(name) = self.storage.damage(&mut self.random) {
                    self.say(format!("{name} is damaged"));
                }
            }
            12 => self.mount(),
            13 => {
                let hours = self.below(48) as i64 - 24;
                self.say(format!("the clock jumps by {hours} h"));
                self.clock.fetch_add(hours * 3600, Ordering::Relaxed);
            }
            14 => self.cut_off_writes(),
            15..=17 => {
                let (what, change) = edit(&mut self.random);
                self.say(what);
                self.change(change);
            }
            _ => {
                let later = 1 + self.below(4) as usize;
                let stop = [Stop::AfterAnswer, Stop::AnswerLost, Stop::NotSent][self.below(3) as usize];
                let at = self.api.store().writes.len() + later;
                self.api.store().stop = Some((at, stop));
            }
        }
    }

    /// The pod is killed, with what the gang had not saved.
    fn kill(&mut self) {
        let steps = self.below(10);
        let Some(mut gang) = self.gang.take() else { return };
        advance(&mut gang, steps);
        let saved = self.below(2) == 0 && save(&mut self.storage, &mut gang);
        self.say(format!("{} is killed at {}{}", gang.attempt, gang.items, if saved { ", saved" } else { "" }));
        self.end(&gang.attempt, 137, None);
    }

    /// The Job controller: a batch Job whose pod is gone has failed.
    fn fail_jobs(&self) {
        let mut store = self.api.store();
        let owned = |store: &Store, uid: &Value| {
            let pods = store.objects.iter().filter(|(id, _)| id.0 == "pods");
            pods.filter(|(_, pod)| pod["metadata"]["ownerReferences"][0]["uid"] == *uid).count()
        };
        let jobs = store.objects.iter().filter(|(id, job)| id.0 == "jobs" && job["status"]["startTime"].is_string());
        let jobs: Vec<(Id, Value)> = jobs.map(|(id, job)| (id.clone(), job.clone())).collect();
        for (id, mut job) in jobs {
            if owned(&store, &job["metadata"]["uid"]) == 0 && job["status"]["conditions"].is_null() {
                let now = Timestamp::now().to_string();
                job["status"]["conditions"] = json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
                    "message": "Job has reached the specified backoff limit", "lastTransitionTime": now}]);
                store.put(id, job);
            }
        }
    }

    /// The node does not answer any more, and its pod is deleted.
    fn partition(&mut self) {
        let Some(gang) = self.gang.take() else { return };
        self.say(format!("{} is cut off at {}", gang.attempt, gang.items));
        if let Some((id, _)) = self.pod(&gang.attempt) {
            self.api.store().remove(&id);
        }
        self.cut_off.push(gang);
    }

    fn cut_off_writes(&mut self) {
        let steps = self.below(20);
        for mut gang in std::mem::take(&mut self.cut_off) {
            advance(&mut gang, steps);
            let saved = save(&mut self.storage, &mut gang);
            self.say(format!("{}, which was cut off, is at {}, saved: {saved}", gang.attempt, gang.items));
            self.cut_off.extend(saved.then_some(gang));
        }
    }

    /// The loss becomes infinite: what is saved between the last healthy loss and the report of it is bad.
    fn diverge(&mut self) {
        let steps = self.below(10) + 1;
        let Some(mut gang) = self.gang.take() else { return };
        self.say(format!("{} diverges after {}", gang.attempt, gang.items));
        diverge(&mut self.storage, &mut gang, steps);
        let result = gang.report(&self.storage, LaunchResult::bare(&gang.plan.launch, Outcome::NonFinite));
        self.end(&gang.attempt, 12, Some(result));
    }

    /// Another storage is mounted, which is empty; or the right one again.
    fn mount(&mut self) {
        if self.gang.is_some() {
            return;
        }
        match self.unmounted.take() {
            Some(right) => {
                self.say("the right storage is mounted again");
                self.storage = right;
                self.storage.returns();
            }
            None => {
                self.say("an empty storage is mounted");
                self.unmounted = Some(std::mem::take(&mut self.storage));
            }
        }
        self.cut_off.clear();
    }

    /// A round in which nothing goes wrong.
    async fn round(&mut self) {
        self.clock.fetch_add(ROUND, Ordering::Relaxed);
        self.reconcile().await;
        self.step();
        self.train(true);
    }

    /// Until nothing changes any more.
    async fn rest(&mut self) {
        let mut quiet = 0;
        for _ in 0..LONGEST {
            let before = (self.api.store().version, self.gang.is_some());
            self.round().await;
            let same = before == (self.api.store().version, false);
            let over = matches!(self.status().stage, Stage::Complete | Stage::Failed | Stage::Suspended);
            quiet = if same && over { quiet + 1 } else { 0 };
            if quiet == QUIET {
                return;
            }
        }
        panic!("it never ends: {:#}", self.stored()["status"]);
    }

    /// Nothing goes wrong any more, and a person repairs what is broken.
    async fn settle(&mut self) {
        self.say("from here on, nothing happens");
        self.api.store().stop = None;
        self.cut_off.clear();
        if self.unmounted.is_some() && self.gang.is_none() {
            self.mount();
        }
        loop {
            self.rest().await;
            match (self.status().failure, self.unmounted.is_some()) {
                (Some(_), true) => self.mount(),
                (Some(failure), false) if failure.reason != "CheckpointUnreadable" => {
                    self.say(format!("tried again after {}", failure.reason));
                }
                _ => return,
            }
            self.change(|spec| spec["suspend"] = json!(true));
            self.rest().await;
            self.change(|spec| spec["suspend"] = json!(false));
        }
    }
}

#[tokio::test]
async fn whatever_happens_the_status_and_the_model_agree() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("PAWL_HISTORY") {
        Some(seed) => vec![seed],
        None => (0..number("PAWL_HISTORIES").unwrap_or(HISTORIES)).chain(FAILED).collect(),
    };
    for seed in seeds {
        let mut history = History::new(seed);
        for _ in 0..20 + history.below(80) {
            history.happen();
            history.clock.fetch_add(ROUND, Ordering::Relaxed);
            if history.below(3) > 0 {
                history.reconcile().await;
            }
            history.step();
        }
        history.settle().await;
        assert_eq!(history.api.store().unannounced, Vec::<String>::new());
        let spec: TrainingJobSpec = serde_json::from_value(history.stored()["spec"].clone()).unwrap();
        history.storage.agrees(&history.status(), &spec);
    }
}
