//! A rank that is followed by its output: lines become measurements, and its end becomes an outcome of the contract.

use super::meter::{Expected, Meter, Standing, Verdict};
use super::signs;
use super::traceback::Tracebacks;
use crate::exits::Exit;
use parking_lot::Mutex;
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::log::{MAX_LINE, Patterns, Reading};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::Report;
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Instant;

/// Begins what is said of a failure that a launcher has hidden, such as `torchrun --max-restarts`.
const RESTARTED: &str = "its launcher restarted the workers";

/// What was asked of a rank before it ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// To stop.
    pub(crate) stop: bool,
    /// To end, because all ranks have done what the launch was for.
    pub(crate) complete: bool,
    /// Nothing: rank 0 has done what the launch was for, and went on by itself.
    pub(crate) has_all: bool,
}

/// What is known of a rank. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Followed(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Rank 0 is measured.
    meter: Option<Meter>,
    /// The newest line that names an error, and its outcome.
    error: Option<(Outcome, String)>,
    /// The first line that says that memory ran out.
    lacks_memory: Option<String>,
    tracebacks: Tracebacks,
}

impl Followed {
    /// A rank that starts. `measured`: what is known of its script, if it is measured.
    pub(crate) fn new(plan: &LaunchPlan, measured: Option<Expected>) -> Self {
        let meter = measured.map(|expected| Meter::new(plan, expected));
        Self(Arc::new(Mutex::new(State { meter, error: None, lacks_memory: None, tracebacks: Tracebacks::default() })))
    }

    /// Adds what the rank reported now.
    pub(super) fn observe(&self, reading: Reading) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.observe(reading, Instant::now());
        }
    }

    /// Adds a line of its output in which nothing was found.
    fn pass_over(&self, line: &str) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.pass_over(line);
        }
    }

    /// Notes where the rank begins.
    pub(super) fn resumes(&self, at: Standing) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.resumes(at);
        }
    }

    /// Notes the newest checkpoint. `is_whole`: nothing has changed in it for a while.
    pub(super) fn saw(&self, checkpoint: CheckpointRef, is_whole: bool) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.saw(checkpoint, is_whole);
        }
    }

    /// Where the rank is, if it is measured.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.0.lock().meter.as_ref().map(Meter::standing)
    }

    /// Notes that the rank reports losses at times, not at steps.
    pub(super) fn sample(&self) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.sample();
        }
    }

    /// Adds the mean loss of all steps, which the rank reports at its end.
    pub(super) fn conclude(&self, mean_loss: f64) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.conclude(mean_loss);
        }
    }

    /// Has the rank ended, which is measured: the launch ends with this outcome.
    pub(crate) fn fail(&self, outcome: Outcome, message: String) {
        if let Some(meter) = &mut self.0.lock().meter {
            meter.verdict = Some(Verdict::Failed(outcome, message));
        }
    }

    /// Notes that a launcher has started the workers of the rank again, `count` times: how that is to be judged, and
    /// the failure before it.
    pub(crate) fn restarted(&self, count: u32) -> (Outcome, String) {
        let state = self.0.lock();
        let State { error, tracebacks, .. } = &*state;
        let cause = error.as_ref().map(|(_, line)| line.clone()).or_else(|| tracebacks.cause());
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        let cause = cause.unwrap_or_else(|| "its output names none".to_owned());
        let outcome = error.as_ref().map_or(Outcome::Failed, |(outcome, _)| *outcome);
        (outcome, format!("{RESTARTED} {times}, after a failure: {cause}"))
    }

    /// Why the rank has to be ended, if it has.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let mut state = self.0.lock();
        let meter = state.meter.as_mut()?;
        meter.settle(Instant::now());
        meter.verdict.clone()
    }

    /// Whether the rank is measured and has done what the launch was for, so that the rest of its script does not
    /// matter.
    pub(crate) fn has_all(&self) -> bool {
        self.0.lock().meter.as_ref().is_some_and(Meter::has_all)
    }

    /// The progress, if it is measured and has begun.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.0.lock().meter.as_ref()?.progress()
    }

    /// What may have to be corrected if the rank is measured by its output, and nothing was found in it.
    pub(crate) fn unmatched(&self) -> Option<String> {
        self.0.lock().meter.as_ref()?.unmatched()
    }

    /// The exit as a trainer of the contract would have ended, and its report.
    pub(crate) fn end(
        &self,
        plan: &LaunchPlan,
        rank: u32,
        exit: Exit,
        asked: Asked,
        last_words: &str,
    ) -> (Exit, Report) {
        let mut state = self.0.lock();
        let State { meter, error, lacks_memory, tracebacks } = &mut *state;
        let exit = of_worker(exit, error.is_some(), tracebacks);
        let cause = tracebacks.cause().unwrap_or_else(|| format!("its last output: {last_words}"));
        let judged = judged(meter.as_mut(), error.as_ref(), exit, asked, &cause);
        let judged = with_memory(plan.kind, judged, lacks_memory.as_deref());
        let has_restarted = tracebacks.has_failed_worker() && !asked.complete && !asked.stop;
        let (outcome, message) = with_restart(plan.kind, judged, has_restarted.then_some(&cause));
        let bare = Report { message, ..Report::bare(plan, rank, outcome) };
        let report = meter.as_ref().map_or_else(|| bare.clone(), |meter| meter.complete(bare.clone()));
        // What a signal means is decided by what the agent did to the rank, unless that followed from what was
        // observed.
        let is_judged = meter.as_ref().is_some_and(|meter| matches!(meter.verdict, Some(Verdict::Failed(..))));
        let by_signal = matches!(exit, Exit::Signal(_)) && outcome == Outcome::Failed && !is_judged;
        (if by_signal { exit } else { Exit::Code(outcome.exit_code().into()) }, report)
    }
}

