//! The example as Pawl runs it: launches of one rank and of two, the whole ladder, and weights that the built-in
//! trainer exchanges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_agent::{Event, Node, Stop};
use pawl_api::status::PhaseState;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::Report;
use pawl_local::display::Style;
use pawl_local::state::StateDir;
use pawl_local::{Options, RunOutcome};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pawl-example-candle");

/// A launch of `kind` with `changes` made to it, field by field.
fn plan(kind: &str, budget: Value, changes: Value) -> LaunchPlan {
    let mut plan = json!({
        "contract": 1, "job": "toy", "attempt": "toy-1", "launch": "launch", "kind": kind, "workload": {"config": {"hidden": 16}},
        "settings": {"batchPerGpu": 32, "learningRate": "0.002"}, "seed": 7, "budget": budget, "hangTimeoutSeconds": 60,
    });
    for (name, value) in changes.as_object().unwrap() {
        plan[name] = value.clone();
    }
    serde_json::from_value(plan).unwrap()
}

fn checkpoints(every: f64) -> Value {
    json!({"everySeconds": every, "keep": 2, "resume": true})
}

/// One rank that keeps everything in `dir`.
fn start(dir: &Path, plan: &LaunchPlan) -> Child {
    std::fs::write(dir.join("plan.json"), serde_json::to_vec(plan).unwrap()).unwrap();
    let mut command = Command::new(PROGRAM);
    for (name, file) in [("PAWL_PLAN", "plan.json"), ("PAWL_REPORT", "report.json"), ("PAWL_PROGRESS", "progress.json")]
    {
        command.env(name, dir.join(file));
    }
    command.env("PAWL_CHECKPOINTS", dir.join("checkpoints")).env("RUST_LOG", "warn").env("RAYON_NUM_THREADS", "1");
    command.spawn().unwrap()
}

fn report(dir: &Path, mut rank: Child) -> Report {
    let status = rank.wait().unwrap();
    let report: Report = serde_json::from_slice(&std::fs::read(dir.join("report.json")).unwrap()).unwrap();
    assert_eq!(status.code(), Some(i32::from(report.outcome.exit_code())), "{}", report.message);
    report
}

fn run(dir: &Path, plan: &LaunchPlan) -> Report {
    report(dir, start(dir, plan))
}

/// Runs a gang of two ranks on one node until its progress is `enough`; returns the report of its first rank, and the
/// first progress that was enough.
fn gang(
    dir: &Path,
    plan: LaunchPlan,
    command: Vec<String>,
    enough: impl Fn(&Progress) -> bool + Send + Sync + 'static,
) -> (Report, Option<Progress>) {
    let attempt = AttemptPlan {
        contract: 1,
        job: "toy".into(),
        attempt: "toy-1".into(),
        replicas: 1,
        ranks_per_replica: 2,
        script: Default::default(),
        gather_seconds: None,
        gpus_per_replica: 0,
        checks: None,
        command,
        launches: vec![plan],
        stop_on_failure: true,
        events: Vec::new(),
    };
    let mut node = Node::local(dir.join("work"), Vec::new());
    node.checkpoints = dir.join("checkpoints").display().to_string();
    node.data = dir.join("data");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (request, stop) = tokio::sync::watch::channel(Stop::No);
    let first = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first);
    let listen = move |event: Event| {
        if let Event::Progress(progress) = event
            && enough(&progress)
        {
            let _ = request.send(Stop::Gracefully);
            seen.lock().unwrap().get_or_insert(*progress);
        }
    };
    runtime.block_on(pawl_agent::run(&attempt, node, stop, listen)).unwrap();
    let report = pawl_agent::finished_reports(&dir.join("work")).unwrap().remove(0);
    let first = first.lock().unwrap().take();
    (report, first)
}

#[test]
fn a_measurement_reports_what_the_operator_decides_by() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &plan("Measure", json!({"warmupSteps": 2, "windowSteps": 6}), json!({})));
    assert_eq!(
        (report.outcome, report.measured.steps, report.measured.items),
        (Outcome::Done, 8, 256),
        "{}",
        report.message
    );
    assert_eq!((report.losses.len(), report.items_per_epoch), (8, Some(2048)));
    let (speed, step) = (report.measured.items_per_second.unwrap(), report.measured.step_seconds.unwrap());
    assert!(speed > 0.0 && step.p10 <= step.median && step.median <= step.p90);
    assert!(report.measured.peak_memory_bytes.unwrap() > 1 << 20);
    let share = report.measured.utilization.unwrap();
    assert!((0.0..=1.0).contains(&share) && report.measured.validation.is_none());
    // The same seed is the same launch; another one is not.
    let again = run(dir.path(), &plan("Measure", json!({"warmupSteps": 2, "windowSteps": 6}), json!({})));
    assert_eq!(again.losses, report.losses);
    let other = run(dir.path(), &plan("Measure", json!({"warmupSteps": 2, "windowSteps": 6}), json!({"seed": 8})));
    assert_ne!(other.losses, report.losses);
}

