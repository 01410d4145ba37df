//! The scripted trainer under the real agent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_agent::{AttemptEnd, AttemptResult, Limits, Node, Stop, finished_reports, run};
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, CheckpointPolicy, Criterion, LaunchKind, LaunchPlan};
use pawl_contract::report::Report;
use pawl_scripted_trainer::Script;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::watch;

fn launch(name: &str, kind: LaunchKind, settings: Value, script: Value) -> LaunchPlan {
    let budget = match kind {
        LaunchKind::Preflight => json!({}),
        LaunchKind::Measure => json!({"warmupSteps": 5, "windowSteps": 20}),
        LaunchKind::Quality | LaunchKind::Search | LaunchKind::Train => json!({"items": 10_000}),
    };
    serde_json::from_value(json!({
        "contract": CONTRACT_VERSION, "job": "job", "attempt": "job-1", "launch": name, "kind": kind,
        "workload": {"name": "scripted", "config": script}, "settings": settings, "seed": 42, "budget": budget,
        "hangTimeoutSeconds": 0.5,
    }))
    .unwrap()
}

fn measure(name: &str, settings: Value, script: Value) -> LaunchPlan {
    launch(name, LaunchKind::Measure, settings, script)
}

fn train(name: &str, script: Value, policy: CheckpointPolicy) -> LaunchPlan {
    LaunchPlan { checkpoint: Some(policy), ..launch(name, LaunchKind::Train, json!({"batchPerGpu": 10}), script) }
}

fn policy() -> CheckpointPolicy {
    CheckpointPolicy {
        every_seconds: 1.0,
        keep: 3,
        resume: true,
        expected: None,
        expected_after_limit: None,
        resume_from: None,
        resume_not_after_items: None,
        best: Criterion::default(),
        directory: None,
    }
}

fn attempt(number: u32, ranks: u32, launches: Vec<LaunchPlan>) -> AttemptPlan {
    AttemptPlan {
        contract: CONTRACT_VERSION,
        job: "job".into(),
        attempt: format!("job-{number}"),
        replicas: 1,
        ranks_per_replica: ranks,
        gpus_per_replica: 0,
        checks: None,
        command: Vec::new(),
        script: Default::default(),
        gather_seconds: None,
        launches,
        stop_on_failure: false,
        events: Vec::new(),
    }
}

fn node(state: &Path, attempt: &str) -> Node {
    let trainer = vec![env!("CARGO_BIN_EXE_scripted-trainer").into()];
    let limits = Limits {
        start_allowance: Duration::from_millis(200),
        peer_grace: Duration::from_millis(100),
        ..Limits::default()
    };
    let checkpoints = format!("file://{}", state.join("checkpoints").display());
    Node { limits, checkpoints, data: state.join("data"), ..Node::local(state.join(attempt), trainer) }
}

/// Runs an attempt; checkpoints and data are those of the state directory.
async fn play(state: &Path, plan: &AttemptPlan) -> (AttemptResult, Vec<Report>) {
    let node = node(state, &plan.attempt);
    let dir = node.work_dir.clone();
    let (_stop, stopped) = watch::channel(Stop::No);
    let result = run(plan, node, stopped, |_| {}).await.unwrap();
    (result, finished_reports(&dir).unwrap())
}

/// The only launch's report.
async fn play_one(ranks: u32, launch: LaunchPlan) -> Report {
    let state = tempdir().unwrap();
    play(state.path(), &attempt(1, ranks, vec![launch])).await.1.remove(0)
}

#[tokio::test]
async fn a_launch_measures_what_the_script_says_and_the_same_each_time() {
    let script = json!({
        "itemsPerSecond": 1000, "noise": 0.02, "seed": 3,
        "effects": [{"setting": "compile", "value": "Graph", "factor": 1.5}, {"setting": "workload.hidden", "value": 64, "factor": 2}],
    });
    let settings = json!({"batchPerGpu": 8, "compile": "Graph", "workload": {"hidden": 64}});
    let plan = measure("a", settings, script);
    let model = Script::from_config(&plan.workload.config).unwrap();
    assert_eq!(model.expected_items_per_second(&plan.settings), 3000.0);
    let report = play_one(2, plan.clone()).await;
    assert_eq!(
        (report.outcome, report.measured.steps, report.measured.items),
        (Outcome::Done, 25, 25 * 16),
        "{}",
        report.message
    );
    let measured = report.measured.items_per_second.unwrap();
    assert!((measured / model.measured_items_per_second(&plan.settings, "a") - 1.0).abs() < 1e-9);
    assert!(measured != 3000.0 && (measured / 3000.0).ln().abs() < 0.1);
    assert_eq!(play_one(2, plan.clone()).await.measured.items_per_second, Some(measured));
    assert_ne!(play_one(2, LaunchPlan { launch: "b".into(), ..plan }).await.measured.items_per_second, Some(measured));
}

