//! Runs a command once as it is, and keeps what it prints and the CPU time that it uses.

use crate::exits::Exit;
use crate::oom::OomCounter;
use crate::orphans::{self, Running};
use crate::processes::{MachineTicks, Ticks, descendants, ticks_of};
use crate::script::{failure, quiet};
use crate::spawn::Nursery;
use crate::survivors;
use parking_lot::Mutex;
use pawl_contract::exit::Outcome;
use pawl_contract::log::MAX_LINE;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, PipeReader, Read};
use std::mem;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::process::Command;

/// Maximum number of lines that are kept: the first ones.
const MAX_LINES: usize = 100_000;
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time that a killed process may take to exit.
const DEATH: Duration = Duration::from_secs(5);
/// Time in which the last output is read, once the command has ended.
const LAST_OUTPUT: Duration = Duration::from_millis(200);

/// Time between two looks at the CPU time.
const PERIOD: Duration = Duration::from_millis(200);

/// What a command did while it was observed.
#[derive(Debug)]
pub struct Observed {
    /// The lines of its standard output and standard error, and when each ended, in seconds since the start. A line
    /// ends with a line feed, or with a carriage return, as those of progress bars do.
    pub lines: Vec<(f64, String)>,
    /// How it ended by itself; `None`: it was ended.
    pub exit: Option<ExitStatus>,
    /// What its failure means, and a line that says so. Also of one that went on although memory ran out.
    pub failure: Option<(Outcome, String)>,
    /// When it was started.
    pub began: SystemTime,
    /// The CPU time that it has used, over time.
    pub usage: Vec<Usage>,
}

/// CPU time since the start, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds since the start.
    pub at: f64,
    /// Of the first thread of the command's own process.
    pub main_thread: f64,
    /// Of its own process.
    pub process: f64,
    /// Of all processes that it has started.
    pub others: f64,
    /// The number of these, other than those that have ended.
    pub running: usize,
    /// Of all processes of the machine; 0 where that cannot be read.
    pub machine: f64,
}

/// Runs `command` for at most `limit`, or until `stopped`, in the present directory, and ends it then with all
/// processes that it has started: SIGTERM, and SIGKILL a little later. Experiment trackers are off, as in launches that
/// measure. Call [`crate::adopt_orphans`] before. `dir` is a directory for its lock.
///
/// # Errors
/// When the command cannot be started, or does not end.
pub async fn observe(
    mut command: Command,
    dir: &Path,
    limit: Duration,
    stopped: impl Future<Output = ()>,
) -> io::Result<Observed> {
    std::fs::create_dir_all(dir)?;
    survivors::end_in(dir, Instant::now() + DEATH)?;
    let lock = survivors::lock(&dir.join("rank-0.lock"))?;
    let (output, writer) = io::pipe()?;
    quiet(&mut command);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let _running = Running::new();
    let oom = OomCounter::find();
    let kills = oom.kills();
    let nursery = Nursery::start()?;
    let read = Arc::new(Mutex::new(Lines::default()));
    let shared = Arc::clone(&read);
    let (start, began) = (Instant::now(), SystemTime::now());
    let reader = std::thread::Builder::new().name("pawl-observe".into()).spawn(move || copy(output, start, &shared))?;
    let mut child = nursery.spawn(command, lock).await?;
    let group = child.id().and_then(|id| Pid::from_raw(id as i32));
    let signal = |signal| group.map(|group| kill_process_group(group, signal));
    let mut usage = Vec::new();
    let exit = tokio::select! {
        exit = child.wait() => Some(exit?),
        never = look(group, start, &mut usage) => match never {},
        () = tokio::time::sleep(limit) => None,
        () = stopped => None,
    };
    if exit.is_none() {
        signal(Signal::TERM);
        let _ = tokio::time::timeout(GRACE, child.wait()).await;
    }
    // What it has started may be in its process group, or have left it.
    signal(Signal::KILL);
    let (dir, remnants) = (dir.to_owned(), orphans::of_launch(dir));
    let end = move || {
        orphans::end_remnants(&remnants, Duration::ZERO);
        survivors::end_in(&dir, Instant::now() + DEATH)
    };
    tokio::task::spawn_blocking(end).await.map_err(io::Error::other)??;
    let deadline = Instant::now() + LAST_OUTPUT;
    while !reader.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut lines = read.lock();
    lines.end(start.elapsed().as_secs_f64());
    let lines = mem::take(&mut lines.all);
    let texts = lines.iter().map(|(_, text)| text.as_str());
    let failure = failure(texts, exit.map(Exit::of), oom.killed_since(kills).is_some());
    Ok(Observed { lines, exit, failure, began, usage })
}

