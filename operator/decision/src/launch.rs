//! Launches: their plans and their names.
//!
//! A launch's name ends in a hash of all inputs of its outcome (kind, workload, trainer, settings, seed, budget): equal
//! names mean equal launches, independent of the attempt, so that evidence remains valid across attempts and across
//! edits of the spec that do not affect it.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::statistics::sequential::looks;
use pawl_api::spec::{self, Analysis, Train, TrainingJobSpec};
use pawl_api::status::{Arm, CheckpointStatus, Purpose};
use pawl_api::title::Title;
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::plan::{
    AttemptPlan, Budget, Criterion, EarlyStopping, GangSize, LaunchKind, LaunchPlan, UTILIZATION_SECONDS, WindowLimit,
    WorkloadPlan,
};
use pawl_contract::script::ScriptPlan;
use pawl_contract::settings::Settings;
use pawl_contract::template::is_template;
use serde_json::json;

/// Maximum number of launches of one attempt: their results must fit into one termination message.
pub(crate) const MAX_ATTEMPT_LAUNCHES: usize = 14;
/// Maximum number of seeds of the quality gates: their launches and the baseline's fit into one attempt.
const MAX_QUALITY_SEEDS: usize = 7;
/// Maximum number of looks of the quality gates.
const MAX_QUALITY_LOOKS: u32 = 5;

/// The part of the status that receives the result of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvidenceTarget {
    /// The preflight of the baseline.
    PreflightBaseline,
    /// The preflight of a phase with the fallback of this number (0: none).
    PreflightPhase { phase: usize, fallback: u32 },
    /// The evidence of the phase with this index.
    Phase(usize),
    /// The quality launches of the baseline.
    Baseline,
    /// The evidence of the bundle.
    Bundle,
    /// A stage of the search, and what of it.
    Search { stage: usize, run: SearchRun },
    /// The evidence about a slow-down of the training.
    Slowdown,
    /// The training.
    Train,
}

/// What a launch of a search runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchRun {
    /// The settings of trial 0, for a few steps.
    DryRun,
    /// The trial with this number.
    Trial(u32),
    /// A repetition of the trial with this number.
    Finalist(u32),
    /// A repetition of the best trial, or of the settings accepted before the search, to compare both.
    Compared(Arm),
}

/// A desired launch, and the part of the status that receives its result.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub plan: LaunchPlan,
    pub target: EvidenceTarget,
    pub arm: Arm,
    /// Index of the pair or the seed.
    pub pair: u32,
}

/// The launches that the next attempt should run.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub purpose: Purpose,
    pub phase: Option<String>,
    /// The task: unit of counting retries.
    pub task: String,
    pub launches: Vec<Launch>,
    pub stop_on_failure: bool,
}

/// Hash of all inputs of a launch's outcome, eight digits.
pub(crate) fn tag(spec: &TrainingJobSpec, kind: LaunchKind, settings: &Settings, seed: u32, budget: &Budget) -> String {
    let trainer = &spec.trainer;
    let world = (trainer.replicas, trainer.gpus_per_replica, &trainer.gpu_resource);
    // A field that was added later is not written into what is hashed if it has its default.
    let window_limit = budget.window_limit.filter(|limit| limit.seconds != WindowLimit::SECONDS);
    let budget = Budget { window_limit, ..budget.clone() };
    fingerprint(&json!([kind, spec.workload, trainer.image, world, settings, seed, budget]), 8)
}

/// The tag of the preflight launch of `settings`.
pub(crate) fn check_tag(spec: &TrainingJobSpec, settings: &Settings) -> String {
    tag(spec, LaunchKind::Preflight, settings, seed(spec, 0), &budget(spec, LaunchKind::Preflight))
}

/// The hash in the name of a launch; the whole name when there is none.
pub(crate) fn tag_of(launch: &str) -> &str {
    launch.rsplit_once('-').map_or(launch, |(_, tag)| tag)
}

/// The size of the gang of an attempt.
///
/// The built-in trainer runs the preflight in one rank without a GPU, before any device time is used; a custom trainer
/// may need its peers and devices for it, unless it has a monitor: then the agent itself does the preflight.
///
/// ```
/// use pawl_api::status::Purpose;
///
/// let trainer = serde_json::json!({"replicas": 2, "gpusPerReplica": 4});
/// let spec = serde_json::from_value(serde_json::json!({"workload": {"name": "ups"}, "trainer": trainer}))?;
/// assert_eq!(pawl_decision::gang(&spec, Purpose::Preflight).gpus_per_replica, 0);
/// assert_eq!(pawl_decision::gang(&spec, Purpose::Train).gpus_per_replica, 4);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn gang(spec: &TrainingJobSpec, purpose: Purpose) -> GangSize {
    let by_agent = spec.workload.command.is_empty() || spec.workload.monitor.is_some();
    if purpose == Purpose::Preflight && by_agent {
        return GangSize { replicas: 1, ranks_per_replica: 1, gpus_per_replica: 0 };
    }
    whole(spec)
}