#[tokio::test]
async fn memory_is_predicted_and_kept_to() {
    let script = json!({"itemsPerSecond": 1, "memory": {"baseBytes": 1000, "bytesPerItem": 100, "limitBytes": 2000,
        "effects": [{"setting": "activationCheckpointing", "value": "Full", "factor": 0.5}]}});
    for (settings, bytes, fits) in [
        (json!({"batchPerGpu": 10}), 2000, true),
        (json!({"batchPerGpu": 11}), 2100, false),
        (json!({"batchPerGpu": 11, "activationCheckpointing": "Full"}), 1550, true),
    ] {
        for kind in [LaunchKind::Preflight, LaunchKind::Measure] {
            let report = play_one(1, launch("l", kind, settings.clone(), script.clone())).await;
            let outcome = if fits { Outcome::Done } else { Outcome::OutOfMemory };
            assert_eq!(
                (report.outcome, report.measured.predicted_memory_bytes),
                (outcome, Some(bytes)),
                "{settings} {kind:?}"
            );
            assert_eq!(report.message.is_empty(), fits);
        }
    }
}

#[tokio::test]
async fn every_fault_ends_as_the_contract_says() {
    for (fault, outcome) in [
        (json!({"fault": "OutOfMemory"}), Outcome::OutOfMemory),
        (json!({"fault": "HostOutOfMemory"}), Outcome::HostOutOfMemory),
        (json!({"fault": "NonFinite"}), Outcome::NonFinite),
        (json!({"fault": "LossSpike"}), Outcome::LossSpike),
        (json!({"fault": "LostPeer"}), Outcome::LostPeer),
        (json!({"fault": "Unsupported"}), Outcome::Unsupported),
        (json!({"fault": "InvalidPlan"}), Outcome::InvalidPlan),
        (json!({"fault": "CompileFailed"}), Outcome::CompileFailed),
        (json!({"fault": "Crash", "exitCode": 7}), Outcome::Failed),
        (json!({"fault": "Crash", "signal": 11}), Outcome::Failed),
        (json!({"fault": "ExhaustMemory", "bytes": 1}), Outcome::HostOutOfMemory),
        (json!({"fault": "Hang"}), Outcome::Hang),
    ] {
        for rank in [0, 1] {
            let mut fault = fault.clone();
            fault["atStep"] = json!(12);
            fault["rank"] = json!(rank);
            let begun = Instant::now();
            let report = play_one(2, measure("l", json!({}), json!({"itemsPerSecond": 1, "faults": [fault]}))).await;
            assert_eq!(report.outcome, outcome, "{fault} {}", report.message);
            let early = matches!(outcome, Outcome::Unsupported | Outcome::InvalidPlan);
            let failure = report.failure.unwrap();
            assert_eq!(failure.step, if early { 0 } else { 12 }, "{fault}");
            assert_eq!(failure.rank, (outcome != Outcome::Hang).then_some(rank), "{fault}");
            assert!(begun.elapsed() < Duration::from_secs(4), "{fault} {:?}", begun.elapsed());
        }
    }
}

#[tokio::test]
async fn faults_heed_their_conditions() {
    let state = tempdir().unwrap();
    let script = json!({"itemsPerSecond": 1000, "faults": [
        {"fault": "Crash", "once": true, "launch": "once"},
        {"fault": "NonFinite", "nth": 2, "launch": "nth"},
        {"fault": "OutOfMemory", "launch": "batch", "settings": [{"setting": "batchPerGpu", "value": 16}]},
        {"fault": "SlowLoader", "launch": "loader", "share": 0.4},
        {"fault": "Slow", "launch": "slow", "factor": 0.25},
        {"fault": "LossSpike", "launch": "kind", "kinds": ["Quality"]},
    ]});
    let one = |name: &str| measure(name, json!({"batchPerGpu": 8}), script.clone());
    let big = measure("batch-16", json!({"batchPerGpu": 16}), script.clone());
    let quality = launch("kind-quality", LaunchKind::Quality, json!({}), script.clone());
    let launches = vec![
        one("once-1"),
        one("once-2"),
        one("nth-1"),
        one("nth-2"),
        one("nth-3"),
        one("batch-8"),
        big,
        one("loader"),
        one("slow"),
        one("kind-measure"),
        quality,
    ];
    let (_, reports) = play(state.path(), &attempt(1, 2, launches)).await;
    let outcomes: Vec<Outcome> = reports.iter().map(|report| report.outcome).collect();
    use Outcome::{Done, Failed, LossSpike, NonFinite, OutOfMemory};
    assert_eq!(outcomes, [Failed, Done, Done, NonFinite, Done, Done, OutOfMemory, Done, Done, Done, LossSpike]);
    let near = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-6;
    assert!(near(reports[7].measured.items_per_second, 600.0) && near(reports[7].measured.loader_wait_share, 0.4));
    assert!(near(reports[8].measured.items_per_second, 250.0) && near(reports[8].measured.loader_wait_share, 0.0));
    // The same launch once more, in a new attempt: what happened once is over.
    let (_, again) = play(state.path(), &attempt(2, 2, vec![one("once-1")])).await;
    assert_eq!(again[0].outcome, Done);
}

