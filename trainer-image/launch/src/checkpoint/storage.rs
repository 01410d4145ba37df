//! Checkpoint storage: a directory, or an object store.
//!
//! A write is atomic and durable when it returns: on a file system, the bytes are written to a temporary file that is
//! synced and renamed, then its directory is synced; object stores guarantee it.

use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload, local::LocalFileSystem};
use pawl_contract::exit::Outcome;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Error of a checkpoint storage.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The address is invalid, or not supported by this build.
    #[error("checkpoint storage {url}: {problem}")]
    Address {
        /// The address as given.
        url: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// An operation failed.
    #[error("checkpoint storage {storage}: cannot {action} {key}: {problem}{remedy}")]
    Operation {
        /// The storage.
        storage: String,
        /// The operation.
        action: &'static str,
        /// The object.
        key: String,
        /// The system's error.
        problem: String,
        /// The remedy, if known; starts with a colon.
        remedy: &'static str,
        /// Whether there is no space or no quota left.
        full: bool,
    },
}

impl StorageError {
    /// Whether the storage has no space or no quota left.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Operation { full: true, .. })
    }
}

/// Called with the number of bytes that were read or written, as they are, on the thread that does so.
pub type Heartbeat = Arc<dyn Fn(u64) + Send + Sync>;

/// What was found under a key.
#[derive(Debug)]
pub(super) enum Fetched {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// It has this many bytes, more than may be read.
    Larger(u64),
}

/// An object that was listed.
#[derive(Debug)]
pub(super) struct Object {
    /// Its key.
    pub key: String,
    /// Changes when the object does.
    pub version: String,
}

