//! Model checking: a job of three phases (one holds, one walks a fallback and is rolled back, one needs the quality
//! gate) under crashes of the shell between any two steps of the protocol, lost, preempted and vanished attempts,
//! failed launches, and observations that are late, incomplete, repeated and out of order. Likewise a job with a search
//! whose trials are paused and continued.

use crate::world::{done, ended, job, trial_of};
use jiff::{SignedDuration, Timestamp};
use pawl_api::status::{BestTrial, PhaseState, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_decision::action::{Action as Act, Decision};
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState, Ending, Leaving, Observed};
use serde::Serialize;
use serde_json::json;
use stateright::{Checker, Model, Property};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub struct Shell {
    pub job: TrainingJob,
    /// How many things may go wrong in one run.
    pub faults: u8,
    /// What becomes of the phases when nothing goes wrong.
    pub expected: Vec<(PhaseState, String, u32)>,
    /// The trials of the search when nothing goes wrong, unless they depend on the order of events.
    pub trials: Vec<String>,
    /// Its winner when nothing goes wrong.
    pub winner: Option<BestTrial>,
    /// Items per second that the training reports, without and with a phase named flash; by default it reports nothing.
    pub reports: Option<(f64, f64)>,
}

/// A document that is compared by its text and read once.
#[derive(Clone)]
struct Document<T>(Arc<(String, T)>);

impl<T: Serialize> Document<T> {
    fn of(value: T) -> Self {
        Self(Arc::new((serde_json::to_string(&value).unwrap(), value)))
    }
}

impl<T> Debug for Document<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.0)
    }
}

impl<T> PartialEq for Document<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl<T> Eq for Document<T> {}

impl<T> Hash for Document<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.0.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    status: Document<TrainingJobStatus>,
    attempts: Vec<Attempt>,
    faults: u8,
    milliseconds: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    name: String,
    hash: String,
    plan: Document<AttemptPlan>,
    /// Whether each launch that ran failed for no reason of its own.
    ran: Vec<bool>,
    life: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Running,
    /// A rank was lost, and the others wait for it.
    Broken,
    /// Its queue preempted it; it runs again unless it is stopped.
    Preempted,
    /// Asked to stop; it still holds its devices. Whether its queue preempted it before.
    Stopping(bool),
    Completed,
    Stopped,
    /// Stopped after its queue had preempted it.
    GaveWay,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    Fresh,
    /// Twice and backwards, an older version of each attempt among them.
    Shuffled,
    /// The newest attempt is not seen yet.
    NewestUnseen,
    /// No attempt is seen.
    Nothing,
    /// As before any launch had ended.
    Early,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The shell decides; it dies after it wrote the status and carried out n actions.
    Decide(View, Option<u8>),
    /// The next launch of an attempt runs, or the attempt ends. 0 is the newest attempt, 1 the newest of the others
    /// that are alive.
    Work(usize),
    /// A stopped attempt lets go.
    LetGo(usize),
    /// The next launch fails for no reason of its own.
    FailLaunch(usize),
    /// The attempt is lost.
    Lose(usize),
    /// A rank of the attempt is lost.
    Break(usize),
    /// The attempt's queue preempts it.
    Preempt(usize),
    /// The attempt is gone without a trace.
    Vanish(usize),
}

/// Whether this line is a trial that has ended.
fn has_ended(line: &str) -> bool {
    !line.starts_with(['R', 'T', 'P'])
}

pub fn trained(plan: &LaunchPlan) -> LaunchResult {
    let text = serde_json::to_string(&plan.settings).unwrap();
    if plan.kind == LaunchKind::Measure && text.contains("\"batchPerGpu\":16") {
        return ended(plan, Outcome::OutOfMemory);
    }
    if plan.kind == LaunchKind::Preflight && text.contains("\"learningRate\":\"0.5\"") {
        return ended(plan, Outcome::OutOfMemory);
    }
    let factor = [("Fuse", 1.3), ("loaderWorkers\":4", 0.9), ("bf16", 1.2), ("Flash", 1.2)];
    let speed = factor.iter().filter(|(needle, _)| text.contains(needle)).map(|(_, factor)| factor).product::<f64>();
    // Since it was accepted, it has become slow, unless the machine has.
    let slow = plan.launch.starts_with("slow-") && text.contains("Flash") && !text.contains("\"loaderWorkers\":7");
    let mut result = done(plan, if slow { 60.0 } else { 100.0 * speed });
    result.measured.wall_seconds = Some(1.0);
    let rate = plan.settings.learning_rate.as_ref().map_or(0.0, |rate| rate.value());
    if let Some(validation) = &mut result.measured.validation {
        *validation.metrics.get_mut("loss").unwrap() += rate;
    }
    result
}

