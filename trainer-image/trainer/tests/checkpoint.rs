//! Checkpoints: whole or passed over, older ones untouched, errors that say what to do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_contract::exit::Outcome;
use pawl_graph::array::{Array, Data};
use pawl_trainer::checkpoint::{
    Author, Checkpoint, CheckpointError, Choice, Position, Store, Tensors, Writer, archive, probe, unpack,
};
use pawl_trainer::ending::Ending;
use pawl_trainer::losses::SpikeWatch;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// 100 losses, the last of which is above the bound.
fn losses() -> SpikeWatch {
    let mut watch = SpikeWatch::default();
    (1..100).for_each(|i| assert_eq!(watch.add(2.0 + 1.0 / f64::from(i)), None));
    watch.add(5.0);
    watch
}

fn checkpoint(step: u64) -> Checkpoint {
    let position = Position {
        workload: "ups".into(),
        seed: 42,
        step,
        items: step * 4,
        best_validation: Some(0.1 + 0.2),
        evaluations_since_best: 1,
        best_checkpoint: None,
        evaluations: vec![(1, Some(0.5)), (2, None)],
        first_validation: None,
        losses: losses(),
    };
    let values: Vec<f32> = (0..3000u32).map(|i| f32::from_bits(0x3e00_0000 + i * 2_654 + step as u32)).collect();
    let tensors = vec![
        ("adamw/count".into(), Array::new([1], Data::U32(vec![step as u32])).unwrap()),
        ("operator.inp.weight".into(), Array::new([30, 100], Data::F32(values)).unwrap()),
    ];
    Checkpoint { position, tensors }
}

fn author(attempt: &str) -> Author {
    Author { job: "toy".into(), uid: "7f3a".into(), attempt: attempt.into(), ..Author::default() }
}

fn store(dir: &Path, keep: u32) -> Writer {
    Writer::open(dir.to_str().unwrap(), keep, author("toy-1")).unwrap()
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = entries.filter(|path| !path.ends_with("epochs")).collect();
    all.sort();
    all
}

#[test]
fn what_was_saved_comes_back_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let reference = store(dir.path(), 3).save(&checkpoint(10)).unwrap();
    let url = format!("file://{}", dir.path().display());
    let found = Store::open(&url).unwrap().newest(None).unwrap().unwrap();
    assert!(found.checkpoint == checkpoint(10), "every bit");
    assert_eq!((found.reference.step, found.reference.items), (10, 40));
    assert_eq!(found.reference, reference);
    assert!(
        store(tempfile::tempdir().unwrap().path(), 1).store().newest(None).unwrap().is_none(),
        "nothing is no error"
    );
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut twice = checkpoint(10);
    twice.tensors.push(twice.tensors[0].clone());
    let message = store(dir.path(), 3).save(&twice).unwrap_err().to_string();
    assert!(message.contains("adamw/count"), "{message}");
    assert!(store(dir.path(), 3).store().newest(None).unwrap().is_none());
}

#[test]
fn a_checkpoint_is_of_the_run_that_made_it_alone() {
    let one = checkpoint(10);
    let data = one.tensors[..1].to_vec();
    assert_eq!(one.made_by("ups", 42, &data), Ok(()));
    let mut changed = data.clone();
    changed[0].1 = Array::new([1], Data::U32(vec![11])).unwrap();
    let absent = vec![("encoder".to_owned(), data[0].1.clone())];
    for (made_by, what) in [
        (one.made_by("slm", 42, &data), "workload (ups, not slm)"),
        (one.made_by("ups", 43, &data), "seed (42, not 43)"),
        (one.made_by("ups", 42, &changed), "set of data (adamw/count differs)"),
        (one.made_by("ups", 42, &absent), "set of data (encoder differs)"),
    ] {
        assert_eq!(made_by, Err(format!("the checkpoint belongs to another {what}")));
    }
}

