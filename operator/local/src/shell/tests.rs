//! The protocol on disk: `pawl run` is stopped after every single step of every decision, and run again. Ranks are
//! simulated: the test writes their reports as the agent does.

use super::*;
use crate::state::attempts::{self, AttemptRecord, RecordState};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_decision::protocol::Shell as Protocol;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Lives of the shell after which a job must have ended.
const LIVES: usize = 100;

/// A job of two phases, of which the second is slower. The manifest is changed while the second attempt runs, so that
/// the attempt is stopped.
fn job(attempts: u32) -> TrainingJob {
    let windows = if attempts < 2 { 50 } else { 40 };
    serde_json::from_value(json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {
            "workload": {"name": "ups"},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8},
            "phases": [
                {"name": "graph", "settings": {"compile": "Graph"}},
                {"name": "slow", "settings": {"activationCheckpointing": "Full"}},
            ],
            "analysis": {"minPairs": 1, "maxPairs": 1, "windowSteps": windows, "budgetPercent": "Unlimited"},
            "train": {"items": 1000},
        },
    }))
    .unwrap()
}

/// The same under the default budget: the slower phase is judged, and what is left does not pay for the other one.
fn limited(attempts: u32) -> TrainingJob {
    let mut job = job(attempts);
    job.spec.phases.reverse();
    job.spec.analysis.budget_percent = None;
    job.spec.train.items = Some(8000);
    job
}

#[test]
fn variables_of_the_pod_template_refer_to_those_before_them_as_on_a_cluster() {
    let mut job = job(0);
    let env = json!([
        {"name": "ROOT", "value": "/data"},
        {"name": "SET", "value": "$(ROOT)/$(NOT_SET_ANYWHERE)"},
        {"name": "BATCH", "value": "$(ROOT)/$(settings.batchPerGpu)"},
    ]);
    job.spec.trainer.pod_template.env = serde_json::from_value(env).unwrap();
    let values: Vec<_> =
        environment(&job, &|name| std::env::var(name).ok()).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["/data", "/data/$(NOT_SET_ANYWHERE)", "$(ROOT)/$(settings.batchPerGpu)"]);
}

fn options(directory: &Path) -> Options {
    Options {
        state: StateDir::new(directory),
        gpus: None,
        trainer: Vec::new(),
        features: Vec::new(),
        style: Style { document: false, quiet: true },
        limit: None,
    }
}

fn report(plan: &LaunchPlan) -> Value {
    let settings = serde_json::to_value(&plan.settings).unwrap();
    let faster = if settings["compile"] == "Graph" { 1.5 } else { 1.0 };
    let slower = if settings["activationCheckpointing"] == "Full" { 0.8 } else { 1.0 };
    let mut report = json!({
        "contract": plan.contract, "launch": plan.launch, "kind": plan.kind, "rank": 0, "outcome": "Done", "steps": 70,
        "items": plan.budget.items.unwrap_or(700), "losses": [{"items": 700, "loss": 0.5}], "peakMemoryBytes": 1024,
        "predictedMemoryBytes": 1024, "wallSeconds": 1.0,
    });
    if plan.kind != LaunchKind::Preflight {
        report["itemsPerSecond"] = json!(100.0 * faster * slower);
    }
    report
}

/// The attempts that are to run, as the disk has them.
fn active(state: &StateDir) -> Vec<AttemptRecord> {
    let records = attempts::load(state).unwrap();
    records.into_iter().filter(|record| record.state == RecordState::Active).collect()
}

/// Runs the attempt that is to run to its end. Returns its launches.
fn play(state: &StateDir) -> Vec<String> {
    let mut played = Vec::new();
    for mut record in active(state) {
        let directory = attempts::directory(state, &record.plan.attempt);
        std::fs::write(directory.join("attempt.json"), serde_json::to_vec(&record.plan).unwrap()).unwrap();
        for plan in &record.plan.launches {
            let launch = directory.join(&plan.launch);
            std::fs::create_dir_all(&launch).unwrap();
            std::fs::write(launch.join("report.json"), report(plan).to_string()).unwrap();
            played.push(plan.launch.clone());
        }
        record.state = RecordState::Completed;
        record.save(state).unwrap();
    }
    played
}

