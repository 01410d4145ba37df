//! The report page: complete, self-contained, safe whatever the names are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_api::TrainingJob;
use pawl_contract::details::{Details, MemoryByKind};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::LaunchKind;
use pawl_contract::report::LossPoint;
use pawl_display::event::EventRecord;
use pawl_display::provenance::{MeasuredWith, TrainLaunch};
use pawl_display::report::evidence::{Evidence, FinishedLaunch};
use pawl_display::report::render;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Loss curve of a launch: falls with the items, slower for a larger `rate`.
fn curve(rate: f64) -> Vec<LossPoint> {
    (0..40).map(|k| LossPoint { items: k * 500, loss: 0.05 + 0.9 * (-(k as f64) / rate).exp() }).collect()
}

fn finished(name: &str, kind: LaunchKind, seed: u64, speed: f64, rate: f64) -> FinishedLaunch {
    let validation = |items, nrmse: f64| Validation {
        items,
        metrics: BTreeMap::from([("loss".to_owned(), nrmse * nrmse), ("nrmse".to_owned(), nrmse)]),
    };
    let measured = Measured {
        items: 20_000,
        items_per_second: Some(speed),
        loss: Some(0.06),
        first_validation: Some(validation(0, 0.94)),
        validation: Some(validation(20_000, 0.31)),
        peak_memory_bytes: Some(412 << 20),
        wall_seconds: Some(12.5),
        ..Measured::default()
    };
    FinishedLaunch {
        details: Details {
            compile_seconds: Some(4.2),
            epoch_seconds: Some(30.0),
            learning_rate: Some(2e-4),
            gradient_norm: Some(0.75),
            updates: Some(39),
            skipped_updates: 1,
            memory: Some(MemoryByKind {
                parameters: 1 << 20,
                gradients: 0,
                optimizer: 2 << 20,
                data: 0,
                activations: 409 << 20,
            }),
        },
        title: if kind == LaunchKind::Train { "training" } else { name }.to_owned(),
        name: name.to_owned(),
        attempt: "job-3".to_owned(),
        kind,
        seed,
        outcome: Outcome::Done,
        message: String::new(),
        measured,
        losses: curve(rate),
        evaluations: Vec::new(),
    }
}

/// A launch of the status.
fn judged(name: &str, kind: &str, arm: &str, pair: usize, speed: f64) -> Value {
    json!({"name": name, "kind": kind, "arm": arm, "pair": pair, "seed": 42 + pair, "outcome": "Done",
           "itemsPerSecond": format!("{speed:.4}"), "items": 20000})
}

/// A phase with `ratios.len()` pairs, and its finished launches.
fn measured(name: &str, state: &str, ratios: &[f64], all: &mut Vec<FinishedLaunch>) -> Value {
    let mut launches = Vec::new();
    for (pair, ratio) in ratios.iter().enumerate() {
        for (arm, letter, speed) in [("Control", "a", 1000.0), ("Candidate", "b", 1000.0 * ratio)] {
            let launch = format!("{name}-r0-p{pair}-{letter}-0badcafe");
            let rate = if letter == "a" { 8.0 } else { 8.6 } + pair as f64 * 0.15;
            all.push(finished(&launch, LaunchKind::Measure, 42 + pair as u64, speed, rate));
            launches.push(judged(&launch, "Measure", arm, pair, speed));
        }
    }
    let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    let mean = (logs / ratios.len() as f64).exp();
    let estimate = pawl_contract::decimal::Decimal::from_f64(mean).unwrap();
    json!({"name": name, "state": state, "reason": "SpeedAboveThreshold",
           "message": format!("speedup {mean:.3}, threshold 1.02"), "rung": 0, "launches": launches,
           "speedup": {"estimate": estimate, "lower": format!("{:.3}", mean * 0.97),
                       "upper": format!("{:.3}", mean * 1.03), "pairs": ratios.len()},
           "peakMemoryBytes": 431_000_000u64, "predictedMemoryBytes": 428_000_000u64})
}

