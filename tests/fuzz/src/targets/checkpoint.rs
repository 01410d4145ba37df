//! Checkpoints: manifests, shards, and the names in a storage.

use crate::parts::parts;
use crate::scratch;
use pawl_graph::array::{Array, Data};
use pawl_trainer::checkpoint::{Author, Checkpoint, Position, Store, Writer, decode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;

/// Name of the one checkpoint.
const NAME: &str = "00000001-step-1-by-1.1";

/// A manifest (the first part) and a shard (the second), with the hashes that a forger would compute.
pub fn run(input: &[u8]) {
    let [manifest, shard] = parts(input);
    if let Ok(tensors) = decode(shard) {
        for (name, array) in tensors {
            assert_eq!(array.shape().elements(), array.view().len(), "{name}");
        }
    }
    let Ok(mut content) = serde_json::from_slice::<Value>(manifest) else { return };
    if !content.is_object() {
        return;
    }
    let directory = scratch::directory();
    let folder = directory.path().join(NAME);
    fs::create_dir(&folder).expect("a directory can be created");
    if let Some(entry) = content.pointer_mut("/shards/0").filter(|entry| entry.is_object()) {
        entry["bytes"] = json!(shard.len());
        entry["sha256"] = json!(hash(shard));
        // A name that is a path would leave the directory.
        let plain =
            |name: &&str| !name.is_empty() && name.len() < 200 && !name.contains(['/', '\0']) && !name.starts_with('.');
        let file = entry["file"].as_str().filter(plain);
        file.into_iter().for_each(|file| scratch::write(&folder.join(file), shard));
    }
    content["sha256"] = json!("");
    content["sha256"] = json!(hash(content.to_string().as_bytes()));
    scratch::write(&folder.join("manifest.json"), content.to_string().as_bytes());

    let store = Store::open(&directory.path().to_string_lossy()).expect("a directory is a storage");
    let _ = store.verify(NAME);
    if let Ok(Some(found)) = store.newest(Some(1 << 40)) {
        assert!(found.reference.items <= 1 << 40);
        let _ = found.checkpoint.made_by("ups", 1, &[]);
    }
    let _ = store.best();
}

/// Names of folders and claims in a storage (a line each), beside which a new checkpoint is written: it is the newest.
pub fn names(input: &[u8]) {
    let directory = scratch::directory();
    fs::create_dir(directory.path().join("epochs")).expect("a directory can be created");
    for line in input.split(|&byte| byte == b'\n').take(16) {
        let Ok(name) = std::str::from_utf8(line) else { continue };
        let (folder, name) = match name.strip_prefix("epochs/") {
            Some(name) => (directory.path().join("epochs"), name),
            None => (directory.path().to_owned(), name),
        };
        if name.len() < 200 && !name.contains(['/', '\0']) {
            let _ = fs::create_dir(folder.join(name));
        }
    }
    let author = Author { job: "toy".to_owned(), attempt: "toy-3".to_owned(), ..Author::default() };
    let Ok(writer) = Writer::open(&directory.path().to_string_lossy(), 2, author) else { return };
    let tensor = Array::new([2], Data::F32(vec![1.0, 2.0])).expect("two elements");
    let checkpoint = Checkpoint { position: Position::start("ups", 1), tensors: vec![("weight".to_owned(), tensor)] };
    if let Ok(written) = writer.save(&checkpoint) {
        let newest = writer.store().newest(None).expect("the storage can be read").expect("a checkpoint was written");
        assert_eq!(newest.reference.name, written.name);
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
