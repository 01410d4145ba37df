//! Saving beside training: storage that is slow is a heartbeat that waits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::metrics::Metrics;
use parking_lot::Mutex;
use pawl_contract::plan::{Criterion, LaunchKind};
use pawl_contract::progress::Progress;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

pub(super) fn policy() -> CheckpointPolicy {
    CheckpointPolicy {
        every_seconds: 0.0,
        keep: 2,
        resume: true,
        resume_not_after_items: None,
        expected: None,
        expected_after_limit: None,
        resume_from: None,
        best: Criterion::default(),
        directory: None,
    }
}

pub(super) fn author(attempt: &str) -> Author {
    Author { attempt: attempt.to_owned(), ..Author::default() }
}

pub(super) fn publisher() -> Publisher {
    Publisher::new(("l", LaunchKind::Train), None, None, Metrics::new().unwrap())
}

fn saver(dir: &Path) -> Saver {
    Saver::new(dir.to_str().unwrap(), &policy(), author("toy-1"), 0, &publisher()).unwrap()
}

/// A saver whose writes wait until the sender is dropped.
fn slow_saver(dir: &Path) -> (Saver, Sender<()>) {
    let (open, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let writer = Writer::open(dir.to_str().unwrap(), 2, author("toy-1")).unwrap();
    // The only error is that the sender was dropped.
    let writer = writer.with_heartbeat(Arc::new(move |_| {
        let _ = gate.lock().recv();
    }));
    (Saver { writer: Some(Arc::new(writer)), ..saver_without_writer(dir) }, open)
}

fn saver_without_writer(dir: &Path) -> Saver {
    Saver::new(dir.to_str().unwrap(), &policy(), author("toy-1"), 1, &publisher()).unwrap()
}

pub(super) fn checkpoint(step: u64) -> Checkpoint {
    let position = Position { step, items: step * 4, ..Position::start("ups", 1) };
    let tensors = vec![("w".to_owned(), Array::new([2], Data::F32(vec![step as f32, 1.0])).unwrap())];
    Checkpoint { position, tensors }
}

fn best(step: u64, value: f64) -> Best {
    Best { checkpoint: checkpoint(step), metric: "loss".to_owned(), value }
}

pub(super) fn steps(dir: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("-step-")).collect();
    names.sort();
    names.iter().map(|name| name.split('-').nth(2).unwrap().parse().unwrap()).collect()
}

#[test]
fn training_continues_during_a_save_and_only_the_newest_best_checkpoint_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut saver, open) = slow_saver(dir.path());
    assert!(saver.due());
    saver.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
    // The steps that follow: nothing waits for the save, and no other one starts.
    for (step, loss) in [(11, 0.5), (12, 0.4), (13, 0.3)] {
        saver.poll().unwrap();
        assert!(!saver.due() && saver.newest().is_none() && saver.holds(10));
        saver.keep_best(best(step, loss));
        assert_eq!(saver.best_value(), Some(loss));
    }
    drop(open);
    saver.wait(false).unwrap();
    assert_eq!(saver.newest().map(|newest| newest.step), Some(10));
    assert!(saver.best().is_none() && saver.longest().is_some());
    // The best one waits for the regular checkpoint that is due.
    saver.poll().unwrap();
    assert!(saver.due() && saver.running.is_none());
    // The next regular checkpoint makes the best one durable, and names it.
    saver.start(Some(checkpoint(20)), Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    assert_eq!(steps(dir.path()), [13, 20], "10 made room: two are kept");
    assert_eq!(saver.best().map(|best| (best.checkpoint.step, best.value)), Some((13, 0.3)));
    let store = Store::open(dir.path().to_str().unwrap()).unwrap();
    let newest = store.newest(None).unwrap().unwrap();
    assert_eq!((newest.reference.step, newest.checkpoint.position.best_checkpoint.as_ref()), (20, saver.best()));
    assert_eq!(store.best().unwrap().unwrap().reference.step, 13);
}

#[test]
fn a_launch_that_ends_early_keeps_its_best_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (mut saver, open) = slow_saver(dir.path());
    saver.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
    saver.keep_best(best(11, 0.5));
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(open);
    });
    saver.finish();
    opener.join().unwrap();
    assert_eq!(steps(dir.path()), [10, 11]);
    assert_eq!(saver.best().map(|best| best.checkpoint.step), Some(11));
}

#[test]
fn a_best_checkpoint_of_this_step_is_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    saver.keep_best(best(7, 0.5));
    assert!(saver.holds(7) && !saver.holds(8));
    saver.start(None, Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    assert_eq!((steps(dir.path()), saver.newest().map(|newest| newest.step)), (vec![7], Some(7)));
}

#[test]
fn failures_surface_at_the_next_boundary_as_those_of_a_synchronous_write_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    let save = |saver: &mut Saver, must| {
        saver.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
        saver.wait(must)
    };
    // The mount is replaced by something else.
    std::fs::remove_dir_all(dir.path()).unwrap();
    std::fs::write(dir.path(), "not a directory").unwrap();
    assert!(save(&mut saver, false).is_ok() && save(&mut saver, false).is_ok(), "two may fail");
    let third = save(&mut saver, false).unwrap_err();
    assert!(matches!(&third, Ending::Failed(message) if message.contains("checkpoint storage")), "{third}");
    saver.failures = 0;
    assert!(save(&mut saver, true).is_err(), "the last one must not fail");
    assert!(saver.newest().is_none() && !saver.holds(10));
}