#[test]
fn micro_batches_and_ranks_do_not_change_the_numerics() {
    let budget = json!({"warmupSteps": 1, "windowSteps": 5});
    let settings = |batch: u32| json!({"settings": {"batchPerGpu": batch, "globalBatch": 64, "gradientClip": "0.05"}});
    let dir = tempfile::tempdir().unwrap();
    let whole = run(dir.path(), &plan("Measure", budget.clone(), settings(64)));
    let parts = run(dir.path(), &plan("Measure", budget.clone(), settings(16)));
    let (two, _) = gang(dir.path(), plan("Measure", budget.clone(), settings(32)), vec![PROGRAM.into()], |_| false);
    assert_eq!(two.outcome, Outcome::Done, "{}", two.message);
    for other in [&parts, &two] {
        assert_eq!(other.measured.items, whole.measured.items);
        for (a, b) in whole.losses.iter().zip(&other.losses) {
            assert!((a.loss - b.loss).abs() < 1e-5 * a.loss, "{} {}", a.loss, b.loss);
        }
    }
    assert!(two.measured.collective_wait_share.unwrap() > 0.0);
    // The limit takes effect.
    let free = run(dir.path(), &plan("Measure", budget, json!({"settings": {"batchPerGpu": 64}})));
    assert_ne!(free.losses.last(), whole.losses.last());
    assert!(whole.details.gradient_norm.unwrap() > 0.05);
}

#[test]
fn what_the_program_does_not_support_is_a_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let budget = json!({"warmupSteps": 1, "windowSteps": 1});
    for (settings, message) in [
        (json!({"compile": "Graph"}), "settings.compile: not used by this program"),
        (
            json!({"workload": {"arithmetic": "f8"}}),
            "settings.workload.arithmetic: f8 is not supported by this program: choose one of f32, f64",
        ),
    ] {
        for kind in ["Preflight", "Measure"] {
            let report = run(dir.path(), &plan(kind, budget.clone(), json!({"settings": settings})));
            assert_eq!(report.outcome, Outcome::Unsupported);
            assert!(report.message.starts_with(message), "{}", report.message);
        }
    }
    let wrong = json!({"workload": {"config": {"width": 3}}});
    let report = run(dir.path(), &plan("Preflight", json!({}), wrong));
    assert_eq!(report.outcome, Outcome::InvalidPlan);
    assert!(report.message.starts_with("workload.config: unknown field `width`"), "{}", report.message);
    let report = run(dir.path(), &plan("Preflight", json!({}), json!({})));
    assert_eq!((report.outcome, report.items_per_epoch, report.measured.steps), (Outcome::Done, Some(2048), 0));
}

#[test]
fn a_loss_that_is_not_a_number_ends_the_launch() {
    let dir = tempfile::tempdir().unwrap();
    let rate = json!({"settings": {"batchPerGpu": 32, "learningRate": "1e38"}});
    let report = run(dir.path(), &plan("Measure", json!({"warmupSteps": 2, "windowSteps": 20}), rate));
    assert!(
        matches!(report.outcome, Outcome::NonFinite | Outcome::LossSpike),
        "{:?} {}",
        report.outcome,
        report.message
    );
    assert!(report.message.contains("at step ") && report.failure.is_some(), "{}", report.message);
}