/// Looks at the CPU time of a process and of what it has started, again and again.
async fn look(process: Option<Pid>, start: Instant, usage: &mut Vec<Usage>) -> Infallible {
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |ticks: u64| ticks as f64 / per_second;
    let mut others: BTreeMap<i32, u64> = BTreeMap::new();
    let mut own = Ticks::default();
    loop {
        let at = start.elapsed().as_secs_f64();
        own = process.and_then(ticks_of).unwrap_or(own);
        let started = descendants(&BTreeSet::new()).into_iter().filter(|found| Some(found.pid) != process);
        let alive: Vec<(i32, u64)> = started
            .filter_map(|found| Some((found.pid.as_raw_nonzero().get(), ticks_of(found.pid)?.process)))
            .collect();
        let running = alive.len();
        // One that has ended keeps its last value.
        others.extend(alive);
        usage.push(Usage {
            at,
            main_thread: seconds(own.main_thread),
            process: seconds(own.process),
            others: seconds(others.values().sum()),
            running,
            machine: seconds(MachineTicks::now().map_or(0, |machine| machine.busy)),
        });
        // Between two looks, however long they take, there is time for everything else.
        tokio::time::sleep(PERIOD).await;
    }
}

fn copy(mut output: PipeReader, start: Instant, lines: &Mutex<Lines>) {
    let mut chunk = [0; 8192];
    while let Ok(count) = output.read(&mut chunk)
        && count > 0
    {
        lines.lock().take(&chunk[..count], start.elapsed().as_secs_f64());
    }
}

/// The lines so far.
#[derive(Debug, Default)]
struct Lines {
    all: Vec<(f64, String)>,
    /// The beginning of an incomplete line, at most [`MAX_LINE`] bytes.
    line: Vec<u8>,
}

impl Lines {
    fn take(&mut self, chunk: &[u8], at: f64) {
        for piece in chunk.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let text = piece.strip_suffix(b"\n").or_else(|| piece.strip_suffix(b"\r")).unwrap_or(piece);
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < piece.len() {
                self.end(at);
            }
        }
    }

    /// Ends the present line.
    fn end(&mut self, at: f64) {
        if !self.line.is_empty() && self.all.len() < MAX_LINES {
            self.all.push((at, String::from_utf8_lossy(&self.line).into_owned()));
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own: the children of other tests are not orphans.
    fn alone(name: &str) -> bool {
        const ALONE: &str = "PAWL_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", &format!("observe::tests::{name}")]).env(ALONE, "1").env_remove("WANDB_MODE");
        assert!(own.status().unwrap().success());
        false
    }

    fn observed(script: &str, limit: Duration) -> Observed {
        crate::adopt_orphans().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("DIR", dir.path()).env("MLFLOW_TRACKING_URI", "http://server");
        runtime.block_on(observe(command, &dir.path().join("observed"), limit, std::future::pending())).unwrap()
    }

    #[test]
    fn lines_and_the_end_of_a_command_are_seen() {
        if !alone("lines_and_the_end_of_a_command_are_seen") {
            return;
        }
        let Observed { lines, exit, .. } = observed(r"printf 'a\n1/2\r2/2\r\n'; echo b >&2; printf c; exit 3", DEATH);
        let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!((texts, exit.and_then(|exit| exit.code())), (vec!["a", "1/2", "2/2", "b", "c"], Some(3)));
    }

    #[test]
    fn an_observed_command_logs_to_no_tracker() {
        if !alone("an_observed_command_logs_to_no_tracker") {
            return;
        }
        let variables = "$WANDB_MODE ${MLFLOW_TRACKING_URI-none}";
        let script = format!("export MLFLOW_TRACKING_URI=http://tracker; echo {variables}");
        assert_eq!(observed(&format!("echo {variables}"), DEATH).lines[0].1, "disabled none");
        // What the command itself sets, nothing removes.
        assert_eq!(observed(&script, DEATH).lines[0].1, "disabled http://tracker");
    }

    #[test]
    fn cpu_time_is_that_of_the_process_and_of_those_that_it_has_started() {
        if !alone("cpu_time_is_that_of_the_process_and_of_those_that_it_has_started") {
            return;
        }
        // One process computes, the other waits for it.
        let busy = "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done";
        for (script, is_own) in [(busy.to_owned(), true), (format!("sh -c '{busy}' & wait"), false)] {
            let Observed { usage, .. } = observed(&script, Duration::from_secs(60));
            let last = usage.last().unwrap();
            let (more, less) = if is_own { (last.process, last.others) } else { (last.others, last.process) };
            assert!(more > 0.0 && less <= 0.1 * more, "{script}: {last:?}");
            assert_eq!(usage.iter().any(|look| look.running > 0), !is_own, "{usage:?}");
        }
    }

    #[test]
    fn the_whole_tree_ends_with_the_observation() {
        if !alone("the_whole_tree_ends_with_the_observation") {
            return;
        }
        // Both write for as long as they live: one has a session of its own, and nobody listens to SIGTERM.
        let forever = "trap '' TERM; while :; do echo $1; sleep 0.02; done";
        let script = format!("setsid sh -c \"{forever}\" x own & {}", forever.replace("$1", "rank"));
        let before = Instant::now();
        let Observed { lines, exit, .. } = observed(&script.replace("$1", "own"), Duration::from_millis(500));
        assert!(exit.is_none() && before.elapsed() < Duration::from_secs(60));
        assert!(["own", "rank"].iter().all(|who| lines.iter().any(|(_, text)| text == who)), "{lines:?}");
        let left = descendants(&BTreeSet::new());
        assert!(left.is_empty(), "{left:?}");
    }
}