/// What the end of a command means that is not measured, by its output; `None`: memory sufficed, and it did not fail.
/// `exit`: `None` where it was ended. `is_oom_kill`: the kernel has ended a process for its memory.
pub(crate) fn failure<'a>(
    lines: impl Iterator<Item = &'a str>,
    exit: Option<Exit>,
    is_oom_kill: bool,
) -> Option<(Outcome, String)> {
    let (mut error, mut lacks_memory, mut tracebacks) = (None, None, Tracebacks::default());
    for line in lines {
        if lacks_memory.is_none() && signs::lacks_memory(line) {
            lacks_memory = Some(line.trim().to_owned());
        }
        if tracebacks.read(line)
            && let Some(outcome) = signs::outcome(line)
        {
            error = Some((outcome, line.trim().to_owned()));
        }
    }
    let by_memory = lacks_memory.map(|line| (Outcome::OutOfMemory, line));
    let exit = match exit {
        None | Some(Exit::Code(0)) => return by_memory,
        Some(exit) => of_worker(exit, error.is_some(), &tracebacks),
    };
    let killed = (Outcome::HostOutOfMemory, "a process was killed for its memory".to_owned());
    if is_oom_kill && exit == Exit::Signal(Signal::KILL.as_raw()) {
        return Some(killed);
    }
    let cause = tracebacks.cause().unwrap_or_default();
    let of_code = match exit {
        Exit::Code(code) => Outcome::from_exit_code(code),
        Exit::Signal(_) => Outcome::Failed,
    };
    let plain = (of_code, ending(exit, None, &cause));
    if of_code == Outcome::Failed { error.or(by_memory).or(Some(plain)) } else { Some(plain) }
}

/// The exit of the real rank: a launcher ends with 1 whatever signal has ended its worker.
fn of_worker(exit: Exit, has_error: bool, tracebacks: &Tracebacks) -> Exit {
    let is_launchers = matches!(exit, Exit::Code(code) if code != 0 && !has_error);
    tracebacks.signal().filter(|_| is_launchers).map_or(exit, Exit::Signal)
}