#[test]
fn a_best_checkpoint_whose_write_failed_is_written_by_the_next_save_unless_a_better_one_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    let failing = dir.path().with_extension("away");
    let save = |saver: &mut Saver, must| {
        saver.start(None, Duration::ZERO).unwrap();
        saver.wait(must)
    };
    std::fs::rename(dir.path(), &failing).unwrap();
    std::fs::write(dir.path(), "not a directory").unwrap();
    saver.keep_best(best(7, 0.5));
    save(&mut saver, false).unwrap();
    assert!(saver.holds(7) && saver.best().is_none() && saver.best_value() == Some(0.5));
    assert!(save(&mut saver, true).is_err(), "the last one must not fail");
    // A better one is found while the write fails.
    saver.failures = 0;
    saver.start(Some(checkpoint(8)), Duration::ZERO).unwrap();
    saver.make_room();
    saver.keep_best(best(9, 0.4));
    saver.wait(false).unwrap();
    assert!(saver.holds(9) && !saver.holds(7) && saver.best_value() == Some(0.4));
    // The storage is back.
    std::fs::remove_file(dir.path()).unwrap();
    std::fs::rename(&failing, dir.path()).unwrap();
    save(&mut saver, true).unwrap();
    assert_eq!((steps(dir.path()), saver.best_value()), (vec![9], Some(0.4)));
    assert!(saver.waiting.is_none());
}

#[test]
fn a_best_checkpoint_whose_write_failed_is_never_the_last_one_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    let regular = |saver: &mut Saver| {
        saver.start(Some(checkpoint(20)), Duration::ZERO).unwrap();
        saver.wait(true).unwrap();
    };
    regular(&mut saver);
    // As after a save that wrote the regular checkpoint, but not the best one.
    saver.keep_best(best(7, 0.5));
    saver.finish();
    assert_eq!(steps(dir.path()), [20]);
    assert!(!saver.holds(20), "one has to follow the best one");
    regular(&mut saver);
    assert_eq!((steps(dir.path()), saver.holds(20)), (vec![7, 20], true));
    assert_eq!(saver.best().map(|best| best.checkpoint.step), Some(7));
}

#[test]
fn a_save_of_the_best_checkpoint_alone_does_not_postpone_the_regular_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    saver.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    let ended = saver.last;
    saver.policy.every_seconds = 1000.0;
    assert!(!saver.due());
    saver.keep_best(best(11, 0.5));
    saver.spawn(None, Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    assert_eq!(steps(dir.path()), [10, 11]);
    // The interval ends between the two saves.
    saver.policy.every_seconds = ended.elapsed().as_secs_f64();
    assert!(saver.due());
}

#[test]
fn reading_the_best_checkpoint_is_a_sign_of_life() {
    let dir = tempfile::tempdir().unwrap();
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("progress.json");
    let mut saver = saver(dir.path());
    saver.publisher = Publisher::new(("l", LaunchKind::Train), Some(file.clone()), None, Metrics::new().unwrap());
    saver.keep_best(best(7, 0.5));
    saver.start(None, Duration::ZERO).unwrap();
    saver.wait(true).unwrap();
    assert_eq!(saver.read_best().unwrap().unwrap().reference.step, 7);
    saver.publisher.enter(RankPhase::Resuming);
    let progress: Progress = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(progress.heartbeat > 0);
}

#[test]
fn memory_is_that_of_three_copies_and_one_shard() {
    assert_eq!(memory(&[]), 0);
    assert_eq!(memory(&[100, 50]), 3 * 150 + 150, "one small shard");
    let large = 300 << 20;
    assert_eq!(memory(&[large, 50]), 3 * (large + 50) + large, "a large tensor has a shard of its own");
    assert_eq!(memory(&[100 << 20; 4]), (3 * 400 + 256) << 20);
}

#[test]
fn a_gang_that_was_superseded_stops_at_the_next_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let mut old = saver(dir.path());
    Writer::open(dir.path().to_str().unwrap(), 2, author("toy-2")).unwrap();
    old.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let ending = loop {
        match old.poll() {
            Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            Err(ending) => break ending,
        }
        assert!(Instant::now() < deadline, "the error does not surface");
    };
    assert!(matches!(ending, Ending::Stopped(_)), "{ending}");
    assert!(steps(dir.path()).is_empty());
}

#[test]
fn what_was_saved_after_the_last_healthy_loss_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let saved = |dir: &Path| {
        let mut saver = saver(dir);
        for step in [10, 20] {
            saver.start(Some(checkpoint(step)), Duration::ZERO).unwrap();
            saver.wait(true).unwrap();
        }
        saver
    };
    let mut diverged = saved(dir.path());
    diverged.discard_after(checkpoint(10).position.items);
    assert_eq!((steps(dir.path()), diverged.newest()), (vec![10], None));
    diverged.discard_after(0);
    assert_eq!(steps(dir.path()), Vec::<u64>::new());
    // Those of a later gang are not its own.
    let mut superseded = saved(dir.path());
    Writer::open(dir.path().to_str().unwrap(), 2, author("toy-2")).unwrap();
    superseded.discard_after(0);
    assert_eq!(steps(dir.path()), [10, 20]);
}

