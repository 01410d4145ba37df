//! A directory with a manifest in it, and `pawl` started there.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A working directory of its own.
pub struct Scene {
    directory: tempfile::TempDir,
}

/// The scripted trainer's program beside `pawl`: as it was built with the workspace, or else built now.
fn scripted_trainer() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let pawl = Path::new(env!("CARGO_BIN_EXE_pawl"));
        let program = pawl.with_file_name("scripted-trainer");
        if program.exists() {
            return program;
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "pawl-scripted-trainer", "--bin", "scripted-trainer"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        build.env("CARGO_TARGET_DIR", pawl.parent().unwrap().parent().unwrap());
        assert!(build.status().unwrap().success(), "the scripted trainer does not build");
        program
    })
}

impl Scene {
    /// An empty directory.
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a manifest of the job `toy` with `change` made to it. The trainer plays a script in which `graph` is
    /// faster, `slow` is slower, and `batch` needs its fallback.
    pub fn write_job(&self, change: impl FnOnce(&mut Value)) {
        // A launch that starts although one of its name has finished leaves a line in `repeated`.
        // Its path comes from the environment: equal jobs in different directories have equal launches.
        let ledger = format!(
            "launch=$(basename $(dirname \"$PAWL_PLAN\")); all=$(dirname $(dirname $(dirname \"$PAWL_PLAN\"))); \
             for report in \"$all\"/*/\"$launch\"/report.json; do \
             [ -e \"$report\" ] && echo $launch $(grep -o 'outcome[^,]*' \"$report\") >> \"$LEDGER/repeated\"; done; \
             echo $launch >> \"$LEDGER/started\"; exec {}",
            scripted_trainer().display()
        );
        let mut job = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {
                "workload": {"command": ["sh", "-c", ledger], "config": {
                    "itemsPerSecond": 1000, "noise": 0.004, "seed": 7, "stepSeconds": 0.001, "itemsPerEpoch": 2000,
                    "effects": [{"setting": "compile", "value": "Graph", "factor": 1.5},
                                {"setting": "activationCheckpointing", "value": "Full", "factor": 0.8},
                                {"setting": "batchPerGpu", "value": 16, "factor": 1.2}],
                    "memory": {"baseBytes": 1000, "bytesPerItem": 100, "limitBytes": 5000, "effects": []},
                }},
                "trainer": {"gpusPerReplica": 0},
                "settings": {"batchPerGpu": 8, "accumulationSteps": 8},
                "seeds": [42, 43, 44],
                "phases": [
                    {"name": "graph", "settings": {"compile": "Graph"}},
                    {"name": "slow", "settings": {"activationCheckpointing": "Full"}},
                    {"name": "batch", "settings": {"batchPerGpu": 64, "accumulationSteps": 1},
                     "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 16, "accumulationSteps": 4}}]},
                ],
                "analysis": {"warmupSteps": 5, "windowSteps": 20, "budgetPercent": "Unlimited"},
                "train": {"items": 64000, "checkpoint": {"every": "1s", "keep": 2}},
                "lifecycle": {"hangTimeout": "60s"},
            },
        });
        change(&mut job);
        fs::write(self.path().join("job.yaml"), job.to_string()).unwrap();
    }

    /// `pawl` with these arguments, in the directory, not started yet.
    pub fn pawl(&self, arguments: &[&str]) -> Command {
        self.command(Command::new(env!("CARGO_BIN_EXE_pawl")), arguments)
    }

    /// The same in a terminal, which can hang up: these tests may run under nohup, which a child inherits.
    pub fn pawl_in_terminal(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_pawl")]);
        self.command(command, arguments)
    }

    fn command(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments).current_dir(self.path()).env("LEDGER", self.path()).stdin(Stdio::null());
        // Nothing is logged to trackers of whoever runs the tests.
        for tracker in ["MLFLOW_TRACKING_URI", "TENSORBOARD_LOGGING_DIR", "WANDB_DIR", "WANDB_MODE"] {
            command.env_remove(tracker);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `pawl` to its end.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.pawl(arguments).output().unwrap()
    }

    /// The default state directory of the job.
    pub fn state(&self) -> PathBuf {
        self.path().join(".pawl/toy")
    }

    /// The status on disk.
    pub fn status(&self) -> Value {
        let document: Value = serde_json::from_slice(&fs::read(self.state().join("status.json")).unwrap()).unwrap();
        document["status"].clone()
    }

    /// Lines of a ledger: `started` or `repeated`.
    pub fn ledger(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Waits until `holds`, at most half a minute.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, signal).unwrap();
}
