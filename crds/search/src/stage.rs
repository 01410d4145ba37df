//! A stage of a search: what to do next, given the trials so far.
//!
//! # Trials that run at the same time
//! With scheduler [`Scheduler::None`], the points of all trials and their number are a function of the results alone,
//! in whatever order the trials end: trial n learns from the trials up to n - `parallelism`, and waits until these have
//! ended; those in between count as running, whether they have ended or not. The cost: one trial that takes long holds
//! back those that come `parallelism` later, until it takes so much longer than the others did that it is [`Late`].
//! Then the points depend on when that was.
//!
//! Schedulers are asynchronous: which trials are promoted or stopped, and with TPE and GP the points, depend on the
//! results that are known when room becomes free. Points of the other samplers are functions of the trial's number
//! alone.

use crate::history::{Loss, State, Trial, observations};
use crate::sampler::{Sampler, Study};
use crate::scheduler::{Decision, Scheduler};
use crate::space::{Problem, problem};

/// A stage of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Space, sampler and objectives.
    pub study: Study,
    /// When trials end early.
    pub scheduler: Scheduler,
    /// Amount of training of a complete trial, in epochs or another unit.
    pub full: u32,
    /// Number of trials.
    pub trials: u32,
    /// Number of trials that run at the same time.
    pub parallelism: u32,
    /// What the stage may spend.
    pub budget: Budget,
    /// Number of ended trials without a better one after which no further trial starts.
    pub patience: Option<u32>,
}

/// Limits of a stage, beside its number of trials; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// GPU hours.
    pub gpu_hours: Option<f64>,
    /// Money, in the currency of the job.
    pub cost: Option<f64>,
    /// Hours since the stage began.
    pub hours: Option<f64>,
}

/// What a stage has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// GPU hours.
    pub gpu_hours: f64,
    /// Money.
    pub cost: f64,
    /// Hours since the stage began.
    pub hours: f64,
}

/// Trials that take longer than others do: they hold nothing back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late<'a> {
    /// Numbers of those that later trials no longer wait for.
    pub overdue: &'a [u32],
    /// Numbers of those that the end of the stage does not wait for.
    pub lost: &'a [u32],
}

/// Why a stage is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All trials ended.
    Finished,
    /// The space has no further point.
    Exhausted,
    /// No better trial for as long as `patience` says.
    NoImprovement,
    /// A limit of the budget was reached.
    BudgetSpent,
}

/// A step of a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Begin a trial.
    Start(Trial),
    /// Train a paused trial up to `target`, from its checkpoint.
    Resume {
        /// Number of the trial.
        number: u32,
        /// New target.
        target: u32,
    },
    /// Let a running trial run on up to `target`.
    Extend {
        /// Number of the trial.
        number: u32,
        /// New target.
        target: u32,
    },
    /// Let a running trial save a checkpoint and end.
    Pause(u32),
    /// End a trial.
    Stop(u32),
    /// A trial is complete: its values are final.
    Complete(u32),
    /// The stage is over: its only action then.
    Finish(Ending),
}