/// What a custom command needs beyond the contract. The variables with placeholders differ between launches, so that
/// the agent sets them rather than the pod.
fn script(spec: &TrainingJobSpec) -> ScriptPlan {
    if spec.workload.command.is_empty() {
        return ScriptPlan::default();
    }
    let variables = spec.trainer.pod_template.env.iter();
    let env = variables.filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?)));
    ScriptPlan { env: env.filter(|(_, value)| is_template(value)).collect(), monitor: spec.workload.monitor.clone() }
}

/// The gang that trains.
fn whole(spec: &TrainingJobSpec) -> GangSize {
    let trainer = &spec.trainer;
    GangSize {
        replicas: trainer.replicas,
        ranks_per_replica: trainer.ranks_per_replica(),
        gpus_per_replica: trainer.gpus_per_replica,
    }
}

/// The seed of the pair or seed with this index; seeds are used cyclically.
pub(crate) fn seed(spec: &TrainingJobSpec, index: u32) -> u32 {
    let count = spec.seeds.len().max(1);
    spec.seeds.get(index as usize % count).copied().unwrap_or(42)
}

/// Number of seeds that the quality gates compare.
pub(crate) fn quality_seeds(spec: &TrainingJobSpec) -> u32 {
    spec.seeds.len().clamp(1, MAX_QUALITY_SEEDS) as u32
}

/// The budget of a launch of this kind.
pub(crate) fn budget(spec: &TrainingJobSpec, kind: LaunchKind) -> Budget {
    match kind {
        LaunchKind::Preflight => Budget::default(),
        LaunchKind::Measure => measurement(&spec.analysis),
        LaunchKind::Quality => quality(spec, quality_looks(spec) - 1),
        LaunchKind::Train => training(&spec.train),
        LaunchKind::Search => Budget::default(),
    }
}

/// The budget of a measurement. A limit that has its default is not written.
fn measurement(analysis: &Analysis) -> Budget {
    let steps = Budget {
        warmup_steps: Some(analysis.warmup_steps.into()),
        window_steps: Some(analysis.window_steps.into()),
        ..Budget::default()
    };
    let usual = steps.limit(0);
    let limit = usual.map(|limit| WindowLimit { seconds: analysis.max_window_seconds.into(), ..limit });
    Budget { window_limit: limit.filter(|_| limit != usual), ..steps }
}

/// The budget of a measurement whose device utilization is judged: on GPUs its window is long enough for that.
pub(crate) fn with_utilization(spec: &TrainingJobSpec, budget: Budget) -> Budget {
    let judged = spec.gates.min_gpu_utilization.is_some() && spec.trainer.gpus_per_replica > 0;
    Budget { min_window_seconds: judged.then_some(UTILIZATION_SECONDS as f64), ..budget }
}

/// Number of looks of the quality gates. One seed has no interval, without which no result is clear before the last
/// look.
pub(crate) fn quality_looks(spec: &TrainingJobSpec) -> u32 {
    let in_parts = spec.analysis.quality_epochs.is_none() && quality_seeds(spec) > 1;
    if in_parts { spec.analysis.quality_looks.clamp(1, MAX_QUALITY_LOOKS) } else { 1 }
}

/// Length of a launch for look number `look` of the quality gates: each is four times as long as the one before, and
/// the last one is complete. The schedules are those of the complete one.
pub(crate) fn quality(spec: &TrainingJobSpec, look: u32) -> Budget {
    let analysis = &spec.analysis;
    let full = match (analysis.quality_items, analysis.quality_epochs) {
        (None, Some(epochs)) => return Budget { epochs: Some(epochs), ..Budget::default() },
        (items, _) => items.unwrap_or(Analysis::DEFAULT_QUALITY_ITEMS),
    };
    let left = quality_looks(spec).saturating_sub(look + 1);
    let items = full.div_ceil(4u64.pow(left));
    Budget { items: Some(items), horizon_items: (items < full).then_some(full), ..Budget::default() }
}

/// Length of the training.
fn training(train: &Train) -> Budget {
    Budget {
        items: train.items,
        epochs: train.epochs,
        eval_every_items: train.eval_every,
        early_stopping: train.early_stopping.as_ref().map(|stop| EarlyStopping {
            criterion: criterion(stop),
            patience: stop.patience,
            min_delta: stop.min_delta.value(),
        }),
        ..Budget::default()
    }
}

/// The metric by which training ends early.
pub(crate) fn criterion(stop: &spec::EarlyStopping) -> Criterion {
    Criterion { metric: stop.metric.clone(), better: stop.better }
}

