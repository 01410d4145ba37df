//! What happened: a line for people and a line of JSON per event, and the count of checks.

use crate::options::Options;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// The events so far.
pub struct Record {
    began: Instant,
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: File,
    passed: usize,
    failures: Vec<String>,
    faults: BTreeMap<String, usize>,
    figures: BTreeMap<String, Value>,
}

impl Record {
    /// Creates the file of a run and prints how to repeat it.
    pub fn create(options: &Options) -> Self {
        let path = options.log();
        std::fs::create_dir_all(path.parent().expect("a file in a directory")).unwrap();
        let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (faults, figures) = (BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(State { file, passed: 0, failures: Vec::new(), faults, figures });
        let record = Self { began: Instant::now(), path, state };
        let minutes = options.time().as_secs_f64() / 60.0;
        println!("soak of {minutes} minutes with --seed {}; events in {}", options.seed, record.path.display());
        record.write(json!({"event": "begin", "seed": options.seed, "minutes": minutes}));
        record
    }

    /// A file beside the record.
    pub fn beside(&self, name: &str) -> PathBuf {
        let directory = self.path.with_extension("");
        std::fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    }

    fn write(&self, mut event: Value) {
        event["seconds"] = ((self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0).into();
        let mut state = self.state.lock().unwrap();
        // Each event is on the disk at once: an interrupted run keeps its record.
        writeln!(state.file, "{event}").unwrap();
    }

    fn print(&self, text: &str) {
        println!("{:>6.0} s  {text}", self.began.elapsed().as_secs_f64());
    }

    /// Something that is neither a fault nor a check.
    pub fn note(&self, text: &str) {
        self.print(text);
        self.write(json!({"event": "note", "text": text}));
    }

    /// A fault was injected into `target`.
    pub fn fault(&self, kind: &str, target: &str) {
        self.print(&format!("fault {kind}: {target}"));
        self.write(json!({"event": "fault", "kind": kind, "target": target}));
        *self.state.lock().unwrap().faults.entry(kind.to_owned()).or_default() += 1;
    }

    /// A check passed or failed, with the reason. Gives whether it passed.
    pub fn check(&self, name: &str, result: Result<String, String>) -> bool {
        let passed = result.is_ok();
        let detail = result.unwrap_or_else(|detail| detail);
        self.print(&format!("{} {name}: {detail}", if passed { "ok    " } else { "FAILED" }));
        self.write(json!({"event": "check", "name": name, "passed": passed, "detail": detail}));
        let mut state = self.state.lock().unwrap();
        if passed {
            state.passed += 1;
        } else {
            state.failures.push(format!("{name}: {detail}"));
        }
        passed
    }

    /// A figure of the summary.
    pub fn figure(&self, name: &str, value: impl Into<Value>) {
        self.state.lock().unwrap().figures.insert(name.to_owned(), value.into());
    }

    /// Writes and prints the summary. The last line is 'N passed, N failed'.
    pub fn summary(&self) -> ExitCode {
        let summary = {
            let State { passed, failures, faults, figures, .. } = &*self.state.lock().unwrap();
            let injected: usize = faults.values().sum();
            println!("faults: {injected}");
            faults.iter().for_each(|(kind, count)| println!("  {kind}: {count}"));
            figures.iter().for_each(|(name, value)| println!("{name}: {value}"));
            failures.iter().for_each(|failure| println!("failed: {failure}"));
            json!({
                "event": "summary", "passed": passed, "failed": failures.len(), "failures": failures,
                "faults": faults, "figures": figures,
            })
        };
        self.write(summary);
        let state = self.state.lock().unwrap();
        println!("{} passed, {} failed", state.passed, state.failures.len());
        ExitCode::from(u8::from(!state.failures.is_empty()))
    }
}