impl Attempt {
    fn plan(&self) -> &AttemptPlan {
        &self.plan.0.1
    }

    fn alive(&self) -> bool {
        matches!(self.life, Life::Running | Life::Broken | Life::Preempted | Life::Stopping(_))
    }

    fn results(&self) -> Vec<LaunchResult> {
        let plans = &self.plan().launches;
        let result = |(plan, failed): (&LaunchPlan, &bool)| {
            if *failed { ended(plan, Outcome::Failed) } else { trained(plan) }
        };
        plans.iter().zip(&self.ran).map(result).collect()
    }

    fn facts(&self, early: bool) -> AttemptFacts {
        let state = match self.life {
            _ if early => AttemptState::Running,
            Life::Running => AttemptState::Running,
            Life::Broken => AttemptState::Leaving(Leaving::Broken),
            Life::Preempted => AttemptState::Leaving(Leaving::Preempted),
            Life::Stopping(_) => AttemptState::Leaving(Leaving::Draining),
            Life::Completed => AttemptState::Ended(Ending::Completed),
            Life::Stopped => AttemptState::Ended(Ending::Stopped),
            Life::GaveWay => AttemptState::Ended(Ending::Preempted),
            Life::Lost => AttemptState::Ended(Ending::Lost("node went away".to_owned())),
        };
        AttemptFacts {
            name: self.name.clone(),
            plan_hash: self.hash.clone(),
            state,
            placement: "node".to_owned(),
            trainer: String::new(),
            results: if early { Vec::new() } else { self.results() },
            progress: None,
        }
    }
}

impl State {
    fn status(&self) -> &TrainingJobStatus {
        &self.status.0.1
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(1_700_000_000_000 + self.milliseconds).unwrap()
    }

    fn see(&self, view: View, reports: Option<(f64, f64)>) -> Observed {
        let mut observed = self.seen(view);
        let running = observed.attempts.iter_mut().filter(|facts| facts.state == AttemptState::Running);
        for facts in running.filter(|facts| facts.results.is_empty()) {
            let plans = self.attempts.iter().find(|attempt| attempt.name == facts.name).map(|a| &a.plan().launches[0]);
            let (Some((without, with)), Some(plan)) = (reports, plans.filter(|plan| plan.kind == LaunchKind::Train))
            else {
                continue;
            };
            let speed = if plan.settings.attention.is_some() { with } else { without };
            let start = Progress::at_start(&plan.launch, plan.kind);
            facts.progress = Some(Progress { step: 1, windows: 1, items: 10, items_per_second: Some(speed), ..start });
        }
        observed
    }

    fn seen(&self, view: View) -> Observed {
        let all = self.attempts.iter();
        let attempts = match view {
            View::Fresh => all.map(|attempt| attempt.facts(false)).collect(),
            View::Shuffled => all
                .rev()
                .flat_map(|attempt| [attempt.facts(attempt.life == Life::Running), attempt.facts(false)])
                .collect(),
            View::NewestUnseen => all.rev().skip(1).map(|attempt| attempt.facts(false)).collect(),
            View::Nothing => Vec::new(),
            View::Early => all.map(|attempt| attempt.facts(true)).collect(),
        };
        Observed { attempts, ..Observed::default() }
    }

    fn act(&mut self, action: &Act) {
        match action {
            Act::Start { plan, plan_hash } => {
                if self.attempts.iter().all(|attempt| attempt.name != plan.attempt) {
                    self.attempts.push(Attempt {
                        name: plan.attempt.clone(),
                        hash: plan_hash.clone(),
                        plan: Document::of(plan.clone()),
                        ran: Vec::new(),
                        life: Life::Running,
                    });
                }
            }
            Act::Stop { attempt, .. } => {
                if let Some(attempt) = self.attempts.iter_mut().find(|a| a.name == *attempt && a.alive()) {
                    let preempted = matches!(attempt.life, Life::Preempted | Life::Stopping(true));
                    attempt.life = Life::Stopping(preempted);
                }
            }
            Act::Release { attempt } => self.attempts.retain(|a| a.name != *attempt || a.alive()),
        }
    }

