//! The launches of the search for the largest batch that fits.

use super::batch::{Choice, Fate, Larger, Search};
use super::command::BATCH;
use super::proposal::{self, Script};
use super::{Refusal, Request, say};
use crate::exit;
use pawl_agent::Observed;
use pawl_contract::exit::Outcome;
use pawl_contract::log::{Patterns, Reading};
use pawl_contract::script::MonitorSource;
use pawl_local::interrupt::{Interrupts, Signal};
use std::time::{Duration, Instant};

/// Part of the machine's memory that is left to other programs.
const LEFT: u64 = 20;
/// Interval of looks at the memory.
const LOOK: Duration = Duration::from_millis(100);
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
    while let Some((at, limit)) = search.next(limit) {
        let words = script.tuned.with_batch(search.choice(at));
        say(request.arguments, &format!("trying whether it fits: {}\n", super::shell(&words)));
        let began = Instant::now();
        match launched(request, script, &words, limit)? {
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
    let monitor = &script.findings.monitor;
    let patterns = Patterns::new(monitor).map_err(|error| Refusal(exit::FAILED, error.to_string()))?;
    let is_step = |(_, line): &(f64, String)| matches!(patterns.read(line), Some(Reading::Training { .. }));
    // The Trainer's own reports are not followed here.
    let has_run = exit.is_some() || monitor.source == MonitorSource::Kubeflow || lines.iter().any(is_step);
    Ok(Ok(if has_run { Fate::Fits } else { Fate::Unknown }))
}

/// Waits until little memory of the machine is left: its kernel would end programs that it chooses.
async fn memory_is_scarce() {
    loop {
        tokio::time::sleep(LOOK).await;
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if is_scarce(&text) {
            return;
        }
    }
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

    #[test]
    fn scarce_memory_is_seen_before_the_kernel_ends_programs() {
        for (available, expected) in [(400, true), (600, false)] {
            let text = format!("MemTotal:       10000 kB\nMemFree:  1 kB\nMemAvailable:  {available} kB\n");
            assert_eq!(is_scarce(&text), expected, "{available}");
        }
        assert!(!is_scarce("MemTotal: 10000 kB\n"));
    }
}
