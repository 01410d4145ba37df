//! Launches: their plans and their names.
//!
//! A launch's name ends in a hash of all that decides its outcome (kind, workload, trainer, settings, seed, budget):
//! equal names mean equal launches, whatever attempt ran them, so that evidence survives attempts and outlives edits
//! of the spec that do not touch it.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::gates::quality::seeds;
use crate::gates::sequential::looks;
use pawl_api::spec::{self, Analysis, Train, TrainingJobSpec};
use pawl_api::status::{Arm, CheckpointStatus, Purpose};
use pawl_api::title::Title;
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::plan::{AttemptPlan, Budget, Criterion, EarlyStopping, LaunchKind, LaunchPlan, Shape, WorkloadPlan};
use pawl_contract::progress::CheckpointRef;
use pawl_contract::settings::Settings;
use serde_json::json;

/// Launches of one attempt: their results must fit into one termination message.
pub(crate) const MAX_ATTEMPT_LAUNCHES: usize = 14;

/// Where the result of a launch belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The preflight of the baseline.
    PreflightBaseline,
    /// The preflight of a phase with `rung` fallbacks taken.
    PreflightPhase { phase: usize, rung: u32 },
    /// The evidence of a phase.
    Phase(usize),
    /// The quality of the baseline.
    Baseline,
    /// The evidence of the bundle.
    Bundle,
    /// The training.
    Train,
}

/// A launch that is wanted, and where its result belongs.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub plan: LaunchPlan,
    pub target: Target,
    pub arm: Arm,
    /// Pair or seed index.
    pub pair: u32,
}

/// What an attempt should do now.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub purpose: Purpose,
    pub phase: Option<String>,
    /// Retries are counted for each trial.
    pub trial: String,
    pub launches: Vec<Launch>,
    pub stop_on_failure: bool,
}

/// Hash of all that decides a launch's outcome, eight digits.
pub(crate) fn tag(spec: &TrainingJobSpec, kind: LaunchKind, settings: &Settings, seed: u32, budget: &Budget) -> String {
    let trainer = &spec.trainer;
    let world = (trainer.replicas, trainer.gpus_per_replica, &trainer.gpu_resource);
    fingerprint(&json!([kind, spec.workload, trainer.image, world, settings, seed, budget]), 8)
}

/// The hash in the name of a launch; the whole name when it has none.
pub(crate) fn tag_of(launch: &str) -> &str {
    launch.rsplit_once('-').map_or(launch, |(_, tag)| tag)
}

/// The gang that runs an attempt. The trainer that is built in checks a job in one rank without a GPU, before any device
/// time is spent; a foreign one may need its peers and devices to know what it can do.
pub fn gang(spec: &TrainingJobSpec, purpose: Purpose) -> Shape {
    if purpose == Purpose::Preflight && spec.workload.command.is_empty() {
        return Shape { replicas: 1, ranks_per_replica: 1, gpus_per_replica: 0 };
    }
    whole(spec)
}

/// The gang that trains.
fn whole(spec: &TrainingJobSpec) -> Shape {
    let trainer = &spec.trainer;
    Shape {
        replicas: trainer.replicas,
        ranks_per_replica: trainer.ranks_per_replica(),
        gpus_per_replica: trainer.gpus_per_replica,
    }
}

/// The seed of a pair or seed index.
pub(crate) fn seed(spec: &TrainingJobSpec, index: u32) -> u32 {
    let count = spec.seeds.len().max(1);
    spec.seeds.get(index as usize % count).copied().unwrap_or(42)
}

/// The budget of a launch of this kind.
pub(crate) fn budget(spec: &TrainingJobSpec, kind: LaunchKind) -> Budget {
    match kind {
        LaunchKind::Preflight => Budget::default(),
        LaunchKind::Measure => Budget {
            warmup_steps: Some(spec.analysis.warmup_steps.into()),
            window_steps: Some(spec.analysis.window_steps.into()),
            ..Budget::default()
        },
        LaunchKind::Quality => quality(&spec.analysis),
        LaunchKind::Train => training(&spec.train),
        LaunchKind::Search => Budget::default(),
    }
}

