//! Custom commands: their placeholders, and the reports of scripts that write none.

mod absent;
mod accelerate;
mod checkpoints;
mod count;
mod fence;
mod followed;
mod kubeflow;
mod meter;
mod signs;
mod traceback;
mod trackers;
mod window;

use accelerate::accelerate;
pub(crate) use checkpoints::Sightings;
use checkpoints::{Checkpoints, continued};
use fence::Epoch;
pub(crate) use fence::Fence;
pub(crate) use followed::{Asked, Followed, Tap, failure};
pub(crate) use kubeflow::Kubeflow;
use meter::Standing;
pub(crate) use meter::{Expected, Verdict};
pub(crate) use trackers::quiet;

use crate::node::{Node, checkpoints};
use crate::storage::{self, directory};
use crate::torchrun;
use pawl_contract::checkpoint::{CheckpointRef, TrainedPart, is_directory};
use pawl_contract::env;
use pawl_contract::exit::Outcome;
use pawl_contract::log::Patterns;
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::report::Report;
use pawl_contract::script::{Monitor, ScriptPlan};
use pawl_contract::template::{Places, RenderError, Rendered, Values, render};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Ends the name of a checkpoint that was set aside: it is never resumed.
const DAMAGED: &str = ".damaged";
/// Claims of trainers that implement the contract.
const EPOCHS: &str = "epochs";

/// Variables that depend on the devices and cores that a rank gets.
const OF_DEVICES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Names of the variables that the agent sets for each rank, besides the contract's (`PAWL_*`).
pub(crate) fn of_ranks(plan: &AttemptPlan) -> Vec<&'static str> {
    torchrun::names(plan).into_iter().chain(OF_DEVICES).collect()
}

/// The custom command of an attempt, and the directories of its launches.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    command: Vec<String>,
    plan: ScriptPlan,
    world_size: u32,
    work_dir: PathBuf,
    checkpoints: String,
    data: PathBuf,
    /// Variables of the ranks, besides those of this process.
    env: Vec<(String, String)>,
    /// Result of [`of_ranks`].
    of_ranks: Vec<&'static str>,
    /// Whether this attempt only checks settings for a gang of other pods, which may have other variables.
    checks_for_others: bool,
    /// Whether placeholders of variables of this process are kept: their values may be secret, and it is not the script
    /// that reads them.
    conceals: bool,
}

impl Script {
    /// `None` when the attempt runs the built-in trainer.
    pub(crate) fn new(plan: &AttemptPlan, node: &Node) -> Option<Self> {
        (!plan.command.is_empty()).then(|| Self {
            command: plan.command.clone(),
            plan: plan.script.clone(),
            world_size: plan.world_size(),
            work_dir: node.work_dir.clone(),
            checkpoints: node.checkpoints.clone(),
            data: node.data.clone(),
            env: node.env.clone(),
            of_ranks: of_ranks(plan),
            checks_for_others: plan.checks.is_some(),
            conceals: false,
        })
    }

    /// As it is shown: `$(HF_TOKEN)` in place of its value in the environment of this process.
    pub(crate) fn concealing(self) -> Self {
        Self { conceals: true, ..self }
    }

    /// How the script is followed; `None`: it implements the contract.
    pub(crate) fn monitor(&self) -> Option<&Monitor> {
        self.plan.monitor.as_ref()
    }

