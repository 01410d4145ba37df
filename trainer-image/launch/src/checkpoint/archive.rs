//! A checkpoint as a stream, by which `kubectl pawl fetch` copies it out of a cluster.

use super::manifest::Problem;
use super::storage::Storage;
use super::{CheckpointError, Store};
use std::io::{self, Read, Write};
use std::path::Path;
use tar::EntryType;

/// Error while a checkpoint is archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no such checkpoint.
    #[error("checkpoint {name}: not found in {url}")]
    Missing {
        /// The checkpoint.
        name: String,
        /// The storage.
        url: String,
    },
    /// A link in the checkpoint leads out of the storage.
    #[error("checkpoint {name}: is outside of {url}: replace the link by the file")]
    Outside {
        /// The file of the checkpoint.
        name: String,
        /// The storage.
        url: String,
    },
    /// The archive cannot be written.
    #[error("cannot write the archive: {0}")]
    Output(#[from] io::Error),
}

/// Writes every file of the checkpoint `name` in the storage at `url` to `out`, as a tar archive of `NAME/...`. Nothing
/// is assumed about their content: the checkpoint may be one of a custom trainer. Links are followed inside of the
/// storage only.
///
/// # Errors
/// [`ArchiveError`].
pub fn archive(url: &str, name: &str, out: impl Write) -> Result<(), ArchiveError> {
    let storage = Storage::open(url).map_err(CheckpointError::from)?;
    let mut files = storage.files(name).map_err(CheckpointError::from)?;
    if files.is_empty() {
        // A checkpoint may be a single file.
        files.push(name.to_owned());
    }
    let mut archive = tar::Builder::new(out);
    for file in files {
        if !storage.holds(&file).map_err(CheckpointError::from)? {
            return Err(ArchiveError::Outside { name: file, url: url.to_owned() });
        }
        let Some(bytes) = storage.get(&file).map_err(CheckpointError::from)? else {
            return Err(ArchiveError::Missing { name: file, url: url.to_owned() });
        };
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, &file, bytes.as_slice())?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// Unpacks an archive of [`archive`] into `directory`, which is empty. Other archives may come from a pod that was
/// tampered with: links, devices and paths outside of `directory` are refused.
///
/// # Errors
/// `archive` cannot be read or contains anything but files and directories in `directory`, or a file cannot be written.
pub fn unpack(archive: impl Read, directory: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(false);
    archive.set_preserve_mtime(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refused = |what: &str| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{path:?} {what}: was the pod tampered with?"))
        };
        if !matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Directory) {
            return Err(refused("is neither a file nor a directory"));
        }
        if !entry.unpack_in(directory)? {
            return Err(refused("is outside of the checkpoint"));
        }
    }
    Ok(())
}

impl Store {
    /// Compares every shard of the checkpoint `name` with its hash. Returns false for a checkpoint without manifest,
    /// such as one of a custom trainer.
    ///
    /// # Errors
    /// [`CheckpointError::Unreadable`] names the file that differs.
    pub fn verify(&self, name: &str) -> Result<bool, CheckpointError> {
        let unreadable = |problem: String| CheckpointError::Unreadable { name: name.to_owned(), problem };
        if self.storage.get(&format!("{name}/manifest.json"))?.is_none() {
            return Ok(false);
        }
        let manifest = match self.manifest(name)? {
            Ok(manifest) => manifest,
            Err(Problem::Unknown(problem) | Problem::Damaged(problem)) => return Err(unreadable(problem)),
        };
        for shard in &manifest.shards {
            if let Err(problem) = self.shard(name, shard)? {
                return Err(unreadable(problem));
            }
        }
        Ok(true)
    }
}