/// Every active attempt is one in the status on disk: the intent is written first. No task has two.
fn check(state: &StateDir) {
    let active = active(state);
    let document = Document::load_existing(state).unwrap();
    let most = document.job.spec.search.first().map_or(1, |search| search.parallelism as usize);
    assert!(active.len() <= most, "{} attempts: {active:?}", active.len());
    let mut tasks = BTreeSet::new();
    for record in active {
        let named = document.status.under_way().find(|attempt| attempt.name == record.plan.attempt);
        let named = named.expect("started before the status named it");
        assert_eq!(named.plan_hash, record.plan_hash, "started before the status named it");
        assert!(tasks.insert(named.task.clone()), "two gangs of {}", named.task);
    }
    for record in attempts::load(state).unwrap().iter().filter(|record| record.state == RecordState::Stopped) {
        let attempt = document.status.under_way().find(|attempt| attempt.name == record.plan.attempt);
        assert!(attempt.is_none_or(|attempt| attempt.stop.is_some()), "stopped before the status contained the stop");
    }
}

/// Passes steps on to the shell, and is stopped before the step after the last that it has left.
struct Dying<'a> {
    shell: &'a mut Shell,
    left: &'a mut usize,
}

impl Dying<'_> {
    fn step(&mut self) -> Result<(), Option<StateError>> {
        check(&self.shell.state);
        *self.left = self.left.checked_sub(1).ok_or(None)?;
        Ok(())
    }
}

impl Protocol for Dying<'_> {
    /// `None`: it was stopped.
    type Error = Option<StateError>;

    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), Self::Error> {
        self.step()?;
        self.shell.write(status, urgent).await.map_err(Some)
    }

    async fn act(&mut self, action: Action) -> Result<bool, Self::Error> {
        self.step()?;
        self.shell.act(action).await.map_err(Some)
    }

    async fn emit(&mut self, event: Event) -> Result<(), Self::Error> {
        self.step()?;
        self.shell.emit(event).await.map_err(Some)
    }
}

enum End {
    /// It was stopped.
    Died,
    /// It waits for its attempt, which the test simulates.
    Waits,
    AtRest,
}

/// A job with a search of six trials, three at a time, whose points depend on the results before.
fn searching() -> TrainingJob {
    serde_json::from_value(json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
        "spec": {
            "workload": {"name": "ups"},
            "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8, "learningRate": "1e-3"},
            "seeds": [1],
            "search": [{
                "name": "rates", "trials": 6, "epochs": 2, "sampler": "TPE", "parallelism": 3,
                "objectives": [{"metric": "itemsPerSecond", "goal": "Maximize"}],
                "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
            }],
        },
    }))
    .unwrap()
}

/// One life of the shell: decides until there is nothing to do but wait, or it is stopped.
async fn live(directory: &Path, job: fn(u32) -> TrainingJob, left: &mut usize) -> End {
    let known = attempts::load(&StateDir::new(directory)).unwrap().len();
    let mut shell = open(job(known as u32), options(directory)).unwrap();
    loop {
        let observed = shell.attempts.observe();
        let Document { job, status, .. } = &shell.document;
        let decision = pawl_decision::decide(job, status, &observed, Timestamp::now());
        let changed = decision.status != *status;
        let carried_out = decision.carry_out(&mut Dying { shell: &mut shell, left: &mut *left }).await;
        check(&shell.state);
        match carried_out {
            Err(None) => return End::Died,
            Err(Some(error)) => panic!("{error}"),
            Ok(CarriedOut { acted, .. }) if changed || acted => {}
            Ok(_) if outcome(&shell.document.status).is_some() => return End::AtRest,
            Ok(_) => return End::Waits,
        }
    }
}

struct FinishedRun {
    status: Value,
    steps: usize,
}