    /// The command and the environment of a launch. `variable` is the environment of the rank.
    pub(crate) fn rendered(
        &self,
        launch: &LaunchPlan,
        resume: &Resume,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Rendered, RenderError> {
        let places = self.places(launch, resume.checkpoint.clone());
        let values = Values { plan: launch, world_size: self.world_size, places: &places, variable };
        render(&self.command, &self.plan.env, &values)
    }

    /// As [`Self::rendered`], before any rank has started: variables that the agent sets for each rank are not
    /// replaced.
    ///
    /// # Errors
    /// [`RenderError`], also for a variable that will not be set.
    pub(crate) fn rendered_before_start(&self, launch: &LaunchPlan) -> Result<Rendered, RenderError> {
        let of_rank = |name: &str| name.starts_with("PAWL_") || self.of_ranks.contains(&name);
        let checkpoint = self.newest(launch, |_| true).map(|path| path.to_string_lossy().into_owned());
        let resume = Resume { checkpoint, ..Resume::default() };
        let rendered = self.rendered(launch, &resume, &|name| self.variable(name).filter(|_| !of_rank(name)))?;
        match rendered.unset.iter().find(|name| !of_rank(name)).filter(|_| !self.checks_for_others) {
            Some(name) => Err(RenderError::Unset(name.clone())),
            None => Ok(rendered),
        }
    }

    /// A variable of the ranks: of the manifest, or of this process.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let own = self.env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        own.or_else(|| {
            let value = std::env::var(name).ok()?;
            Some(if self.conceals { format!("$({name})") } else { value })
        })
    }

    /// Variables that a script has unless the user sets them: those that switch its trackers off where it is not
    /// trained, and for a script that does not implement the contract those of Accelerate, and unbuffered output.
    pub(crate) fn defaults(&self, launch: &LaunchPlan, on_cpu: bool) -> Vec<(&'static str, String)> {
        let mut all = trackers::off(launch.kind);
        if self.monitor().is_some() {
            all.extend(accelerate(&launch.settings, self.world_size, on_cpu));
            all.push(("PYTHONUNBUFFERED", "1".to_owned()));
        }
        all
    }

    /// Variables that a launch of the script does not have, whoever sets them: where its trackers are, unless it is
    /// trained.
    pub(crate) fn removed(launch: &LaunchPlan) -> &'static [&'static str] {
        trackers::removed(launch.kind)
    }

    /// Items of an optimizer step of the whole gang; 1 where the batch sizes are not settings or contradict each other.
    pub(crate) fn items_per_step(&self, launch: &LaunchPlan) -> u64 {
        launch.settings.items_per_step(self.world_size).unwrap_or(1)
    }

    /// What is known of a launch that is measured by `monitor`, with its compiled patterns, before it starts.
    pub(crate) fn expected(&self, launch: &LaunchPlan, monitor: &Monitor, patterns: &Patterns) -> Expected {
        let is_given_steps = self.rendered_before_start(launch).is_ok_and(|rendered| rendered.is_given_length);
        Expected {
            items_per_step: self.items_per_step(launch),
            micro_steps: launch.settings.accumulation(self.world_size).map_or(1, u64::from),
            is_given_steps,
            pattern: monitor.training.clone(),
            has_losses: patterns.has_losses(),
        }
    }

    /// The report of a launch that is not started: its placeholders have no values, its script would ignore a setting,
    /// or it is the preflight of a script that does not know preflights.
    pub(crate) fn before_start(&self, launch: &LaunchPlan) -> Option<Report> {
        let ended = |outcome, message| Some(Report { message, ..Report::bare(launch, 0, outcome) });
        let rendered = match self.rendered_before_start(launch) {
            Ok(rendered) => rendered,
            // It may be in the environment, too.
            Err(error @ RenderError::Unset(_)) => return ended(Outcome::InvalidPlan, error.to_string()),
            Err(error) => return ended(Outcome::InvalidPlan, format!("workload.command: {error}")),
        };
        if let Some(problem) = absent_script(&rendered.command).filter(|_| launch.kind == LaunchKind::Preflight) {
            return ended(Outcome::InvalidPlan, format!("workload.command: {problem}"));
        }
        let monitor = self.monitor()?;
        if let Err(error) = Patterns::new(monitor) {
            return ended(Outcome::InvalidPlan, format!("workload.monitor.{error}"));
        }
        let unused = rendered.unused(&launch.settings);
        if let Some(first) = unused.first() {
            let names: Vec<_> = unused.iter().map(|name| format!("settings.{name}")).collect();
            let message = format!(
                "{}: no placeholder uses this value, so it would have no effect: add $(settings.{first}) to the command, its \
                 arguments or the environment, or remove the setting",
                names.join(", ")
            );
            return ended(Outcome::Unsupported, message);
        }
        (launch.kind == LaunchKind::Preflight).then(|| Report::bare(launch, 0, Outcome::Done))
    }

    /// The directory in which a launch has its checkpoints; `None` for object storage.
    fn checkpoints(&self, launch: &LaunchPlan) -> Option<Checkpoints> {
        let place = match launch.checkpoint {
            Some(_) => directory(&checkpoints(launch, &self.checkpoints))?,
            None => self.work_dir.join(&launch.launch).join("checkpoints"),
        };
        Some(Checkpoints { place, items_per_step: self.items_per_step(launch) })
    }

    /// The checkpoint that a launch resumes, as it stands now: its own, if `counts` its name, or that of another job.
    fn newest(&self, launch: &LaunchPlan, counts: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let policy = launch.checkpoint.as_ref()?;
        let own = || self.checkpoints(launch)?.newest_of(policy.resume_not_after_items, counts);
        let other = || {
            let from = policy.resume_from.as_ref()?;
            let place = std::env::var(env::RESUME_FROM).unwrap_or_else(|_| from.storage.clone());
            Checkpoints { place: directory(&place)?, items_per_step: 1 }.newest(None)
        };
        if policy.resume { own() } else { None }.or_else(other)
    }

    /// Decides, once for all ranks, which checkpoint a launch resumes. What may be damaged is set aside before; a
    /// script that implements the contract does so itself.
    ///
    /// # Errors
    /// The report of a launch that is not started: a checkpoint is expected, and there is none.
    pub(crate) fn resume(&self, launch: &LaunchPlan) -> Result<Resume, Box<Report>> {
        let ended = |outcome, message| Box::new(Report { message, ..Report::bare(launch, 0, outcome) });
        let policy = launch.checkpoint.as_ref().filter(|policy| policy.resume && self.monitor().is_some());
        // Before a checkpoint is chosen: a gang that was taken for dead may still write. What it writes from now on
        // does not count.
        let before = self.checkpoints(launch).map(|own| fence::entries(&own.place)).unwrap_or_default();
        let epoch = self.claim(launch).map_err(|(outcome, message)| ended(outcome, message))?;
        let counts = |name: &str| epoch.is_none() || before.contains(OsStr::new(name));
        let mut warning = None;
        if let (Some(policy), Some(own)) = (policy, self.checkpoints(launch)) {
            let place = own.place.display();
            let unreadable = |message| ended(Outcome::CheckpointUnreadable, message);
            let limit = policy.resume_not_after_items;
            let known = policy.known().filter(|_| own.newest_of(limit, counts).is_none());
            if let Some(missing) = known.filter(|known| !own.is_bad(known, limit)) {
                let CheckpointRef { name, items, .. } = missing;
                return Err(unreadable(format!(
                    "checkpoint {name} at {items} items was written, but {place} contains no checkpoint to resume: restore the storage or \
                     its mount, then set spec.suspend to true and back to false to continue; or delete the job and create it again to \
                     start from the beginning"
                )));
            }
            warning = own.set_damaged_aside(limit).map_err(unreadable)?;
            if let Some(CheckpointRef { name, .. }) = known {
                // Nothing that was saved is good; if the training had diverged, nobody may have read its report.
                let anew = format!("what was saved since {name} may be damaged, and is in {place}/.pawl/quarantine");
                warning = Some(format!("{anew}; no checkpoint is left: training begins anew"));
            }
        }
        let checkpoint = self.newest(launch, counts).map(|path| path.to_string_lossy().into_owned());
        Ok(Resume { checkpoint, warning, epoch })
    }

    /// After the ranks of a training that has diverged after `items` have ended: sets aside what was written since
    /// then, which may be damaged. The report of the divergence may be lost. Returns a warning for the user.
    pub(crate) fn diverged(&self, launch: &LaunchPlan, items: u64) -> Option<String> {
        launch.checkpoint.as_ref().filter(|_| launch.kind == LaunchKind::Train)?;
        self.checkpoints(launch)?.set_damaged_aside(Some(items)).unwrap_or_else(Some)
    }

    /// Supersedes all earlier gangs of the job, if `launch` is a training whose script writes checkpoints that the
    /// agent follows.
    fn claim(&self, launch: &LaunchPlan) -> Result<Option<Epoch>, (Outcome, String)> {
        let trains = launch.kind == LaunchKind::Train && launch.checkpoint.is_some() && self.monitor().is_some();
        let storage = trains.then(|| directory(&self.checkpoints)).flatten();
        storage.map(|storage| fence::supersede(&storage, &launch.attempt)).transpose()
    }

    /// Where a launch that resumes a checkpoint begins, for the rank that is measured.
    fn begins(&self, launch: &LaunchPlan, resume: &Resume) -> Option<Standing> {
        let own = self.checkpoints(launch)?;
        let path = resume.checkpoint.as_ref().map(Path::new)?;
        path.starts_with(&own.place).then(|| own.standing(path))
    }

    /// Follows a rank that is measured, and its checkpoints from now on.
    pub(crate) fn follow(
        &self,
        launch: &LaunchPlan,
        resume: &Resume,
        followed: &Followed,
    ) -> std::io::Result<Option<Sightings>> {
        let own = self.checkpoints(launch).filter(|_| launch.kind == LaunchKind::Train && launch.checkpoint.is_some());
        let (attempt, name) = (launch.attempt.clone(), launch.launch.clone());
        let part = TrainedPart { from_items: 0, attempt, launch: name };
        let begins = self.begins(launch, resume);
        let trained = begins.as_ref().map_or_else(|| vec![part.clone()], |at| continued(at, part.clone()));
        let trained = if own.is_some() { trained } else { Vec::new() };
        let quarantined = own.as_ref().map(Checkpoints::quarantined).unwrap_or_default();
        let standing = Standing { trained, quarantined, ..begins.unwrap_or_default() };
        followed.resumes(standing.clone());
        own.map(|own| Sightings::start(own, followed.clone(), &standing)).transpose()
    }

    /// Proves in a preflight that a followed script can write the checkpoints of its training; the report of the
    /// launch's end if not.
    pub(crate) async fn prove_storage(&self, launch: &LaunchPlan) -> Option<Report> {
        let checks = launch.kind == LaunchKind::Preflight && self.monitor().is_some();
        launch.checkpoint.as_ref().filter(|_| checks)?;
        let own = self.checkpoints(launch)?;
        let newest = own.newest(None);
        let (outcome, message) = storage::prove(own.place, newest).await.err()?;
        Some(Report { message, ..Report::bare(launch, 0, outcome) })
    }

    /// Why a followed script that failed could not write: its storage or its working directory is full.
    pub(crate) async fn full(&self, launch: &LaunchPlan) -> Option<String> {
        let storage = self.checkpoints(launch).map(|own| own.place);
        let places = storage.into_iter().chain([self.work_dir.join(&launch.launch)]).collect();
        let (place, error) = storage::full(places).await?;
        let remedy = "free some space there, or have the script keep fewer checkpoints";
        Some(format!("{}: {error}: {remedy}", place.display()))
    }

    /// The path that a script was given, by its command, its environment or its configuration, and that does not exist
    /// on this node, if that is why it ended: `said` is its error.
    pub(crate) fn absent_path(&self, launch: &LaunchPlan, said: &str) -> Option<String> {
        let rendered = self.rendered(launch, &Resume::default(), &|name| self.variable(name)).ok()?;
        let own = self.env.iter().map(|(_, value)| value.clone());
        let words = rendered.command.into_iter().chain(rendered.env.into_values()).chain(own);
        let words: Vec<String> = words.chain(absent::configured(launch)).collect();
        let storage = directory(&self.checkpoints);
        let made: Vec<&Path> = [&self.work_dir, &self.data].into_iter().chain(&storage).map(PathBuf::as_path).collect();
        absent::path(&words, &made, said).map(str::to_owned)
    }

    fn places(&self, launch: &LaunchPlan, latest: Option<String>) -> Places {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Places {
            launch: text(self.work_dir.join(&launch.launch)),
            checkpoints: self.checkpoints(launch).map(|own| text(own.place)).unwrap_or_default(),
            latest_checkpoint: latest,
            data: text(self.data.clone()),
        }
    }

    /// Watches the epoch that agent 0 has claimed; `followed` is rank 0.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn fence(
        &self,
        launch: &LaunchPlan,
        resume: &Resume,
        followed: &Followed,
    ) -> std::io::Result<Option<Fence>> {
        let (Some(epoch), Some(storage)) = (resume.epoch, directory(&self.checkpoints)) else { return Ok(None) };
        let place = self.checkpoints(launch).map_or_else(|| storage.clone(), |own| own.place);
        Fence::watch(&storage, &place, epoch, (&launch.attempt, followed)).map(Some)
    }

    /// Creates the directory for checkpoints of a launch, if it is one, and checks that this node has the one to
    /// resume.
    pub(crate) fn prepare(&self, launch: &LaunchPlan, resume: &Resume) -> std::io::Result<()> {
        if let Some(own) = self.checkpoints(launch) {
            std::fs::create_dir_all(own.place)?;
        }
        match &resume.checkpoint {
            Some(path) if !Path::new(path).exists() => Err(std::io::Error::other(format!(
                "{path}, which rank 0 resumes, is not on this node: all nodes need the same checkpoint storage"
            ))),
            _ => Ok(()),
        }
    }
}