#[test]
fn the_newest_few_are_kept_and_what_is_damaged_can_be_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 2);
    for step in [10, 20, 30] {
        store.save(&checkpoint(step)).unwrap();
    }
    assert_eq!(folders(dir.path()).len(), 2);
    assert_eq!(store.store().newest(Some(119)).unwrap().unwrap().checkpoint.position.step, 20);
    assert!(store.store().newest(Some(79)).unwrap().is_none());
    store.discard_after(Some(80)).unwrap();
    // A run that went back to step 20 writes step 30 again: a new checkpoint, and the newest.
    store.save(&checkpoint(30)).unwrap();
    assert!(store.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(30));
    store.save(&checkpoint(15)).unwrap();
    assert_eq!(store.store().newest(None).unwrap().unwrap().checkpoint.position.step, 15, "newest is last written");
}

#[test]
fn the_cost_of_a_save_does_not_depend_on_how_many_checkpoints_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    let count = move |more: u64| {
        counted.fetch_add(more, Ordering::Relaxed);
    };
    let store = store(dir.path(), 30).with_heartbeat(Arc::new(count));
    let saved: Vec<u64> = (10..40)
        .map(|step| {
            let before = bytes.load(Ordering::Relaxed);
            store.save(&checkpoint(step)).unwrap();
            bytes.load(Ordering::Relaxed) - before
        })
        .collect();
    // Numbers in the manifest have different lengths; another manifest that is read has several hundred bytes.
    assert!(saved.iter().all(|more| more.abs_diff(saved[0]) < 50), "bytes read and written by each save: {saved:?}");
    assert_eq!(folders(dir.path()).len(), 30);
}

#[test]
fn a_storage_is_proven_before_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("team/job/uid");
    probe(inside.to_str().unwrap()).unwrap();
    assert!(folders(&inside).is_empty(), "nothing is left");
    // Something else is where the probe has to be written.
    fs::write(inside.join("probes"), "a file").unwrap();
    let file = inside.join("file");
    fs::write(&file, "a file").unwrap();
    for (url, expected) in [
        (inside.to_str().unwrap(), "cannot create probes/"),
        (file.to_str().unwrap(), "cannot create the directory: "),
        ("/proc/checkpoints", "cannot create the directory: "),
        ("s3://bucket/dir", "feature `s3`"),
    ] {
        let message = probe(url).unwrap_err().to_string();
        assert!(message.starts_with(&format!("checkpoint storage {url}")) && message.contains(expected), "{message}");
    }
}

/// Unmounts even when an assertion fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_storage_is_an_outcome_of_its_own_and_loses_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| std::process::Command::new("mount").args(arguments).arg(dir.path()).output();
    let mounted = mount(&["-t", "tmpfs", "-o", "size=512k", "tmpfs"]);
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: a small file system cannot be mounted here (needs root): {mounted:?}");
        return;
    }
    let _mounted = Mounted(dir.path().to_owned());
    let store = store(dir.path(), 3);
    store.save(&checkpoint(10)).unwrap();
    // Somebody else fills it.
    let other = dir.path().join("other");
    fs::File::create(&other).and_then(|mut file| std::io::copy(&mut std::io::repeat(0), &mut file)).unwrap_err();
    let full = store.save(&checkpoint(20)).unwrap_err();
    assert!(full.to_string().contains("free some space there"), "{full}");
    assert_eq!(Ending::from(full).outcome(), Outcome::StorageFull);
    assert_eq!(Ending::unusable(&probe(dir.path().to_str().unwrap()).unwrap_err()).outcome(), Outcome::StorageFull);
    fs::remove_file(&other).unwrap();
    let steps = || store.store().newest(None).unwrap().map(|found| found.checkpoint.position.step);
    assert_eq!(steps(), Some(10));
    store.save(&checkpoint(20)).unwrap();
    assert_eq!(steps(), Some(20));
}