/// Runs the job to its end; the shell is stopped once after `steps` steps.
async fn run(job: fn(u32) -> TrainingJob, steps: usize) -> FinishedRun {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::new(directory.path());
    let (mut left, mut played) = (steps, Vec::new());
    for _ in 0..LIVES {
        match live(directory.path(), job, &mut left).await {
            End::Died => left = usize::MAX,
            // The manifest is changed before the second attempt runs anything.
            End::Waits if active(&state).iter().any(|record| record.plan.attempt == "toy-2") => {}
            End::Waits => played.extend(play(&state)),
            End::AtRest => {
                let distinct: BTreeSet<_> = played.iter().collect();
                assert_eq!(distinct.len(), played.len(), "a launch ran twice: {played:?}");
                let records = attempts::load(&state).unwrap();
                let second = records.iter().find(|record| record.plan.attempt == "toy-2").unwrap();
                assert!(
                    !played.iter().any(|launch| launch == &second.plan.launches[0].launch),
                    "the second attempt was not stopped"
                );
                return FinishedRun {
                    status: timeless(serde_json::to_value(Document::load_existing(&state).unwrap().status).unwrap()),
                    steps: usize::MAX - left,
                };
            }
        }
    }
    panic!("it never ends");
}

/// A status without its times.
fn timeless(mut status: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let times = ["lastTransitionTime", "startTime", "completionTime", "started", "eta", "goodput"];
                fields.retain(|name, _| !times.contains(&name.as_str()));
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    strip(&mut status);
    status
}

#[tokio::test]
async fn stopped_after_any_step_a_run_comes_to_the_same_end() {
    comes_to_the_same_end(job, ["Accepted", "RolledBack"], 30).await;
}

#[tokio::test]
async fn stopped_after_any_step_so_does_one_under_the_default_budget() {
    comes_to_the_same_end(limited, ["RolledBack", "Inconclusive"], 15).await;
}

/// Runs the job to the end at which its phases have these states, and again for each of its steps, of which it has
/// `least` at least.
async fn comes_to_the_same_end(job: fn(u32) -> TrainingJob, expected: [&str; 2], least: usize) {
    let whole = run(job, usize::MAX).await;
    assert_eq!(whole.status["stage"], "Complete", "{:#}", whole.status);
    let states: Vec<_> =
        whole.status["phases"].as_array().unwrap().iter().map(|phase| phase["state"].clone()).collect();
    assert_eq!(states, expected);
    assert!(whole.steps >= least, "only {} steps", whole.steps);
    for steps in 0..whole.steps {
        let end = run(job, steps).await;
        assert_eq!(end.status, whole.status, "stopped after {steps} steps");
    }
}

#[tokio::test]
async fn stopped_after_any_step_a_search_comes_to_the_same_trials() {
    let search = async |steps: usize| {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::new(directory.path());
        let (mut left, mut played, mut most) = (steps, Vec::new(), 0);
        for _ in 0..LIVES {
            match live(directory.path(), |_| searching(), &mut left).await {
                End::Died => left = usize::MAX,
                End::Waits => {
                    most = most.max(active(&state).len());
                    played.extend(play(&state));
                }
                End::AtRest => {
                    let distinct: BTreeSet<_> = played.iter().collect();
                    assert_eq!(distinct.len(), played.len(), "a launch ran twice: {played:?}");
                    let status = Document::load_existing(&state).unwrap().status;
                    assert!(status.stage == Stage::Complete && most == 3, "{most} at a time: {status:#?}");
                    return (timeless(serde_json::to_value(status).unwrap()), usize::MAX - left);
                }
            }
        }
        panic!("it never ends");
    };
    let (whole, count) = search(usize::MAX).await;
    assert_eq!(whole["search"][0]["trials"].as_array().map(Vec::len), Some(6));
    assert!(count >= 30, "only {count} steps");
    for steps in 0..count {
        assert_eq!(search(steps).await.0, whole, "stopped after {steps} steps");
    }
}

#[tokio::test]
async fn nothing_is_started_when_the_status_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = open(job(0), options(directory.path())).unwrap();
    // A directory in place of the status can't be replaced by a file.
    let path = directory.path().join("status.json");
    let kept = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let RunError::State(error) = shell.step().await.unwrap_err() else { panic!() };
    assert!(error.to_string().contains("status.json"), "{error}");
    assert_eq!(active(&shell.state), []);
    assert_eq!(events::read(&shell.state), []);
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, kept).unwrap();
    drop(shell);
    let mut shell = open(job(0), options(directory.path())).unwrap();
    shell.step().await.unwrap();
    assert_eq!(active(&shell.state).len(), 1);
}

