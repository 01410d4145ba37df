//! The text is what Prometheus reads: every family is documented, typed and bounded, and goes with its job.

use super::*;
use pawl_api::status::{
    AttemptStatus, BestTrial, BundleStatus, CostStatus, PhaseState, PhaseStatus, Purpose, SearchState, SearchStatus,
    Speedup, Stage, TrainingStatus,
};
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, WaitsFor};
use std::collections::{BTreeSet, HashMap};

const DOCUMENT: &str = include_str!("mod.rs");
const NOW: &str = "2026-01-01T00:10:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn decimal(text: &str) -> Option<Decimal> {
    Some(text.parse().unwrap())
}

fn job(name: &str) -> TrainingJob {
    let mut job: TrainingJob = serde_json::from_value(serde_json::json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "workload": {"name": "ups"},
            "phases": [
                {"name": "compile", "minSpeedup": "1.02", "expectedSpeedup": "1.36", "settings": {"compile": "Graph"}},
                {"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}},
            ],
            "search": [
                {"name": "quick", "trials": 12, "epochs": 3, "parameters": [{"name": "batchPerGpu", "values": ["1", "2"]}],
                 "objectives": [{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}]},
                {"name": "long", "trials": 4, "epochs": 9, "parameters": [{"name": "batchPerGpu", "values": ["1", "2"]}],
                 "objectives": [{"metric": "loss", "goal": "Minimize"}]},
            ],
            "gates": {"overallSpeedup": "3.0", "validationLossDelta": "0.001"},
            "train": {"items": 1000},
            "cost": {"gpuHour": "1.89"},
        },
    }))
    .unwrap();
    job.metadata.generation = Some(1);
    job
}

fn status() -> TrainingJobStatus {
    let phase = |name: &str, state, reason: &str| PhaseStatus {
        name: name.to_owned(),
        state,
        reason: reason.to_owned(),
        speedup: Some(Speedup {
            estimate: "1.3".parse().unwrap(),
            lower: decimal("1.2"),
            upper: decimal("1.4"),
            pairs: 3,
            disturbed: 0,
        }),
        measured: Measured { peak_memory_bytes: Some(1 << 30), ..Measured::default() },
        ..PhaseStatus::default()
    };
    TrainingJobStatus {
        stage: Stage::Training,
        start_time: Some("2026-01-01T00:00:00Z".to_owned()),
        phases: vec![
            phase("compile", PhaseState::Accepted, "SpeedAboveThreshold"),
            phase("bf16", PhaseState::Measuring, ""),
        ],
        bundle: Some(BundleStatus {
            speedup: Some(Speedup {
                estimate: "1.3".parse().unwrap(),
                lower: decimal("1.1"),
                upper: decimal("1.5"),
                pairs: 3,
                disturbed: 0,
            }),
            ..BundleStatus::default()
        }),
        speedup: decimal("1.3"),
        training: Some(TrainingStatus {
            measured: Measured { items: 250, items_per_second: decimal("12.5"), ..Measured::default() },
            eta: Some("2026-01-01T01:00:00Z".to_owned()),
            started: Some("2026-01-01T00:05:00Z".to_owned()),
            goodput: decimal("0.9"),
            ..TrainingStatus::default()
        }),
        cost: Some(CostStatus {
            device_milliseconds: 5_400_000,
            purposes: [(Purpose::Speed, 1_800_000), (Purpose::Train, 3_600_000)].into(),
            spent: decimal("2.835"),
            ..CostStatus::default()
        }),
        attempt: Some(AttemptStatus {
            name: "ups-3".to_owned(),
            purpose: Purpose::Train,
            started: "2026-01-01T00:05:00Z".to_owned(),
            ..AttemptStatus::default()
        }),
        attempts: 3,
        search: searches(),
        ..TrainingJobStatus::default()
    }
}

/// A stage of the search that runs, and one that has not begun.
fn searches() -> Vec<SearchStatus> {
    vec![
        SearchStatus {
            name: "quick".to_owned(),
            input_hash: "x".to_owned(),
            trials: ["C;;0.5,9;;;0", "C;;0.4,8;;;1", "O;;;;;1", "N;;;;;1", "S;1;;1:3;;1", "T;;;;;1"]
                .map(str::to_owned)
                .into(),
            best: Some(BestTrial {
                trial: 1,
                values: vec!["0.4".parse().unwrap(), "8".parse().unwrap()],
                ..BestTrial::default()
            }),
            ..SearchStatus::default()
        },
        SearchStatus { name: "long".to_owned(), ..SearchStatus::default() },
    ]
}