/// The spec of a search of one stage with conditions and pruning, and of one with two objectives.
fn stages(hostile: &str) -> Value {
    json!([
        {"name": format!("quick{hostile}"), "trials": 14, "epochs": 9, "pruner": "ASHA",
         "objectives": [{"metric": format!("loss{hostile}"), "goal": "Minimize"}],
         "parameters": [
            {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
            {"name": "workload.optimizer", "values": ["adam", format!("sgd{hostile}")]},
            {"name": format!("workload.momentum{hostile}"), "min": "0.0", "max": "0.9",
             "when": {"parameter": "workload.optimizer", "values": [format!("sgd{hostile}")]}},
            {"name": "batchPerGpu", "min": "8", "max": "64", "step": "8"}]},
        {"name": "both", "trials": 6, "items": 100,
         "objectives": [{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}],
         "parameters": [{"name": "batchPerGpu", "min": "8", "max": "64"}]},
    ])
}

/// The status of the search: trials of every state, a winner; a stage that runs.
fn searches(hostile: &str) -> Value {
    // The loss is smallest at a learning rate of 1e-3 and does not depend on the rest.
    let trial = |number: u32| {
        let rate = 10f64.powf(-5.0 + 0.4 * f64::from(number));
        let loss = 0.2 + (rate.log10() + 3.0).powi(2);
        let batch = 8 * (1 + number * 3 % 8);
        let rest = if number.is_multiple_of(2) { "0,".to_owned() } else { format!("1,0.{number}") };
        match number {
            10 => format!("S;3;;1:9,3:8.5;;{rate},{rest},{batch}"),
            11 => format!("O;1;;;;{rate},{rest},{batch}"),
            12 => format!("N;1;;;;{rate},{rest},{batch}"),
            13 => format!("T;1;;;;{rate},{rest},{batch}"),
            _ => format!("C;;{loss};1:9,3:4;100;{rate},{rest},{batch}"),
        }
    };
    json!([
        {"name": format!("quick{hostile}"), "inputHash": "x", "state": "Done", "reason": "AllTrialsEnded",
         "message": format!("trial 5 of 14: loss 0.2 (mean of 2 seeds){hostile}"), "trials": (0..14).map(trial).collect::<Vec<_>>(),
         "best": {"trial": 5, "values": ["0.2"], "parameters": {"learningRate": "0.001"}},
         "winner": {"trial": 5, "values": ["0.21"], "parameters": {"learningRate": "0.001", "workload.optimizer": format!("sgd{hostile}")}},
         "finalists": [{"trial": 5, "values": ["0.2", "0.22"]}, {"trial": 4, "values": ["0.36"], "failed": true}]},
        {"name": "both", "inputHash": "x", "pareto": [0, 1, 3],
         "trials": ["C;;0.5,100;;;8", "C;;0.4,80;;;16", "C;;0.6,90;;;24", "C;;0.7,300;;;64", "R;;;;;32"],
         "best": {"trial": 1, "values": ["0.4", "80"], "parameters": {"batchPerGpu": "16"}}},
    ])
}

/// A job with phases and gates of every kind; `hostile` stands wherever a name may.
fn job(hostile: &str) -> TrainingJob {
    serde_json::from_value(json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": format!("quickstart{hostile}")},
        "spec": {
            "workload": {"name": format!("ups{hostile}")},
            "trainer": {"replicas": 2, "gpusPerReplica": 0},
            "settings": {"batchPerGpu": 8, "precision": "fp32", "loaderWorkers": 0},
            "phases": [
                {"name": "graph", "expectedSpeedup": "1.5", "settings": {"compile": "Graph"}},
                {"name": "big-batch", "minSpeedup": "1.05", "numerics": "Changed", "settings": {"batchPerGpu": 64},
                 "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 16}}]},
                {"name": "bf16", "settings": {"precision": "bf16"}},
                {"name": "flash", "settings": {"attention": "Flash", "workload": {format!("k{hostile}"): hostile}}},
                {"name": "loader", "settings": {"loaderWorkers": 2}},
            ],
            "gates": {"overallSpeedup": "1.8", "gpuMemory": "1Gi",
                      "validationMetrics": [{"name": "nrmse", "maxRelativeRegression": "0.03"}]},
            "search": stages(hostile),
            "cost": {"gpuHour": "1.89"}, "train": {"items": 200000},
        },
    }))
    .unwrap()
}