fn judged(
    meter: Option<&mut Meter>,
    error: Option<&(Outcome, String)>,
    exit: Exit,
    asked: Asked,
    cause: &str,
) -> (Outcome, String) {
    let verdict = meter.as_ref().and_then(|meter| meter.verdict.clone());
    if let Some(Verdict::Failed(outcome, message)) = verdict {
        return (outcome, message);
    }
    let done = asked.complete || exit == Exit::Code(0);
    let has_all = meter.as_ref().map_or(asked.has_all, |meter| meter.has_all());
    if has_all && exit != Exit::Code(0) && !asked.complete && !asked.stop {
        if let Some(meter) = meter {
            meter.finish();
        }
        return (
            Outcome::Done,
            format!("all steps were done; after them, the script ended with {}", ending(exit, error, cause)),
        );
    }
    match (meter, exit) {
        (None, _) if done => (Outcome::Done, String::new()),
        (Some(meter), _) if done => match meter.incomplete() {
            // It has saved and exited with 0: the plan may not say how many steps there are.
            None if asked.stop && !asked.complete && !meter.is_at_end() => {
                (Outcome::Stopped, "ended by SIGTERM".to_owned())
            }
            None => {
                // A measurement is ended by its verdict, and anything else because it hung.
                let hung = asked.complete && meter.verdict.is_none();
                let message = "all steps were done; the script hung after them, and was ended";
                meter.finish();
                (Outcome::Done, if hung { message.to_owned() } else { String::new() })
            }
            Some(_) if asked.stop => (Outcome::Stopped, "ended by SIGTERM".to_owned()),
            Some(why) => (Outcome::Unsupported, format!("the script {why}")),
        },
        (_, Exit::Signal(signal)) if asked.stop && signal == Signal::TERM.as_raw() => {
            (Outcome::Stopped, "ended by SIGTERM".to_owned())
        }
        (_, Exit::Signal(_)) => (Outcome::Failed, String::new()),
        (_, Exit::Code(code)) => match (Outcome::from_exit_code(code), error) {
            (Outcome::Failed, Some((outcome, line))) => (*outcome, line.clone()),
            (Outcome::Failed, None) if asked.stop => (Outcome::Stopped, format!("exit code {code} after SIGTERM")),
            (Outcome::Failed, None) => (Outcome::Failed, format!("exit code {code}; {cause}")),
            (outcome, _) => (outcome, format!("exit code {code}; {cause}")),
        },
    }
}

/// What is said of a launch that ended well although memory ran out. What it measured is not that of its settings.
fn with_memory(kind: LaunchKind, judged: (Outcome, String), line: Option<&str>) -> (Outcome, String) {
    match (judged, line) {
        ((Outcome::Done, message), Some(line)) => {
            let why = format!("{line}; the script continued, with fewer or smaller batches than those of its settings");
            match kind {
                LaunchKind::Train => (Outcome::Done, if message.is_empty() { why } else { message }),
                _ => (Outcome::OutOfMemory, why),
            }
        }
        (judged, _) => judged,
    }
}

/// What is said of a launch that ended well although a worker of its launcher has failed for this `cause`.
fn with_restart(kind: LaunchKind, judged: (Outcome, String), cause: Option<&String>) -> (Outcome, String) {
    match (judged, cause) {
        // What it lacks, as its validation, may be what the failure has cost it.
        ((judged @ (Outcome::Done | Outcome::Unsupported), message), Some(cause)) => {
            let why = format!("{RESTARTED}, after a failure: {cause}");
            match kind {
                LaunchKind::Train => (judged, if message.is_empty() { why } else { message }),
                _ => (Outcome::Failed, why),
            }
        }
        (judged, _) => judged,
    }
}

