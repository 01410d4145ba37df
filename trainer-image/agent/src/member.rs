//! The role of every agent, including agent 0: prepare, start, supervise and end the ranks of its node.

mod launch;

use crate::files::{self, named};
use crate::finished::REPORT;
use crate::messages::{Down, Up};
use crate::node::{AttemptEnd, AttemptResult, Event, Limits, Stop};
use crate::ranks::{DEATH, Shared};
use crate::survivors;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::{LaunchResult, Report};
use std::io;
use std::path::Path;
use std::time::Instant;
use tokio::sync::{mpsc, watch};

/// The two directions between an agent and agent 0.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) up: mpsc::UnboundedSender<Up>,
    /// Closed when the connection to agent 0 is lost.
    pub(crate) down: mpsc::UnboundedReceiver<Down>,
}

impl Link {
    fn say(&self, message: Up) {
        // When agent 0 is lost, `down` is closed.
        let _ = self.up.send(message);
    }
}

/// An agent's part in an attempt.
pub(crate) struct Member<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) limits: &'a Limits,
    pub(crate) link: Link,
    pub(crate) stop: watch::Receiver<Stop>,
    pub(crate) observer: &'a (dyn Fn(Event) + Send + Sync),
    /// The finished launches.
    pub(crate) launches: Vec<LaunchResult>,
}

impl Member<'_> {
    /// Executes the commands of agent 0 until the attempt is over.
    pub(crate) async fn run(mut self) -> io::Result<AttemptResult> {
        let mut told = Stop::No;
        loop {
            let message = tokio::select! {
                message = self.link.down.recv() => message,
                stop = next_stop(&mut self.stop, told) => {
                    told = stop;
                    self.link.say(Up::Stop(stop));
                    continue;
                }
            };
            match message {
                Some(Down::Prepare { launch }) => match self.prepare(&launch).await {
                    Ok(()) => self.link.say(Up::Ready { launch }),
                    Err(e) => {
                        self.link.say(Up::Unable { launch, outcome: Outcome::of_error(&e), message: e.to_string() })
                    }
                },
                Some(Down::Start { launch, master_port, resume }) => {
                    if let Some(report) = self.launch(&launch, (master_port, &resume), &mut told).await? {
                        // Agent 0 is lost, and the launch with it.
                        let message = report.message.clone();
                        self.keep(report)?;
                        return Ok(self.result(AttemptEnd::LostPeer, message));
                    }
                }
                Some(Down::Verdict(report)) => self.keep(*report)?,
                Some(Down::Finish { end, message }) => return Ok(self.result(end, message)),
                Some(Down::End { .. } | Down::Complete { .. } | Down::Stop(_) | Down::Beat) => {}
                None => return Ok(self.result(AttemptEnd::LostPeer, GONE.to_owned())),
            }
        }
    }

    fn result(self, end: AttemptEnd, message: String) -> AttemptResult {
        let place = |result: &LaunchResult| self.shared.plan.launches.iter().position(|l| l.launch == result.launch);
        let mut launches = self.launches;
        launches.sort_by_key(place);
        AttemptResult { launches, end, message }
    }

    fn plan(&self, launch: &str) -> io::Result<&LaunchPlan> {
        let known = self.shared.plan.launches.iter().find(|plan| plan.launch == launch);
        known.ok_or_else(|| io::Error::other(format!("launch `{launch}` is not in this agent's plan")))
    }

    /// Creates an empty directory for the launch, without files of an earlier run.
    async fn prepare(&self, launch: &str) -> io::Result<()> {
        let plan = serde_json::to_vec_pretty(self.plan(launch)?)?;
        let dir = self.shared.dir(launch);
        blocking(move || {
            std::fs::create_dir_all(&dir).map_err(|e| named(&dir, e))?;
            survivors::end_in(&dir, Instant::now() + DEATH)?;
            for entry in std::fs::read_dir(&dir)? {
                let path = entry?.path();
                if path.is_file() {
                    std::fs::remove_file(&path).map_err(|e| named(&path, e))?;
                }
            }
            files::write(&dir.join("plan.json"), &plan)
        })
        .await
    }

    /// Writes the report to disk, then announces it.
    fn keep(&mut self, report: Report) -> io::Result<()> {
        let dir = self.shared.dir(&report.launch);
        files::write(&dir.join(REPORT), &serde_json::to_vec(&report)?)?;
        if report.outcome == Outcome::Done {
            tidy(&dir);
        }
        self.launches.push(LaunchResult::from(&report));
        (self.observer)(Event::LaunchEnded(Box::new(report)));
        Ok(())
    }
}

const GONE: &str = "agent 0 was lost";

/// Whether the peers of a rank with this end may continue: it is done, or it stopped as requested. A rank that reports
/// the loss of an already stopped peer is no reason to interrupt the checkpoint of another rank.
pub(crate) fn leaves_in_peace(outcome: Outcome, stop: Stop) -> bool {
    outcome == Outcome::Done || (stop > Stop::No && matches!(outcome, Outcome::Stopped | Outcome::LostPeer))
}

/// The next request to stop beyond `told`. Cancel-safe.
pub(crate) async fn next_stop(stop: &mut watch::Receiver<Stop>, told: Stop) -> Stop {
    // The guard of the value must not live across an await.
    let asked = stop.wait_for(|stop| *stop > told).await.map(|stop| *stop);
    match asked {
        Ok(stop) => stop,
        // The sender is gone: no further requests.
        Err(_) => std::future::pending().await,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Removes files that are needed only while the launch runs. Failures are harmless.
fn tidy(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let of_rank = name.starts_with("rank-") && (name.ends_with(".lock") || name.ends_with(".report.json"));
        if of_rank || name == "progress.json" {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