/// What agent 0 has decided about the checkpoint of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resume {
    /// Path of the checkpoint that every rank resumes; `None`: the training begins.
    pub(crate) checkpoint: Option<String>,
    /// A warning for the user.
    pub(crate) warning: Option<String>,
    /// The epoch that agent 0 has claimed in the storage, if the script does not do so itself.
    pub(crate) epoch: Option<Epoch>,
}

/// What is wrong with the path of a Python script that a command runs directly; `None` where that cannot be told.
fn absent_script(command: &[String]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let is_python = Path::new(program).file_name()?.to_str()?.starts_with("python");
    let script = arguments.iter().find(|argument| !argument.starts_with('-')).filter(|_| is_python)?;
    let path = Path::new(script);
    (path.extension()? == "py").then_some(())?;
    // It begins with a variable that only a rank has.
    if script.starts_with("$(") {
        return None;
    }
    if path.is_relative() {
        return Some(format!(
            "{script} is a relative path, and each launch starts in a directory of its own: write an absolute path"
        ));
    }
    (!path.exists()).then(|| format!("{script} does not exist: correct the path"))
}

/// Whether it is no checkpoint, or one that must not be resumed.
fn is_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.is_empty() || name.starts_with('.') || name.ends_with(DAMAGED) || name == EPOCHS || is_directory(&name)
}