#[tokio::test]
async fn a_verdict_is_in_the_report_before_the_run_ends() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::new(directory.path());
    let mut known = 0;
    loop {
        let mut shell = open(job(2), options(directory.path())).unwrap();
        while shell.step().await.unwrap().1 {}
        let judged = final_states(&shell.document.status).len();
        assert_eq!(state.report().exists(), judged > 0, "after {judged} verdicts");
        if outcome(&shell.document.status).is_some() {
            break;
        }
        known = known.max(judged);
        if judged == 1 {
            let page = std::fs::read_to_string(state.report()).unwrap();
            assert!(page.contains("✓ accepted</span> graph"), "{page}");
        }
        drop(shell);
        play(&state);
    }
    assert!(known >= 1, "no verdict came before the end");
}

#[tokio::test]
async fn an_attempt_of_another_version_is_not_continued_and_its_launches_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::new(directory.path());
    let mut interrupted = None;
    for _ in 0..LIVES {
        let mut shell = open(job(2), options(directory.path())).unwrap();
        while shell.step().await.unwrap().1 {}
        drop(shell);
        let measures = |plan: &LaunchPlan| plan.kind == LaunchKind::Measure;
        interrupted = active(&state).pop().filter(|record| record.plan.launches.iter().any(measures));
        if interrupted.is_some() {
            break;
        }
        play(&state);
    }
    let mut interrupted = interrupted.expect("an attempt that measures");
    // Another version ran its first launch, and was then interrupted and replaced by this one.
    interrupted.trainer = Some("pawl 0.0.1".to_owned());
    interrupted.save(&state).unwrap();
    let (first, own) = (&interrupted.plan.launches[0], attempts::directory(&state, &interrupted.plan.attempt));
    std::fs::create_dir_all(own.join(&first.launch)).unwrap();
    std::fs::write(own.join("attempt.json"), serde_json::to_vec(&interrupted.plan).unwrap()).unwrap();
    std::fs::write(own.join(&first.launch).join("report.json"), report(first).to_string()).unwrap();

    let mut shell = open(job(2), options(directory.path())).unwrap();
    while shell.step().await.unwrap().1 {}
    let status = &shell.document.status;
    let kept = status.phases[0].launches.iter().find(|launch| launch.name == first.launch).unwrap();
    assert_eq!(kept.trainer, "pawl 0.0.1");
    assert_eq!(status.trainer.as_ref().unwrap().build, concat!("pawl ", env!("CARGO_PKG_VERSION")));
    let records = attempts::load(&state).unwrap();
    let ended = records.iter().find(|record| record.plan.attempt == interrupted.plan.attempt).unwrap();
    assert_ne!(ended.state, RecordState::Active);
    assert!(events::read(&state).iter().any(|event| event.reason == "TrainerChanged"));
}

/// Its plan may say that checkpoints after some step are to be deleted, which was right when it was made.
#[tokio::test]
async fn a_training_that_was_interrupted_goes_on_in_another_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::new(directory.path());
    let trains = |record: &AttemptRecord| record.plan.launches.iter().any(|plan| plan.kind == LaunchKind::Train);
    let mut interrupted = None;
    for _ in 0..LIVES {
        let mut shell = open(job(2), options(directory.path())).unwrap();
        while shell.step().await.unwrap().1 {}
        drop(shell);
        interrupted = active(&state).pop().filter(trains);
        if interrupted.is_some() {
            break;
        }
        play(&state);
    }
    let interrupted = interrupted.expect("an attempt that trains");
    let own = attempts::directory(&state, &interrupted.plan.attempt);
    std::fs::create_dir_all(own.join(&interrupted.plan.launches[0].launch)).unwrap();

    let mut shell = open(job(2), options(directory.path())).unwrap();
    while shell.step().await.unwrap().1 {}
    assert!(shell.document.status.retry.is_none(), "an interruption is no failure");
    let next = active(&state).pop().filter(trains).expect("it trains on");
    assert_ne!(next.plan.attempt, interrupted.plan.attempt);
}