impl Stage {
    /// All errors of the stage.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = self.study.validate();
        problems.extend(self.scheduler.validate(self.full));
        for (field, value) in [("trials", self.trials), ("parallelism", self.parallelism)] {
            if value == 0 {
                problems.push(problem(field, value, "is not positive", "use at least 1"));
            }
        }
        if self.trials > 0 && self.parallelism > self.trials {
            let message = format!("is greater than the number of trials, {}", self.trials);
            problems.push(problem("parallelism", self.parallelism, &message, "use at most as many as trials"));
        }
        if self.patience == Some(0) {
            problems.push(problem("patience", 0, "is not positive", "use at least 1, or remove it"));
        }
        let Budget { gpu_hours, cost, hours } = self.budget;
        for (field, limit) in [("budget.gpuHours", gpu_hours), ("budget.cost", cost), ("budget.hours", hours)] {
            if let Some(limit) = limit
                && !(limit > 0.0 && limit.is_finite())
            {
                problems.push(problem(field, limit, "is not positive", "use a positive limit, or remove it"));
            }
        }
        if self.scheduler != Scheduler::None && self.study.goals.len() > 1 {
            let remedy = "use scheduler None, or one objective";
            let count = self.study.goals.len();
            problems.push(problem("objectives", count, "cannot be compared early by a scheduler", remedy));
        }
        problems
    }

    /// The next actions: a function of the set of trials and of what was spent. An action is repeated until `trials`
    /// shows its effect (see [`Action::apply`]), so that an action that was lost is carried out later, and none twice.
    pub fn next(&self, trials: &[Trial], spent: &Spent) -> Vec<Action> {
        self.next_beside(trials, spent, &Late::default())
    }

    /// As [`Stage::next`], where some trials are late.
    pub fn next_beside(&self, trials: &[Trial], spent: &Spent, late: &Late<'_>) -> Vec<Action> {
        if self.budget.reached(spent) {
            return self.end(trials, Ending::BudgetSpent);
        }
        let started = trials.len() as u32;
        let stale = self.settled(trials, started, late).is_some_and(|settled| self.stale(&settled));
        let mut closing = stale || started >= self.trials;
        let mut actions = self.scheduled(trials, closing);
        let mut exhausted = false;
        if !closing {
            exhausted = self.start(trials, late, &mut actions);
            // Nothing starts any more: promotions are decided again, now for the last trials.
            closing = exhausted;
            if closing && actions.is_empty() {
                actions = self.scheduled(trials, true);
            }
        }
        let mut open = trials.iter().filter(|trial| !trial.ended()).peekable();
        if closing && actions.is_empty() && open.peek().is_some() {
            let lost = |trial: &Trial| late.lost.contains(&trial.number);
            let open: Vec<&Trial> = open.collect();
            // Paused ones wait for the running ones.
            if open.iter().all(|trial| trial.state == State::Running && lost(trial)) {
                actions.extend(open.into_iter().map(|trial| Action::Stop(trial.number)));
            }
        } else if closing && actions.is_empty() {
            let ending = if exhausted {
                Ending::Exhausted
            } else if stale {
                Ending::NoImprovement
            } else {
                Ending::Finished
            };
            actions.push(Action::Finish(ending));
        }
        actions
    }

    /// What the scheduler decides; promotions only while there is room for them.
    fn scheduled(&self, trials: &[Trial], closing: bool) -> Vec<Action> {
        let Some(goal) = self.study.goals.first() else { return Vec::new() };
        let decisions = self.scheduler.decide(trials, *goal, self.full, closing);
        let state = |number: &u32| trials.iter().find(|trial| trial.number == *number).map(|trial| trial.state);
        let (mut actions, mut promoted) = (Vec::new(), Vec::new());
        for (number, decision) in decisions {
            match decision {
                Decision::Continue => {}
                Decision::Promote(target) if state(&number) == Some(State::Running) => {
                    actions.push(Action::Extend { number, target });
                }
                Decision::Promote(target) => promoted.push((number, target)),
                Decision::Pause => actions.push(Action::Pause(number)),
                Decision::Stop => actions.push(Action::Stop(number)),
                Decision::Complete => actions.push(Action::Complete(number)),
            }
        }
        // The trials that were trained most first: a promotion there is nearest to a final value.
        promoted.sort_by_key(|(number, target)| (std::cmp::Reverse(*target), *number));
        // A trial that ends in this same step still counts: its end may be carried out late.
        let room = self.parallelism.saturating_sub(running(trials)) as usize;
        actions.extend(promoted.into_iter().take(room).map(|(number, target)| Action::Resume { number, target }));
        actions
    }

    /// Fills the room that the resumed trials leave with new ones; returns whether the space has no further point.
    fn start(&self, trials: &[Trial], late: &Late<'_>, actions: &mut Vec<Action>) -> bool {
        let resumed = actions.iter().filter(|action| matches!(action, Action::Resume { .. })).count() as u32;
        let room = self.parallelism.saturating_sub(running(trials) + resumed).min(self.trials - trials.len() as u32);
        let mut known = trials.to_vec();
        for _ in 0..room {
            let number = known.iter().map(|trial| trial.number + 1).max().unwrap_or(0);
            let Some(settled) = self.settled(&known, number, late).filter(|settled| !self.stale(settled)) else {
                return false;
            };
            let Some(point) = self.study.propose(&settled, number) else { return true };
            let trial = Trial::new(number, point, self.scheduler.first_target(number, self.full));
            known.push(trial.clone());
            actions.push(Action::Start(trial));
        }
        false
    }

    /// What is known when trial `number` starts; `None` if a trial has yet to end before it does. One that is overdue
    /// counts as running, like those that began after it.
    fn settled(&self, trials: &[Trial], number: u32, late: &Late<'_>) -> Option<Vec<Trial>> {
        let learns = matches!(self.study.sampler, Sampler::Tpe | Sampler::Gp) || self.patience.is_some();
        if self.scheduler != Scheduler::None || !learns {
            return Some(trials.to_vec());
        }
        let open = number.saturating_sub(self.parallelism.saturating_sub(1));
        let settled = |trial: &Trial| match trial.number < open {
            true if !late.overdue.contains(&trial.number) => trial.ended().then(|| trial.clone()),
            _ => Some(Trial::new(trial.number, trial.point.clone(), trial.target)),
        };
        trials.iter().map(settled).collect()
    }

    /// Stops all trials, then finishes.
    fn end(&self, trials: &[Trial], ending: Ending) -> Vec<Action> {
        let open: Vec<Action> = trials.iter().filter(|t| !t.ended()).map(|trial| Action::Stop(trial.number)).collect();
        if open.is_empty() { vec![Action::Finish(ending)] } else { open }
    }

    /// Whether the newest ended trials, as many as `patience`, are none better than those before.
    fn stale(&self, trials: &[Trial]) -> bool {
        let Some(patience) = self.patience else { return false };
        let ended: Vec<Trial> = trials.iter().filter(|trial| trial.ended()).cloned().collect();
        let losses: Vec<f64> = observations(&ended, &self.study.goals)
            .into_iter()
            .map(|observation| if let Loss::Final(loss) = observation.loss { loss } else { f64::INFINITY })
            .collect();
        let mut best = (f64::INFINITY, 0);
        for (index, loss) in losses.iter().enumerate() {
            if *loss < best.0 {
                best = (*loss, index);
            }
        }
        best.0.is_finite() && losses.len() - 1 - best.1 >= patience as usize
    }
}