/// A job with one of everything; `hostile` stands wherever a name or message may.
fn evidence(hostile: &str) -> Evidence {
    let mut launches = Vec::new();
    let mut big = measured("big-batch", "Accepted", &[1.38, 1.42, 1.4], &mut launches);
    big["rung"] = json!(1);
    big["quality"] = json!({"lossDelta": "0.0004", "lossDeltaUpper": "0.0008", "metrics": {"nrmse": "0.011"},
                            "seeds": 3, "items": 20000});
    let mut bf16 = measured("bf16", "RolledBack", &[0.71, 0.69, 0.73], &mut launches);
    bf16["reason"] = json!("SpeedBelowThreshold");
    bf16["message"] = json!(format!("speedup 0.71 at most 0.73, minSpeedup 1.02 {hostile}"));
    let status = json!({
        "stage": "Complete", "observedGeneration": 1, "startTime": "2026-01-05T10:00:00Z",
        "conditions": [{"type": "Degraded", "status": "True", "reason": "GoalMissed",
                        "message": format!("overallSpeedup 1.77 below 1.8 {hostile}"), "lastTransitionTime": "2026-01-05T10:04:00Z"}],
        "effectiveSettings": {"batchPerGpu": 16, "precision": "fp32", "loaderWorkers": 2, "compile": "Graph",
                              "workload": {"scale": hostile}},
        "baseline": {"inputHash": "x", "itemsPerSecond": "612.4", "peakMemoryBytes": 402_000_000u64,
                     "predictedMemoryBytes": 400_100_000u64},
        "phases": [
            measured("graph", "Accepted", &[1.29, 1.34, 1.3], &mut launches), big, bf16,
            {"name": "flash", "state": "Unsupported", "reason": "Unsupported", "message": "no flash attention on the CPU", "rung": 0},
            measured("loader", "Inconclusive", &[1.01, 1.04, 0.99, 1.03, 1.02, 1.0, 1.05], &mut launches),
        ],
        "bundle": {"inputHash": "x", "state": "Accepted", "reason": "GatesHold", "peakMemoryBytes": 433_000_000u64,
                   "speedup": {"estimate": "1.77", "lower": "1.71", "upper": "1.83", "pairs": 3}},
        "training": {"steps": 12500, "items": 200000, "epoch": 3, "itemsPerSecond": "1083.1",
                     "promisedItemsPerSecond": "1100", "loss": "0.052", "goodput": "0.93",
                     "firstValidation": {"items": 0, "metrics": {"loss": "0.88", "nrmse": "0.94"}},
                     "validation": {"items": 200000, "metrics": {"loss": "0.096", "nrmse": "0.31"}}, "slowWindows": 0, "window": 9, "restarts": 1,
                     "segments": [{"toItems": 200000, "launches": ["train-0badcafe"]}],
                     "lastCheckpoint": {"name": format!("step-12500{hostile}"), "step": 12500, "items": 200000}},
        "search": searches(hostile),
        "cost": {"gpuHours": "0.31", "spent": "0.59", "saved": "0.22", "currency": "USD"},
    });
    let status = serde_json::from_value(status).unwrap();
    let mut training = finished("train-0badcafe", LaunchKind::Train, 42, 1083.0, 11.0);
    training.message = hostile.to_owned();
    launches.push(training);
    let event = |second: i64, warning, reason: &str, message: &str| EventRecord {
        time: jiff::Timestamp::from_second(1_767_607_200 + second).unwrap(),
        warning,
        reason: reason.to_owned(),
        message: message.to_owned(),
        phase: None,
    };
    let events = vec![
        event(0, false, "Started", "preflight of the baseline and 5 phases"),
        event(2, true, "Unsupported", "phase flash: no flash attention on the CPU"),
        event(40, false, "SpeedAboveThreshold", "phase graph: accepted: speedup 1.31 [1.27, 1.35], needs 1.02"),
        event(95, true, "SpeedBelowThreshold", &format!("phase bf16: rolled back: 0.71 {hostile}")),
        event(240, false, "Completed", "trained 200000 items"),
    ];
    let ran_with = |number: u32, gpu: &str| {
        let provenance = json!({"gpu": {"name": format!("{gpu}{hostile}"), "count": 2}, "image": hostile,
            "libraries": {"torch": "2.8.0", format!("l{hostile}"): hostile}, "command": hostile});
        let provenance = serde_json::from_value(provenance).unwrap();
        let trains = vec![TrainLaunch { launch: "train-0badcafe".to_owned(), directory: None }];
        MeasuredWith { attempt: format!("job-{number}{hostile}"), provenance, judges: true, trains }
    };
    Evidence::new(job(hostile), status, events, launches).with(vec![ran_with(3, "H200"), ran_with(4, "L4")])
}

