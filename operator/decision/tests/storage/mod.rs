//! A storage of checkpoints and the gangs that write there, as the built-in trainer and the Python package do: what
//! really trained each model, next to what a job says of it. For histories of the decision core, and of the operator's
//! shell.

use pawl_api::TrainingJobSpec;
use pawl_api::status::{Stage, TrainingJobStatus, TrainingStatus};
use pawl_contract::checkpoint::{CheckpointRef, TrainedPart, reported};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{CheckpointPolicy, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Items of an optimizer step.
pub const STEP: u64 = 8;

/// Increment of splitmix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers: splitmix64. Its state begins with the output of its seed: a multiple of the increment
/// would begin each sequence one number after the one before.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(mixed(seed))
    }

    /// A number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mixed(self.0) % end
    }
}

const fn mixed(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What trained items.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The settings, and the length of the whole training.
    pub settings: BTreeMap<String, String>,
    pub config: Value,
    pub seed: u64,
}

/// A checkpoint, with what really trained it: `(items up to here, what)`, in order.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub items: u64,
    pub epoch: u32,
    pub weights: Vec<(u64, Trained)>,
    /// What its manifest says of that.
    pub chain: Vec<TrainedPart>,
    /// A bit flipped, or a file is missing: a trainer finds out when it reads it.
    pub damaged: bool,
    /// It was written after the training had diverged: nothing in it says so.
    pub diverged: bool,
    /// The job has seen it.
    pub known: bool,
}

impl Checkpoint {
    pub fn reference(&self) -> CheckpointRef {
        CheckpointRef {
            name: format!("{:08}-by-{}", self.items, self.epoch),
            step: self.items / STEP,
            items: self.items,
        }
    }
}

/// A storage: its checkpoints by directory, and the latest epoch that was claimed.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub checkpoints: BTreeMap<Option<String>, Vec<Checkpoint>>,
    pub epoch: u32,
    /// The epochs of gangs whose training has diverged, after which no checkpoint was left.
    pub diverged: BTreeMap<Option<String>, u32>,
}

/// A gang that trains, as the built-in trainer and the Python package do.
#[derive(Clone, Debug)]
pub struct Gang {
    pub attempt: String,
    pub plan: LaunchPlan,
    pub epoch: u32,
    pub items: u64,
    pub resumed: u64,
    pub weights: Vec<(u64, Trained)>,
    pub chain: Vec<TrainedPart>,
    /// Items of the last healthy loss, after the training has diverged.
    pub diverged: Option<u64>,
}

impl Storage {
    /// Notes that the job has seen the checkpoint that its status names.
    pub fn seen(&mut self, status: &TrainingJobStatus) {
        let named = status.training.as_ref().and_then(|training| training.last_checkpoint.as_ref());
        let named = named.map(|checkpoint| checkpoint.name.clone());
        let all = self.checkpoints.values_mut().flatten();
        all.filter(|it| Some(it.reference().name) == named).for_each(|it| it.known = true);
    }

    /// One of its checkpoints is damaged. Returns its name.
    pub fn damage(&mut self, random: &mut Random) -> Option<String> {
        let count = self.checkpoints.values().map(Vec::len).sum::<usize>() as u64;
        let index = if count > 0 { random.below(count) } else { return None };
        let checkpoint = self.checkpoints.values_mut().flatten().nth(index as usize)?;
        checkpoint.damaged = true;
        Some(checkpoint.reference().name)
    }

    /// It is mounted again, after another one was. What the job has learnt meanwhile was about the other storage: it
    /// may have forgotten that a training had diverged in this one, and what it has found good here.
    pub fn returns(&mut self) {
        for all in self.checkpoints.values_mut() {
            all.retain(|checkpoint| !checkpoint.diverged);
            all.iter_mut().for_each(|checkpoint| checkpoint.known = false);
        }
    }

