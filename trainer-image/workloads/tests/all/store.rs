//! The cache on disk: complete, verified, repaired, shared.

use pawl_workloads::store::{ArraySpec, Element, Recipe, Shard, Store, StoreError};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of multiples; the second array is the first, scaled by a statistic of it. Counts the shards that it makes.
struct Multiples {
    rows: usize,
    made: AtomicUsize,
    /// Fails when this many shards were made.
    dies_after: usize,
}

impl Multiples {
    fn new(rows: usize) -> Self {
        Self { rows, made: AtomicUsize::new(0), dies_after: usize::MAX }
    }

    fn made(&self) -> usize {
        self.made.swap(0, Ordering::SeqCst)
    }
}

impl Recipe for Multiples {
    fn key(&self) -> Value {
        json!({"rows": self.rows})
    }

    fn stages(&self) -> Vec<Vec<ArraySpec>> {
        vec![
            vec![ArraySpec::new("base", Element::F32, self.rows, &[2, 3], 4 * 6 * 4)],
            vec![ArraySpec::new("scaled", Element::F16, self.rows, &[6], 2 * 6 * 4)],
        ]
    }

    fn make(&self, shard: Shard<'_>, done: &Store) -> Result<Vec<f32>, StoreError> {
        if self.made.fetch_add(1, Ordering::SeqCst) >= self.dies_after {
            return Err(StoreError::Source("killed".to_owned()));
        }
        let mut values = Vec::new();
        for row in shard.first..shard.first + shard.rows {
            if shard.array.name == "base" {
                values.extend((0..6).map(|column| (row * 10 + column) as f32));
            } else {
                let scale = done.summary(0)["scale"].as_f64().unwrap() as f32;
                let mut base = vec![0.0; 6];
                done.rows("base").read(row, 0, &mut base);
                values.extend(base.iter().map(|value| value * scale));
            }
        }
        Ok(values)
    }

    fn summarize(&self, stage: usize, done: &Store) -> Result<Value, StoreError> {
        assert_eq!(done.rows("base").len(), self.rows);
        Ok(if stage == 0 { json!({"scale": 0.5}) } else { Value::Null })
    }
}

fn open(root: &Path, recipe: &Multiples) -> Store {
    Store::open(root, recipe, &|_, _, _| {}).unwrap()
}

fn check(store: &Store, rows: usize) {
    let mut out = [0.0; 3];
    for row in 0..rows {
        store.rows("base").read(row, 2, &mut out);
        assert_eq!(out, [2, 3, 4].map(|column| (row * 10 + column) as f32));
        store.rows("scaled").gather(row, 1, &[0, 4, 2], &mut out);
        assert_eq!(out, [1, 5, 3].map(|column| (row * 10 + column) as f32 * 0.5));
    }
}

fn shard(store: &Store, name: &str) -> PathBuf {
    store.directory().join(format!("{name}.safetensors"))
}

#[test]
fn a_finished_cache_is_opened_without_making_anything() {
    let root = tempfile::tempdir().unwrap();
    let recipe = Multiples::new(10);
    check(&open(root.path(), &recipe), 10);
    assert_eq!(recipe.made(), 6, "three shards of each array");
    check(&open(root.path(), &recipe), 10);
    assert_eq!(recipe.made(), 0);
}

#[test]
fn another_configuration_gets_another_cache() {
    let root = tempfile::tempdir().unwrap();
    let (ten, eleven) = (open(root.path(), &Multiples::new(10)), open(root.path(), &Multiples::new(11)));
    assert_ne!(ten.directory(), eleven.directory());
    check(&ten, 10);
    check(&eleven, 11);
}

#[test]
fn a_damaged_torn_or_missing_shard_is_made_again_alone() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 4] = [
        ("flipped", |path| {
            let mut bytes = fs::read(path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("torn", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("empty", |path| fs::write(path, []).unwrap()),
        ("missing", |path| fs::remove_file(path).unwrap()),
    ];
    for (damage, apply) in damages {
        for name in ["base-00001", "scaled-00002"] {
            let root = tempfile::tempdir().unwrap();
            let recipe = Multiples::new(10);
            let path = shard(&open(root.path(), &recipe), name);
            recipe.made();
            let before = fs::read(&path).unwrap();
            // A new time of change even on file systems with coarse clocks.
            std::thread::sleep(std::time::Duration::from_millis(15));
            apply(&path);
            check(&open(root.path(), &recipe), 10);
            assert_eq!(recipe.made(), 1, "{damage} {name}");
            assert_eq!(fs::read(&path).unwrap(), before, "{damage} {name}");
        }
    }
}

#[test]
fn a_damaged_manifest_or_stamp_loses_nothing_but_time() {
    for file in ["manifest.json", "verified.json"] {
        let root = tempfile::tempdir().unwrap();
        let recipe = Multiples::new(10);
        let path = open(root.path(), &recipe).directory().join(file);
        fs::write(&path, b"{\"key\": nonsense").unwrap();
        check(&open(root.path(), &recipe), 10);
        recipe.made();
        check(&open(root.path(), &recipe), 10);
        assert_eq!(recipe.made(), 0, "{file} was not written again");
    }
}

#[test]
fn a_killed_generation_goes_on_where_it_was() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = Multiples::new(40);
    recipe.dies_after = 7;
    assert!(Store::open(root.path(), &recipe, &|_, _, _| {}).is_err());
    recipe.made();
    recipe.dies_after = usize::MAX;
    check(&open(root.path(), &recipe), 40);
    assert_eq!(recipe.made(), 20 - 7, "shards that were finished are made again");
}

#[test]
fn processes_that_open_at_once_make_it_once() {
    let root = tempfile::tempdir().unwrap();
    let recipe = Multiples::new(60);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| check(&open(root.path(), &recipe), 60));
        }
    });
    assert_eq!(recipe.made(), 30);
}

#[test]
fn an_unusable_directory_is_named_with_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Store::open(&file, &Multiples::new(3), &|_, _, _| {}).unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()) && error.contains("choose another data directory"), "{error}");
}

#[test]
fn no_temporary_file_is_left_behind() {
    let root = tempfile::tempdir().unwrap();
    let store = open(root.path(), &Multiples::new(10));
    let mut names: Vec<String> = fs::read_dir(store.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".safetensors"))
        .collect();
    names.sort();
    assert_eq!(names, ["manifest.json", "verified.json"]);
}