#[test]
fn training_learns_and_resumes_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let train = |items: u64| {
        plan("Train", json!({"items": items, "evalEveryItems": 1024}), json!({"checkpoint": checkpoints(600.0)}))
    };
    let whole = run(dir.path(), &train(8192));
    assert_eq!(whole.outcome, Outcome::Done, "{}", whole.message);
    let (before, after) = (whole.measured.first_metric("loss").unwrap(), whole.measured.metric("loss").unwrap());
    assert!(after < &(before / 2.0) && *whole.measured.metric("accuracy").unwrap() > 0.7, "{before} {after}");
    assert_eq!(whole.last_checkpoint.as_ref().unwrap().items, 8192);
    assert_eq!(whole.best_checkpoint.as_ref().unwrap().metric, "loss");
    // In two parts, the second of which resumes: as good to the bit.
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &train(3072)).outcome, Outcome::Done);
    let rest = run(dir.path(), &train(8192));
    assert_eq!(rest.measured.validation, whole.measured.validation);
    assert_eq!(rest.measured.first_validation, whole.measured.first_validation);
    assert!((3073..=3200).contains(&rest.losses[0].items), "it resumed: {:?}", rest.losses[0]);
    // Another job takes the weights alone: it starts where this one has ended, at its first step.
    let from = json!({"everySeconds": 600, "keep": 1, "resume": true,
        "resumeFrom": {"storage": dir.path().join("checkpoints"), "weightsOnly": true}});
    let other = tempfile::tempdir().unwrap();
    let taken = run(other.path(), &plan("Train", json!({"items": 32}), json!({"checkpoint": from})));
    assert_eq!((taken.outcome, taken.measured.steps), (Outcome::Done, 1), "{}", taken.message);
    assert_eq!(taken.measured.first_metric("loss"), whole.measured.metric("loss"));
}

#[test]
fn a_request_to_stop_ends_after_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let train = plan("Train", json!({"items": 1u64 << 40}), json!({"checkpoint": checkpoints(600.0)}));
    let rank = start(dir.path(), &train);
    let trains = || {
        let progress = std::fs::read(dir.path().join("progress.json")).ok()?;
        let progress: Value = serde_json::from_slice(&progress).ok()?;
        progress["step"].as_u64().filter(|step| *step > 0)
    };
    let end = Instant::now() + Duration::from_secs(60);
    while trains().is_none() {
        assert!(Instant::now() < end, "no step within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = rustix::process::Pid::from_raw(rank.id() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let report = report(dir.path(), rank);
    assert_eq!(report.outcome, Outcome::Stopped);
    let saved = report.last_checkpoint.unwrap();
    assert!(saved.step > 0 && saved.step == report.measured.steps, "{}", report.message);
    assert!(report.message.ends_with(", after a checkpoint"), "{}", report.message);
}

#[test]
fn a_rank_that_is_slower_than_the_others_is_named() {
    // Rank 1 is frozen for most of the time.
    let script = format!(
        "{PROGRAM} & rank=$!; trap 'kill -CONT $rank; kill $rank; wait $rank; exit $?' TERM; \
         if [ $PAWL_RANK = 1 ]; then while kill -STOP $rank 2>/dev/null; do sleep 0.2; kill -CONT $rank; \
         sleep 0.02; done; fi; wait $rank"
    );
    let dir = tempfile::tempdir().unwrap();
    let settings = json!({"settings": {"batchPerGpu": 128}, "workload": {"config": {"hidden": 128}}});
    let plan = plan("Train", json!({"items": 1u64 << 40, "evalEveryItems": 1u64 << 40}), settings);
    // Windows after it may name no rank, as the launch is stopping.
    let enough = |now: &Progress| now.straggler.is_some() || now.windows > 50;
    let (report, found) = gang(dir.path(), plan, vec!["sh".into(), "-c".into(), script], enough);
    assert_eq!(report.outcome, Outcome::Stopped, "{}", report.message);
    assert!(report.measured.collective_wait_share.is_some_and(|share| share > 0.0), "{report:#?}");
    let found = found.unwrap().straggler.unwrap();
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(found.starts_with(&format!("rank 1 on node {node} takes ")), "{found}");
}

/// The manifest of the example, with the built program.
#[test]
fn the_ladder_keeps_what_is_faster_and_rolls_back_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("cpu.yaml")).unwrap();
    let job = pawl_manifest::parse(&text.replace("${PROGRAM:-/app/train}", PROGRAM), "cpu.yaml").unwrap();
    let options = Options {
        state: StateDir::new(dir.path().join("state")),
        gpus: None,
        trainer: Vec::new(),
        features: Vec::new(),
        style: Style { document: true, quiet: true },
        limit: None,
    };
    let (outcome, document) = pawl_local::run(job, options).unwrap();
    let status = document.status;
    assert_eq!(outcome, RunOutcome::Complete, "{status:#?}");
    let state = |name: &str| status.phases.iter().find(|phase| phase.name == name).unwrap().state;
    assert_eq!((state("larger-batch"), state("float64")), (PhaseState::Accepted, PhaseState::RolledBack));
}