#[test]
fn a_training_of_which_nothing_was_good_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let resume = |attempt: &str, by: &str| {
        let name = format!("00000002-step-20-by-{by}");
        let expected = Some(CheckpointRef { name, step: 20, items: 80 });
        let policy = CheckpointPolicy { resume: true, expected, ..policy() };
        let mut saver = Saver::new(dir.path().to_str().unwrap(), &policy, author(attempt), 0, &publisher()).unwrap();
        let found = saver.resume(&Gang::alone()).map(|resumed| resumed.is_some());
        (saver, found.map_err(|ending| ending.to_string()))
    };
    let mut diverged = saver(dir.path());
    for step in [10, 20] {
        diverged.start(Some(checkpoint(step)), Duration::ZERO).unwrap();
        diverged.wait(true).unwrap();
    }
    diverged.discard_after(20);
    assert_eq!(steps(dir.path()), Vec::<u64>::new());
    // The report of the divergence is lost: the checkpoint is expected.
    assert_eq!(resume("toy-2", "1.1").1, Ok(false));
    let (mut anew, found) = resume("toy-3", "1.1");
    assert_eq!(found, Ok(false));
    anew.start(Some(checkpoint(10)), Duration::ZERO).unwrap();
    anew.wait(true).unwrap();
    // What was saved since then is not gone for that reason.
    let saved = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    saved
        .filter(|path| path.to_string_lossy().contains("-step-"))
        .for_each(|path| std::fs::remove_dir_all(path).unwrap());
    let (_, found) = resume("toy-4", "3.1");
    assert!(found.unwrap_err().contains("restore the storage"));
}

#[test]
fn a_checkpoint_that_is_not_finite_is_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    let mut bad = checkpoint(10);
    bad.tensors.push(("v".to_owned(), Array::new([1], Data::F32(vec![f32::NAN])).unwrap()));
    saver.start(Some(bad), Duration::ZERO).unwrap();
    let ending = saver.wait(false).unwrap_err();
    assert!(
        matches!(&ending, Ending::NonFinite(message) if message.contains("v is not finite after step 10")),
        "{ending}"
    );
    assert!(steps(dir.path()).is_empty());
}

/// The author of a launch with this seed and learning rate.
fn author_of(attempt: &str, seed: u64, rate: &str) -> Author {
    let plan = serde_json::json!({
        "contract": 1, "job": "toy", "attempt": attempt, "launch": format!("train-{rate}"), "kind": "Train",
        "workload": {"name": "ups", "config": {"b": 1, "a": 2}}, "settings": {"learningRate": rate}, "seed": seed,
        "budget": {"items": 100}, "hangTimeoutSeconds": 1.0,
    });
    Author::of(&serde_json::from_value(plan).unwrap())
}

#[test]
fn a_checkpoint_says_what_trained_it_and_one_of_another_training_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("progress.json");
    let resumed = |author: Author| {
        let progress = Some(file.clone());
        let publisher = Publisher::new(("l", LaunchKind::Train), progress, None, Metrics::new().unwrap());
        let mut saver = Saver::new(url, &policy(), author, 0, &publisher).unwrap();
        let resumed = saver.resume(&Gang::alone());
        publisher.publish(Progress::at_start("l", LaunchKind::Train));
        resumed.map(|resumed| (resumed.map(|resumed| resumed.checkpoint.position.items), saver))
    };
    let save = |saver: &Saver, step| drop(saver.writer.as_ref().unwrap().save(&checkpoint(step)).unwrap());
    let (none, saver) = resumed(author_of("toy-1", 1, "0.1")).unwrap();
    save(&saver, 1);
    let (_, saver) = resumed(author_of("toy-2", 1, "0.1")).unwrap();
    save(&saver, 2);
    let (items, saver) = resumed(author_of("toy-3", 1, "0.2")).unwrap();
    save(&saver, 3);
    assert_eq!((none, items), (None, Some(8)));
    let newest = Store::open(url).unwrap().newest(None).unwrap().unwrap();
    let parts: Vec<_> = newest
        .author
        .trained
        .iter()
        .map(|part| (part.from_items, part.attempt.as_str(), part.launch.as_str()))
        .collect();
    assert_eq!(parts, [(0, "toy-1", "train-0.1"), (8, "toy-3", "train-0.2")]);
    let progress: Progress = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((progress.resumed_items, &progress.trained), (Some(8), &newest.author.trained));

    let Err(Ending::CheckpointUnreadable(message)) = resumed(author_of("toy-4", 2, "0.2")).map(|(items, _)| items)
    else {
        panic!("it resumed the model of another seed")
    };
    assert!(message.contains("by attempt toy-3 of job toy") && message.contains("train.resumeFrom"), "{message}");
}