fn facts(state: AttemptState) -> Observed {
    Observed {
        attempts: vec![AttemptFacts {
            name: "ups-3".to_owned(),
            plan_hash: String::new(),
            state,
            placement: String::new(),
            trainer: String::new(),
            results: Vec::new(),
            progress: None,
        }],
        ..Observed::default()
    }
}

/// Values by series, after checking that the text is well formed: each family has its help and type once, before its
/// series, and no series comes twice.
fn read(text: &str) -> HashMap<String, f64> {
    let mut typed = BTreeSet::new();
    let mut series = HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(typed.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {line}");
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let family = name.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| family.strip_suffix(suffix));
        assert!(typed.contains(family) || base.is_some_and(|base| typed.contains(base)), "untyped: {line}");
        assert!(series.insert(name.to_owned(), value.parse().unwrap()).is_none(), "twice: {line}");
    }
    series
}

/// Names of the families that the module's documentation lists.
fn documented() -> BTreeSet<String> {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.filter_map(|row| row.split('`').next()).filter(|name| name.starts_with("pawl_")).map(str::to_owned).collect()
}

#[test]
fn the_documentation_lists_every_family_and_no_other() {
    let metrics = Metrics::new(Jobs::default());
    let after = TrainingJobStatus { attempt: None, ..status() };
    metrics.job(&job("ups"), &status(), &after, &facts(AttemptState::Ended(Ending::Completed)), now());
    metrics.reconciled(Duration::from_millis(1), Some("conflict"));
    metrics.live(LiveOutcome::Ok);
    metrics.watch_failed("team", "pods");
    metrics.of_another("team", true);
    metrics.refused_by("node-1");
    metrics.counters.request("get", "pods", "200", Some(Duration::from_millis(2)));
    let mut rolled_back = after.clone();
    rolled_back.phases[1].state = PhaseState::RolledBack;
    rolled_back.phases[1].reason = "OutOfMemory".to_owned();
    metrics.job(&job("ups"), &after, &rolled_back, &Observed::default(), now());
    let text = metrics.render();
    read(&text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeSet<String> = types
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("pawl_"))
        .map(str::to_owned)
        .collect();
    assert_eq!(shown, documented());
    assert!(families::names().all(|name| shown.contains(name)));
}

