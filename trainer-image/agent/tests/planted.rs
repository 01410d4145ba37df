//! Faults and habits that people's training scripts have: what is measured of them, and how their launches end.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{alone, outcomes, plan, run_alone};
use pawl_agent::{AttemptResult, finished_reports};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, Budget, LaunchKind};
use pawl_contract::report::Report;
use pawl_contract::script::Monitor;
use rstest::rstest;
use std::path::Path;
use tempfile::tempdir;

/// `step SECONDS` of a training that prints a line for each, and no more than 12 of them.
const HEAD: &str = r#"
import os, sys, time
rank, count = int(os.environ["RANK"]), 0
def step(seconds=0.04, loss=0.5):
    global count
    time.sleep(seconds)
    count += 1
    print(f"step {count}: loss {loss}")
"#;

/// One launch of a Python script with 2 steps of warm-up and a window of 10.
fn script(dir: &Path, kind: LaunchKind, ranks: u32, body: &str) -> AttemptPlan {
    let path = dir.join("train.py");
    std::fs::write(&path, format!("{HEAD}{body}")).unwrap();
    let mut plan = plan(1, ranks, &["l"], "");
    plan.command = ["python3", path.to_str().unwrap(), "$(settings.batchPerGpu)"].map(str::to_owned).into();
    plan.script.monitor = Some(Monitor {
        training: Some(r"^step (?<step>\d+): loss (?<loss>\S+)".to_owned()),
        validation: Some(r"validation: (?<loss>\S+)".to_owned()),
        ..Monitor::default()
    });
    let launch = &mut plan.launches[0];
    launch.kind = kind;
    launch.settings.batch_per_gpu = Some(8);
    launch.budget = match kind {
        LaunchKind::Measure => Budget { warmup_steps: Some(2), window_steps: Some(10), ..Budget::default() },
        _ => Budget { items: Some(96), ..Budget::default() },
    };
    plan
}

async fn ended(kind: LaunchKind, ranks: u32, body: &str) -> (AttemptResult, Vec<Report>) {
    let dir = tempdir().unwrap();
    let plan = script(dir.path(), kind, ranks, body);
    let result = run_alone(&dir.path().join("a"), &plan).await;
    let reports = finished_reports(&dir.path().join("a")).unwrap();
    (result, reports)
}

/// Items per second of a measurement that must be `Done`.
async fn speed(body: &str) -> f64 {
    let (result, reports) = ended(LaunchKind::Measure, 1, body).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    reports[0].measured.items_per_second.unwrap()
}

/// Steps of 0.04 s, which take up to three times as long on a busy machine; when their lines are read varies.
fn is_that_of_the_steps(speed: f64) -> bool {
    (8.0 / 0.12..8.0 / 0.03).contains(&speed)
}

#[rstest]
// Python keeps what a pipe is written until 8 KiB are there, unless PYTHONUNBUFFERED is set.
#[case::without_flush("while count < 12: step()")]
#[case::by_carriage_returns("print = lambda text: sys.stdout.write('\\r' + text)\nwhile count < 12: step()")]
#[case::a_clock_that_jumps(
    "print = lambda text: sys.stdout.write(f'{text} time={time.time() + 1e6 * (count % 3)}\\n')\nwhile count < 12: step()"
)]
#[case::megabytes_of_output("while count < 12: step(); print('x' * 300_000)")]
#[case::lines_of_another_program(
    "while count < 12: step(); print(f'worker: step {count * 7}: loss 9.0', file=sys.stderr)"
)]
#[tokio::test]
async fn a_habit_changes_nothing_about_what_is_measured(#[case] body: &str) {
    let speed = speed(body).await;
    assert!(is_that_of_the_steps(speed), "{speed}");
}

#[tokio::test]
async fn a_script_that_prints_every_fifth_step_is_measured_by_those() {
    let body = "while count < 60:\n    time.sleep(0.04)\n    count += 1\n    if count % 5 == 0: print(f'step {count}: loss 0.5')";
    let speed = speed(body).await;
    assert!(is_that_of_the_steps(speed), "{speed}");
}

#[tokio::test]
async fn each_rank_prints_its_own_loss_and_that_of_the_first_one_counts() {
    let body = "while count < 12: step(loss=0.5 + 9 * rank)";
    let (result, reports) = ended(LaunchKind::Measure, 2, body).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    let first = reports.iter().find(|report| report.rank == 0).unwrap();
    assert_eq!(first.measured.steps, 12, "not those of both");
    assert!(first.losses.iter().all(|point| (point.loss - 0.5).abs() < 1e-6), "{:?}", first.losses);
}

#[rstest]
#[case::nothing_at_all("pass", "no line")]
#[case::fewer_steps("while count < 5: step()", "step 5")]
#[case::a_validation_after_each_step(
    "while count < 12: step(); print('validation: 0.5')",
    "validates after each report"
)]
#[tokio::test]
async fn a_script_that_ends_well_without_its_steps_is_no_evidence(#[case] body: &str, #[case] named: &str) {
    let (result, _) = ended(LaunchKind::Measure, 1, body).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Unsupported)], "{result:?}");
    assert!(result.launches[0].message.contains(named), "{}", result.launches[0].message);
}

/// It catches the exception, and continues with half of the batch, or without it.
#[rstest]
#[case("print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB', file=sys.stderr)")]
#[case("print('| WARNING: ran out of memory, skipping batch')")]
#[case("import traceback\ntry: raise MemoryError('no')\nexcept MemoryError: traceback.print_exc()")]
#[tokio::test]
async fn memory_that_ran_out_is_told_although_the_script_goes_on(#[case] caught: &str) {
    let body = format!("step()\n{caught}\nwhile count < 12: step()\nprint('validation: 0.5')");
    for kind in [LaunchKind::Measure, LaunchKind::Quality] {
        let (result, _) = ended(kind, 1, &body).await;
        assert_eq!(outcomes(&result), [("l", Outcome::OutOfMemory)], "{kind:?} {result:?}");
        assert!(result.launches[0].message.contains("the script continued"), "{}", result.launches[0].message);
    }
    let (result, _) = ended(LaunchKind::Train, 1, &body).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    assert!(result.launches[0].message.contains("the script continued"), "{}", result.launches[0].message);
}

#[tokio::test]
async fn a_port_in_use_and_a_deadlock_after_a_fork_are_told_by_what_the_script_said() {
    let port = "raise OSError(98, 'Address already in use')";
    let (result, _) = ended(LaunchKind::Measure, 1, &format!("step()\n{port}")).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Failed)], "{result:?}");
    assert!(result.launches[0].message.contains("Address already in use"), "{}", result.launches[0].message);

    let dir = tempdir().unwrap();
    let warning =
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.";
    let body = format!("step()\nprint({warning:?}, file=sys.stderr)\ntime.sleep(1000)");
    let mut plan = script(dir.path(), LaunchKind::Measure, 1, &body);
    plan.launches[0].hang_timeout_seconds = 1.0;
    let result = alone(dir.path(), &plan).result().await;
    assert_eq!(outcomes(&result), [("l", Outcome::Hang)], "{result:?}");
}