#[test]
fn the_best_is_kept_beside_the_newest_and_makes_room_for_a_better_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 1);
    let mut run = checkpoint(10);
    for (step, loss) in [(10, Some(0.5)), (20, None), (30, None), (40, Some(0.4)), (50, None)] {
        let position = Position { best_checkpoint: run.position.best_checkpoint.take(), ..checkpoint(step).position };
        run = Checkpoint { position, ..checkpoint(step) };
        match loss {
            Some(loss) => {
                let best = store.save_best(&mut run, "loss", loss).unwrap();
                assert_eq!(run.position.best_checkpoint, Some(best));
            }
            None => drop(store.save(&run).unwrap()),
        }
        let best = store.store().best().unwrap().unwrap();
        assert_eq!(best.reference.step, if step < 40 { 10 } else { 40 });
        assert!(best.checkpoint.tensors == checkpoint(best.reference.step).tensors);
        assert_eq!(store.store().newest(None).unwrap().unwrap().reference.step, step);
        assert_eq!(folders(dir.path()).len(), if loss.is_some() { 1 } else { 2 });
    }
    fs::remove_file(folders(dir.path())[0].join("manifest.json")).unwrap();
    assert_eq!(
        store.store().best().unwrap().unwrap().reference.step,
        50,
        "the best one is unreadable: the newest instead"
    );
}

/// Rewrites the manifest of a checkpoint as a later trainer would write it.
fn make_newer(dir: &Path, name: &str) {
    let file = dir.join(name).join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    manifest["format"] = json!("pawl-checkpoint/2");
    manifest["sharding"] = json!([4, 2]);
    manifest["sha256"] = json!("");
    let sha256: String = Sha256::digest(manifest.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
    manifest["sha256"] = json!(sha256);
    fs::write(file, manifest.to_string()).unwrap();
}

#[test]
fn a_checkpoint_of_a_later_format_is_an_error_and_is_never_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 1);
    store.save(&checkpoint(10)).unwrap();
    let newer = store.save(&checkpoint(20)).unwrap().name;
    make_newer(dir.path(), &newer);
    let error = store.store().newest(None).unwrap_err();
    assert!(matches!(error, CheckpointError::Unreadable { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&newer) && message.contains("pawl-checkpoint/2"), "{message}");
    for step in [30, 40] {
        store.save(&checkpoint(step)).unwrap();
    }
    assert_eq!(folders(dir.path()).len(), 2, "the newest, and the one that is not understood");
    assert!(dir.path().join(newer).join("model-00001-of-00001.safetensors").exists());
}

#[test]
fn a_checkpoint_is_chosen_by_its_manifest_and_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path(), 1);
    let url = dir.path().to_str().unwrap();
    let choose = |choice: &str| Store::open(url).unwrap().choose(&choice.parse().unwrap());
    assert!(matches!(choose("last"), Err(CheckpointError::Absent { .. })));
    let best = writer.save_best(&mut checkpoint(10), "loss", 0.5).unwrap();
    let mut later = checkpoint(20);
    later.position.best_checkpoint = Some(best.clone());
    let last = writer.save(&later).unwrap();
    let best = best.checkpoint.name;
    for (choice, expected) in [("best", &best), ("last", &last.name), (best.as_str(), &best)] {
        assert_eq!(choose(choice).unwrap().reference.name, *expected);
    }
    let message = choose("../x").unwrap_err().to_string();
    assert!(message.contains("no name of a checkpoint"), "{message}");

    let store = Store::open(url).unwrap();
    let found = store.choose(&Choice::Last).unwrap();
    let mut read = Tensors::new();
    let wanted = |name: &str| name.starts_with("operator");
    let mut take = |name: &str, array: Array| {
        read.push((name.to_owned(), array));
        Ok::<(), CheckpointError>(())
    };
    store.each(&found, &wanted, &mut take).unwrap();
    assert!(read == checkpoint(20).tensors[1..], "the wanted one alone");

    // As in the copy of one checkpoint.
    fs::remove_dir_all(dir.path().join(&best)).unwrap();
    let message = choose("best").unwrap_err().to_string();
    assert!(message.contains(&best) && message.contains(&last.name), "{message}");
}