#[test]
fn a_job_shows_what_its_status_says() {
    let metrics = Metrics::new(Jobs::default());
    metrics.job(&job("ups"), &status(), &status(), &facts(AttemptState::Running), now());
    let series = read(&metrics.render());
    let of = |name: &str| series.get(name).copied();
    assert_eq!(of(r#"pawl_trainingjobs{stage="Training"}"#), Some(1.0));
    assert_eq!(of(r#"pawl_trainingjobs{stage="Failed"}"#), Some(0.0), "every stage is there");
    assert_eq!(of(r#"pawl_job_stage{namespace="team",job="ups",stage="Training"}"#), Some(1.0));
    assert_eq!(of(r#"pawl_job_speedup_ratio{namespace="team",job="ups",bound="lower"}"#), Some(1.1));
    assert_eq!(of(r#"pawl_job_speedup_ratio{namespace="team",job="ups",bound="goal"}"#), Some(3.0));
    assert_eq!(of(r#"pawl_phase_state{namespace="team",job="ups",phase="compile",state="Accepted"}"#), Some(1.0));
    assert_eq!(
        of(r#"pawl_phase_speedup_ratio{namespace="team",job="ups",phase="compile",bound="minimum"}"#),
        Some(1.02)
    );
    assert_eq!(of(r#"pawl_phase_index{namespace="team",job="ups",phase="bf16"}"#), Some(2.0));
    assert_eq!(of(r#"pawl_gpu_hours_total{namespace="team",job="ups",purpose="Train"}"#), Some(1.0));
    assert_eq!(of(r#"pawl_gpu_hours_total{namespace="team",job="ups",purpose="Speed"}"#), Some(0.5));
    assert_eq!(of(r#"pawl_cost_total{namespace="team",job="ups",currency="USD"}"#), Some(2.835));
    assert_eq!(of(r#"pawl_job_items_goal{namespace="team",job="ups"}"#), Some(1000.0));
    assert_eq!(of(r#"pawl_job_pending_since_timestamp_seconds{namespace="team",job="ups"}"#), None, "it runs");
}

#[test]
fn a_search_shows_its_trials_by_state_and_its_best_objectives() {
    let metrics = Metrics::new(Jobs::default());
    metrics.job(&job("ups"), &status(), &status(), &Observed::default(), now());
    let series = read(&metrics.render());
    let of = |name: &str, labels: &str| {
        series.get(&format!(r#"{name}{{namespace="team",job="ups",search="quick"{labels}}}"#)).copied()
    };
    let trials = |state: &str| of("pawl_search_trials", &format!(r#",state="{state}""#)).unwrap();
    let counts = ["Running", "Paused", "Complete", "Pruned", "Infeasible", "Abandoned"].map(trials);
    assert_eq!(counts, [1.0, 0.0, 2.0, 1.0, 2.0, 0.0]);
    assert_eq!(of("pawl_search_trials_goal", ""), Some(12.0));
    assert_eq!(of("pawl_search_state", r#",state="Running""#), Some(1.0));
    assert_eq!(of("pawl_search_objective", r#",metric="loss""#), Some(0.4));
    assert_eq!(of("pawl_search_objective", r#",metric="itemsPerSecond""#), Some(8.0));
    assert!(!series.keys().any(|name| name.contains("search=\"long\"")), "it has not begun");
    let mut done = status();
    done.search[0].state = SearchState::Done;
    done.search[0].winner = Some(BestTrial { values: vec!["0.45".parse().unwrap()], ..BestTrial::default() });
    metrics.job(&job("ups"), &status(), &done, &Observed::default(), now());
    let series = read(&metrics.render());
    assert_eq!(series[r#"pawl_search_objective{namespace="team",job="ups",search="quick",metric="loss"}"#], 0.45);
    assert_eq!(series[r#"pawl_search_state{namespace="team",job="ups",search="quick",state="Done"}"#], 1.0);
}

#[test]
fn the_series_of_a_deleted_job_are_removed() {
    let jobs = Jobs::default();
    let metrics = Metrics::new(jobs.clone());
    let empty = metrics.render();
    let count = |text: &str| text.lines().filter(|line| line.contains("job=\"")).count();
    assert_eq!(count(&empty), 0);
    metrics.job(&job("ups"), &status(), &status(), &Observed::default(), now());
    metrics.job(&job("slm"), &status(), &status(), &Observed::default(), now());
    let both = metrics.render();
    jobs.forget(&Key::new("team", "slm"));
    let one = metrics.render();
    assert_eq!(count(&both), 2 * count(&one));
    assert!(!one.contains("job=\"slm\""));
    jobs.step_down();
    assert_eq!(count(&metrics.render()), 0);
}

#[test]
fn a_phase_or_state_that_is_gone_leaves_no_series() {
    let metrics = Metrics::new(Jobs::default());
    metrics.job(&job("ups"), &status(), &status(), &Observed::default(), now());
    let mut after = status();
    after.phases.truncate(1);
    after.phases[0].state = PhaseState::RolledBack;
    metrics.job(&job("ups"), &status(), &after, &Observed::default(), now());
    let text = metrics.render();
    assert!(!text.contains("phase=\"bf16\""));
    assert!(!text.contains("state=\"Accepted\""));
    assert!(text.contains("state=\"RolledBack\""));
}

#[test]
fn a_rollback_and_an_end_are_counted_once() {
    let metrics = Metrics::new(Jobs::default());
    let before = status();
    let mut after = before.clone();
    after.phases[0].state = PhaseState::RolledBack;
    after.phases[0].reason = "ThroughputBelowPromise".to_owned();
    after.attempt = None;
    let ended = facts(AttemptState::Ended(Ending::Lost("node gone".to_owned())));
    metrics.job(&job("ups"), &before, &after, &ended, now());
    metrics.job(&job("ups"), &after, &after, &ended, now());
    let series = read(&metrics.render());
    assert_eq!(series[r#"pawl_rollbacks_total{reason="ThroughputBelowPromise",scope="Phase"}"#], 1.0);
    assert_eq!(series[r#"pawl_attempts_total{outcome="Lost",purpose="Train"}"#], 1.0);
    assert_eq!(series[r#"pawl_attempt_duration_seconds_sum{purpose="Train"}"#], 300.0);
}

#[test]
fn a_gang_that_waits_shows_since_when() {
    let metrics = Metrics::new(Jobs::default());
    let since: Timestamp = "2026-01-01T00:08:00Z".parse().unwrap();
    let pending = facts(AttemptState::Pending { since, message: String::new(), waits_for: WaitsFor::Containers });
    metrics.job(&job("ups"), &status(), &status(), &pending, now());
    let name = r#"pawl_job_pending_since_timestamp_seconds{namespace="team",job="ups"}"#;
    assert_eq!(read(&metrics.render())[name], since.as_second() as f64);
}

#[test]
fn a_training_is_unsaved_since_it_began_or_its_newest_checkpoint_was_heard_of() {
    use pawl_api::status::CheckpointStatus;
    let metrics = Metrics::new(Jobs::default());
    let name = r#"pawl_job_unsaved_since_timestamp_seconds{namespace="team",job="ups"}"#;
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let show = |status: &TrainingJobStatus, time: &str| {
        metrics.job(&job("ups"), status, status, &Observed::default(), at(time));
        read(&metrics.render()).get(name).copied()
    };
    let mut status = status();
    let began = at("2026-01-01T00:05:00Z").as_second() as f64;
    assert_eq!(show(&status, NOW), Some(began));
    assert_eq!(show(&status, "2026-01-01T00:11:00Z"), Some(began));
    status.training.as_mut().unwrap().last_checkpoint =
        Some(CheckpointStatus { name: "c1".to_owned(), step: 1, items: 1 });
    let reported = at("2026-01-01T00:12:00Z").as_second() as f64;
    assert_eq!(show(&status, "2026-01-01T00:12:00Z"), Some(reported));
    assert_eq!(show(&status, "2026-01-01T00:20:00Z"), Some(reported));
    status.stage = Stage::Complete;
    assert_eq!(show(&status, "2026-01-01T00:21:00Z"), None, "nothing is left to save");
}

#[test]
fn labels_are_escaped() {
    let metrics = Metrics::new(Jobs::default());
    let mut job = job("ups");
    job.spec.cost.currency = "a\"b\\c\nd".to_owned();
    metrics.job(&job, &status(), &status(), &Observed::default(), now());
    assert!(metrics.render().contains(r#"currency="a\"b\\c\nd""#));
}

/// The text of a fleet may be larger than the memory of the operator, so it is never there as a whole. Page by page it
/// is the same, also when jobs come and go meanwhile.
#[test]
fn the_metrics_of_a_fleet_come_page_by_page() {
    let jobs = Jobs::default();
    let metrics = Metrics::new(jobs.clone());
    let mut status = status();
    let phase = status.phases[0].clone();
    status.phases = (0..10).map(|n| PhaseStatus { name: format!("phase-{n}"), ..phase.clone() }).collect();
    for n in 0..300 {
        metrics.job(&job(&format!("job-{n:03}")), &status, &status, &Observed::default(), now());
    }
    let pages: Vec<String> = metrics.pages().collect();
    let largest = pages.iter().map(String::len).max().unwrap();
    assert!(pages.len() > 20 && largest < 80_000, "{} pages, the largest of {largest} bytes", pages.len());
    assert!(pages.iter().all(|page| page.ends_with('\n')), "a page ends with a line");
    let whole = read(&pages.concat());
    let alone = Metrics::new(Jobs::default());
    alone.job(&job("job-007"), &status, &status, &Observed::default(), now());
    let expected: BTreeSet<String> = read(&alone.render()).into_keys().filter(|name| name.contains("job=")).collect();
    for n in 0..300 {
        let number = format!("job-{n:03}");
        let missing =
            expected.iter().map(|name| name.replace("job-007", &number)).find(|name| !whole.contains_key(name));
        assert_eq!(missing, None);
    }

    let mut changing = metrics.pages();
    let mut text = String::new();
    for n in (0..300).step_by(3) {
        text.extend(changing.next());
        jobs.forget(&Key::new("team", format!("job-{n:03}")));
        metrics.job(&job(&format!("new-{n:03}")), &status, &status, &Observed::default(), now());
    }
    text.extend(changing);
    let series = read(&text);
    for name in whole.keys().filter(|name| name.contains("job=\"job-001\"")) {
        assert!(series.contains_key(name), "{name} is of a job that stays");
    }
}

/// What is kept for the metrics of a phase: a value of its own for each measure at most.
#[test]
fn phases_show_what_they_have_and_nothing_else() {
    let metrics = Metrics::new(Jobs::default());
    let mut status = status();
    let waiting = PhaseStatus { name: "waiting".to_owned(), ..PhaseStatus::default() };
    status.phases.insert(1, waiting);
    status.phases[2].measured.peak_memory_bytes = Some(2 << 30);
    metrics.job(&job("ups"), &status, &status, &Observed::default(), now());
    let series = read(&metrics.render());
    let of = |family: &str, phase: &str, more: &str| {
        series.get(&format!(r#"{family}{{namespace="team",job="ups",phase="{phase}"{more}}}"#)).copied()
    };
    let memory = |phase| of("pawl_phase_memory_bytes", phase, r#",kind="measured""#);
    assert_eq!(memory("compile"), Some((1_u64 << 30) as f64));
    assert_eq!((memory("waiting"), memory("bf16")), (None, Some((2_u64 << 30) as f64)));
    assert_eq!(of("pawl_phase_pairs", "waiting", ""), None);
    assert_eq!(of("pawl_phase_pairs", "bf16", ""), Some(3.0));
    assert_eq!(of("pawl_phase_state", "waiting", r#",state="Pending""#), Some(1.0));
    assert_eq!(of("pawl_phase_index", "bf16", ""), Some(3.0));
}
