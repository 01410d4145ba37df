//! What else runs on the machine of a measurement. In a program of its own: the children of other tests are not others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{outcomes, plan, run_alone};
use pawl_agent::finished_reports;
use pawl_contract::disturbance::{DisturbanceKind, from_outside};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Disturbance;
use pawl_contract::plan::{Budget, LaunchKind};
use pawl_contract::script::Monitor;
use std::process::Command;
use tempfile::tempdir;

/// Programs that compute until they are dropped, and that nobody here has started: one for each CPU.
struct Others(Vec<String>);

impl Others {
    fn start() -> Self {
        let count = std::thread::available_parallelism().unwrap().get();
        // Their shell ends at once, so that they are no descendants of this process.
        let one = "(exec timeout 60 sh -c 'while :; do :; done') > /dev/null 2>&1 & echo $!";
        let start = |_| Command::new("sh").args(["-c", one]).output().unwrap().stdout;
        Self((0..count).map(start).map(|pid| String::from_utf8(pid).unwrap().trim().to_owned()).collect())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(&self.0).status();
    }
}

/// What disturbed the window of a script of twelve steps, of which two are its warm-up.
async fn observed(step: &str) -> Disturbance {
    let dir = tempdir().unwrap();
    let path = dir.path().join("train.py");
    let body = format!("import time\nfor i in range(1, 13):\n    {step}\n    print(f'step {{i}}: loss 0.5')\n");
    std::fs::write(&path, body).unwrap();
    let mut plan = plan(1, 1, &["l"], "");
    plan.command = ["python3", path.to_str().unwrap(), "$(settings.batchPerGpu)"].map(str::to_owned).into();
    plan.script.monitor =
        Some(Monitor { training: Some(r"^step (?<step>\d+): loss (?<loss>\S+)".to_owned()), ..Monitor::default() });
    let launch = &mut plan.launches[0];
    launch.kind = LaunchKind::Measure;
    launch.settings.batch_per_gpu = Some(8);
    launch.budget = Budget { warmup_steps: Some(2), window_steps: Some(10), ..Budget::default() };
    let result = run_alone(&dir.path().join("a"), &plan).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)], "{result:?}");
    finished_reports(&dir.path().join("a")).unwrap()[0].measured.disturbance.clone()
}

/// In a container that may use some of the CPUs of its machine only, nobody else disturbs it.
#[tokio::test]
async fn programs_beside_a_script_are_seen_and_its_own_work_is_not_theirs() {
    let computes = "begin = time.time()\n    while time.time() < begin + 0.1: pass";
    let alone = observed(computes).await;
    let Some(quiet) = alone.other_cpu_share else { return };
    let others = Others::start();
    let busy = observed(computes).await;
    drop(others);
    let share = busy.other_cpu_share.unwrap();
    assert_eq!(from_outside([&busy, &alone]), Some((DisturbanceKind::OtherCpu, share.max(quiet))));
    // Other programs of this machine may run in both.
    if quiet < 0.3 {
        assert!(share > 0.3 && share > quiet, "{share} beside others, {quiet} without");
    }
}