#[test]
fn the_page_shows_everything_and_needs_nothing() {
    let page = render(&evidence(""));
    for wanted in [
        "1.77×",
        "[1.71, 1.83]",
        "graph",
        "rolled back",
        r#"<table class="cards verdicts">"#,
        r#"<td data-name="why">"#,
        "SpeedBelowThreshold",
        "2 of 5",
        "0.59 USD",
        "pair 7",
        "step-12500",
        "2 × L4 (job-4)",
        "2 × H200 (job-3)",
        "Attempts that measured differ in GPU.",
        "The model was trained in 2 attempts, which differ in GPU.",
        "<b>big-batch</b> brought most: 1.40× (<span class=\"level",
        "not known",
        "compiled in 4.2s · newest epoch 30s · learning rate 2.00e-4 · gradient norm 0.75 · 39 updates of the weights · 1 skipped update · planned memory: parameters 1.00 MiB",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
    for title in [
        "Paste into your manifest",
        "Speedup, phase by phase",
        "not accepted",
        "Search",
        "Training",
        "Evidence",
        "Memory",
        "Settings",
        "Measured with",
        "What happened",
        "From 2026-01-05 10:00:00 UTC",
        "Launches",
    ] {
        assert!(page.contains(title) && page.contains("<h2>"), "section {title} is missing");
    }
    for outside in ["http://", "https://", "src=", "url(", "@import", "<script", "<link", "NaN", "inf\""] {
        assert!(!page.contains(outside), "{outside:?} in the page");
    }
    if let Some(path) = std::env::var_os("PAWL_REPORT_PREVIEW") {
        std::fs::write(path, page).unwrap();
    }
}

#[test]
fn the_page_has_no_secrets_of_the_command() {
    let workload = json!({"command": ["python", "train.py", "--token=hf_17"]});
    let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": workload}});
    let job = serde_json::from_value(job).unwrap();
    let page = render(&Evidence::new(job, Default::default(), Vec::new(), Vec::new()));
    assert!(page.contains("workload python train.py --token=***") && !page.contains("hf_17"), "{page}");
}

/// Number of elements of the page with a class, such as `circle` and `point train`.
fn count(page: &str, element: &str, class: &str) -> usize {
    page.matches(&format!("<{element} class=\"{class}\"")).count()
}

/// The card of a stage of the search.
fn search_card(page: &str, name: &str) -> String {
    let rest = page.split_once(&format!("id=\"search-{name}\"")).unwrap_or_else(|| panic!("no stage {name}")).1;
    rest.split("</article>").next().unwrap().to_owned()
}

#[test]
fn a_stage_of_the_search_has_its_history_importance_and_coordinates() {
    let page = search_card(&render(&evidence("")), "quick");
    for wanted in [
        "14 of 14 trials",
        "10 complete, 1 running (trial 13), 1 pruned, 2 infeasible (1 not finite, 1 out of memory)",
        "trial 5 of 14: loss 0.2 (mean of 2 seeds)",
        "0.36 (a repetition failed)",
        "History of loss (minimize)",
        "Importance for loss (minimize)",
        "over 10 complete trials",
        "With fewer than 20 trials it is a rough indication.",
        "Parallel coordinates",
        "not set",
        "infeasible: out of memory",
        "trial 10: batchPerGpu 56, learningRate 0.1, workload.optimizer adam: loss 8.5 after 3 of 9 epochs",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing from {page}");
    }
    let history = page.split("<h4>History of").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!(count(history, "circle", "point train"), 10, "a dot per complete trial");
    assert_eq!(count(history, "circle", "point pruned"), 1, "and one per other trial with a value");
    assert_eq!(count(history, "path", "mark bad"), 2, "a mark per infeasible trial");
    assert_eq!(count(&page, "path", "series outstanding"), 1, "the winner");
    let ranked: usize = (0..5).map(|rank| count(&page, "path", &format!("series rank{rank}"))).sum();
    assert_eq!(
        (ranked, count(&page, "path", "series pruned")),
        (9, 2),
        "a line per other trial that is not infeasible"
    );
    // By importance: the loss depends on the learning rate alone.
    let importance = page.split("Importance for").nth(1).unwrap();
    let first = importance.split("text-anchor=\"end\">").nth(1).unwrap();
    assert!(first.starts_with("learningRate<"), "{first}");
}

#[test]
fn the_best_so_far_only_improves_and_pruned_trials_do_not_count() {
    let mut evidence = evidence("");
    let trials =
        ["C;;5;;;1e-3,0,,8", "S;1;;1:0.1;;1e-3,0,,8", "C;;3;;;1e-3,0,,8", "C;;4;;;1e-3,0,,8", "C;;2;;;1e-3,0,,8"];
    evidence.status.search[0].trials = trials.map(str::to_owned).to_vec();
    let page = search_card(&render(&evidence), "quick");
    let line = page.split("<path class=\"series bestsofar\" d=\"M").nth(1).unwrap().split('"').next().unwrap();
    let corners: Vec<(f64, f64)> = line
        .split('L')
        .map(|corner| corner.split_once(' ').unwrap())
        .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
        .collect();
    assert_eq!(corners.len(), 6, "the first value, two corners per improvement, the end: {corners:?}");
    // Smaller is better: the line goes down, to larger y.
    assert!(corners.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1), "{corners:?}");
}

