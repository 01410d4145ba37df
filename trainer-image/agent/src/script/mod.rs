//! Custom commands: their placeholders, and the reports of scripts that write none.

mod accelerate;
mod fence;
mod followed;
mod kubeflow;
mod losses;
mod meter;
mod signs;

use accelerate::accelerate;
pub(crate) use fence::Fence;
pub(crate) use followed::{Asked, Followed, Tap};
pub(crate) use kubeflow::Kubeflow;
pub(crate) use meter::Verdict;

use crate::node::Node;
use crate::torchrun;
use pawl_contract::env;
use pawl_contract::exit::Outcome;
use pawl_contract::log::Patterns;
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::report::Report;
use pawl_contract::script::{Monitor, ScriptPlan};
use pawl_contract::template::{Places, RenderError, Rendered, Values, render};
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
    /// Whether placeholders of variables of this process are kept: their values may be secret, and it is not the script that reads them.
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
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Rendered, RenderError> {
        let places = self.places(launch);
        let values = Values { plan: launch, world_size: self.world_size, places: &places, variable };
        render(&self.command, &self.plan.env, &values)
    }

    /// As [`Self::rendered`], before any rank has started: variables that the agent sets for each rank are not replaced.
    ///
    /// # Errors
    /// [`RenderError`], also for a variable that will not be set.
    pub(crate) fn rendered_before_start(&self, launch: &LaunchPlan) -> Result<Rendered, RenderError> {
        let of_rank = |name: &str| name.starts_with("PAWL_") || self.of_ranks.contains(&name);
        let rendered = self.rendered(launch, &|name| self.variable(name).filter(|_| !of_rank(name)))?;
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

    /// Variables that a script has unless the user sets them: those of Accelerate, and unbuffered output. None for a script that
    /// implements the contract.
    pub(crate) fn defaults(&self, launch: &LaunchPlan, on_cpu: bool) -> Vec<(&'static str, String)> {
        if self.monitor().is_none() {
            return Vec::new();
        }
        let mut all = accelerate(&launch.settings, self.world_size, on_cpu);
        all.push(("PYTHONUNBUFFERED", "1".to_owned()));
        all
    }

    /// Items of an optimizer step of the whole gang; 1 where the batch sizes are not settings or contradict each other.
    pub(crate) fn items_per_step(&self, launch: &LaunchPlan) -> u64 {
        launch.settings.items_per_step(self.world_size).unwrap_or(1)
    }

    /// The report of a launch that is not started: its placeholders have no values, its script would ignore a setting, or it is
    /// the preflight of a script that does not know preflights.
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

    fn places(&self, launch: &LaunchPlan) -> Places {
        let dir = self.work_dir.join(&launch.launch);
        let policy = launch.checkpoint.as_ref();
        let checkpoints = match policy {
            Some(_) => directory(&self.checkpoints),
            None => Some(dir.join("checkpoints")),
        };
        let limit = policy.and_then(|policy| policy.resume_not_after_items);
        let per_step = self.items_per_step(launch);
        let newest = |place: &Path| latest(place, limit.map(|items| items / per_step));
        let own = checkpoints.as_deref().filter(|_| policy.is_some_and(|policy| policy.resume)).and_then(newest);
        let other = || {
            let from = policy?.resume_from.as_ref()?;
            let place = std::env::var(env::RESUME_FROM).unwrap_or_else(|_| from.storage.clone());
            latest(&directory(&place)?, None)
        };
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Places {
            launch: text(dir),
            checkpoints: checkpoints.map(text).unwrap_or_default(),
            latest_checkpoint: own.or_else(other).map(text),
            data: text(self.data.clone()),
        }
    }

    /// Supersedes all earlier gangs of the job where `launch` is a training, whose script writes checkpoints; `followed` is its
    /// rank 0.
    ///
    /// # Errors
    /// When a later gang trains, or the storage cannot be written.
    pub(crate) fn fence(&self, launch: &LaunchPlan, followed: &Followed) -> std::io::Result<Option<Fence>> {
        let trains = launch.kind == LaunchKind::Train && launch.checkpoint.is_some();
        let storage = trains.then(|| directory(&self.checkpoints)).flatten();
        storage.map(|storage| Fence::claim(&storage, &launch.attempt, followed)).transpose()
    }

    /// Creates the directory for checkpoints of a launch, if it is one.
    pub(crate) fn prepare(&self, launch: &LaunchPlan) -> std::io::Result<()> {
        let checkpoints = self.places(launch).checkpoints;
        if checkpoints.is_empty() { Ok(()) } else { std::fs::create_dir_all(checkpoints) }
    }
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

/// The directory of a storage; `None` for object storage.
fn directory(storage: &str) -> Option<PathBuf> {
    let path = storage.strip_prefix("file://").unwrap_or(storage);
    (!path.contains("://")).then(|| PathBuf::from(path))
}

/// The entry of `place` with the highest number at the end of its name (before an extension), such as `checkpoint-500`; the newest
/// one where no name has a number. `most`: highest number that counts, then entries without a number do not. Not one that was being
/// written when its writer was killed.
fn latest(place: &Path, most: Option<u64>) -> Option<PathBuf> {
    let entries = std::fs::read_dir(place).ok()?.filter_map(Result::ok).filter(|entry| !is_aside(&entry.path()));
    let keyed = entries.filter_map(|entry| {
        let number = trailing_number(&entry.path());
        let counts = most.is_none_or(|most| number.is_some_and(|number| number <= most));
        let changed = entry.metadata().and_then(|facts| facts.modified()).ok();
        counts.then(|| ((number, changed), entry.path()))
    });
    let mut all: Vec<_> = keyed.collect();
    all.sort();
    let (_, newest) = all.pop()?;
    match all.last() {
        Some(((Some(_), _), before)) if newest.is_dir() && !has_files_of(&newest, before) => {
            tracing::warn!(checkpoint = %newest.display(), "lacks files of the one before it: it was not written to its end");
            Some(before.clone())
        }
        _ => Some(newest),
    }
}

/// Whether a directory has a file of each name that another one has. Names with digits do not count: there are as many as ranks.
fn has_files_of(directory: &Path, other: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(other) else { return true };
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    names
        .filter(|name| !name.to_string_lossy().bytes().any(|byte| byte.is_ascii_digit()))
        .all(|name| directory.join(name).exists())
}

fn hidden(path: &Path) -> bool {
    path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'))
}

/// Whether it is no checkpoint, or one that must not be resumed.
fn is_aside(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    hidden(path) || name.ends_with(DAMAGED) || name == EPOCHS
}

fn trailing_number(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_string_lossy().into_owned();
    let digits = stem.len() - stem.bytes().rev().take_while(u8::is_ascii_digit).count();
    stem[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_checkpoint_has_the_highest_number() {
        let dir = tempfile::tempdir().unwrap();
        let name = |most| latest(dir.path(), most).map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
        assert_eq!((name(None), latest(&dir.path().join("none"), None)), (None, None));
        for entry in ["checkpoint-9", "checkpoint-10", ".checkpoint-99", "notes"] {
            std::fs::create_dir(dir.path().join(entry)).unwrap();
        }
        assert_eq!(name(None).as_deref(), Some("checkpoint-10"));
        assert_eq!(name(Some(9)).as_deref(), Some("checkpoint-9"));
        assert_eq!(name(Some(1)), None);
        std::fs::write(dir.path().join("step=20.ckpt"), "").unwrap();
        assert_eq!(name(None).as_deref(), Some("step=20.ckpt"));
    }

    #[test]
    fn a_checkpoint_that_was_not_written_to_its_end_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let write = |checkpoint: &str, files: &[&str]| {
            std::fs::create_dir(dir.path().join(checkpoint)).unwrap();
            files.iter().for_each(|file| std::fs::write(dir.path().join(checkpoint).join(file), "").unwrap());
        };
        let newest = || latest(dir.path(), None).unwrap().file_name().unwrap().to_string_lossy().into_owned();
        write("checkpoint-400", &["model.safetensors", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"]);
        write("checkpoint-500", &["model.safetensors"]);
        assert_eq!(newest(), "checkpoint-400");
        // Of fewer ranks.
        write("checkpoint-600", &["model.safetensors", "rng_state_0.pth", "trainer_state.json"]);
        assert_eq!(newest(), "checkpoint-600");
    }

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
}
