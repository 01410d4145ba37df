//! Classifies the end of one rank by its exit status and its report.

use crate::last_words::{LastWords, is_of_a_connection};
use crate::oom::RanOut;
use crate::reports::NoReport;
use pawl_contract::exit::Outcome;
use pawl_contract::fingerprint::Fingerprint;
use pawl_contract::report::Report;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            // The exit status of a shell whose child was killed.
            (Some(code), _) if (129..=192).contains(&code) => Self::Signal(code - 128),
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// How one rank ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RankEnd {
    /// Global rank.
    pub(crate) rank: u32,
    /// Whether its agent killed it: then its outcome does not count for the launch.
    pub(crate) by_agent: bool,
    /// Its outcome.
    pub(crate) outcome: Outcome,
    /// Human-readable description.
    pub(crate) message: String,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    /// Its exit code, unless a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// What it said, if its outcome is `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Its report, if it wrote a readable one.
    pub(crate) report: Option<Box<Report>>,
}

/// The agent's facts about an ended rank, besides its report.
pub(crate) struct Exited {
    pub(crate) rank: u32,
    pub(crate) exit: Exit,
    pub(crate) killed: bool,
    pub(crate) terminated: bool,
    pub(crate) out_of_memory: Option<RanOut>,
    pub(crate) last_words: LastWords,
    pub(crate) said: Said,
}

/// Where a rank says why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// In its report, and where there is none in its output.
    Report,
    /// In its output: the agent has written its report.
    Output,
}

impl Exited {
    /// What the rank says of its failure: of a crash its signal says more than whatever it wrote last. `None` when
    /// somebody else may have ended it.
    fn fingerprint(&self, report: Option<&Report>) -> Option<Fingerprint> {
        let own = report.filter(|report| self.said == Said::Report && !report.message.is_empty());
        let text = own.map_or(self.last_words.error.as_str(), |report| report.message.as_str());
        match self.exit {
            Exit::Code(_) if is_of_a_connection(text) => None,
            Exit::Code(_) => Some(Fingerprint::of(text)),
            Exit::Signal(signal) if signal == Signal::ABORT.as_raw() => Some(Fingerprint::of(text)),
            Exit::Signal(signal) => {
                let crashes = [Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SEGV].map(Signal::as_raw);
                crashes.contains(&signal).then(|| Fingerprint::of(""))
            }
        }
    }

    /// The exit code takes precedence; the report adds details. Only "done" requires both, with the report of rank 0
    /// alone.
    pub(crate) fn judge(self, report: Result<Report, NoReport>) -> RankEnd {
        let fingerprint = self.fingerprint(report.as_ref().ok());
        let Self { rank, exit, killed, terminated, out_of_memory, last_words, said: _ } = self;
        let last_words = last_words.text;
        let by_agent = killed && exit == Exit::Signal(Signal::KILL.as_raw());
        let agreed = |outcome| report.as_ref().ok().filter(|report| report.outcome == outcome);
        let mut message = match report.as_ref() {
            Ok(report) if !report.message.is_empty() => format!("rank {rank}: {}", report.message),
            _ => String::new(),
        };
        let outcome = match exit {
            Exit::Signal(signal) if signal == Signal::TERM.as_raw() && terminated => {
                // A shell may have started a trainer that has saved.
                if agreed(Outcome::Stopped).is_none() {
                    message = format!("rank {rank}: ended by SIGTERM, without a checkpoint");
                }
                Outcome::Stopped
            }
            Exit::Signal(signal) => {
                let memory = out_of_memory.filter(|_| signal == Signal::KILL.as_raw());
                let hint = memory.map_or_else(|| hint(signal).to_owned(), |ran_out| format!(": {ran_out}"));
                message = format!("rank {rank}: killed by signal {}{hint}{}", name(signal), quoted(&last_words));
                if memory.is_some() { Outcome::HostOutOfMemory } else { Outcome::Failed }
            }
            Exit::Code(0) if rank != 0 || agreed(Outcome::Done).is_some() => Outcome::Done,
            // A script that does not check its loss.
            Exit::Code(0) if agreed(Outcome::NonFinite).is_some() => Outcome::NonFinite,
            Exit::Code(0) => {
                message = not_done(&report);
                Outcome::Failed
            }
            Exit::Code(code) => {
                let outcome = Outcome::from_exit_code(code);
                let failed_alike = outcome == Outcome::Failed && agreed(Outcome::Hang).is_some();
                match &report {
                    Ok(report) if report.outcome == outcome || failed_alike => {}
                    Ok(report) => {
                        message = format!(
                            "rank {rank}: exit code {code} ({outcome:?}), but its report says {:?}: {}",
                            report.outcome, report.message
                        );
                    }
                    Err(why) => {
                        message =
                            format!("rank {rank}: exit code {code} ({outcome:?}); it {why}{}", quoted(&last_words))
                    }
                }
                outcome
            }
        };
        let (signal, exit_code) = match exit {
            Exit::Signal(signal) => (Some(signal), None),
            Exit::Code(code) => (None, Some(code)),
        };
        let fingerprint = fingerprint.filter(|_| outcome == Outcome::Failed);
        RankEnd { rank, by_agent, outcome, message, signal, exit_code, fingerprint, report: report.ok().map(Box::new) }
    }
}

