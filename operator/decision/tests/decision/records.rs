//! Random histories of a training and its storage: edits, kills at any write, damaged checkpoints, an empty or another
//! storage, clocks that jump, gangs that are taken for dead. The record in the status and the model must agree.
//!
//! Each history is a seed. A failure prints it, and what had happened; `PAWL_HISTORY=SEED` repeats one.
//! `PAWL_HISTORIES=COUNT` tries others than the usual number.

use crate::storage::{Gang, Random, STEP, Storage, advance, diverge, edit, save};
use crate::world::{World, done, ended, noise};
use jiff::SignedDuration;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::{AttemptState, Ending};
use serde_json::json;

/// Histories that are tried: a few seconds.
const HISTORIES: u64 = 3_000;
/// Rounds after which a history must have come to an end.
const LONGEST: usize = 3_000;

struct History {
    seed: u64,
    random: Random,
    world: World,
    storage: Storage,
    /// The right storage, while another one is mounted.
    unmounted: Option<Storage>,
    /// The gang that the job knows.
    gang: Option<Gang>,
    /// Gangs that were taken for dead and still run.
    cut_off: Vec<Gang>,
    said: Vec<String>,
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("PAWL_HISTORY={}\n{}", self.seed, self.said.join("\n"));
            println!("{:#?}\n{:#?}", self.world.status.training, self.storage);
        }
    }
}