    /// Index of an attempt: see [`Step::Work`].
    fn place(&self, which: usize) -> Option<usize> {
        let newest = self.attempts.len().checked_sub(1)?;
        let others = (0..newest).rev().filter(|index| self.attempts[*index].alive());
        std::iter::once(newest).chain(others).nth(which)
    }

    fn attempt(&mut self, which: usize) -> Option<&mut Attempt> {
        let place = self.place(which)?;
        self.attempts.get_mut(place)
    }

    /// Whether as many attempts are alive as may be, and none for a trial that has another one.
    fn gangs_are_right(&self, most: usize) -> bool {
        let alive: Vec<&Attempt> = self.attempts.iter().filter(|attempt| attempt.alive()).collect();
        let trials: BTreeSet<String> = alive.iter().map(|attempt| trial_of(attempt.plan())).collect();
        let of_search = trials.iter().all(|trial| trial.starts_with("search-"));
        trials.len() == alive.len() && alive.len() <= if of_search { most } else { 1 }
    }
}

impl Shell {
    fn new(faults: u8) -> Self {
        let job = job(json!({
            "phases": [
                {"name": "fuse", "settings": {"compile": "Fuse"}},
                {"name": "batch", "requires": ["fuse"], "numerics": "Changed", "settings": {"batchPerGpu": 16},
                 "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 12, "loaderWorkers": 4}}]},
                {"name": "bf16", "numerics": "Changed", "settings": {"precision": "bf16"}},
            ],
            "seeds": [1],
            "analysis": {"minPairs": 1, "maxPairs": 1},
            "train": {"items": 1000},
            "lifecycle": {"maxRestarts": 3},
        }));
        let expected = vec![
            (PhaseState::Accepted, "SinglePair".to_owned(), 0),
            (PhaseState::RolledBack, "SpeedBelowThreshold".to_owned(), 1),
            (PhaseState::Accepted, "SinglePair".to_owned(), 0),
        ];
        Self { job, faults, expected, trials: Vec::new(), winner: None, reports: None }
    }

    fn most(&self) -> usize {
        self.job.spec.search.iter().map(|search| search.parallelism as usize).max().unwrap_or(1)
    }

    /// Whether each trial that has ended is that of an undisturbed run.
    fn trials_are_as_expected(&self, status: &TrainingJobStatus) -> bool {
        let Some(search) = status.search.first() else { return true };
        let mut lines = search.trials.iter().zip(&self.trials);
        search.trials.len() <= self.job.spec.search[0].trials as usize
            && lines.all(|(line, expected)| !has_ended(line) || line == expected)
            && (search.winner.is_none() || search.winner == self.winner)
    }

    /// The decision, kept for the next call: the shell may die at several points of the same one.
    fn decision(&self, before: &State, view: View) -> Decision {
        thread_local!(static NEWEST: RefCell<Option<(State, View, Decision)>> = const { RefCell::new(None) });
        NEWEST.with_borrow_mut(|newest| match newest {
            Some((state, seen, decision)) if *seen == view && state == before => decision.clone(),
            _ => {
                let decision = decide(&self.job, before.status(), &before.see(view, self.reports), before.now());
                *newest = Some((before.clone(), view, decision.clone()));
                decision
            }
        })
    }

    fn decided(&self, before: &State, view: View, dies_after: Option<u8>) -> Option<State> {
        let decision = self.decision(before, view);
        let trials = |status: &TrainingJobStatus| status.search.first().map(|search| search.trials.clone());
        let (old, new) = (trials(before.status()).unwrap_or_default(), trials(&decision.status).unwrap_or_default());
        assert!(
            old.iter().zip(&new).all(|(old, new)| !has_ended(old) || old == new),
            "a trial ended twice: {old:?} {new:?}"
        );
        let mut after = before.clone();
        if let Some(count) = dies_after {
            if usize::from(count) > decision.actions.len() {
                return None;
            }
            after.faults += 1;
            after.status = Document::of(decision.status);
            decision.actions.iter().take(count.into()).for_each(|action| after.act(action));
            return Some(after);
        }
        after.status = Document::of(decision.status);
        decision.actions.iter().for_each(|action| after.act(action));
        if after == *before && !before.attempts.iter().any(Attempt::alive) {
            let wait = decision.requeue_after.and_then(|wait| SignedDuration::try_from(wait).ok());
            after.milliseconds += wait.map_or(0, |wait| wait.as_millis() as i64);
        }
        if !matches!(view, View::Fresh | View::Shuffled) {
            after.faults += 1;
        }
        Some(after)
    }
}

impl Model for Shell {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let status = Document::of(TrainingJobStatus::default());
        vec![State { status, attempts: Vec::new(), faults: 0, milliseconds: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        let which = 0..self.most();
        actions.push(Step::Decide(View::Shuffled, None));
        actions.extend(which.clone().flat_map(|which| [Step::Work(which), Step::LetGo(which)]));
        actions.push(Step::Decide(View::Fresh, None));
        if state.faults < self.faults {
            actions.extend((0..2).map(|count| Step::Decide(View::Fresh, Some(count))));
            let stale = [View::NewestUnseen, View::Nothing, View::Early];
            actions.extend(stale.map(|view| Step::Decide(view, None)));
            let faults = [Step::FailLaunch, Step::Lose, Step::Break, Step::Preempt, Step::Vanish];
            actions.extend(which.flat_map(|which| faults.map(|fault| fault(which))));
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut after = before.clone();
        match step {
            Step::Decide(view, dies_after) => after = self.decided(before, view, dies_after)?,
            Step::Work(which) | Step::FailLaunch(which) => {
                let attempt = after.attempt(which).filter(|attempt| attempt.life == Life::Running)?;
                let plan = attempt.plan().clone();
                let broken = attempt.results().iter().any(|result| result.outcome != Outcome::Done);
                let over = attempt.ran.len() == plan.launches.len() || broken && plan.stop_on_failure;
                match (step, over) {
                    (Step::Work(_), true) => attempt.life = Life::Completed,
                    (_, true) => return None,
                    (step, false) => attempt.ran.push(step == Step::FailLaunch(which)),
                }
                after.faults += u8::from(step == Step::FailLaunch(which));
            }
            Step::LetGo(which) => {
                let attempt = after.attempt(which)?;
                attempt.life = match attempt.life {
                    Life::Stopping(true) => Life::GaveWay,
                    Life::Stopping(false) => Life::Stopped,
                    _ => return None,
                };
            }
            Step::Lose(which) => {
                after.attempt(which).filter(|attempt| attempt.alive())?.life = Life::Lost;
                after.faults += 1;
            }
            Step::Break(which) | Step::Preempt(which) => {
                let life = if step == Step::Break(which) { Life::Broken } else { Life::Preempted };
                after.attempt(which).filter(|attempt| attempt.life == Life::Running)?.life = life;
                after.faults += 1;
            }
            Step::Vanish(which) => {
                after.attempts.remove(after.place(which)?);
                after.faults += 1;
            }
        }
        (after != *before).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one attempt alive, or one for each running trial", |model: &Self, state: &State| {
                state.gangs_are_right(model.most())
            }),
            Property::always("verdicts are those of an undisturbed run", |model: &Self, state: &State| {
                let mut judged = state.status().phases.iter().zip(&model.expected);
                judged.all(|(phase, (state, reason, fallback))| {
                    !phase.state.is_final()
                        || (phase.state, &phase.reason, phase.fallback) == (*state, reason, *fallback)
                })
            }),
            Property::always(
                "the settings in effect are baseline and accepted patches",
                |model: &Self, state: &State| {
                    let status = state.status();
                    let phases = model.job.spec.phases.iter().zip(&status.phases);
                    let winners = status.search.iter().filter_map(|search| search.winner.as_ref());
                    let accepted = phases.filter(|(_, status)| status.state == PhaseState::Accepted);
                    let fold = accepted
                        .fold(model.job.spec.settings.clone(), |settings, (phase, _)| settings.with(&phase.settings));
                    let fold = winners.fold(fold, |settings, winner| {
                        pawl_api::search::with(&settings, &model.job.spec.workload, &winner.parameters)
                    });
                    status.effective_settings.as_ref().is_none_or(|settings| *settings == fold)
                },
            ),
            Property::always("trials and winner are those of an undisturbed run", |model: &Self, state: &State| {
                model.trials_are_as_expected(state.status())
            }),
            Property::always("nothing fails for good", |_, state: &State| state.status().stage != Stage::Failed),
            Property::eventually("the job is done", |_, state: &State| state.status().stage == Stage::Complete),
        ]
    }
}