impl Budget {
    /// Whether a limit is reached.
    pub fn reached(&self, spent: &Spent) -> bool {
        let over = |limit: Option<f64>, spent: f64| limit.is_some_and(|limit| spent >= limit);
        over(self.gpu_hours, spent.gpu_hours) || over(self.cost, spent.cost) || over(self.hours, spent.hours)
    }
}

impl Action {
    /// Records the action in the history. The final values of a complete trial are those that it already has, or else
    /// the newest report of the only objective.
    pub fn apply(&self, trials: &mut Vec<Trial>) {
        if let Self::Start(trial) = self {
            trials.push(trial.clone());
            return;
        }
        let (number, state) = match self {
            Self::Resume { number, .. } | Self::Extend { number, .. } => (*number, State::Running),
            Self::Pause(number) => (*number, State::Paused),
            Self::Stop(number) => (*number, State::Stopped),
            Self::Complete(number) => (*number, State::Complete),
            Self::Start(_) | Self::Finish(_) => return,
        };
        let Some(trial) = trials.iter_mut().find(|trial| trial.number == number) else { return };
        trial.state = state;
        if let Self::Resume { target, .. } | Self::Extend { target, .. } = self {
            trial.target = *target;
        }
        if state == State::Complete && trial.values.is_empty() {
            trial.values.extend(trial.newest().map(|report| report.value));
        }
    }
}

fn running(trials: &[Trial]) -> u32 {
    trials.iter().filter(|trial| trial.state == State::Running).count() as u32
}