/// Blocking access to one checkpoint storage.
pub(super) struct Storage {
    name: String,
    store: Arc<dyn ObjectStore>,
    /// The directory, for local storage.
    root: Option<PathBuf>,
    runtime: tokio::runtime::Runtime,
    heartbeat: Option<Heartbeat>,
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Storage {
    /// Opens `url`: a path or `file://` URL, whose directory is created; `s3://` and `gs://` with the features of that
    /// name, `az://` and `abfss://` with the feature `azure`, configured by the usual environment variables.
    pub fn open(url: &str) -> Result<Self, StorageError> {
        let wrong = |problem: String| StorageError::Address { url: url.to_owned(), problem };
        let store = match url.split_once("://") {
            None => directory(Path::new(url)).map_err(wrong)?,
            Some(("file", path)) if path.starts_with('/') => directory(Path::new(path)).map_err(wrong)?,
            Some(("file", _)) => return Err(wrong("needs an absolute path, as in file:///checkpoints".into())),
            Some(("pvc", _)) => {
                return Err(wrong(
                    "is mounted by the operator, which passes a path to the trainer: set a path here".into(),
                ));
            }
            Some(("s3", rest)) => s3(rest).map_err(wrong)?,
            Some(("gs", rest)) => gs(rest).map_err(wrong)?,
            Some(("az" | "abfss", rest)) => azure(url, rest).map_err(wrong)?,
            Some((scheme, _)) => {
                return Err(wrong(format!(
                    "{scheme}:// is not known: use a path, file://, s3://, gs://, az:// or abfss://"
                )));
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| wrong(format!("no runtime: {e}")))?;
        let local = !url.contains("://") || url.starts_with("file://");
        let root = local.then(|| PathBuf::from(url.strip_prefix("file://").unwrap_or(url)));
        Ok(Self { name: url.to_owned(), store, root, runtime, heartbeat: None })
    }

    /// The address as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reports bytes that are read and written to `heartbeat`.
    pub fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = Some(heartbeat);
    }

    /// Reports that work on `bytes` bytes is done.
    pub fn beat(&self, bytes: usize) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat(bytes as u64);
        }
    }

    /// Writes an object atomically.
    pub fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), StorageError> {
        let (location, len) = (Key::from(key), bytes.len());
        let put = self.store.put(&location, PutPayload::from(bytes));
        self.runtime.block_on(put).map_err(|e| self.failed("write", key, &e))?;
        self.beat(len);
        Ok(())
    }

    /// Creates an object atomically. Returns whether it is new: an existing one is left unchanged.
    pub fn create(&self, key: &str, bytes: Vec<u8>) -> Result<bool, StorageError> {
        let location = Key::from(key);
        let put = self.store.put_opts(&location, PutPayload::from(bytes), PutMode::Create.into());
        match self.runtime.block_on(put) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed("create", key, &error)),
        }
    }

    /// An object's bytes; `None` when there is none.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StorageError> {
        match self.fetch(key, u64::MAX)? {
            Some(Fetched::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Fetched::Larger(_)) | None => Ok(None),
        }
    }

    /// An object's bytes, of which there may be `most`; `None` when there is none. Of a larger object, nothing is read:
    /// a file that was damaged may have any size.
    pub fn fetch(&self, key: &str, most: u64) -> Result<Option<Fetched>, StorageError> {
        let location = Key::from(key);
        let fetch = async {
            let found = self.store.get(&location).await?;
            match found.meta.size {
                size if size > most => Ok(Fetched::Larger(size)),
                _ => Ok(Fetched::Bytes(found.bytes().await?.into())),
            }
        };
        match self.runtime.block_on(fetch) {
            Ok(fetched) => {
                if let Fetched::Bytes(bytes) = &fetched {
                    self.beat(bytes.len());
                }
                Ok(Some(fetched))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", key, &error)),
        }
    }

    /// Names one level below `prefix` (`None`: the root), without it: folders and objects alike, in order.
    pub fn list(&self, prefix: Option<&str>) -> Result<Vec<String>, StorageError> {
        let path = prefix.map(Key::from);
        let listing = self.runtime.block_on(self.store.list_with_delimiter(path.as_ref()));
        let listing = listing.map_err(|e| self.failed("list", prefix.unwrap_or("/"), &e))?;
        let objects = listing.objects.into_iter().map(|object| object.location);
        let keys = listing.common_prefixes.into_iter().chain(objects);
        let mut names: Vec<String> = keys.filter_map(|key| key.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Names and sizes in bytes of the objects one level below `folder`, in order.
    pub fn sizes(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let listing = self.runtime.block_on(self.store.list_with_delimiter(Some(&Key::from(folder))));
        let objects = listing.map_err(|e| self.failed("list", folder, &e))?.objects;
        let named = objects.into_iter().filter_map(|it| Some((it.location.filename()?.to_owned(), it.size)));
        let mut all: Vec<(String, u64)> = named.collect();
        all.sort();
        Ok(all)
    }

    /// Keys of all objects under `folder`, at any depth, in order.
    pub fn files(&self, folder: &str) -> Result<Vec<String>, StorageError> {
        let listing = self.runtime.block_on(self.store.list_with_delimiter(Some(&Key::from(folder))));
        let listing = listing.map_err(|e| self.failed("list", folder, &e))?;
        let mut keys: Vec<String> = listing.objects.into_iter().map(|object| object.location.to_string()).collect();
        for inner in listing.common_prefixes {
            keys.extend(self.files(inner.as_ref())?);
        }
        keys.sort();
        Ok(keys)
    }

    /// All objects, at any depth, in no order: with few requests, also where there are many folders.
    pub fn all(&self) -> Result<Vec<Object>, StorageError> {
        let mut listing = self.store.list(None);
        let listed = self.runtime.block_on(async {
            let mut all = Vec::new();
            while let Some(found) = std::future::poll_fn(|context| listing.as_mut().poll_next(context)).await {
                let found = found?;
                let (tag, time) = (found.e_tag.unwrap_or_default(), found.last_modified.timestamp_millis());
                all.push(Object { key: found.location.to_string(), version: format!("{tag} {time} {}", found.size) });
            }
            Ok(all)
        });
        listed.map_err(|error: object_store::Error| self.failed("list", "/", &error))
    }

    /// Whether an object is where its key says, and not behind a link that leads out of the storage. True for one that
    /// does not exist.
    pub fn holds(&self, key: &str) -> Result<bool, StorageError> {
        let Some(root) = &self.root else { return Ok(true) };
        let real = |path: &Path| match path.canonicalize() {
            Ok(path) => Ok(Some(path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.wrong("read", key, &error.to_string(), "")),
        };
        Ok(match (real(root)?, real(&root.join(Key::from(key).as_ref()))?) {
            (Some(root), Some(file)) => file.starts_with(root),
            _ => true,
        })
    }

    /// Removes an object; succeeds when it does not exist.
    pub fn delete(&self, key: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(self.store.delete(&Key::from(key))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", key, &error)),
        }
    }

    /// Removes everything in a folder; object stores have no folders of their own.
    pub fn delete_folder(&self, folder: &str) -> Result<(), StorageError> {
        for file in self.list(Some(folder))? {
            self.delete(&format!("{folder}/{file}"))?;
        }
        // A killed process leaves temporary files that are not listed, and a failed write an empty directory.
        match self.root.as_ref().map(|root| std::fs::remove_dir_all(root.join(folder))) {
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(self.wrong("delete", folder, &error.to_string(), ""))
            }
            _ => Ok(()),
        }
    }

    /// The error of an operation whose result is wrong, although the store reported success.
    pub fn wrong(&self, action: &'static str, key: &str, problem: &str, remedy: &'static str) -> StorageError {
        let (storage, key, problem) = (self.name.clone(), key.to_owned(), problem.to_owned());
        StorageError::Operation { storage, action, key, problem, remedy, full: false }
    }

    fn failed(&self, action: &'static str, key: &str, error: &object_store::Error) -> StorageError {
        let (problem, remedy, full) = explained(error);
        let remedy = if self.root.is_some() { remedy } else { access(&self.name) };
        StorageError::Operation { storage: self.name.clone(), action, key: key.to_owned(), problem, remedy, full }
    }
}

/// The innermost cause, its remedy, and whether it is that the storage is full.
fn explained(error: &object_store::Error) -> (String, &'static str, bool) {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let of_system = cause.downcast_ref::<std::io::Error>();
    let full = of_system.is_some_and(|error| Outcome::of_error(error) == Outcome::StorageFull);
    (cause.to_string(), of_system.map_or("", |error| remedy(error.kind())), full)
}

/// The remedy of an error of an object store, with the variables that its scheme reads; starts with a colon.
fn access(url: &str) -> &'static str {
    macro_rules! with {
        ($variables:literal) => {
            concat!(
                ": check the network and the credentials, which need permission to write, read, list and delete there (",
                $variables,
                ", or workload identity)"
            )
        };
    }
    match url.split_once("://") {
        Some(("s3", _)) => with!("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        Some(("gs", _)) => with!("GOOGLE_SERVICE_ACCOUNT"),
        Some(("az", _)) => with!("AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
        Some(("abfss", _)) => with!("AZURE_STORAGE_ACCOUNT_KEY"),
        _ => "",
    }
}

/// The remedy of an error of a file system; starts with a colon.
fn remedy(kind: std::io::ErrorKind) -> &'static str {
    match kind {
        std::io::ErrorKind::StorageFull => ": free some space there, or keep fewer checkpoints (train.checkpoint.keep)",
        std::io::ErrorKind::QuotaExceeded => ": raise the quota, or keep fewer checkpoints (train.checkpoint.keep)",
        std::io::ErrorKind::FileTooLarge => ": raise the limit on file sizes (ulimit -f)",
        std::io::ErrorKind::PermissionDenied => ": give the trainer's user write permission",
        std::io::ErrorKind::ReadOnlyFilesystem => ": mount it writable",
        _ => "",
    }
}

fn directory(path: &Path) -> Result<Arc<dyn ObjectStore>, String> {
    let create = std::fs::create_dir_all(path);
    create.map_err(|e| format!("cannot create the directory: {e}{}", remedy(e.kind())))?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| explained(&e).0)?;
    Ok(Arc::new(store.with_fsync(true).with_automatic_cleanup(true)))
}

#[cfg(feature = "s3")]
fn s3(address: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let (bucket, prefix) = address.split_once('/').unwrap_or((address, ""));
    let store = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket).build();
    let store = store.map_err(|e| format!("{e}{}", access("s3://")))?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

#[cfg(feature = "gs")]
fn gs(address: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let (bucket, prefix) = address.split_once('/').unwrap_or((address, ""));
    let store = object_store::gcp::GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).build();
    let store = store.map_err(|e| format!("{e}{}", access("gs://")))?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

/// `az://CONTAINER/DIR`, whose account the environment names, or `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/DIR`.
#[cfg(feature = "azure")]
fn azure(url: &str, address: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let (_, prefix) = address.split_once('/').unwrap_or((address, ""));
    let store = object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url).build();
    let store = store.map_err(|e| format!("{e}{}", access(url)))?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

#[cfg(not(feature = "s3"))]
fn s3(_: &str) -> Result<Arc<dyn ObjectStore>, String> {
    Err("this trainer was built without S3: use an image built with the feature `s3`, or a path".to_owned())
}

#[cfg(not(feature = "gs"))]
fn gs(_: &str) -> Result<Arc<dyn ObjectStore>, String> {
    Err("this trainer was built without Google Cloud Storage: use an image built with the feature `gs`, or a path"
        .to_owned())
}

#[cfg(not(feature = "azure"))]
fn azure(_: &str, _: &str) -> Result<Arc<dyn ObjectStore>, String> {
    Err("this trainer was built without Azure Blob Storage: use an image built with the feature `azure`, or a path"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn an_error_names_the_remedy_of_its_storage() {
        let dir = tempfile::tempdir().unwrap();
        let told = |url: Option<&str>, kind: ErrorKind| {
            let opened = Storage::open(dir.path().to_str().unwrap()).unwrap();
            let storage = match url {
                Some(url) => Storage { name: url.to_owned(), root: None, ..opened },
                None => opened,
            };
            let error = object_store::Error::Generic { store: "test", source: Error::from(kind).into() };
            storage.failed("write", "probe", &error).to_string()
        };
        for (url, variable) in [
            (Some("s3://models"), "AWS_ACCESS_KEY_ID"),
            (Some("gs://models"), "GOOGLE_SERVICE_ACCOUNT"),
            (Some("az://models"), "AZURE_STORAGE_ACCOUNT_NAME"),
            (Some("abfss://models@a.dfs.core.windows.net"), "AZURE_STORAGE_ACCOUNT_KEY"),
            (None, "give the trainer's user write permission"),
        ] {
            let message = told(url, ErrorKind::PermissionDenied);
            assert!(message.contains(variable), "{message}");
        }
    }

    #[cfg(feature = "azure")]
    #[test]
    fn an_address_without_an_account_names_its_variable() {
        if std::env::var_os("AZURE_STORAGE_ACCOUNT_NAME").is_none() {
            let message = Storage::open("az://models/toy").unwrap_err().to_string();
            assert!(message.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{message}");
        }
    }
}