/// Why rank 0 is not done, although its exit code is 0.
fn not_done(report: &Result<Report, NoReport>) -> String {
    match report {
        Ok(report) => format!("rank 0: exit code 0, but its report says {:?}: {}", report.outcome, report.message),
        Err(why @ NoReport::Absent) => format!(
            "rank 0: exit code 0, but it {why}: set workload.monitor, so that its output is read, or use the Python package pawl_launch"
        ),
        Err(why) => format!("rank 0: exit code 0, but it {why}: a launch is done when its report says so"),
    }
}

fn quoted(last_words: &str) -> String {
    if last_words.is_empty() { String::new() } else { format!("; its last output: {last_words}") }
}

fn name(signal: i32) -> String {
    let known = match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => return signal.to_string(),
    };
    format!("{signal} ({known})")
}

fn hint(signal: i32) -> &'static str {
    match signal {
        7 => " (is /dev/shm or the disk full?)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(exit: Exit, killed: bool, out_of_memory: bool) -> (Outcome, bool) {
        let out_of_memory = out_of_memory.then_some(RanOut::Host);
        let last_words = LastWords::default();
        let said = Said::Report;
        let exited = Exited { rank: 1, exit, killed, terminated: false, out_of_memory, last_words, said };
        let end = exited.judge(Err(NoReport::Absent));
        (end.outcome, end.by_agent)
    }

    #[test]
    fn a_kill_is_the_hosts_memory_only_when_the_kernel_says_so() {
        assert_eq!(ended(Exit::Signal(9), false, true), (Outcome::HostOutOfMemory, false));
        assert_eq!(ended(Exit::Signal(9), false, false), (Outcome::Failed, false));
        assert_eq!(ended(Exit::Signal(11), false, true), (Outcome::Failed, false));
        // A rank killed by the agent itself carries no information.
        assert!(ended(Exit::Signal(9), true, true).1);
        assert!(!ended(Exit::Signal(11), true, false).1);
    }

    #[test]
    fn a_shell_tells_of_its_childs_signal() {
        assert_eq!(Exit::of(ExitStatus::from_raw(137 << 8)), Exit::Signal(9));
        assert_eq!(Exit::of(ExitStatus::from_raw(9)), Exit::Signal(9));
        assert_eq!(Exit::of(ExitStatus::from_raw(40 << 8)), Exit::Code(40));
    }

    #[test]
    fn the_same_failure_has_the_same_fingerprint() {
        let end = |exit, error: &str, said, report: Result<&str, NoReport>| {
            let last_words = LastWords { text: format!("step 7 | {error}"), error: error.to_owned() };
            let exited =
                Exited { rank: 0, exit, killed: false, terminated: false, out_of_memory: None, last_words, said };
            let plan = serde_json::from_value(serde_json::json!({
                "contract": 1, "job": "j", "attempt": "j-1", "launch": "l", "kind": "Measure", "workload": {}, "settings": {},
                "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0,
            }));
            let report = report.map(|message| Report {
                message: message.to_owned(),
                ..Report::bare(&plan.unwrap(), 0, Outcome::Failed)
            });
            exited.judge(report).fingerprint
        };
        let script = |error: &str| end(Exit::Code(1), error, Said::Output, Ok("exit code 1; its last output: ..."));
        assert!(script("ValueError: 17 rows").is_some());
        assert_eq!(script("ValueError: 17 rows"), script("ValueError: 9 rows"));
        assert_ne!(script("ValueError: 17 rows"), script("KeyError: 'rows'"));
        let trainer = |error: &str, message| end(Exit::Code(1), error, Said::Report, message);
        assert_eq!(trainer("a", Ok("no kernel for step 3")), trainer("b", Ok("no kernel for step 4")));
        assert_eq!(trainer("a", Err(NoReport::Absent)), trainer("a", Ok("")));
        // Where somebody else may have killed it, nothing is known; a crash is one whatever was written before.
        assert_eq!(end(Exit::Signal(9), "a", Said::Report, Err(NoReport::Absent)), None);
        assert_eq!(end(Exit::Code(12), "a", Said::Report, Err(NoReport::Absent)), None, "an outcome of its own");
        let crash = |error| end(Exit::Signal(11), error, Said::Report, Err(NoReport::Absent));
        assert!(crash("a").is_some() && crash("a") == crash("b"));
    }
}