/// How long a launch for the quality gates trains.
fn quality(analysis: &Analysis) -> Budget {
    let items = match (analysis.quality_items, analysis.quality_epochs) {
        (None, Some(_)) => None,
        (items, _) => Some(items.unwrap_or(Analysis::DEFAULT_QUALITY_ITEMS)),
    };
    Budget { items, epochs: analysis.quality_epochs.filter(|_| items.is_none()), ..Budget::default() }
}

/// How long training runs.
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
    pub fn launch(
        &self,
        stem: &str,
        kind: LaunchKind,
        settings: &Settings,
        (target, arm, pair): (Target, Arm, u32),
    ) -> Launch {
        let spec = self.spec;
        let budget = budget(spec, kind);
        let seed = seed(spec, pair);
        let tag = tag(spec, kind, settings, seed, &budget);
        let plan = LaunchPlan {
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
        };
        let mut launch = Launch { plan, target, arm, pair };
        let (subject, rung) = self.subject(target);
        launch.entitle(spec, subject, rung);
        launch
    }

    /// What launches for `target` are about, and the rungs taken.
    fn subject(&self, target: Target) -> (&str, u32) {
        let name = |index: usize| self.spec.phases.get(index).map_or("", |phase| phase.name.as_str());
        match target {
            Target::PreflightBaseline | Target::Baseline => ("baseline", 0),
            Target::PreflightPhase { phase, rung } => (name(phase), rung),
            Target::Phase(index) => (name(index), self.status.phases.get(index).map_or(0, |phase| phase.rung)),
            Target::Bundle => ("all together", 0),
            Target::Train => ("", 0),
        }
    }

    /// The newest checkpoint that the status names.
    pub fn newest_checkpoint(&self) -> Option<CheckpointStatus> {
        self.status.training.as_ref()?.last_checkpoint.clone()
    }

    /// The newest checkpoint at the start of an attempt: what was known then if it is under way, else what is known now.
    pub fn resumes(&self, attempt: &str) -> Option<CheckpointStatus> {
        match &self.status.attempt {
            Some(under_way) if under_way.name == attempt => under_way.resumes.clone(),
            _ => self.newest_checkpoint(),
        }
    }

    /// The plan of an attempt.
    pub fn attempt_plan(&self, attempt: &str, work: &Work) -> AttemptPlan {
        let gang = gang(self.spec, work.purpose);
        let command = self.spec.workload.command.iter().chain(&self.spec.workload.args).cloned().collect();
        let expected = self.resumes(attempt).map(|newest| CheckpointRef {
            name: newest.name,
            step: newest.step,
            items: newest.items,
        });
        let launches = work.launches.iter().map(|launch| {
            let mut plan = LaunchPlan { attempt: attempt.to_owned(), ..launch.plan.clone() };
            if let Some(policy) = &mut plan.checkpoint {
                // What is after the last good position will be discarded.
                let good =
                    |newest: &CheckpointRef| policy.resume_not_after_items.is_none_or(|limit| newest.items <= limit);
                policy.expected = expected.clone().filter(good);
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
            gather_seconds: Some(self.spec.lifecycle.scheduling_timeout.seconds()),
            launches: launches.collect(),
            stop_on_failure: work.stop_on_failure,
        }
    }
}

impl Launch {
    /// Writes into the plan what the launch is, for people: it is about `subject`, on rung `rung`.
    pub fn entitle(&mut self, spec: &TrainingJobSpec, subject: &str, rung: u32) {
        let of = match self.plan.kind {
            LaunchKind::Measure => {
                looks(&spec.analysis).into_iter().map(|look| look as u32).find(|&look| look > self.pair)
            }
            LaunchKind::Quality => Some(seeds(spec)),
            LaunchKind::Preflight | LaunchKind::Search | LaunchKind::Train => None,
        };
        let title = Title { subject, rung, kind: self.plan.kind, arm: self.arm, index: self.pair, of };
        self.plan.title = title.to_string();
    }
}

impl Work {
    /// Keeps what fits into one attempt; the rest is wanted again afterwards.
    pub fn bounded(mut self) -> Self {
        self.launches.truncate(MAX_ATTEMPT_LAUNCHES);
        self
    }
}