/// How a script ended, and by what. `cause`: its last exception or output.
fn ending(exit: Exit, error: Option<&(Outcome, String)>, cause: &str) -> String {
    let exit = match exit {
        Exit::Code(code) => format!("exit code {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
    };
    format!("{exit}: {}", error.map_or(cause, |(_, line)| line))
}

/// Reads the output of a rank as it is written.
#[derive(Debug)]
pub(crate) struct Tap {
    followed: Followed,
    /// Of rank 0.
    patterns: Option<Patterns>,
    /// The beginning of an incomplete line, at most [`MAX_LINE`] bytes.
    line: Vec<u8>,
}

impl Tap {
    /// Reads for `followed`.
    pub(crate) fn new(followed: Followed, patterns: Option<Patterns>) -> Self {
        Self { followed, patterns, line: Vec::new() }
    }

    /// Takes what was written. Lines end with a line feed, or with a carriage return, as those of progress bars do.
    pub(crate) fn take(&mut self, chunk: &[u8]) {
        for piece in chunk.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let ended = piece.ends_with(b"\n") || piece.ends_with(b"\r");
            let text = if ended { &piece[..piece.len() - 1] } else { piece };
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.end();
            }
        }
    }

    /// Ends the present line.
    pub(crate) fn end(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&self.line);
        {
            let mut state = self.followed.0.lock();
            // What the script does after its last step is not part of its launch.
            let is_over = state.meter.as_ref().is_some_and(Meter::has_all);
            if state.lacks_memory.is_none() && !is_over && signs::lacks_memory(&text) {
                state.lacks_memory = Some(text.trim().to_owned());
            }
            if state.tracebacks.read(&text)
                && let Some(outcome) = signs::outcome(&text)
            {
                state.error = Some((outcome, text.trim().to_owned()));
            }
        }
        if let Some(patterns) = &self.patterns {
            match patterns.read(&text) {
                Some(reading) => self.followed.observe(reading),
                None => self.followed.pass_over(&text),
            }
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::script::Monitor;
    use serde_json::json;

    fn plan() -> LaunchPlan {
        serde_json::from_value(json!({
            "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Train", "workload": {}, "settings": {},
            "seed": 1, "budget": {"items": 30}, "hangTimeoutSeconds": 1.0,
        }))
        .unwrap()
    }

    fn ended(rank: u32, output: &str, exit: Exit, asked: Asked) -> (Exit, Outcome, String) {
        ended_of(&plan(), rank, output, exit, asked)
    }

    fn ended_of(plan: &LaunchPlan, rank: u32, output: &str, exit: Exit, asked: Asked) -> (Exit, Outcome, String) {
        let training = Some(r"(?<step>\d+)/\d+|loss (?<loss>\S+)".to_owned());
        let monitor = Monitor { training, ..Monitor::default() };
        let patterns = Patterns::new(&monitor).unwrap();
        let expected = Expected {
            items_per_step: 1,
            micro_steps: 1,
            is_given_steps: false,
            pattern: monitor.training.clone(),
            has_losses: patterns.has_losses(),
        };
        let followed = Followed::new(plan, (rank == 0).then_some(expected));
        let mut tap = Tap::new(followed.clone(), (rank == 0).then_some(patterns));
        // In pieces that end anywhere.
        output.as_bytes().chunks(3).for_each(|chunk| tap.take(chunk));
        tap.end();
        let (exit, report) = followed.end(plan, rank, exit, asked, "words");
        (exit, report.outcome, report.message)
    }

    #[test]
    fn the_end_of_a_script_is_one_of_the_contract() {
        let bar: String = (1..=30).map(|step| format!("\r{step}/30")).collect();
        let no = Asked::default();
        let stop = Asked { stop: true, ..no };
        let complete = Asked { complete: true, ..no };
        let memory = "torch.OutOfMemoryError: CUDA out of memory.\n";
        let (term, kill) = (Exit::Signal(15), Exit::Signal(9));
        for (rank, output, exit, asked, expected) in [
            (0, &*bar, Exit::Code(0), no, (Exit::Code(0), Outcome::Done)),
            (1, "", Exit::Code(0), no, (Exit::Code(0), Outcome::Done)),
            (0, "\r3/30\n", Exit::Code(0), no, (Exit::Code(20), Outcome::Unsupported)),
            (0, "", Exit::Code(0), no, (Exit::Code(20), Outcome::Unsupported)),
            (0, "\r3/30\nloss nan\n", kill, no, (Exit::Code(12), Outcome::NonFinite)),
            (0, memory, Exit::Code(1), no, (Exit::Code(10), Outcome::OutOfMemory)),
            (1, memory, Exit::Code(1), no, (Exit::Code(10), Outcome::OutOfMemory)),
            (1, memory, Exit::Code(0), no, (Exit::Code(0), Outcome::Done)),
            (0, "ValueError: x", Exit::Code(1), no, (Exit::Code(1), Outcome::Failed)),
            (0, "", Exit::Code(10), no, (Exit::Code(10), Outcome::OutOfMemory)),
            (0, "", kill, no, (kill, Outcome::Failed)),
            (0, "\r3/30\n", term, stop, (Exit::Code(30), Outcome::Stopped)),
            (0, "\r3/30\n", Exit::Code(0), stop, (Exit::Code(30), Outcome::Stopped)),
            (0, &*bar, term, complete, (Exit::Code(0), Outcome::Done)),
            (1, "", kill, complete, (Exit::Code(0), Outcome::Done)),
        ] {
            let (exit, outcome, message) = ended(rank, output, exit, asked);
            assert_eq!((exit, outcome), expected, "{rank} {output} {message}");
        }
        assert_eq!(ended(0, memory, Exit::Code(1), no).2, memory.trim());
    }

    #[test]
    fn the_signal_of_a_launchers_worker_is_that_of_the_rank() {
        let no = Asked::default();
        let report = "\r3/30\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : -9 (pid: 7)\n";
        assert_eq!(ended(0, report, Exit::Code(1), no).0, Exit::Signal(9));
        // Deepspeed ends with the negative number, of which 8 bits are left.
        assert_eq!(ended(1, "x exits with return code = -9\n", Exit::Code(247), no).0, Exit::Signal(9));
        assert_eq!(ended(0, &format!("MemoryError\n{report}"), Exit::Code(1), no).1, Outcome::HostOutOfMemory);
        let stopped = ended(0, &report.replace("-9", "-15"), Exit::Code(1), Asked { stop: true, ..no });
        assert_eq!((stopped.0, stopped.1), (Exit::Code(30), Outcome::Stopped));
    }

    #[test]
    fn the_failure_of_a_command_is_known_by_its_type() {
        let memory = "torch.OutOfMemoryError: CUDA out of memory.";
        for (line, exit, is_oom_kill, expected) in [
            (memory, Some(Exit::Code(1)), false, Some(Outcome::OutOfMemory)),
            ("MemoryError", Some(Exit::Code(1)), false, Some(Outcome::HostOutOfMemory)),
            ("", Some(Exit::Signal(9)), true, Some(Outcome::HostOutOfMemory)),
            ("", Some(Exit::Signal(9)), false, Some(Outcome::Failed)),
            ("  exitcode  : -9 (pid: 7)", Some(Exit::Code(1)), true, Some(Outcome::HostOutOfMemory)),
            ("", Some(Exit::Code(10)), false, Some(Outcome::OutOfMemory)),
            ("ValueError: x", Some(Exit::Code(1)), false, Some(Outcome::Failed)),
            // It was ended, after it had left out a batch.
            ("WARNING: OOM, skipping batch", None, false, Some(Outcome::OutOfMemory)),
            ("step 1: loss 2", None, false, None),
            ("step 1: loss 2", Some(Exit::Code(0)), false, None),
        ] {
            let found = failure(std::iter::once(line), exit, is_oom_kill);
            assert_eq!(found.map(|(outcome, _)| outcome), expected, "{line} {exit:?}");
        }
    }

    #[test]
    fn a_launcher_that_restarted_its_workers_hides_no_failure() {
        let bar: String = (1..=30).map(|step| format!("\r{step}/30")).collect();
        let log = "E0101 00:00:00.0 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) \
                   local_rank: 0 (pid: 7) of binary: /usr/bin/python3\n";
        let output = format!("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 3\n{log}{bar}\n");
        for (kind, expected) in [(LaunchKind::Train, Outcome::Done), (LaunchKind::Quality, Outcome::Failed)] {
            let plan = LaunchPlan { kind, ..plan() };
            let (_, outcome, message) = ended_of(&plan, 0, &output, Exit::Code(0), Asked::default());
            assert_eq!(outcome, expected, "{message}");
            assert!(message.contains("restarted the workers, after a failure: KeyError: 3"), "{message}");
        }
    }

    #[test]
    fn a_script_that_saves_when_it_is_stopped_and_exits_with_0_is_not_done() {
        let mut epochs = plan();
        epochs.budget = serde_json::from_value(json!({"epochs": 3})).unwrap();
        let stop = Asked { stop: true, ..Asked::default() };
        for (plan, step, asked, expected) in [
            (&epochs, 3, stop, Outcome::Stopped),
            (&epochs, 3, Asked::default(), Outcome::Done),
            (&plan(), 29, stop, Outcome::Stopped),
            (&plan(), 30, stop, Outcome::Done),
        ] {
            let output: String = (1..=step).map(|step| format!("\r{step}/30")).collect();
            let (_, outcome, message) = ended_of(plan, 0, &output, Exit::Code(0), asked);
            assert_eq!(outcome, expected, "{step} {asked:?}: {message}");
        }
    }
}