    /// The model in the storage is what the status says, and what the spec asks for.
    pub fn agrees(&self, status: &TrainingJobStatus, spec: &TrainingJobSpec) {
        if status.stage != Stage::Complete {
            // All of it was damaged: that is said, and nothing begins from nothing.
            let failure = status.failure.as_ref().expect("a job that is over is complete or has failed");
            assert_eq!(failure.reason, "CheckpointUnreadable");
            return;
        }
        let training = status.training.as_ref().expect("it was asked to train");
        let items = spec.train.items.expect("it says how many");
        assert!(training.measured.items >= items, "{} items were asked for", items);
        let last = training.segments.last().expect("what trained it is known");
        assert_eq!(u64::from(last.seed), u64::from(spec.seeds[0]), "the model of another seed");
        self.compare(training);
    }

    /// What the status says of the model is what trained it.
    fn compare(&self, training: &TrainingStatus) {
        let all = self.checkpoints.get(&training.directory).map_or(&[][..], Vec::as_slice);
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

impl Gang {
    /// A gang of `attempt` starts: it supersedes the earlier ones, and resumes.
    ///
    /// # Errors
    /// The result of a launch that does not train.
    pub fn start(storage: &mut Storage, attempt: String, plan: LaunchPlan) -> Result<Self, Box<LaunchResult>> {
        let number = attempt.rsplit('-').next().unwrap().parse().unwrap();
        if storage.epoch > number {
            return Err(Box::new(LaunchResult::bare(&plan.launch, Outcome::Stopped)));
        }
        storage.epoch = number;
        let policy = plan.checkpoint.clone().expect("a training has a storage");
        let found = resume(storage, &policy).map_err(|message| {
            Box::new(LaunchResult { message, ..LaunchResult::bare(&plan.launch, Outcome::CheckpointUnreadable) })
        })?;
        let (items, weights, chain) = found.map(|found| (found.items, found.weights, found.chain)).unwrap_or_default();
        let chain = continued(chain, items, &plan);
        let trained = what_trains(&plan);
        let same = |(_, before): &(u64, Trained)| before.config == trained.config && before.seed == trained.seed;
        assert!(weights.iter().all(same), "it resumes the model of another workload or seed");
        Ok(Self { attempt, plan, epoch: number, items, resumed: items, weights, chain, diverged: None })
    }

    /// Whether it has trained what it was asked for.
    pub fn is_done(&self) -> bool {
        self.items >= self.plan.budget.items.unwrap() && self.diverged.is_none()
    }

    /// `result`, with what a trainer reports in it.
    pub fn report(&self, storage: &Storage, result: LaunchResult) -> LaunchResult {
        let mut result = LaunchResult { checkpoint: newest(storage, self), failed_at_items: self.diverged, ..result };
        (result.measured.items, result.measured.steps) = (self.items, self.items / STEP);
        (result.resumed_items, result.trained) = (Some(self.resumed), reported(&self.chain).to_vec());
        result
    }

    /// Its progress.
    pub fn progress(&self, storage: &Storage) -> Progress {
        let mut progress = Progress::at_start(&self.plan.launch, self.plan.kind);
        (progress.step, progress.items) = (self.items / STEP, self.items);
        progress.last_checkpoint = newest(storage, self);
        (progress.resumed_items, progress.trained) = (Some(self.resumed), reported(&self.chain).to_vec());
        progress
    }
}

/// The chain of a launch that resumes a model with the chain `before` at `items`, as the built-in trainer and the
/// package write it.
fn continued(mut before: Vec<TrainedPart>, items: u64, plan: &LaunchPlan) -> Vec<TrainedPart> {
    if before.last().is_none_or(|last| last.launch != plan.launch) {
        let (attempt, launch) = (plan.attempt.clone(), plan.launch.clone());
        before.push(TrainedPart { from_items: items, attempt, launch });
    }
    before
}

/// What a launch trains with.
fn what_trains(plan: &LaunchPlan) -> Trained {
    let LaunchPlan { settings, workload, seed, budget, .. } = plan;
    // The end of a learning rate that decays.
    let length = budget.items.map(|items| ("train.items".to_owned(), items.to_string()));
    Trained {
        settings: settings.flat().into_iter().chain(length).collect(),
        config: json!(workload.config),
        seed: *seed,
    }
}

/// Trains some steps.
pub fn advance(gang: &mut Gang, steps: u64) {
    let items = (gang.items + steps * STEP).min(gang.plan.budget.items.unwrap().max(gang.items));
    if items > gang.items {
        gang.items = items;
        gang.weights.push((items, what_trains(&gang.plan)));
    }
}

/// Writes a checkpoint, unless a later gang has claimed the storage; deletes all but the newest three.
pub fn save(storage: &mut Storage, gang: &mut Gang) -> bool {
    if storage.epoch > gang.epoch {
        return false;
    }
    let policy = gang.plan.checkpoint.as_ref().unwrap();
    let all = storage.checkpoints.entry(policy.directory.clone()).or_default();
    let diverged = gang.diverged.is_some_and(|healthy| gang.items > healthy);
    let (items, epoch, weights, chain) = (gang.items, gang.epoch, gang.weights.clone(), gang.chain.clone());
    all.retain(|known| (known.items, known.epoch) != (items, epoch));
    all.push(Checkpoint { items, epoch, weights, chain, damaged: false, diverged, known: false });
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

/// The training diverges: what it saves between its last healthy loss and the end is bad. It removes that before it
/// ends, unless a later gang has claimed the storage: its report may never be read.
pub fn diverge(storage: &mut Storage, gang: &mut Gang, steps: u64) {
    gang.diverged = Some(gang.items);
    let healthy = gang.items;
    advance(gang, steps);
    if save(storage, gang) {
        let directory = gang.plan.checkpoint.as_ref().unwrap().directory.clone();
        let all = storage.checkpoints.entry(directory.clone()).or_default();
        all.retain(|checkpoint| checkpoint.items <= healthy);
        if all.is_empty() {
            storage.diverged.insert(directory, gang.epoch);
        }
    }
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
    if let (None, Some(known)) = (&found, policy.known()) {
        // Its training has diverged, and the report of that may be lost: nothing it had saved was good.
        let (_, epoch) = known.name.rsplit_once("-by-").expect("a name has an epoch");
        let epoch = epoch.parse::<u32>().expect("a number");
        let noted = storage.diverged.get(&policy.directory).copied().unwrap_or(0);
        let is_later = |checkpoint: &Checkpoint| (checkpoint.epoch, checkpoint.items) >= (epoch, known.items);
        let is_bad = all.iter().any(|checkpoint| checkpoint.items > limit && is_later(checkpoint));
        if !is_bad && (!all.is_empty() || epoch > noted) {
            return Err(format!("{known:?} is expected"));
        }
    }
    assert!(found.as_ref().is_none_or(|found| !found.diverged), "a checkpoint of a diverged training is resumed");
    // What a gang saved that was lost before anything was seen of it may be lost for nothing: nobody knows that it is
    // good.
    let good = |checkpoint: &&Checkpoint| checkpoint.known && !checkpoint.diverged && !checkpoint.damaged;
    let lost = all.iter().filter(|checkpoint| checkpoint.items > limit).find(good);
    assert!(lost.is_none(), "limit {limit}: a good checkpoint is deleted: {:?}", lost.map(Checkpoint::reference));
    let newest = all.iter().filter(|checkpoint| checkpoint.items > limit).map(|checkpoint| checkpoint.epoch).max();
    all.retain(|checkpoint| checkpoint.items <= limit);
    if let Some(epoch) = newest.filter(|_| all.is_empty()) {
        storage.diverged.insert(policy.directory.clone(), epoch);
    }
    Ok(found)
}

/// A change of a spec.
pub type Edit = Box<dyn FnOnce(&mut Value)>;

/// An edit of a spec, and what it is.
pub fn edit(random: &mut Random) -> (String, Edit) {
    let (what, value) = (random.below(7), random.below(3));
    let items = 400 + 400 * value;
    let change: Edit = match what {
        0 | 1 => Box::new(move |spec| spec["settings"]["learningRate"] = json!(format!("0.{}", value + 1))),
        2 => Box::new(move |spec| spec["seeds"] = json!([value + 1])),
        3 => Box::new(move |spec| spec["workload"]["config"]["loss"] = json!(["mse", "huber", "l1"][value as usize])),
        4 => Box::new(move |spec| spec["train"]["items"] = json!(items)),
        5 => Box::new(move |spec| {
            spec["train"]["onChange"] = json!([None, Some("Continue"), Some("Restart")][value as usize]);
        }),
        _ => Box::new(move |spec| spec["settings"]["loaderWorkers"] = json!(value)),
    };
    (format!("edit {what} to {value}"), change)
}
