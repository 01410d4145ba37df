//! Random histories of a training and its storage: edits, kills at any write, damaged checkpoints, an empty or another storage,
//! clocks that jump, gangs that are taken for dead. The record in the status and the model must agree.
//!
//! Each history is a seed. A failure prints it, and what had happened; `PAWL_HISTORY=SEED` repeats one. `PAWL_HISTORIES=COUNT` tries
//! others than the usual number.

use crate::world::{World, done, ended, noise};
use jiff::SignedDuration;
use pawl_api::status::{Stage, TrainingStatus};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{CheckpointPolicy, LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::{AttemptState, Ending};
use serde_json::json;
use std::collections::BTreeMap;

/// Items of an optimizer step.
const STEP: u64 = 8;
/// Histories that are tried: a few seconds. PAWL_HISTORY=1680 is not mended yet: of several attempts in a row that were lost
/// unseen, each of which resumed what the one before had saved, the last is said to have trained it.
const HISTORIES: u64 = 1_600;
/// Rounds after which a history must have come to an end.
const LONGEST: usize = 3_000;

/// What trained items.
#[derive(Clone, Debug, PartialEq)]
struct Trained {
    settings: BTreeMap<String, String>,
    config: serde_json::Value,
    seed: u64,
}

/// A checkpoint, with what really trained it: `(items up to here, what)`, in order.
#[derive(Clone, Debug)]
struct Checkpoint {
    items: u64,
    epoch: u32,
    weights: Vec<(u64, Trained)>,
    /// A bit flipped, or a file is missing: a trainer finds out when it reads it.
    damaged: bool,
    /// It was written after the training had diverged: nothing in it says so.
    diverged: bool,
    /// The job has seen it.
    known: bool,
}

impl Checkpoint {
    fn reference(&self) -> CheckpointRef {
        CheckpointRef {
            name: format!("{:08}-by-{}", self.items, self.epoch),
            step: self.items / STEP,
            items: self.items,
        }
    }
}

/// A storage: its checkpoints by directory, and the latest epoch that was claimed.
#[derive(Clone, Debug, Default)]
struct Storage {
    checkpoints: BTreeMap<Option<String>, Vec<Checkpoint>>,
    epoch: u32,
}

/// A gang that trains, as the built-in trainer and the Python package do.
#[derive(Clone, Debug)]
struct Gang {
    attempt: String,
    plan: LaunchPlan,
    epoch: u32,
    items: u64,
    resumed: u64,
    weights: Vec<(u64, Trained)>,
    /// Items of the last healthy loss, after the training has diverged.
    diverged: Option<u64>,
}

struct History {
    seed: u64,
    random: u64,
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
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
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
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    /// Decides, and starts the ranks of a training that was started.
    fn decide(&mut self) -> bool {
        let moved = self.world.decide();
        let named = self.world.status.training.as_ref().and_then(|training| training.last_checkpoint.as_ref());
        let named = named.map(|checkpoint| checkpoint.name.clone());
        let all = self.storage.checkpoints.values_mut().flatten();
        all.filter(|it| Some(it.reference().name) == named).for_each(|it| it.known = true);
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

    /// A gang starts: it supersedes the earlier ones, and resumes.
    fn launch(&mut self, attempt: String, plan: LaunchPlan) {
        let number = attempt.rsplit('-').next().unwrap().parse().unwrap();
        if self.storage.epoch > number {
            return self.end(&attempt, ended(&plan, Outcome::Stopped));
        }
        self.storage.epoch = number;
        let policy = plan.checkpoint.clone().expect("a training has a storage");
        match resume(&mut self.storage, &policy) {
            Ok(found) => {
                let (items, weights) = found.map(|found| (found.items, found.weights)).unwrap_or_default();
                self.say(format!("{attempt} begins at {items} with {:?}", plan.settings.flat().get("learningRate")));
                let trained = what_trains(&plan);
                let same =
                    |(_, before): &(u64, Trained)| before.config == trained.config && before.seed == trained.seed;
                assert!(weights.iter().all(same), "it resumes the model of another workload or seed");
                self.gang = Some(Gang { attempt, plan, epoch: number, items, resumed: items, weights, diverged: None });
            }
            Err(message) => {
                self.say(format!("{attempt}: {message}"));
                let result =
                    LaunchResult { message, ..LaunchResult::bare(&plan.launch, Outcome::CheckpointUnreadable) };
                self.end(&attempt, result);
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
        let target = gang.plan.budget.items.unwrap();
        advance(&mut gang, steps);
        let saved = save(&mut self.storage, &mut gang);
        let done = gang.items >= target;
        let attempt = self.world.attempts.get_mut(&gang.attempt).expect("it runs");
        let checkpoint = newest(&self.storage, &gang);
        if done && gang.diverged.is_none() {
            let mut result = LaunchResult { checkpoint, ..ended(&gang.plan, Outcome::Done) };
            (result.measured.items, result.measured.steps) = (gang.items, gang.items / STEP);
            (result.message, result.failed_at_items) = (String::new(), None);
            result.resumed_items = Some(gang.resumed);
            self.say(format!("{} is done at {}", gang.attempt, gang.items));
            return self.end(&gang.attempt, result);
        }
        if saved && seen {
            let mut progress = Progress::at_start(&gang.plan.launch, gang.plan.kind);
            (progress.step, progress.items, progress.last_checkpoint) = (gang.items / STEP, gang.items, checkpoint);
            progress.resumed_items = Some(gang.resumed);
            attempt.facts.progress = Some(progress);
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
        let healthy = gang.items;
        gang.diverged = Some(healthy);
        advance(&mut gang, steps);
        let saved = save(&mut self.storage, &mut gang);
        self.say(format!("{} diverges after {healthy}, saved: {saved}", gang.attempt));
        let mut result =
            LaunchResult { checkpoint: newest(&self.storage, &gang), ..ended(&gang.plan, Outcome::NonFinite) };
        (result.measured.items, result.measured.steps) = (gang.items, gang.items / STEP);
        (result.failed_at_items, result.resumed_items) = (Some(healthy), Some(gang.resumed));
        self.end(&gang.attempt, result);
    }

    fn damage(&mut self) {
        let count = self.storage.checkpoints.values().map(Vec::len).sum::<usize>() as u64;
        if count == 0 {
            return;
        }
        let index = self.below(count) as usize;
        let checkpoint = self.storage.checkpoints.values_mut().flatten().nth(index).expect("it is one of them");
        checkpoint.damaged = true;
        let name = checkpoint.reference().name;
        self.say(format!("{name} is damaged"));
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
                // What the job has learnt meanwhile was about the other storage: it may have forgotten that a training had
                // diverged in this one, and what it has found good here.
                for all in self.storage.checkpoints.values_mut() {
                    all.retain(|checkpoint| !checkpoint.diverged);
                    all.iter_mut().for_each(|checkpoint| checkpoint.known = false);
                }
            }
            None => {
                self.say("an empty storage is mounted");
                self.unmounted = Some(std::mem::take(&mut self.storage));
            }
        }
        self.cut_off.clear();
    }

    fn edit(&mut self) {
        let (what, value) = (self.below(7), self.below(3));
        let items = 400 + 400 * value;
        let change: Box<dyn FnOnce(&mut serde_json::Value)> = match what {
            0 | 1 => Box::new(move |spec| spec["settings"]["learningRate"] = json!(format!("0.{}", value + 1))),
            2 => Box::new(move |spec| spec["seeds"] = json!([value + 1])),
            3 => {
                Box::new(move |spec| spec["workload"]["config"]["loss"] = json!(["mse", "huber", "l1"][value as usize]))
            }
            4 => Box::new(move |spec| spec["train"]["items"] = json!(items)),
            5 => Box::new(move |spec| {
                spec["train"]["onChange"] = json!([None, Some("Continue"), Some("Restart")][value as usize]);
            }),
            _ => Box::new(move |spec| spec["settings"]["loaderWorkers"] = json!(value)),
        };
        self.say(format!("edit {what} to {value}"));
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

    /// The model in the storage is what the status says, and what the spec asks for.
    fn check(&self) {
        let status = &self.world.status;
        if status.stage != Stage::Complete {
            // All of it was damaged: that is said, and nothing begins from nothing.
            let failure = status.failure.as_ref().expect("a job that is over is complete or has failed");
            assert_eq!(failure.reason, "CheckpointUnreadable");
            return;
        }
        let training = status.training.as_ref().expect("it was asked to train");
        let spec = &self.world.job.spec;
        let items = spec.train.items.expect("it says how many");
        assert!(training.measured.items >= items, "{} items were asked for", items);
        let last = training.segments.last().expect("what trained it is known");
        assert_eq!(u64::from(last.seed), u64::from(spec.seeds[0]), "the model of another seed");
        self.compare(training);
    }

    /// What the status says of the model is what trained it.
    fn compare(&self, training: &TrainingStatus) {
        let all = self.storage.checkpoints.get(&training.directory).map_or(&[][..], Vec::as_slice);
        let named = training.last_checkpoint.as_ref().map(|checkpoint| checkpoint.name.clone());
        let model = all.iter().find(|checkpoint| Some(checkpoint.reference().name) == named);
        let Some(model) = model.filter(|model| !model.damaged) else { return };
        let mut from = 0;
        for (to, trained) in &model.weights {
            let middle = from + (to - from) / 2;
            let segment = training.segments.iter().find(|part| (part.from_items..part.to_items).contains(&middle));
            let segment = segment.unwrap_or_else(|| panic!("nothing is said of what trained items {from} to {to}"));
            let same = segment.settings == trained.settings && u64::from(segment.seed) == trained.seed;
            assert!(same || segment.merged, "items {from} to {to} were trained with {trained:?}, not {segment:?}");
            from = *to;
        }
    }
}

/// What a launch trains with.
fn what_trains(plan: &LaunchPlan) -> Trained {
    let LaunchPlan { settings, workload, seed, .. } = plan;
    Trained { settings: settings.flat().into_iter().collect(), config: json!(workload.config), seed: *seed }
}

/// Trains some steps.
fn advance(gang: &mut Gang, steps: u64) {
    let items = (gang.items + steps * STEP).min(gang.plan.budget.items.unwrap().max(gang.items));
    if items > gang.items {
        gang.items = items;
        gang.weights.push((items, what_trains(&gang.plan)));
    }
}

/// Writes a checkpoint, unless a later gang has claimed the storage; deletes all but the newest three.
fn save(storage: &mut Storage, gang: &mut Gang) -> bool {
    if storage.epoch > gang.epoch {
        return false;
    }
    let policy = gang.plan.checkpoint.as_ref().unwrap();
    let all = storage.checkpoints.entry(policy.directory.clone()).or_default();
    let diverged = gang.diverged.is_some_and(|healthy| gang.items > healthy);
    let (items, epoch, weights) = (gang.items, gang.epoch, gang.weights.clone());
    all.retain(|known| (known.items, known.epoch) != (items, epoch));
    all.push(Checkpoint { items, epoch, weights, damaged: false, diverged, known: false });
    all.sort_by_key(|checkpoint| (checkpoint.epoch, checkpoint.items));
    // A damaged one takes no place.
    let good = all.iter().filter(|checkpoint| !checkpoint.damaged).count();
    let mut over = good.saturating_sub(policy.keep as usize);
    all.retain(|checkpoint| {
        checkpoint.damaged || over == 0 || {
            over -= 1;
            false
        }
    });
    true
}

/// The newest checkpoint of a gang's training, as it reports it.
fn newest(storage: &Storage, gang: &Gang) -> Option<CheckpointRef> {
    let directory = gang.plan.checkpoint.as_ref()?.directory.clone();
    storage.checkpoints.get(&directory)?.last().map(Checkpoint::reference)
}

/// The checkpoint from which a gang resumes. Those that are damaged are passed over, those after the limit are deleted.
fn resume(storage: &mut Storage, policy: &CheckpointPolicy) -> Result<Option<Checkpoint>, String> {
    let all = storage.checkpoints.entry(policy.directory.clone()).or_default();
    let limit = policy.resume_not_after_items.unwrap_or(u64::MAX);
    let within = |checkpoint: &&Checkpoint| checkpoint.items <= limit && !checkpoint.damaged;
    let found = all.iter().rev().find(within).cloned();
    if found.is_none() && policy.expected.is_some() {
        return Err(format!("{:?} is expected", policy.expected));
    }
    assert!(found.as_ref().is_none_or(|found| !found.diverged), "a checkpoint of a diverged training is resumed");
    // What a gang saved that was lost before anything was seen of it may be lost for nothing: nobody knows that it is good.
    let good = |checkpoint: &&Checkpoint| checkpoint.known && !checkpoint.diverged && !checkpoint.damaged;
    let lost = all.iter().filter(|checkpoint| checkpoint.items > limit).find(good);
    assert!(lost.is_none(), "limit {limit}: a good checkpoint is deleted: {:?}", lost.map(Checkpoint::reference));
    all.retain(|checkpoint| checkpoint.items <= limit);
    Ok(found)
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
        history.check();
    }
}