#[cfg(test)]
mod vectors;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_cannot_be_there_is_named_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("train.py");
        std::fs::write(&there, "").unwrap();
        let there = there.to_str().unwrap();
        let problem = |words: &[&str]| absent_script(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(problem(&["python3", "-u", "/none/train.py"]).unwrap().contains("/none/train.py does not exist"));
        assert!(problem(&["/venv/bin/python", "train.py", "--x=1"]).unwrap().contains("write an absolute path"));
        for fine in [
            vec!["python3", there],
            vec!["python3", "-m", "pawl_launch.warm", "train.py"],
            vec!["sh", "-c", "exec python3 train.py"],
            vec!["./train.py"],
            vec![],
        ] {
            assert_eq!(problem(&fine), None, "{fine:?}");
        }
    }

    #[test]
    fn only_directories_hold_checkpoints_of_scripts() {
        assert_eq!(directory("file:///a/b"), Some(PathBuf::from("/a/b")));
        assert_eq!(directory("/a"), Some(PathBuf::from("/a")));
        assert_eq!(directory("s3://bucket/a"), None);
    }

    /// The script of attempt `number` of a job, and its training, whose checkpoints are in `storage`.
    pub(super) fn training(storage: &Path, number: u32) -> (Script, LaunchPlan) {
        let launch = serde_json::json!({
            "contract": 1, "job": "j", "attempt": format!("j-{number}"), "launch": "train", "kind": "Train", "workload": {},
            "settings": {"batchPerGpu": 8}, "seed": 1, "budget": {"items": 8000}, "hangTimeoutSeconds": 1.0,
            "checkpoint": {"everySeconds": 60.0, "keep": 3, "resume": true},
        });
        let launch: LaunchPlan = serde_json::from_value(launch).unwrap();
        let attempt = serde_json::json!({
            "contract": 1, "job": "j", "attempt": launch.attempt, "replicas": 1, "ranksPerReplica": 1, "gpusPerReplica": 0,
            "command": ["train.sh"], "script": {"monitor": {"source": "Log"}}, "launches": [launch],
            "stopOnFailure": true,
        });
        let mut node = Node::local(storage.join("../work"), Vec::new());
        node.checkpoints = storage.to_string_lossy().into_owned();
        (Script::new(&serde_json::from_value(attempt).unwrap(), &node).unwrap(), launch)
    }

    #[test]
    fn earlier_gangs_are_superseded_before_a_checkpoint_is_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let storage = dir.path().join("storage");
        std::fs::create_dir_all(&storage).unwrap();
        std::fs::write(storage.join("ckpt-5"), "").unwrap();
        let (script, launch) = training(&storage, 2);
        let chosen = script.resume(&launch).unwrap();
        assert_eq!(chosen.checkpoint.as_deref(), storage.join("ckpt-5").to_str());
        assert!(storage.join(".epochs/2.1").exists() && chosen.epoch.is_some(), "{chosen:?}");
        // Also one that finds nothing to resume: another may write before its ranks have started.
        std::fs::remove_file(storage.join("ckpt-5")).unwrap();
        let (script, launch) = training(&storage, 4);
        assert_eq!(script.resume(&launch).unwrap().checkpoint, None);
        let (late, launch) = training(&storage, 3);
        let refused = late.resume(&launch).unwrap_err();
        assert!(refused.outcome == Outcome::Stopped && refused.message.contains("was superseded"), "{refused:?}");
    }

    /// The second training of the job has its checkpoints in a directory of its own.
    #[test]
    fn what_a_superseded_gang_wrote_since_then_is_set_aside_where_it_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let storage = dir.path().join("storage");
        let (script, mut launch) = training(&storage, 2);
        launch.checkpoint.as_mut().unwrap().directory = Some("pawl-training-2".to_owned());
        let place = storage.join("pawl-training-2");
        std::fs::create_dir_all(&place).unwrap();
        let resume = script.resume(&launch).unwrap();
        let monitor = script.monitor().unwrap();
        let patterns =
            Patterns::new(&Monitor { training: Some("(?<step>.)".to_owned()), ..Monitor::default() }).unwrap();
        let followed = Followed::new(&launch, Some(script.expected(&launch, monitor, &patterns)));
        let fence = script.fence(&launch, &resume, &followed).unwrap().unwrap();
        std::fs::write(place.join("ckpt-1"), "").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(storage.join(".epochs/3.1"), "").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while followed.verdict().is_none() && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        followed.observe(pawl_contract::log::Reading::Training { step: Some(1), items: None, epoch: None, loss: None });
        std::fs::write(place.join("ckpt-2"), "").unwrap();
        fence.set_aside();
        assert!(place.join("ckpt-1").exists(), "the later gang may have resumed it");
        assert!(place.join(".pawl/quarantine/ckpt-2").exists() && !place.join("ckpt-2").exists());
    }
}