#[test]
fn several_objectives_have_a_figure_of_their_pareto_set() {
    let page = search_card(&render(&evidence("")), "both");
    for wanted in [
        "Pareto set of loss and itemsPerSecond",
        "History of itemsPerSecond (maximize)",
        "trials 0, 1, 3",
        "Best so far",
        "trial 1: loss 0.4, itemsPerSecond 80 with batchPerGpu 16",
    ] {
        assert!(page.contains(wanted), "{wanted} is missing from {page}");
    }
    let figure = page.split("Pareto set of").nth(1).unwrap().split("</svg>").next().unwrap();
    assert_eq!((count(figure, "circle", "point outstanding"), count(figure, "circle", "point train")), (3, 1));
    assert_eq!(count(&page, "path", "series outstanding"), 3);
}

#[test]
fn a_search_without_complete_trials_or_with_other_parameters_has_no_figures() {
    let mut evidence = evidence("");
    evidence.status.search[0].trials = vec!["R;;;;;1e-3,0,,8".to_owned()];
    let page = search_card(&render(&evidence), "quick");
    assert!(page.contains("1 of 14 trials") && !page.contains("<svg"), "{page}");
    evidence.job.spec.search[0].parameters.truncate(1);
    assert!(search_card(&render(&evidence), "quick").contains("do not have the parameters of the spec"));
}

#[test]
fn hostile_names_stay_text() {
    let hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u{0}\u{1b}[31m\u{202e}";
    let page = render(&evidence(hostile));
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains(['\u{0}', '\u{1b}', '\u{202e}']));
    assert!(page.contains("&lt;script&gt;"));
    // Attributes cannot be left: outside tags there is no quote that was not ours.
    let plain = render(&evidence(""));
    let quotes = |page: &str| page.matches('"').count();
    let tags = |page: &str| page.matches('<').count();
    // The hostile text adds one setting to the flat list of names at most; every other place keeps its markup.
    assert_eq!(tags(&page) - tags(&plain), 0, "markup was added");
    assert_eq!(quotes(&page) - quotes(&plain), 0, "quotes were added");
}

