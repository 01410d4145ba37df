//! Proof that a storage can be used, before a device is held.

use super::StorageError;
use super::storage::Storage;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Folder of the probes; they are no checkpoints and are deleted at once.
const FOLDER: &str = "probes";
/// Maximum time that all operations may take together: a mount whose server is gone never answers.
const LIMIT: Duration = Duration::from_secs(120);
/// Content of a probe.
const CONTENT: &[u8] = b"pawl";

/// Creates, overwrites, reads, lists and deletes a small object in the checkpoint storage at `url`: every operation
/// that training uses, with its credentials and in its place. Leaves nothing there.
///
/// # Errors
/// When the address is not supported, and when an operation fails, has no effect, or does not end within two minutes;
/// the message names the storage, the operation, the system's error and the remedy.
pub fn probe(url: &str) -> Result<(), StorageError> {
    let (send, answer) = channel();
    let storage = url.to_owned();
    // A thread of its own: a read of a dead mount cannot be cancelled.
    std::thread::spawn(move || {
        // The receiver is gone when the limit has passed.
        let _ = send.send(Storage::open(&storage).and_then(|storage| operations(&storage)));
    });
    answer.recv_timeout(LIMIT).unwrap_or_else(|error| {
        let problem = match error {
            RecvTimeoutError::Timeout => {
                format!("no answer within {} s: check the network, the mount and its server", LIMIT.as_secs())
            }
            RecvTimeoutError::Disconnected => "the check panicked, which is a bug".to_owned(),
        };
        Err(StorageError::Address { url: url.to_owned(), problem })
    })
}

fn operations(storage: &Storage) -> Result<(), StorageError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Unique, and short: a message has little room.
    let name = format!("{:x}", now.as_nanos() ^ u128::from(std::process::id()) << 32);
    let key = format!("{FOLDER}/{name}");
    let result = used(storage, &name, &key);
    let deleted = storage.delete_folder(FOLDER);
    result?;
    deleted?;
    match storage.get(&key)? {
        Some(_) => Err(storage.wrong("delete", &key, "it is still there after it was deleted", "")),
        None => Ok(()),
    }
}

fn used(storage: &Storage, name: &str, key: &str) -> Result<(), StorageError> {
    let exclusive =
        ": use a store that supports conditional writes (If-None-Match), which keep two gangs of a job apart";
    if !storage.create(key, Vec::new())? {
        return Err(storage.wrong("create", key, "a new object is reported to exist", exclusive));
    }
    if storage.create(key, Vec::new())? {
        return Err(storage.wrong("create", key, "an object that exists was created again", exclusive));
    }
    storage.put(key, CONTENT.to_vec())?;
    match storage.get(key)? {
        Some(content) if content == CONTENT => {}
        Some(_) => return Err(storage.wrong("read", key, "its content is not what was written", "")),
        None => return Err(storage.wrong("read", key, "it is missing right after it was written", "")),
    }
    if storage.list(Some(FOLDER))?.iter().any(|listed| listed == name) {
        return Ok(());
    }
    Err(storage.wrong("list", key, "it is not listed right after it was written", ""))
}
