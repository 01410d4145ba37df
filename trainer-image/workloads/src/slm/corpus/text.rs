//! Text files as bytes or tokenized.

use crate::random::Stream;
use crate::sampling::permutation;
use crate::slm::split::{SPLIT, Split, share};
use crate::slm::tokenizer::Tokenizer;
use crate::slm::vocabulary::END_OF_DOCUMENT;
use crate::store::{OnProgress, StoreError, acquire, write_atomic};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Maximum size of a text file; larger files are skipped.
const LONGEST: u64 = 16 << 20;
/// Number of documents per batch of reading.
const AT_ONCE: usize = 64;

/// Documents below a directory, tokenized up to a limit.
pub struct Text<'t> {
    /// The directory.
    pub directory: &'t Path,
    /// Maximum total number of tokens.
    pub tokens: usize,
    /// Seed of their order, which determines the splits.
    pub seed: u64,
    /// `None`: tokens are bytes.
    pub tokenizer: Option<&'t Tokenizer>,
}

impl Text<'_> {
    /// Training and validation tokens: whole documents, each with its end, in the order that the seed gives.
    pub fn read(&self, progress: OnProgress<'_>) -> Result<[Vec<u32>; 2], StoreError> {
        let files = self.files()?;
        let order = permutation(Stream::named(self.seed, "slm.documents"), files.len() as u32);
        let tokens = self.tokens as f64;
        let limits = [(tokens * SPLIT[0]) as usize, (tokens * (SPLIT[1] - SPLIT[0])) as usize];
        let mut splits = [Vec::new(), Vec::new()];
        let parts = [Split::Train, Split::Validation].map(|split| &order[share(split, files.len())]);
        for (split, limit) in limits.into_iter().enumerate() {
            for part in parts[split].chunks(AT_ONCE) {
                if splits[split].len() >= limit {
                    break;
                }
                let made: Vec<Vec<u32>> =
                    part.par_iter().map(|&number| self.document(&files[number as usize])).collect::<Result<_, _>>()?;
                splits[split].extend(made.into_iter().flatten());
                progress("reading text", splits[split].len().min(limit) as u64, limit as u64);
            }
            splits[split].truncate(limit);
        }
        Ok(splits)
    }

    /// The same as files of little-endian words, cached below `root`: tokenizing takes minutes, reading the result
    /// seconds.
    pub fn cached(&self, root: &Path, progress: OnProgress<'_>) -> Result<[PathBuf; 2], StoreError> {
        let directory = root.join("slm").join(self.key()?);
        let [train, validation] = ["train.bin", "validation.bin"].map(|name| directory.join(name));
        std::fs::create_dir_all(&directory).map_err(|error| StoreError::io(&directory, "cannot create", error))?;
        let _lock = acquire(&directory.join("lock"), &directory, progress)?;
        // Written last: if it exists, both files are complete.
        if !validation.exists() {
            for (path, tokens) in [&train, &validation].into_iter().zip(self.read(progress)?) {
                let words: Vec<u8> = tokens.into_iter().flat_map(u32::to_le_bytes).collect();
                write_atomic(path, &words)?;
            }
        }
        Ok([train, validation])
    }

    /// Cache key: a hash of everything that the tokens depend on. Files count by size and modification time, to avoid
    /// reading them.
    fn key(&self) -> Result<String, StoreError> {
        let mut digest = Sha256::new();
        digest.update(format!("{} {}\n", self.tokens, self.seed));
        digest.update(self.tokenizer.map(Tokenizer::fingerprint).unwrap_or_default());
        for path in self.files()? {
            let about = std::fs::metadata(&path).and_then(|about| Ok((about.len(), about.modified()?)));
            let about = about.map_err(|error| refused(&path, &error))?;
            digest.update(format!("{} {about:?}\n", path.display()));
        }
        Ok(digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn files(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut files = Vec::new();
        walk(self.directory, &mut files)?;
        files.sort_unstable();
        Ok(files)
    }

    /// Tokens of a file and its end.
    fn document(&self, path: &Path) -> Result<Vec<u32>, StoreError> {
        let bytes = std::fs::read(path).map_err(|error| refused(path, &error))?;
        let (mut tokens, end) = match self.tokenizer {
            Some(tokenizer) => (tokenizer.encode(&String::from_utf8_lossy(&bytes))?, tokenizer.end_of_document()),
            None => (bytes.iter().map(|&byte| u32::from(byte)).collect(), u32::from(END_OF_DOCUMENT)),
        };
        tokens.push(end);
        Ok(tokens)
    }
}

/// Non-empty regular files below the maximum size.
fn walk(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), StoreError> {
    let entries = std::fs::read_dir(directory).map_err(|error| refused(directory, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| refused(directory, &error))?;
        let kind = entry.file_type().map_err(|error| refused(&entry.path(), &error))?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else if kind.is_file() && entry.metadata().is_ok_and(|data| (1..=LONGEST).contains(&data.len())) {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn refused(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Source(format!(
        "{}: cannot be read: {error}; set workload.config.data.directory to a directory of text",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_whole_and_ended() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        for i in 0..40 {
            let name = if i % 2 == 0 { format!("{i}.txt") } else { format!("deep/{i}.txt") };
            std::fs::write(directory.path().join(name), format!("<{i}>")).unwrap();
        }
        let read = |seed| {
            let text = Text { directory: directory.path(), tokens: 10_000, seed, tokenizer: None };
            text.read(&|_, _, _| {}).unwrap()
        };
        let [train, validation] = read(1);
        let documents = |tokens: &[u32]| {
            let all =
                tokens.split(|&token| token == u32::from(END_OF_DOCUMENT)).filter(|document| !document.is_empty());
            all.map(|document| document.iter().map(|&b| b as u8 as char).collect::<String>()).collect::<Vec<_>>()
        };
        assert_eq!((documents(&train).len(), documents(&validation).len()), (28, 6));
        assert!(documents(&validation).iter().all(|document| !documents(&train).contains(document)));
        assert_eq!(read(1), [train.clone(), validation]);
        assert_ne!(read(2)[0], train);
    }
}