#[test]
fn a_gang_that_was_superseded_writes_and_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let old = store(dir.path(), 1);
    old.save(&checkpoint(10)).unwrap();
    // The same attempt was created again; then a later attempt.
    let again = store(dir.path(), 1);
    let new = Writer::open(dir.path().to_str().unwrap(), 1, author("toy-2")).unwrap();
    for stale in [&old, &again] {
        for refused in [stale.save(&checkpoint(20)).map(drop), stale.discard_after(Some(0))] {
            let error = refused.unwrap_err();
            assert!(matches!(error, CheckpointError::Superseded { .. }), "{error}");
            assert!(error.to_string().contains("toy-1") && error.to_string().contains("2.1"), "{error}");
        }
    }
    assert_eq!(folders(dir.path()).len(), 1);
    assert!(new.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(10));
    new.save(&checkpoint(15)).unwrap();
    assert!(new.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(15));
    let late = Writer::open(dir.path().to_str().unwrap(), 1, author("toy-1")).unwrap_err();
    assert!(matches!(late, CheckpointError::Superseded { .. }), "a pod of an earlier attempt that starts late: {late}");
}

#[test]
fn what_a_superseded_gang_still_finishes_is_older_than_all_of_the_new_gang() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = store(dir.path(), 9);
    old.save(&checkpoint(10)).unwrap();
    // Frozen between its last check and the end of the write, it goes on later: its checkpoint of step 99 appears.
    let twin = store(elsewhere.path(), 9);
    for step in [1, 2, 99] {
        twin.save(&checkpoint(step)).unwrap();
    }
    let new = Writer::open(dir.path().to_str().unwrap(), 9, author("toy-2")).unwrap();
    new.save(&checkpoint(20)).unwrap();
    let late = folders(elsewhere.path()).pop().unwrap();
    fs::rename(&late, dir.path().join(late.file_name().unwrap())).unwrap();
    assert_eq!(new.store().newest(None).unwrap().unwrap().checkpoint.position.step, 20);
    new.save(&checkpoint(30)).unwrap();
    assert_eq!(new.store().newest(None).unwrap().unwrap().checkpoint.position.step, 30);
}

#[test]
fn a_checkpoint_known_to_be_damaged_is_not_kept_in_the_place_of_a_good_one() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path(), 2);
    let good = first.save(&checkpoint(10)).unwrap().name;
    let bad = first.save(&checkpoint(20)).unwrap().name;
    let shard = dir.path().join(&bad).join("model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&shard, bytes).unwrap();

    let second = store(dir.path(), 2);
    assert_eq!(second.store().newest(None).unwrap().unwrap().reference.name, good);
    let new = second.save(&checkpoint(30)).unwrap().name;
    let kept: Vec<_> = folders(dir.path()).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(kept, [good.as_str(), new.as_str()]);
}

#[test]
fn a_file_that_has_grown_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 3);
    let good = store.save(&checkpoint(10)).unwrap().name;
    for (step, file) in [(20, "manifest.json"), (30, "model-00001-of-00001.safetensors")] {
        let name = store.save(&checkpoint(step)).unwrap().name;
        // More than any memory, and nothing on the disk.
        let file = fs::OpenOptions::new().write(true).open(dir.path().join(name).join(file)).unwrap();
        file.set_len(1 << 42).unwrap();
    }
    assert_eq!(store.store().newest(None).unwrap().unwrap().reference.name, good);
}

#[test]
fn checkpoints_of_another_job_are_neither_resumed_nor_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    store(dir.path(), 1).save(&checkpoint(10)).unwrap();
    let other = Author { uid: "9c1d".into(), ..author("toy-1") };
    let error = Writer::open(url, 1, other).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, CheckpointError::Foreign { .. }), "{message}");
    assert!(
        message.contains("another job (toy, uid 7f3a)") && message.contains("train.resumeFrom.storage"),
        "{message}"
    );
    assert_eq!(fs::read_dir(dir.path().join("epochs")).unwrap().count(), 1, "nothing was claimed");
    // Started by hand, or by a version that did not know it.
    Writer::open(url, 1, Author { uid: String::new(), ..author("toy-1") }).unwrap();
}

