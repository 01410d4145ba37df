//! The launches of the search for the largest batch that fits.

use super::batch::{Choice, Fate, Larger, Search};
use super::command::BATCH;
use super::lines::Line;
use super::proposal::{self, Script};
use super::{Refusal, Request, say};
use crate::exit;
use pawl_agent::Observed;
use pawl_contract::exit::Outcome;
use pawl_contract::log::{Patterns, Reading};
use pawl_contract::script::{Monitor, MonitorSource};
use pawl_local::interrupt::{Interrupts, Signal};
use std::fs;
use std::time::{Duration, Instant};

/// Part of the machine's memory that is left to other programs.
const LEFT: u64 = 20;
/// Interval of looks at the memory.
const LOOK: Duration = Duration::from_millis(100);
/// Why nothing is tried beside programs that take the memory.
const SCARCE: &str = "more was not tried: other programs leave less than 5 % of the machine's memory";
/// How much longer than expected a launch may take until its second line.
const PATIENCE: f64 = 1.5;

/// The largest batch that fits, if a larger one is to be tried, and the time that finding it has taken; or the signal
/// that ended this.
pub fn larger(
    request: &Request<'_>,
    script: &Script<'_>,
) -> Result<Result<(Option<Larger>, Duration), Signal>, Refusal> {
    let batch = script.tuned.settings.get(BATCH).copied().filter(|_| proposal::is_batch_tried(script));
    let Some(batch) = batch else { return Ok(Ok((None, Duration::ZERO))) };
    let accumulation = script.tuned.accumulation();
    let mut search = Search::new((batch, accumulation), &proposal::multiples(script), script.budget);
    let items = |choice: Choice| f64::from(choice.batch) * f64::from(choice.accumulation);
    let baseline = items(Choice { batch, accumulation });
    let pace = &script.findings.pace;
    let limit = |choice: Choice| {
        let steps = (2 * pace.every.max(1) + 1) as f64 * pace.step * items(choice) / baseline;
        Duration::from_secs_f64((pace.start + steps) * PATIENCE + 1.0)
    };
    // A script may refuse a directory that is not empty, and checkpoints are large.
    let checkpoints = request.here.join(request.state.root()).join("observed/checkpoints");
    let clear = || drop(fs::remove_dir_all(&checkpoints));
    while let Some((at, limit)) = search.next(limit) {
        if is_scarce(&meminfo()) {
            search.end(SCARCE);
            break;
        }
        let words = script.tuned.with_batch(search.choice(at), &checkpoints);
        say(request.arguments, &format!("trying whether it fits: {}\n", pawl_display::shell::line(&words)));
        clear();
        let began = Instant::now();
        let launched = launched(request, script, &words, limit);
        clear();
        match launched? {
            Ok(fate) => search.note(at, fate, began.elapsed()),
            Err(signal) => return Ok(Err(signal)),
        }
    }
    Ok(Ok((Some(search.found()), search.spent())))
}

/// Runs a command for at most `limit`.
fn launched(
    request: &Request<'_>,
    script: &Script<'_>,
    words: &[String],
    limit: Duration,
) -> Result<Result<Fate, Signal>, Refusal> {
    let (program, rest) = words.split_first().ok_or_else(|| Refusal(exit::INPUT, String::new()))?;
    let failed = |error: std::io::Error| Refusal(exit::FAILED, format!("{program}: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let directory = request.state.root().join("observed");
    let (mut received, mut is_scarce) = (None, false);
    let Observed { lines, exit, failure, .. } = runtime
        .block_on(async {
            let mut command = tokio::process::Command::new(program);
            command.args(rest).env("PYTHONUNBUFFERED", "1");
            let mut interrupts = Interrupts::listen()?;
            let stopped = async {
                tokio::select! {
                    signal = interrupts.next() => received = Some(signal),
                    () = memory_is_scarce() => is_scarce = true,
                }
            };
            pawl_agent::observe(command, &directory, limit, stopped).await
        })
        .map_err(failed)?;
    if let Some(signal) = received {
        return Ok(Err(signal));
    }
    if is_scarce {
        return Ok(Ok(Fate::Fails(Outcome::HostOutOfMemory, String::new())));
    }
    if let Some((outcome, line)) = failure {
        return Ok(Ok(Fate::Fails(outcome, line)));
    }
    fate(&script.findings.monitor, &lines, exit.is_some()).map(Ok)
}

/// How a launch went that is not known to have failed, by what it has printed.
fn fate(monitor: &Monitor, lines: &[Line], has_ended: bool) -> Result<Fate, Refusal> {
    let patterns = Patterns::new(monitor).map_err(|error| Refusal(exit::FAILED, error.to_string()))?;
    let is_step = |(_, line): &Line| matches!(patterns.read(line), Some(Reading::Training { .. }));
    // The Trainer's own reports are not followed here.
    if monitor.source == MonitorSource::Kubeflow || lines.iter().any(is_step) {
        return Ok(Fate::Fits);
    }
    let last = lines.iter().rev().map(|(_, line)| line.trim()).find(|line| !line.is_empty());
    let without_step = || match last {
        Some(last) => format!("it ended without a step: {last}"),
        None => "it ended without a step".to_owned(),
    };
    Ok(if has_ended { Fate::Fails(Outcome::Failed, without_step()) } else { Fate::Unknown })
}

/// Waits until little memory of the machine is left: its kernel would end programs that it chooses.
async fn memory_is_scarce() {
    loop {
        tokio::time::sleep(LOOK).await;
        if is_scarce(&meminfo()) {
            return;
        }
    }
}

fn meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// Whether little memory is left, by `/proc/meminfo`; not where that says nothing of it.
fn is_scarce(meminfo: &str) -> bool {
    let kibibytes = |name: &str| {
        let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    kibibytes("MemTotal").zip(kibibytes("MemAvailable")).is_some_and(|(total, available)| available < total / LEFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an epoch whose batches are all incomplete, nothing is known about the memory of a step.
    #[test]
    fn a_launch_fits_if_it_has_taken_a_step() {
        let monitor =
            Monitor { training: Some(r"step (?<step>\d+): loss (?<loss>\S+)".to_owned()), ..Monitor::default() };
        let of = |texts: &[&str], has_ended| {
            let lines: Vec<Line> = texts.iter().map(|text| (0.0, (*text).to_owned())).collect();
            fate(&monitor, &lines, has_ended).ok().unwrap()
        };
        assert_eq!(of(&["step 1: loss 2.0", "saved"], true), Fate::Fits);
        assert_eq!(of(&["step 1: loss 2.0"], false), Fate::Fits);
        assert_eq!(of(&["loading"], false), Fate::Unknown);
        let failed = |line: &str| Fate::Fails(Outcome::Failed, line.to_owned());
        assert_eq!(of(&["epoch 1: 0 batches", ""], true), failed("it ended without a step: epoch 1: 0 batches"));
        assert_eq!(of(&[], true), failed("it ended without a step"));
    }

    #[test]
    fn scarce_memory_is_seen_before_the_kernel_ends_programs() {
        for (available, expected) in [(400, true), (600, false)] {
            let text = format!("MemTotal:       10000 kB\nMemFree:  1 kB\nMemAvailable:  {available} kB\n");
            assert_eq!(is_scarce(&text), expected, "{available}");
        }
        assert!(!is_scarce("MemTotal: 10000 kB\n"));
    }
}