#[tokio::test]
async fn pods_that_share_a_fault_directory_share_what_happened() {
    let shared = tempdir().unwrap();
    let script = json!({"itemsPerSecond": 1000, "faultDirectory": shared.path(),
        "faults": [{"fault": "NonFinite", "once": true}]});
    let mut outcomes = Vec::new();
    for number in 1..3 {
        let pod = tempdir().unwrap();
        let plan = attempt(number, 1, vec![measure("l", json!({}), script.clone())]);
        outcomes.push(play(pod.path(), &plan).await.1[0].outcome);
    }
    assert_eq!(outcomes, [Outcome::NonFinite, Outcome::Done]);
}

#[tokio::test]
async fn quality_depends_on_settings_items_and_seed() {
    let script = json!({"itemsPerSecond": 1, "quality": {"startLoss": 2, "finalLoss": 0.5, "scaleItems": 5000, "seedNoise": 0.01,
        "effects": [{"setting": "precision", "value": "bf16", "factor": 1.1}]}});
    let quality = |settings| launch("l", LaunchKind::Quality, settings, script.clone());
    let loss = |report: &Report| report.measured.validation.as_ref().unwrap().metrics["loss"];
    let plain = play_one(1, quality(json!({"batchPerGpu": 100}))).await;
    assert_eq!((plain.measured.items, plain.losses.len() <= 64 && plain.losses.len() > 30), (10_000, true));
    assert!(plain.losses.windows(2).all(|pair| pair[0].loss > pair[1].loss && pair[0].items < pair[1].items));
    assert!(plain.measured.first_validation.as_ref().unwrap().metrics["loss"] > 1.5 && loss(&plain) < 0.8);
    let worse = play_one(1, quality(json!({"batchPerGpu": 100, "precision": "bf16"}))).await;
    assert!((loss(&worse) / loss(&plain) - 1.1).abs() < 1e-9);
    let seed = play_one(1, LaunchPlan { seed: 43, ..quality(json!({"batchPerGpu": 100})) }).await;
    assert!(loss(&seed) != loss(&plain) && (loss(&seed) / loss(&plain)).ln().abs() < 0.06);
}

#[tokio::test]
async fn training_resumes_before_the_damage_and_keeps_few_checkpoints() {
    let state = tempdir().unwrap();
    let script = json!({"itemsPerSecond": 1000, "faults": [{"fault": "NonFinite", "atStep": 650, "once": true}]});
    let (_, first) = play(state.path(), &attempt(1, 1, vec![train("t-1", script.clone(), policy())])).await;
    assert_eq!((first[0].outcome, first[0].failure.as_ref().unwrap().items), (Outcome::NonFinite, 6500));
    assert_eq!(first[0].last_checkpoint.as_ref().unwrap().items, 6000);
    let names = || {
        let entries = std::fs::read_dir(state.path().join("checkpoints")).unwrap();
        // The records of the attempts are beside the checkpoints.
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("items-")).collect::<Vec<_>>()
    };
    assert_eq!(names().len(), 3);
    // A torn checkpoint is never resumed from, nor one behind the damage.
    std::fs::write(state.path().join("checkpoints/items-000000000005900.json"), "{\"name\": \"items-0000").unwrap();
    let before = CheckpointPolicy { resume_not_after_items: Some(5999), ..policy() };
    let mut plan = train("t-2", script.clone(), before);
    plan.budget.items = Some(5010);
    let (_, second) = play(state.path(), &attempt(2, 1, vec![plan])).await;
    assert_eq!((second[0].outcome, second[0].measured.items), (Outcome::Done, 5010), "{}", second[0].message);
    assert_eq!(second[0].losses.len(), 1, "one step from 5000 items on");
    assert!(!names().iter().any(|name| name.contains("6000")));
    let (_, third) = play(state.path(), &attempt(3, 1, vec![train("t-3", script, policy())])).await;
    assert_eq!((third[0].outcome, third[0].measured.items), (Outcome::Done, 10_000));
    assert!(
        third[0].measured.validation.as_ref().unwrap().metrics["loss"]
            < third[0].measured.first_validation.as_ref().unwrap().metrics["loss"]
    );
}