#[test]
fn earlier_claims_do_not_fill_the_storage() {
    let dir = tempfile::tempdir().unwrap();
    let claims = || -> Vec<_> {
        fs::read_dir(dir.path().join("epochs")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let old = store(dir.path(), 1);
    for attempt in 1..20 {
        Writer::open(dir.path().to_str().unwrap(), 1, author(&format!("toy-{attempt}"))).unwrap();
    }
    assert_eq!(claims(), ["19.1"]);
    assert!(matches!(old.save(&checkpoint(10)).unwrap_err(), CheckpointError::Superseded { .. }));
    let late = Writer::open(dir.path().to_str().unwrap(), 1, author("toy-3")).unwrap_err();
    assert!(matches!(late, CheckpointError::Superseded { .. }), "{late}");
    Writer::open(dir.path().to_str().unwrap(), 1, author("toy-19")).unwrap();
    assert_eq!(claims(), ["19.2"]);
}

/// Every later version must read the checkpoints of this one: the directory was written by the version that introduced
/// its format, and is never changed.
#[test]
fn checkpoints_of_format_1_can_be_read() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint-1");
    let found = Store::open(fixture.to_str().unwrap()).unwrap().newest(None).unwrap().unwrap();
    let mut written = checkpoint(10);
    // Added later.
    written.position.losses = SpikeWatch::default();
    written.position.evaluations = Vec::new();
    assert!(found.checkpoint == written, "every bit");
    assert_eq!(found.reference.name, "00000001-step-10-by-1.1");
}

/// Something that may happen to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Missing,
    Cut(f64),
    Flipped(f64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_torn_or_damaged_checkpoint_is_never_resumed_from(
        file in 0usize..2,
        damage in prop_oneof![
            Just(Damage::Missing),
            (0.0f64..1.0).prop_map(Damage::Cut),
            (0.0f64..1.0).prop_map(Damage::Flipped),
        ],
    ) {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), 3);
        store.save(&checkpoint(10)).unwrap();
        let reference = store.save(&checkpoint(20)).unwrap();
        let victim = &folders(&dir.path().join(reference.name))[file];
        let mut bytes = fs::read(victim).unwrap();
        match damage {
            Damage::Missing => fs::remove_file(victim).unwrap(),
            Damage::Cut(at) => {
                bytes.truncate((bytes.len() as f64 * at) as usize);
                fs::write(victim, bytes).unwrap();
            }
            Damage::Flipped(at) => {
                let at = (bytes.len() as f64 * at) as usize;
                bytes[at] ^= 4;
                fs::write(victim, bytes).unwrap();
            }
        }
        prop_assert!(store.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(10));
        // The next one is written beside it and is found.
        store.save(&checkpoint(30)).unwrap();
        prop_assert!(store.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(30));
    }
}

#[test]
fn a_storage_with_the_largest_number_is_an_error_with_its_remedy() {
    for name in ["epochs/1.18446744073709551615", "18446744073709551615-step-1-by-1.1"] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(name)).unwrap();
        let written = Writer::open(dir.path().to_str().unwrap(), 1, author("toy-1"));
        let error = written.and_then(|writer| writer.save(&checkpoint(10))).unwrap_err().to_string();
        assert!(error.contains(name.trim_start_matches("epochs/")) && error.contains("delete it"), "{error}");
    }
}