impl Draft<'_> {
    /// A launch named `stem` and its tag.
    pub fn launch(&self, stem: &str, kind: LaunchKind, settings: &Settings, of: (EvidenceTarget, Arm, u32)) -> Launch {
        self.launch_with(stem, (kind, budget(self.spec, kind)), settings, of)
    }

    /// A launch with a budget of its own.
    pub fn launch_with(
        &self,
        stem: &str,
        (kind, budget): (LaunchKind, Budget),
        settings: &Settings,
        (target, arm, pair): (EvidenceTarget, Arm, u32),
    ) -> Launch {
        let spec = self.spec;
        let plan = self.planned(stem, kind, settings, seed(spec, pair), budget);
        let mut launch = Launch { plan, target, arm, pair };
        let (subject, fallback) = self.subject(target);
        launch.entitle(spec, subject, fallback);
        launch
    }

    /// The plan of a launch named `stem` and its tag, without title.
    pub fn planned(&self, stem: &str, kind: LaunchKind, settings: &Settings, seed: u32, budget: Budget) -> LaunchPlan {
        let spec = self.spec;
        let tag = tag(spec, kind, settings, seed, &budget);
        LaunchPlan {
            contract: CONTRACT_VERSION,
            job: self.name().to_owned(),
            attempt: String::new(),
            launch: format!("{stem}-{tag}"),
            title: String::new(),
            kind,
            workload: WorkloadPlan { name: spec.workload.name.clone(), config: spec.workload.config.clone() },
            settings: settings.clone(),
            seed: seed.into(),
            budget,
            checkpoint: None,
            hang_timeout_seconds: spec.lifecycle.hang_timeout.seconds(),
        }
    }

    /// The subject of the launches for `target`, and the fallback in effect.
    pub fn subject(&self, target: EvidenceTarget) -> (&str, u32) {
        let name = |index: usize| self.spec.phases.get(index).map_or("", |phase| phase.name.as_str());
        match target {
            EvidenceTarget::PreflightBaseline | EvidenceTarget::Baseline => ("baseline", 0),
            EvidenceTarget::PreflightPhase { phase, fallback } => (name(phase), fallback),
            EvidenceTarget::Phase(index) => {
                (name(index), self.status.phases.get(index).map_or(0, |phase| phase.fallback))
            }
            EvidenceTarget::Bundle => ("all together", 0),
            EvidenceTarget::Search { .. } | EvidenceTarget::Slowdown | EvidenceTarget::Train => ("", 0),
        }
    }

    /// The newest checkpoint that the status names.
    pub fn newest_checkpoint(&self) -> Option<CheckpointStatus> {
        self.status.training.as_ref()?.last_checkpoint.clone()
    }

    /// The newest checkpoint at the start of an attempt: what was known then if it is under way, else what is known
    /// now.
    pub fn resumes(&self, attempt: &str) -> Option<CheckpointStatus> {
        match self.attempt(attempt) {
            Some(under_way) => under_way.resumes.clone(),
            None => self.newest_checkpoint(),
        }
    }

    /// The plan of an attempt.
    pub fn attempt_plan(&self, attempt: &str, work: &Work) -> AttemptPlan {
        let gang = gang(self.spec, work.purpose);
        let command = self.spec.workload.command.iter().chain(&self.spec.workload.args).cloned().collect();
        let kept = crate::storage::outlives_pods(self.job);
        let known = self.resumes(attempt).filter(|_| kept).map(|newest| CheckpointRef {
            name: newest.name,
            step: newest.step,
            items: newest.items,
        });
        let launches = work.launches.iter().map(|launch| {
            let mut plan = LaunchPlan { attempt: attempt.to_owned(), ..launch.plan.clone() };
            if plan.kind != LaunchKind::Search {
                plan.checkpoint = plan.checkpoint.map(|policy| policy.expecting(known.clone()));
            }
            plan
        });
        AttemptPlan {
            contract: CONTRACT_VERSION,
            job: self.name().to_owned(),
            attempt: attempt.to_owned(),
            replicas: gang.replicas,
            ranks_per_replica: gang.ranks_per_replica,
            gpus_per_replica: gang.gpus_per_replica,
            checks: Some(whole(self.spec)).filter(|whole| *whole != gang),
            command,
            script: script(self.spec),
            gather_seconds: Some(self.spec.lifecycle.scheduling_timeout.seconds()),
            launches: launches.collect(),
            stop_on_failure: work.stop_on_failure,
            events: Vec::new(),
        }
    }
}

impl Launch {
    /// Sets the human-readable title of the launch, with its `subject` and the number of its fallback (0: none).
    pub fn entitle(&mut self, spec: &TrainingJobSpec, subject: &str, fallback: u32) {
        let of = match self.plan.kind {
            LaunchKind::Measure => {
                looks(&spec.analysis).into_iter().map(|look| look as u32).find(|&look| look > self.pair)
            }
            LaunchKind::Quality => Some(quality_seeds(spec)),
            LaunchKind::Preflight | LaunchKind::Search | LaunchKind::Train => None,
        };
        let title = Title { subject, fallback, kind: self.plan.kind, arm: self.arm, index: self.pair, of };
        self.plan.title = match self.plan.budget.items.filter(|_| self.plan.budget.horizon_items.is_some()) {
            Some(items) => format!("{title}, {items} items"),
            None => title.to_string(),
        };
    }
}

impl Work {
    /// Keeps the launches that fit into one attempt; the next decision requests the others again.
    pub fn bounded(mut self) -> Self {
        self.launches.truncate(MAX_ATTEMPT_LAUNCHES);
        self
    }
}
