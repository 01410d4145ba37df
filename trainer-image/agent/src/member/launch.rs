//! Runs the ranks of one launch on this node until the last one has ended.

use super::{GONE, Member, blocking, leaves_in_peace, next_stop};
use crate::messages::{Down, Up};
use crate::node::{Event, Stop};
use crate::orphans;
use crate::processes::restarts_of;
use crate::provenance::provenance;
use crate::ranks::{DEATH, Ranks};
use crate::script::{Resume, Verdict};
use crate::survivors;
use crate::verdict::{Evidence, Fact, verdict};
use crate::watch::Watch;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::report::Report;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval of reading progress.
const POLL: Duration = Duration::from_millis(100);

/// Interval of looks at whether a launcher has restarted its workers.
const RESTARTS: Duration = Duration::from_secs(2);

/// A launch whose ranks run on this node.
struct Running {
    plan: LaunchPlan,
    ranks: Ranks,
    watch: Watch,
    facts: Vec<Fact>,
    /// When the remaining ranks are killed.
    kill_at: Option<Instant>,
    /// When killed ranks must be gone.
    dead_by: Instant,
    /// Whether agent 0 is lost.
    lost: bool,
    /// Whether agent 0 knows that the launch is complete.
    complete: bool,
    /// How often a launcher has restarted its workers, and when that was looked at.
    restarts: (u32, Instant),
}

impl Running {
    /// Kills the remaining ranks after `grace`, or earlier if they already have less time.
    fn kill_after(&mut self, grace: Duration) {
        let new = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(new, |at| at.min(new)));
    }
}