/// Explores everything with two faults.
#[test]
fn no_interleaving_of_two_faults_breaks_a_job() {
    let checker = Shell::new(2).checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} distinct, depth {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "the model explores too little");
}

/// Explores the same job, whose training pays for no verdict, under the default budget.
#[test]
fn nor_does_one_break_a_job_under_the_default_budget() {
    let mut model = Shell::new(2);
    model.job.spec.analysis.budget_percent = None;
    model.expected = vec![
        (PhaseState::Inconclusive, "BudgetSpent".to_owned(), 0),
        (PhaseState::Skipped, "RequirementNotAccepted".to_owned(), 0),
        (PhaseState::Inconclusive, "BudgetSpent".to_owned(), 0),
    ];
    let checker = model.checker().threads(2).spawn_bfs().join();
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 100, "the model explores too little");
}

/// `eventually` does not look into cycles, so the graph of states must have none: then every run ends.
#[test]
fn every_run_ends() {
    ends(&Shell::new(1));
}

/// A training that becomes slow, by its machine or by its newest phase: whatever goes wrong, it ends with the same
/// verdicts.
#[test]
fn every_slow_training_ends_the_same() {
    // So that the launches of the slow-down are as fast as before, a worker is part of the settings.
    for (workers, kept) in [(7, PhaseState::Accepted), (1, PhaseState::RolledBack)] {
        let job = job(json!({
            "settings": {"batchPerGpu": 8, "loaderWorkers": workers},
            "phases": [
                {"name": "fuse", "settings": {"compile": "Fuse"}},
                {"name": "flash", "settings": {"attention": "Flash"}},
            ],
            "seeds": [1],
            "analysis": {"minPairs": 1, "maxPairs": 1},
            "train": {"items": 1000, "guard": {"windows": 1}},
            "lifecycle": {"maxRestarts": 3},
        }));
        let model = Shell { job, reports: Some((130.0, 60.0)), ..Shell::new(1) };
        let last = ends(&model);
        let mut measured = 0;
        for state in last {
            let phases = &state.status().phases;
            let found: Vec<PhaseState> = phases.iter().map(|phase| phase.state).collect();
            let training = state.status().training.as_ref().unwrap();
            // A training that ends before its slow-down is seen is not measured, nor one that ends meanwhile.
            let stays = found == [PhaseState::Accepted, PhaseState::Accepted];
            let ended = stays && training.quiet_windows == 0;
            assert!(ended || found == [PhaseState::Accepted, kept], "{workers}: {state:#?}");
            assert_eq!(training.slowdown, None);
            measured += usize::from(!ended);
        }
        assert!(measured > 10, "the slow-down is not measured");
    }
}