#[test]
fn a_job_that_never_ran_has_a_page_too() {
    let mut evidence = evidence("");
    evidence.status = pawl_api::TrainingJobStatus::default();
    evidence.launches.clear();
    evidence.events.clear();
    assert!(render(&evidence).contains("Pending"));
}

#[test]
fn the_status_alone_makes_a_page_with_every_pair() {
    let whole = evidence("");
    let page = render(&Evidence::new(whole.job.clone(), whole.status.clone(), whole.events, Vec::new()));
    for wanted in ["1.77×", "[1.71, 1.83]", "SpeedBelowThreshold", "pair 7", "graph: pair 1 of 3, control", "1000"] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
    let judged: usize = whole.status.phases.iter().map(|phase| phase.launches.len()).sum();
    assert!(page.contains(&format!("<summary>{judged} launches</summary>")), "{judged}");
}

#[test]
fn losses_of_all_together_are_drawn_in_its_card_and_by_the_script() {
    let mut evidence = evidence("");
    let launches = evidence.status.phases[0].launches.clone();
    evidence.status.bundle.as_mut().unwrap().launches = launches;
    let page = render(&evidence);
    let card = page.split("id=\"all-together\"").nth(1).unwrap().split("</article>").next().unwrap();
    for wanted in ["data-chart=\"loss-all together\"", "A: the baseline", "B: with all accepted phases"] {
        assert!(card.contains(wanted), "{wanted} is missing from {card}");
    }
    assert!(pawl_display::ui::curves::of_job(&evidence).contains("\"id\":\"loss-all together\""));
}

#[test]
fn disturbed_pairs_are_marked_and_named() {
    let mut whole = evidence("");
    let page = render(&whole);
    let unknown =
        "of these it is not known whether other programs disturbed them, as their launches did not report it (?)";
    assert!(!page.contains("Disturbed") && page.contains(unknown));
    for launch in &mut whole.status.phases[0].launches {
        launch.measured.disturbance.other_cpu_share = "0.01".parse().ok();
    }
    assert!(render(&whole).contains("3 of 3 pairs count, seeds 42, 43, 44; none was seen to be disturbed; interval"));
    // All pairs: otherwise the disturbed ones do not count.
    for launch in &mut whole.status.phases[0].launches {
        launch.measured.disturbance.other_cpu_share = "0.41".parse().ok();
    }
    whole.status.bundle.as_mut().unwrap().speedup.as_mut().unwrap().disturbed = 1;
    let page = render(&whole);
    let counted = "3 of these were disturbed (*)";
    for wanted in [">pair 2*<", "pair 3: other programs used the CPUs: 41 %.", "3 (1 disturbed) pairs", counted] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
}

#[test]
fn an_interrupted_pair_is_no_failure() {
    let mut whole = evidence("");
    assert!(!render(&whole).contains("interrupted"));
    let launch = &mut whole.launches[0];
    (launch.outcome, launch.message) = (Outcome::Stopped, "rank 0 was killed before it had stopped".to_owned());
    let page = render(&whole);
    assert!(page.contains("<td>interrupted, no evidence</td>") && !page.contains("was killed"));
}

#[test]
fn a_launch_that_was_stopped_and_run_again_keeps_its_curve() {
    let mut whole = evidence("");
    let lines = |page: &str| page.matches("<path class=\"series ").count();
    let before = lines(&render(&whole));
    let again = whole.launches[0].clone();
    let stopped = FinishedLaunch { outcome: Outcome::Stopped, losses: Vec::new(), ..again.clone() };
    whole.launches.insert(0, stopped.clone());
    assert_eq!(lines(&render(&whole)), before, "stopped before");
    whole.launches.push(stopped);
    assert_eq!(lines(&render(&whole)), before, "and after");
    let whole = Evidence::new(whole.job, whole.status, whole.events, whole.launches);
    let titles = whole.launches.iter().filter(|launch| launch.name == again.name).map(|launch| &launch.title);
    assert_eq!(titles.collect::<std::collections::BTreeSet<_>>().len(), 1);
}

