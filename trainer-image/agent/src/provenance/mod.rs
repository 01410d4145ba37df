//! What an attempt is measured with ([`pawl_contract::provenance`]): this machine, the versions on it, and the revision
//! of the script. Nothing depends on it: what cannot be found out in [`PATIENCE`] is absent.

mod cpu;
mod git;
mod gpu;
mod program;
mod python;
mod scripts;

pub use scripts::scripts;

use crate::files;
use crate::node::Node;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::provenance::{Build, Provenance, Source, redacted};
use pawl_contract::{env, pod};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Name of the provenance in the directory of an attempt.
const FILE: &str = "provenance.json";
/// Maximum size of that file, bytes.
const MAX_FILE: u64 = 64 << 10;
/// How long a program that is asked may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The provenance of the attempt in this directory, as its agent has collected it (of another pod than the first, its
/// machine alone); `None` for one of an earlier version, and for one that has not begun.
pub fn provenance(work_dir: &Path) -> Option<Provenance> {
    let content = files::read_bounded(&work_dir.join(FILE), MAX_FILE).ok()?;
    serde_json::from_slice(&content).ok()
}

/// What is to be found out about an attempt on this node.
#[derive(Clone, Debug)]
pub(crate) struct Inquiry {
    work_dir: PathBuf,
    command: Vec<String>,
    env: Vec<(String, String)>,
    gpus: Vec<String>,
    gpu_count: u32,
    features: Vec<&'static str>,
    /// How long a program that is asked may take.
    patience: Duration,
    /// Whether nobody waits for the answer any longer.
    ended: Arc<AtomicBool>,
}

impl Inquiry {
    pub(crate) fn new(plan: &AttemptPlan, node: &Node) -> Self {
        Self {
            work_dir: node.work_dir.clone(),
            command: plan.command.clone(),
            env: node.env.clone(),
            gpus: node.gpus.clone(),
            gpu_count: plan.gpus_per_replica,
            features: node.features.clone(),
            patience: PATIENCE,
            ended: Arc::default(),
        }
    }

    /// Set, it ends the inquiry: without an answer, unless that was complete.
    pub(crate) fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// Finds it out, and keeps it in the attempt's directory. Blocks for [`PATIENCE`] at most, other than on files.
    /// `None` when it was ended: an earlier life of the attempt may have found out more.
    pub(crate) fn answer(&self) -> Option<Provenance> {
        let (machine, libraries, source) = thread::scope(|scope| {
            let machine = scope.spawn(|| self.machine());
            let source = scope.spawn(|| self.source());
            let libraries = python::libraries(&self.command, self);
            // A thread that panics has found nothing.
            (machine.join().unwrap_or_default(), libraries, source.join().unwrap_or_default())
        });
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let features = self.features.iter().map(|name| (*name).to_owned()).collect();
        let found = Provenance {
            libraries,
            source,
            pawl: Some(Build { version, features }),
            // Its placeholders are kept: the values of variables may be secret, as those of some options are.
            command: Some(redacted(&self.command)),
            ..machine
        }
        .bounded();
        self.keep(&found);
        Some(found)
    }

    /// Finds out what this node of several has, and keeps it in the attempt's directory. Blocks as [`Self::answer`]
    /// does.
    pub(crate) fn keep_machine(&self) {
        let machine = self.machine().bounded();
        if !self.ended.load(Ordering::Relaxed) {
            self.keep(&machine);
        }
    }

    fn keep(&self, found: &Provenance) {
        let written = serde_json::to_vec(found).map_err(Into::into);
        if let Err(error) = written.and_then(|text| files::write(&self.work_dir.join(FILE), &text)) {
            tracing::debug!(%error, "what the attempt is measured with is not kept in its directory");
        }
    }

    /// What the nodes of an attempt may differ in.
    fn machine(&self) -> Provenance {
        let gpu::Found { gpu, driver } = self.gpu();
        let image = self.variable(pod::IMAGE);
        Provenance { gpu, cpu: Some(cpu::cpu()), driver, image, ..Provenance::default() }
    }

    fn gpu(&self) -> gpu::Found {
        if self.gpu_count == 0 {
            return gpu::Found::default();
        }
        let visible = || self.variable("CUDA_VISIBLE_DEVICES").filter(|names| !names.is_empty());
        let names = if self.gpus.is_empty() { visible() } else { Some(self.gpus.join(",")) };
        gpu::found(names.as_deref(), self.gpu_count, self)
    }

    fn source(&self) -> Option<Source> {
        let files = scripts(&self.command, &|name| self.variable(name));
        files.iter().find_map(|script| git::source(script, self))
    }

    /// A variable of the ranks.
    fn variable(&self, name: &str) -> Option<String> {
        let own = self.env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        own.or_else(|| std::env::var(name).ok())
    }

    /// A program that runs in the environment of the ranks.
    fn program(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(name);
        command.current_dir(&self.work_dir).envs(self.env.iter().cloned());
        // What has a plan of the attempt, and what has none, is ended with the attempt as a remnant. This is neither.
        command.env(env::PLAN, "");
        command
    }