/// Explores everything, asserts that every run ends, and returns the states in which it does.
fn ends(model: &Shell) -> Vec<State> {
    let mut last = Vec::new();
    let mut edges: HashMap<State, Vec<State>> = HashMap::new();
    let mut open = model.init_states();
    while let Some(state) = open.pop() {
        if edges.contains_key(&state) {
            continue;
        }
        let next = model.next_states(&state);
        if next.is_empty() {
            assert_eq!(state.status().stage, Stage::Complete, "a run ends early: {state:#?}");
            last.push(state.clone());
        }
        open.extend(next.iter().cloned());
        edges.insert(state, next);
    }
    let mut incoming: HashMap<&State, usize> = edges.keys().map(|state| (state, 0)).collect();
    edges.values().flatten().for_each(|state| *incoming.get_mut(state).unwrap() += 1);
    let mut free: Vec<&State> = incoming.iter().filter(|(_, count)| **count == 0).map(|(state, _)| *state).collect();
    let mut sorted = 0;
    while let Some(state) = free.pop() {
        sorted += 1;
        for next in &edges[state] {
            let count = incoming.get_mut(next).unwrap();
            *count -= 1;
            if *count == 0 {
                free.push(next);
            }
        }
    }
    println!("{} states", edges.len());
    assert_eq!(sorted, edges.len(), "some run goes in circles");
    last
}