#[tokio::test]
async fn a_stop_writes_a_checkpoint_from_which_training_goes_on() {
    let state = tempdir().unwrap();
    let rare = CheckpointPolicy { every_seconds: 1e9, ..policy() };
    let script = json!({"itemsPerSecond": 1000, "stepSeconds": 0.005});
    let plan = attempt(1, 2, vec![train("t-1", script, rare.clone())]);
    let (stop, stopped) = watch::channel(Stop::No);
    let (begun, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let observer = move |event| {
        if let pawl_agent::Event::Progress(progress) = event {
            let _ = begun.send(progress.step);
        }
    };
    let node = node(state.path(), "job-1");
    let running = tokio::spawn(async move { run(&plan, node, stopped, observer).await.unwrap() });
    while steps.recv().await.unwrap() < 5 {}
    stop.send(Stop::Gracefully).unwrap();
    let result = running.await.unwrap();
    let stopped = &result.launches[0];
    assert_eq!((result.end, stopped.outcome), (AttemptEnd::Stopped, Outcome::Stopped));
    let checkpointed = stopped.checkpoint.as_ref().map(|checkpoint| checkpoint.items);
    assert!(stopped.measured.items >= 100 && checkpointed == Some(stopped.measured.items), "{stopped:?}");
    let rest = train("t-2", json!({"itemsPerSecond": 1000}), rare);
    let (_, reports) = play(state.path(), &attempt(2, 2, vec![rest])).await;
    assert_eq!((reports[0].outcome, reports[0].measured.items), (Outcome::Done, 10_000));
    assert_eq!(reports[0].losses.first().map(|p| p.items > stopped.measured.items), Some(true));
}

#[tokio::test]
async fn training_evaluates_and_ends_early() {
    let script = json!({"itemsPerSecond": 1000, "quality": {"scaleItems": 500}});
    let mut plan = train("t", script, policy());
    plan.budget.eval_every_items = Some(1000);
    plan.budget.early_stopping = Some(serde_json::from_value(json!({"patience": 2, "minDelta": 0.01})).unwrap());
    let report = play_one(1, plan).await;
    assert_eq!(report.outcome, Outcome::Done);
    assert!(report.measured.items > 2000 && report.measured.items < 8000, "{}", report.measured.items);
}

#[tokio::test]
async fn bad_scripts_and_plans_name_field_value_and_remedy() {
    for (script, parts) in [
        (json!({}), vec!["workload.config", "missing field `itemsPerSecond`"]),
        (json!({"itemsPerSecond": -1}), vec!["workload.config.itemsPerSecond: -1: choose a number above 0"]),
        (json!({"itemsPerSecond": 1, "nosie": 1}), vec!["unknown field `nosie`", "`noise`"]),
        (json!({"itemsPerSecond": 1, "noise": 3}), vec!["workload.config.noise: 3: choose a number from 0 to 2"]),
        (json!({"itemsPerSecond": 1, "faults": [{"fault": "Fire"}]}), vec!["unknown variant `Fire`", "`OutOfMemory`"]),
        (
            json!({"itemsPerSecond": 1, "faults": [{"fault": "Slow"}]}),
            vec!["workload.config.faults[0].factor: missing"],
        ),
        (
            json!({"itemsPerSecond": 1, "effects": [{"setting": "compile", "factor": 0}]}),
            vec!["workload.config.effects[0].factor: 0"],
        ),
    ] {
        let report = play_one(1, launch("l", LaunchKind::Preflight, json!({}), script.clone())).await;
        assert_eq!(report.outcome, Outcome::InvalidPlan, "{script}");
        assert!(parts.iter().all(|part| report.message.contains(part)), "{script}: {}", report.message);
    }
    let odd = measure("l", json!({"batchPerGpu": 8, "globalBatch": 20}), json!({"itemsPerSecond": 1}));
    let report = play_one(2, odd).await;
    assert_eq!(report.outcome, Outcome::InvalidPlan);
    assert!(report.message.contains("globalBatch: 20 is not a multiple"), "{}", report.message);
}