impl History {
    fn new(seed: u64) -> Self {
        let spec = json!({
            "settings": {"batchPerGpu": STEP, "learningRate": "0.1"}, "workload": {"name": "ups", "config": {"loss": "mse"}},
            "seeds": [1], "train": {"items": 800}, "lifecycle": {"maxRestarts": 100},
        });
        let mut world = World::new(spec, Box::new(|plan, _| done(plan, 100.0 * noise(plan, 0.002))));
        world.job.metadata.generation = Some(1);
        Self {
            seed,
            random: Random::new(seed),
            world,
            storage: Storage::default(),
            unmounted: None,
            gang: None,
            cut_off: Vec::new(),
            said: Vec::new(),
        }
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    /// Decides, and starts the ranks of a training that was started.
    fn decide(&mut self) -> bool {
        let moved = self.world.decide();
        self.storage.seen(&self.world.status);
        let alive = |name: &str| self.world.alive().iter().any(|attempt| attempt.facts.name == name);
        if self.gang.as_ref().is_some_and(|gang| !alive(&gang.attempt)) {
            // Stopped: it has written what it had.
            if let Some(mut gang) = self.gang.take() {
                self.said.push(format!("stopped {}", gang.attempt));
                save(&mut self.storage, &mut gang);
            }
        }
        moved
    }

    /// The next step of whatever runs. `false` when nothing does.
    fn work(&mut self) -> bool {
        if self.gang.is_some() {
            self.train(true);
            return true;
        }
        let next = self.world.attempts.values().find_map(|attempt| {
            let running = attempt.facts.state == AttemptState::Running;
            let plan = attempt.plan.launches.get(attempt.facts.results.len()).filter(|_| running)?;
            (plan.kind == LaunchKind::Train).then(|| (attempt.facts.name.clone(), plan.clone()))
        });
        match next {
            Some((attempt, plan)) => {
                self.launch(attempt, plan);
                true
            }
            None => self.world.work(),
        }
    }

    /// A gang starts.
    fn launch(&mut self, attempt: String, plan: LaunchPlan) {
        match Gang::start(&mut self.storage, attempt.clone(), plan.clone()) {
            Ok(gang) => {
                let rate = plan.settings.flat().get("learningRate").cloned();
                self.say(format!("{attempt} begins at {} with {rate:?}", gang.items));
                self.gang = Some(gang);
            }
            Err(result) => {
                self.say(format!("{attempt}: {} {}", result.outcome, result.message));
                self.end(&attempt, *result);
            }
        }
    }

    /// The launch of an attempt has ended.
    fn end(&mut self, attempt: &str, result: LaunchResult) {
        let attempt = self.world.attempts.get_mut(attempt).expect("it runs");
        attempt.facts.results.push(result);
        attempt.facts.progress = None;
        attempt.facts.state = AttemptState::Ended(Ending::Completed);
    }

    /// The gang trains some steps and saves; `seen`: the job sees how far it is.
    fn train(&mut self, seen: bool) {
        let steps = 5 + self.below(20);
        let Some(mut gang) = self.gang.take() else { return };
        advance(&mut gang, steps);
        let saved = save(&mut self.storage, &mut gang);
        if gang.is_done() {
            let done = LaunchResult { message: String::new(), ..ended(&gang.plan, Outcome::Done) };
            let result = gang.report(&self.storage, done);
            self.say(format!("{} is done at {}", gang.attempt, gang.items));
            return self.end(&gang.attempt, result);
        }
        if saved && seen {
            let attempt = self.world.attempts.get_mut(&gang.attempt).expect("it runs");
            attempt.facts.progress = Some(gang.progress(&self.storage));
        }
        self.gang = Some(gang);
    }

    /// What may happen at any time.
    fn happen(&mut self) {
        match self.below(20) {
            0..=5 => self.train(true),
            6 => self.train(false),
            7 => self.kill(),
            8 => self.partition(),
            9 => self.diverge(),
            10 => self.damage(),
            11 => self.mount(),
            12 => {
                let hours = self.below(48) as i64 - 24;
                self.say(format!("the clock jumps by {hours} h"));
                self.world.now = self.world.now.checked_add(SignedDuration::from_hours(hours)).unwrap();
            }
            13 => self.cut_off_writes(),
            14..=16 => self.edit(),
            _ => {
                self.decide();
            }
        }
    }

    /// The gang is lost, with what it had not saved.
    fn kill(&mut self) {
        let steps = self.below(10);
        let Some(mut gang) = self.gang.take() else { return };
        // Whether it was killed before, or after, a write that nobody saw.
        advance(&mut gang, steps);
        let saved = self.below(2) == 0 && save(&mut self.storage, &mut gang);
        self.say(format!("{} is killed at {}{}", gang.attempt, gang.items, if saved { ", saved" } else { "" }));
        self.world.end(&gang.attempt, Ending::Lost("killed".to_owned()));
    }

    /// The gang is taken for dead.
    fn partition(&mut self) {
        let Some(gang) = self.gang.take() else { return };
        self.say(format!("{} is cut off at {}", gang.attempt, gang.items));
        self.world.end(&gang.attempt, Ending::Disrupted("its node does not answer".to_owned()));
        self.cut_off.push(gang);
    }

    fn cut_off_writes(&mut self) {
        let steps = self.below(20);
        for mut gang in std::mem::take(&mut self.cut_off) {
            advance(&mut gang, steps);
            let saved = save(&mut self.storage, &mut gang);
            self.say(format!("{}, which was cut off, is at {}, saved: {saved}", gang.attempt, gang.items));
            self.cut_off.extend(saved.then_some(gang));
        }
    }

    /// The loss becomes infinite: what is saved between the last healthy loss and the report of it is bad.
    fn diverge(&mut self) {
        let steps = self.below(10) + 1;
        let Some(mut gang) = self.gang.take() else { return };
        self.say(format!("{} diverges after {}", gang.attempt, gang.items));
        diverge(&mut self.storage, &mut gang, steps);
        let result = gang.report(&self.storage, ended(&gang.plan, Outcome::NonFinite));
        self.end(&gang.attempt, result);
    }

    fn damage(&mut self) {
        if let Some(name) = self.storage.damage(&mut self.random) {
            self.say(format!("{name} is damaged"));
        }
    }

    /// Another storage is mounted, which is empty; or the right one again.
    fn mount(&mut self) {
        if self.gang.is_some() {
            return;
        }
        match self.unmounted.take() {
            Some(right) => {
                self.say("the right storage is mounted again");
                self.storage = right;
                self.storage.returns();
            }
            None => {
                self.say("an empty storage is mounted");
                self.unmounted = Some(std::mem::take(&mut self.storage));
            }
        }
        self.cut_off.clear();
    }

    fn edit(&mut self) {
        let (what, change) = edit(&mut self.random);
        self.say(what);
        self.world.edit(change);
    }

    /// Nothing goes wrong any more, and a person repairs what is broken.
    fn settle(&mut self) {
        self.say("from here on, nothing happens");
        if self.unmounted.is_some() && self.gang.is_none() {
            self.mount();
        }
        for _ in 0..LONGEST {
            let moved = self.decide();
            let worked = self.work();
            if moved || worked {
                continue;
            }
            match (&self.world.status.failure, self.unmounted.is_some()) {
                (Some(_), true) => self.mount(),
                (Some(failure), false) if failure.reason != "CheckpointUnreadable" => {
                    let reason = failure.reason.clone();
                    self.say(format!("tried again after {reason}"));
                }
                _ => return,
            }
            pawl_decision::retry(&mut self.world.status);
        }
        panic!("it never ends: {:#?}", self.world.status);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "which history is tried is no input of a decision")]
fn whatever_happens_the_record_and_the_model_agree() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("PAWL_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PAWL_HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        let mut history = History::new(seed);
        for _ in 0..10 + history.below(50) {
            history.happen();
            if history.below(3) > 0 {
                history.decide();
            }
            if history.gang.is_none() {
                history.work();
            }
        }
        history.settle();
        history.storage.agrees(&history.world.status, &history.world.job.spec);
    }
}
