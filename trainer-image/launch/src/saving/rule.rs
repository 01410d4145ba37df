//! Which checkpoint is resumed, which are left, and when it is an error: the vectors that the agent and the Python
//! package read too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::tests::{author, checkpoint, policy, publisher, steps};
use super::*;
use pawl_contract::exit::Outcome;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A case of the vectors, in which a step has 10 items.
#[derive(Deserialize)]
struct Case {
    name: String,
    /// Who follows it; absent: all.
    by: Option<Vec<String>>,
    checkpoints: Vec<Saved>,
    /// Items after which the training that saved them noticed that it had diverged.
    diverged: Option<u64>,
    /// Whether it was killed before it had deleted any of them.
    #[serde(default)]
    killed: bool,
    /// The attempt that has claimed the storage.
    claimed: Option<u32>,
    limit: Option<u64>,
    /// Step of the newest checkpoint that the job knows.
    expected: Option<u64>,
    resumes: Resumes,
    /// Steps of those that are not damaged, once it is decided.
    left: Vec<u64>,
    /// Steps of the damaged ones, as progress names them.
    #[serde(default)]
    quarantined: Vec<u64>,
    /// Steps of those that are left when step 9 is saved and two are kept.
    #[serde(default)]
    kept: Vec<u64>,
}

#[derive(Deserialize)]
struct Saved {
    step: u64,
    #[serde(default = "first")]
    attempt: u32,
    #[serde(default)]
    is: Is,
}

const fn first() -> u32 {
    1
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Is {
    #[default]
    Good,
    Incomplete,
    Damaged,
    Illegible,
    Foreign,
    /// It was deleted later.
    Gone,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Resumes {
    Step(Option<u64>),
    Error(String),
}

fn of(step: u64) -> Checkpoint {
    let mut made = checkpoint(step);
    made.position.items = 10 * step;
    made
}

fn saver(dir: &Path, attempt: u32, foreign: bool, changes: CheckpointPolicy) -> Result<Saver, Ending> {
    let trains = if foreign { "another" } else { "this" }.to_owned();
    let author = Author { trains, ..author(&format!("toy-{attempt}")) };
    Saver::new(dir.to_str().unwrap(), &changes, author, 0, &publisher())
}

fn save(saver: &mut Saver, step: u64) -> CheckpointRef {
    saver.start(Some(of(step)), Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    saver.newest().unwrap().clone()
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Copies what `to` does not have.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else if !target.exists() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn shard(folder: &Path) -> PathBuf {
    folder.join("model-00001-of-00001.safetensors")
}

/// What was saved, and the newest of each step.
fn prepare(dir: &Path, case: &Case) -> Vec<(CheckpointRef, Is)> {
    let mut all = Vec::new();
    for saved in &case.checkpoints {
        let keep = CheckpointPolicy { keep: 9, ..policy() };
        let mut saver = saver(dir, saved.attempt, saved.is == Is::Foreign, keep).unwrap();
        all.push((save(&mut saver, saved.step), saved.is));
        if let Some(items) = case.diverged.filter(|_| all.len() == case.checkpoints.len()) {
            let before = tempfile::tempdir().unwrap();
            copy(dir, before.path());
            saver.discard_after(items);
            if case.killed {
                let noted = std::fs::read(dir.join(".pawl/diverged")).unwrap();
                copy(before.path(), dir);
                std::fs::create_dir_all(dir.join(".pawl")).unwrap();
                std::fs::write(dir.join(".pawl/diverged"), noted).unwrap();
            }
        }
    }
    for (reference, is) in &all {
        let folder = dir.join(&reference.name);
        match is {
            Is::Good | Is::Foreign => {}
            Is::Incomplete => std::fs::remove_file(folder.join("manifest.json")).unwrap(),
            Is::Damaged => flip(&shard(&folder)),
            Is::Illegible => flip(&folder.join("manifest.json")),
            Is::Gone => std::fs::remove_dir_all(&folder).unwrap(),
        }
    }
    all
}

#[test]
fn the_checkpoint_that_is_resumed_is_that_of_the_vectors() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../crds/contract/tests/checkpoints.json")).unwrap();
    for case in cases {
        if case.by.as_ref().is_some_and(|by| by.iter().all(|by| by != "trainer")) {
            continue;
        }
        let name = &case.name;
        let dir = tempfile::tempdir().unwrap();
        let all = prepare(dir.path(), &case);
        if let Some(attempt) = case.claimed {
            saver(dir.path(), attempt, false, policy()).unwrap();
        }
        let expected = case.expected.map(|step| {
            let known = all.iter().rev().find(|(reference, _)| reference.step == step);
            let gone = CheckpointRef { name: format!("{step:08}-step-{step}-by-1.9"), step, items: 10 * step };
            known.map_or(gone, |(reference, _)| reference.clone())
        });
        let limits = CheckpointPolicy { resume_not_after_items: case.limit, ..policy() }.expecting(expected);
        let mut opened = saver(dir.path(), 3, false, limits);
        let found = opened
            .as_mut()
            .map_err(|ending| ending.outcome())
            .and_then(|saver| saver.resume(&Gang::alone()).map_err(|ending| ending.outcome()));
        let resumes = match found {
            Ok(found) => Resumes::Step(found.map(|found| found.checkpoint.position.step)),
            Err(Outcome::Stopped) => Resumes::Error("Superseded".to_owned()),
            Err(outcome) => Resumes::Error(format!("{outcome:?}")),
        };
        assert_eq!(resumes, case.resumes, "{name}");
        let is_bad = |name: &str| {
            let known = all.iter().find(|(reference, _)| reference.name == name);
            known.is_some_and(|(_, is)| !matches!(is, Is::Good | Is::Foreign))
        };
        let mut left: Vec<u64> = all
            .iter()
            .filter(|(reference, _)| dir.path().join(&reference.name).exists() && !is_bad(&reference.name))
            .map(|(reference, _)| reference.step)
            .collect();
        left.sort_unstable();
        assert_eq!(left, case.left, "{name}");
        if let (Ok(saver), Resumes::Step(_)) = (&mut opened, &case.resumes) {
            let damaged = saver.writer.as_ref().unwrap().store().damaged();
            let step_of = |name: &String| all.iter().find(|(reference, _)| reference.name == *name).unwrap().0.step;
            assert_eq!(damaged.iter().map(step_of).collect::<Vec<_>>(), case.quarantined, "{name}");
            save(saver, 9);
            assert_eq!(steps(dir.path()), case.kept, "{name}");
        }
    }
}