impl Member<'_> {
    /// Runs the local ranks of a launch to their end. The report is made here only when agent 0 is lost.
    pub(super) async fn launch(
        &mut self,
        launch: &str,
        (port, resume): (u16, &Resume),
        told: &mut Stop,
    ) -> io::Result<Option<Report>> {
        let _running = orphans::Running::new();
        if let Some(message) = resume.warning.clone().filter(|_| self.shared.replica == 0) {
            (self.observer)(Event::Warning { launch: launch.to_owned(), message });
        }
        let mut running = self.start(launch, port, resume).await?;
        // It may have come after agent 0 had this launch started.
        self.stop_ranks(&mut running, *told);
        let mut tick = tokio::time::interval(POLL);
        while !running.ranks.is_empty() {
            tokio::select! {
                (rank, status) = running.ranks.next_exit() => self.exited(&mut running, rank, status, *told).await,
                message = self.link.down.recv(), if !running.lost => self.heed(&mut running, message, told),
                stop = next_stop(&mut self.stop, *told) => {
                    *told = stop;
                    self.link.say(Up::Stop(stop));
                    self.stop_ranks(&mut running, stop);
                }
                () = until(running.kill_at), if !running.ranks.is_killed() => running.ranks.kill(),
                _ = tick.tick() => self.look(&mut running)?,
            }
        }
        self.observe(&mut running);
        let (dir, grace) = (self.shared.dir(launch), self.limits.peer_grace);
        blocking(move || {
            orphans::end_remnants(&orphans::of_launch(&dir), grace);
            survivors::end_in(&dir, Instant::now() + DEATH)
        })
        .await?;
        if let Some(message) = running.ranks.set_aside(self.shared, &running.plan) {
            (self.observer)(Event::Warning { launch: launch.to_owned(), message });
        }
        let Running { plan, watch, facts, lost, .. } = running;
        if lost {
            let wall_seconds = watch.started.elapsed().as_secs_f64();
            let (progress, stopping) = (watch.progress.as_ref(), *told > Stop::No);
            return Ok(Some(verdict(&Evidence { plan: &plan, facts: &facts, stopping, progress, wall_seconds })));
        }
        let machine = if self.shared.replica == 0 { None } else { provenance(&self.shared.work_dir) };
        let progress = watch.progress.map(Box::new);
        self.link.say(Up::Ended { launch: launch.to_owned(), progress, machine: machine.map(Box::new) });
        Ok(None)
    }

    /// Starts the ranks. Those that could be started before a failure are to be killed at once.
    async fn start(&self, launch: &str, port: u16, resume: &Resume) -> io::Result<Running> {
        let plan = self.plan(launch)?.clone();
        let (mut ranks, watch) = (Ranks::none(self.shared), Watch::new(&plan, self.shared, self.limits));
        let mut kill_at = None;
        if let Err(e) = ranks.start(self.shared, &plan, port, resume).await {
            let outcome = Outcome::of_error(&e);
            self.link.say(Up::Unable { launch: launch.to_owned(), outcome, message: e.to_string() });
            kill_at = Some(Instant::now());
        } else {
            (self.observer)(Event::LaunchStarted { launch: launch.to_owned(), kind: plan.kind });
        }
        Ok(Running {
            plan,
            ranks,
            watch,
            facts: Vec::new(),
            kill_at,
            dead_by: Instant::now() + DEATH,
            lost: false,
            complete: false,
            restarts: (0, Instant::now()),
        })
    }

    /// Judges the end of a rank and reports it to agent 0.
    async fn exited(&self, running: &mut Running, rank: u32, status: io::Result<ExitStatus>, told: Stop) {
        let end = running.ranks.judge(self.shared, &running.plan, rank, status).await;
        if !leaves_in_peace(end.outcome, told) {
            running.kill_after(self.limits.peer_grace);
        }
        running.facts.push(Fact::Rank(end.clone()));
        self.link.say(Up::RankEnded { launch: running.plan.launch.clone(), end });
    }

    /// Obeys a message of agent 0; `None`: it is lost.
    fn heed(&self, running: &mut Running, message: Option<Down>, told: &mut Stop) {
        match message {
            Some(Down::End { launch, hung }) if launch == running.plan.launch => {
                if hung {
                    running.watch.note_stuck(&running.ranks);
                }
                running.kill_after(if hung { Duration::ZERO } else { self.limits.peer_grace });
            }
            Some(Down::Complete { launch }) if launch == running.plan.launch => {
                running.ranks.complete();
                running.kill_after(self.limits.peer_grace);
            }
            Some(Down::Stop(stop)) => {
                *told = stop.max(*told);
                self.stop_ranks(running, *told);
            }
            Some(_) => {}
            None => {
                running.lost = true;
                running.facts.push(Fact::Lost(GONE.to_owned()));
                running.kill_after(self.limits.peer_grace);
            }
        }
    }

    /// Publishes progress, and reports a hang of rank 0.
    ///
    /// # Errors
    /// When a rank is still alive long after SIGKILL.
    fn look(&self, running: &mut Running) -> io::Result<()> {
        self.observe(running);
        self.look_for_restarts(running);
        self.obey(running);
        self.warn(running);
        let Running { plan, ranks, watch, .. } = running;
        if ranks.has(0)
            && running.kill_at.is_none()
            && let Some(message) = watch.hung()
        {
            if ranks.has_all() {
                // What it does after its last step is not part of the launch.
                if !std::mem::replace(&mut running.complete, true) {
                    tracing::info!(launch = plan.launch, "all steps were done; the script is ended, which goes on");
                    self.link.say(Up::Complete { launch: plan.launch.clone() });
                }
                return Ok(());
            }
            let unmatched = ranks.unmatched().map(|unmatched| format!("; {unmatched}")).unwrap_or_default();
            let message = format!("{message}{unmatched}; {}", watch.note_stuck(ranks));
            self.link.say(Up::Hung { launch: plan.launch.clone(), message });
            running.kill_at = Some(Instant::now());
        }
        if !ranks.is_killed() {
            running.dead_by = Instant::now() + DEATH;
        }
        if running.dead_by <= Instant::now() {
            return Err(io::Error::other(format!(
                "launch `{}`: a rank is still alive after SIGKILL: its node needs a reboot\n{}",
                plan.launch,
                ranks.whereabouts()
            )));
        }
        Ok(())
    }

    /// What a launcher such as `torchrun --max-restarts` has started again is no success: a measurement fails by it.
    fn look_for_restarts(&self, running: &mut Running) {
        let Running { plan, ranks, restarts: (known, looked), complete, .. } = running;
        let ends = !*complete && ranks.verdict() == Some(Verdict::Complete);
        if self.shared.script.is_none() || looked.elapsed() < RESTARTS && !ends {
            return;
        }
        *looked = Instant::now();
        let count = restarts_of(&self.shared.dir(&plan.launch).join("plan.json"));
        if count > std::mem::replace(known, count.max(*known))
            && let Some(message) = ranks.restarted(plan.kind, count)
        {
            (self.observer)(Event::Warning { launch: plan.launch.clone(), message });
        }
    }

    /// Ends a script that has done what the launch was for, or has failed by its losses.
    fn obey(&self, running: &mut Running) {
        match running.ranks.verdict() {
            Some(Verdict::Complete) if !running.complete => {
                running.complete = true;
                self.link.say(Up::Complete { launch: running.plan.launch.clone() });
            }
            Some(Verdict::Failed(..)) if !running.ranks.is_killed() => {
                running.ranks.kill();
                running.kill_at = Some(Instant::now());
            }
            _ => {}
        }
    }

    /// Says early that nothing is found in the output of a script: if it stays so, the launch ends as a hang much
    /// later.
    fn warn(&self, running: &Running) {
        let early = running.watch.started.elapsed() < self.limits.unmatched_after;
        if early || running.kill_at.is_some() {
            return;
        }
        if let Some(message) = running.ranks.unmatched()
            && !self.shared.warned.swap(true, Ordering::Relaxed)
        {
            (self.observer)(Event::Warning { launch: running.plan.launch.clone(), message });
        }
    }

    fn observe(&self, running: &mut Running) {
        running.ranks.publish(&self.shared.dir(&running.plan.launch));
        if let Some(progress) = running.watch.look() {
            running.ranks.follow(&running.plan, &progress);
            (self.observer)(Event::Progress(Box::new(progress)));
        }
    }

    /// Stops the ranks. Remaining ones are killed later. They get one SIGTERM: a script may take a second one for an
    /// order to end at once.
    fn stop_ranks(&self, running: &mut Running, stop: Stop) {
        match stop {
            Stop::No => {}
            Stop::Gracefully if running.ranks.is_terminated() => {}
            Stop::Gracefully => {
                running.ranks.terminate();
                running.kill_after(self.limits.stop_grace);
            }
            Stop::Now => {
                running.ranks.kill();
                running.kill_at = Some(Instant::now());
            }
        }
    }
}

/// Waits until `at`, or forever.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