#[test]
fn pairs_that_do_not_count_are_marked_and_counted() {
    let mut whole = evidence("");
    assert!(!render(&whole).contains("still changed"));
    let phase = &mut whole.status.phases[0];
    phase.launches[3].measured.steady = Some(false);
    let without = pawl_contract::decimal::Decimal::from_f64((1.29_f64 * 1.3).sqrt()).unwrap();
    let speedup = phase.speedup.as_mut().unwrap();
    (speedup.estimate, speedup.pairs) = (without, 2);
    let page = render(&whole);
    let why = "1 of 3 pairs: pair 2: the speed of a launch still changed.";
    for wanted in [">pair 1?<", ">pair 2~<", why, "<td>2~</td>", "does not count: the speed of a launch"] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
}

#[test]
fn a_launch_is_shown_by_its_title_with_its_name_as_tooltip() {
    let page = render(&evidence(""));
    for title in ["graph: pair 1 of 3, control", "big-batch, fallback 1: pair 3 of 3, candidate"] {
        assert!(page.contains(&format!(">{title}</td>")), "{title} is missing");
    }
    let shown = page.matches("-0badcafe").count();
    assert_eq!(page.matches("-0badcafe job-3\"").count(), shown, "a name stands where people read");
}

/// The evidence of a launch is the same whether its report is at hand or only the status: one table for both.
#[test]
fn a_launch_is_shown_alike_for_clusters_and_local_runs() {
    let whole = evidence("");
    let cluster = Evidence::new(whole.job.clone(), whole.status.clone(), Vec::new(), Vec::new());
    for known in &cluster.launches {
        let here = whole.launch(&known.name).unwrap();
        assert_eq!((&known.title, known.kind, known.seed), (&here.title, here.kind, here.seed));
        assert_eq!(known.measured.items_per_second, here.measured.items_per_second);
    }
}

/// Width of `text` at `size` pixels in a wide sans-serif, bold or not: more than any font of the style sheet takes.
fn width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | '|' | ' ' | '[' | ']' | '(' | ')' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '→' | '↩' | '✓' | '…' => 1.0,
        c if c.is_ascii_uppercase() => 0.74,
        _ => 0.63,
    };
    size * text.chars().map(em).sum::<f64>()
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let rest = tag.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{tag} has no {name}")).1;
    rest.split_once('"').unwrap().0
}

#[test]
fn no_label_is_cut_at_the_edge_of_its_figure() {
    let mut evidence = evidence("");
    for phase in &mut evidence.status.phases {
        (phase.fallback, phase.measured.predicted_memory_bytes) = (1, Some(123_456_789_012));
        phase.measured.peak_memory_bytes = Some(133_456_789_012);
    }
    let page = render(&evidence);
    let figures: Vec<&str> = page.split("<svg ").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
    assert!(figures.len() > 5 && page.contains("↩ rolled back (fallback 1)<"), "{}", figures.len());
    for figure in figures {
        let right: f64 = attribute(&format!(" {figure}"), "viewBox").split(' ').nth(2).unwrap().parse().unwrap();
        for text in figure.split("<text").skip(1) {
            let (tag, rest) = text.split_once('>').unwrap();
            let shown = rest.split_once("</text>").unwrap().0;
            let size = match attribute(tag, "class").split(' ').next().unwrap() {
                "tick" | "axis" => 11.5,
                "number" | "verdict" => 12.5,
                "gatelabel" => 11.0,
                _ => 13.0,
            };
            let (x, wide): (f64, f64) = (attribute(tag, "x").parse().unwrap(), width(shown, size));
            let from = match attribute(tag, "text-anchor") {
                "start" => x,
                "middle" => x - wide / 2.0,
                _ => x - wide,
            };
            assert!(from >= 0.0 && from + wide <= right, "{shown:?} from {from:.0} to {:.0} of {right}", from + wide);
        }
    }
}
