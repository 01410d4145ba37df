//! What else runs on the machine of a measurement. In a program of its own: the children of other tests are not others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{outcomes, plan, run_alone};
use pawl_agent::finished_reports;
use pawl_contract::disturbance::DisturbanceKind;
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
        let one = "(while :; do :; done) > /dev/null 2>&1 & echo $!";
        let start = |_| Command::new("sh").args(["-c", one]).output().unwrap().stdout;
        Self((0..count).map(start).map(|pid| String::from_utf8(pid).unwrap().trim().to_owned()).collect())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-9").args(&self.0).status();
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
    let quiet = observed(computes).await;
    let Some(quiet) = quiet.other_cpu_share else { return };
    let others = Others::start();
    let busy = observed(computes).await;
    drop(others);
    // Other programs of this machine may run in both.
    let share = busy.other_cpu_share.unwrap();
    assert!(share > 0.3 && share > quiet + 0.15, "{share} beside others, {quiet} without");
    assert_eq!(busy.from_outside(), Some((DisturbanceKind::OtherCpu, share)));
}