    /// The standard output of a program.
    fn ask(&self, command: Command) -> Option<String> {
        program::output(command, self.patience, &self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::process::Stdio;
    use std::time::Instant;

    /// An attempt in `folder/work` that runs `command`.
    fn inquiry(folder: &Path, command: &[&str]) -> Inquiry {
        let work_dir = folder.join("work");
        std::fs::create_dir_all(&work_dir).unwrap();
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Inquiry {
            work_dir,
            command,
            env: Vec::new(),
            gpus: Vec::new(),
            gpu_count: 0,
            features: vec!["s3"],
            // For a machine that is loaded.
            patience: Duration::from_secs(30),
            ended: Arc::default(),
        }
    }

    fn git(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(identity).args(arguments).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "git {arguments:?}");
    }

    #[test]
    fn a_script_in_a_repository_has_a_commit_and_is_dirty_once_it_is_edited() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("code");
        std::fs::create_dir_all(repository.join("src")).unwrap();
        let script = repository.join("src/train.py");
        std::fs::write(&script, "print(1)").unwrap();
        git(&repository, &["init", "--quiet"]);
        let asked = || inquiry(folder.path(), &["sh", "-c", &format!("exec sh {}", script.display())]);
        let source = || asked().answer().unwrap().source;
        assert_eq!(source().unwrap_or_default().commit, None, "there is no commit yet");
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "--quiet", "-m", "a"]);
        let clean = source().unwrap();
        assert!(clean.commit.as_ref().is_some_and(|commit| commit.len() == 40), "{clean:?}");
        assert_eq!(clean.dirty, Some(false));
        std::fs::write(&script, "print(2)").unwrap();
        assert_eq!(source().unwrap(), Source { dirty: Some(true), ..clean.clone() });
        git(&repository, &["checkout", "--quiet", "."]);
        std::fs::write(repository.join("notes.txt"), "").unwrap();
        assert_eq!(source(), Some(clean), "another file of which git knows nothing is no change");
    }

    #[test]
    fn a_script_that_is_in_no_commit_is_dirty_and_one_without_a_repository_has_no_source() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "").unwrap();
        let asked = || inquiry(folder.path(), &["true", script.to_str().unwrap()]);
        let found = asked().answer().unwrap();
        // The folder for temporary files may be in a repository.
        let place = std::fs::canonicalize(folder.path()).unwrap();
        let outside = !place.ancestors().any(|folder| folder.join(".git").exists());
        assert_eq!(found.source.is_none(), outside, "{:?}", found.source);
        assert_eq!(provenance(&folder.path().join("work")), Some(found.clone()), "it is kept");
        assert_eq!(found.pawl.unwrap().features, ["s3"]);

        git(folder.path(), &["init", "--quiet"]);
        std::fs::write(folder.path().join("a"), "").unwrap();
        git(folder.path(), &["add", "a"]);
        git(folder.path(), &["commit", "--quiet", "-m", "a"]);
        assert_eq!(asked().answer().unwrap().source.unwrap().dirty, Some(true));
    }

    #[test]
    fn an_inquiry_that_is_ended_has_no_answer_and_keeps_none() {
        let folder = tempfile::tempdir().unwrap();
        let inquiry = inquiry(folder.path(), &["true"]);
        inquiry.ended().store(true, Ordering::Relaxed);
        assert_eq!(inquiry.answer(), None);
        assert_eq!(provenance(&folder.path().join("work")), None);
    }

    #[test]
    fn variables_of_git_do_not_choose_the_repository() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|name| folder.path().join(name));
        for repository in [&own, &other] {
            std::fs::create_dir(repository).unwrap();
            git(repository, &["init", "--quiet"]);
            std::fs::write(repository.join("train.py"), "").unwrap();
        }
        git(&other, &["add", "."]);
        git(&other, &["commit", "--quiet", "-m", "a"]);
        let mut inquiry = inquiry(folder.path(), &["true", own.join("train.py").to_str().unwrap()]);
        for (name, at) in [("GIT_DIR", ".git"), ("GIT_WORK_TREE", ""), ("GIT_INDEX_FILE", ".git/index")] {
            inquiry.env.push((name.to_owned(), other.join(at).display().to_string()));
        }
        let found = inquiry.answer().unwrap().source;
        assert_eq!(found, Some(Source { commit: None, dirty: Some(true) }), "it has no commit yet");
    }

    #[test]
    fn values_of_variables_and_secrets_are_not_in_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let command = ["train", "--key=$(TOKEN)", "--lr=$(settings.learningRate)", "--password=secret-17"];
        let mut inquiry = inquiry(folder.path(), &command);
        inquiry.env.push(("TOKEN".to_owned(), "secret-17".to_owned()));
        let found = inquiry.answer().unwrap();
        assert_eq!(found.command.as_deref(), Some("train --key=$(TOKEN) --lr=$(settings.learningRate) --password=***"));
        assert!(!serde_json::to_string(&found).unwrap().contains("secret-17"));
    }

    #[test]
    fn the_interpreter_of_the_script_names_its_libraries_and_one_that_hangs_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let interpreter = folder.path().join("python3");
        // By another process: a program that another thread starts meanwhile would hold the file open for writing.
        let write = |text: &str| {
            let script = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#;
            let status = Command::new("sh").args(["-c", script]).arg(&interpreter).arg(text).status();
            assert!(status.unwrap().success());
        };
        let path = interpreter.display().to_string();
        let asked = || inquiry(folder.path(), &["sh", "-c", &format!("exec {path} train.py")]);
        let libraries = || asked().answer().unwrap().libraries;
        write(r#"echo '{"python": "3.12.1", "torch": "2.8.0"}'"#);
        let expected = [("python", "3.12.1"), ("torch", "2.8.0")];
        let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(libraries(), BTreeMap::from(expected));
        let other = inquiry(folder.path(), &["sh", "-c", &format!(". env/bin/activate; exec {path} train.py")]);
        assert!(other.answer().unwrap().libraries.is_empty(), "it may be another one");
        write("echo not JSON");
        assert!(libraries().is_empty());
        write("sleep 600");
        let begun = Instant::now();
        let hurried = Inquiry { patience: Duration::from_millis(300), ..asked() };
        assert!(hurried.answer().unwrap().libraries.is_empty() && begun.elapsed() < Duration::from_secs(30));
    }
}