#[test]
fn an_archive_is_unpacked_unless_it_leaves_its_directory() {
    let stored = tempfile::tempdir().unwrap();
    let name = store(stored.path(), 3).save(&checkpoint(10)).unwrap().name;
    let mut bytes = Vec::new();
    archive(stored.path().to_str().unwrap(), &name, &mut bytes).unwrap();
    let copy = tempfile::tempdir().unwrap();
    unpack(bytes.as_slice(), copy.path()).unwrap();
    assert!(Store::open(copy.path().to_str().unwrap()).unwrap().verify(&name).unwrap());

    for (kind, path, problem) in [
        (tar::EntryType::Symlink, "c/link", "neither a file nor a directory"),
        (tar::EntryType::Link, "c/link", "neither a file nor a directory"),
        (tar::EntryType::Fifo, "c/pipe", "neither a file nor a directory"),
        (tar::EntryType::Regular, "../outside", "is outside of the checkpoint"),
    ] {
        let mut header = tar::Header::new_gnu();
        // The library's own functions refuse to write such a path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_link_name("/etc/passwd").unwrap();
        header.set_size(0);
        header.set_cksum();
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let error = unpack(header.as_bytes().as_slice(), &inner).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains(problem), "{error}");
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "nothing is outside");
    }
}

#[test]
fn an_archive_follows_no_link_out_of_the_storage() {
    let (stored, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(secret.path().join("token"), "secret").unwrap();
    let checkpoint = stored.path().join("checkpoint-9");
    fs::create_dir(&checkpoint).unwrap();
    fs::write(checkpoint.join("weights"), "1").unwrap();
    let archived = || {
        let mut bytes = Vec::new();
        archive(stored.path().to_str().unwrap(), "checkpoint-9", &mut bytes).map(|()| bytes)
    };
    let plain = archived().unwrap();
    // Inside of the storage, as the cache of Hugging Face has them.
    std::os::unix::fs::symlink("weights", checkpoint.join("model")).unwrap();
    assert!(archived().unwrap().len() > plain.len());
    for (link, target) in [("file", secret.path().join("token")), ("folder", secret.path().to_owned())] {
        std::os::unix::fs::symlink(target, checkpoint.join(link)).unwrap();
        match archived() {
            Err(error) => assert!(error.to_string().contains("outside of"), "{error}"),
            Ok(bytes) => assert!(!String::from_utf8_lossy(&bytes).contains("secret"), "{link}"),
        }
        fs::remove_file(checkpoint.join(link)).unwrap();
    }
}

#[test]
fn an_address_that_cannot_work_says_why() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (url, expected) in [
        ("s3://bucket/dir", "feature `s3`"),
        ("gs://bucket/dir", "feature `gs`"),
        ("az://container/dir", "feature `azure`"),
        ("abfss://container@account.dfs.core.windows.net/dir", "feature `azure`"),
        ("ftp://host/dir", "ftp:// is not known: use a path, file://, s3://, gs://, az:// or abfss://"),
        ("pvc://claim/dir", "mounted by the operator"),
        ("file://relative", "absolute path"),
        (file.path().to_str().unwrap(), "cannot create the directory"),
    ] {
        let message = Store::open(url).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(url), "{url}: {message}");
    }
}

/// Runs in a process of its own, because the limit cannot be taken back: it stands for a full disk.
#[test]
fn a_disk_that_is_full_leaves_older_checkpoints_alone() {
    const DIR: &str = "PAWL_TEST_FULL_DISK";
    let Ok(dir) = std::env::var(DIR) else {
        let dir = tempfile::tempdir().unwrap();
        let me = std::env::current_exe().unwrap();
        let child = std::process::Command::new(me)
            .args(["--exact", "a_disk_that_is_full_leaves_older_checkpoints_alone", "--nocapture"])
            .env(DIR, dir.path())
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    };
    let dir = Path::new(&dir);
    let store = store(dir, 1);
    store.save(&checkpoint(10)).unwrap();
    pawl_trainer::signals::survive_file_size_limit().unwrap();
    let limit = rustix::process::Rlimit { current: Some(4000), maximum: Some(4000) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let message = store.save(&checkpoint(20)).unwrap_err().to_string();
    assert!(
        message.contains("cannot write") && message.contains("File too large") && message.contains("ulimit -f"),
        "{message}"
    );
    assert!(store.store().newest(None).unwrap().unwrap().checkpoint == checkpoint(10));
    assert_eq!(folders(dir).len(), 1, "nothing of the unfinished one is left");
}
