//! Text files as bytes.

use crate::random::Stream;
use crate::sampling::permutation;
use crate::store::{OnProgress, StoreError};
use std::path::{Path, PathBuf};

/// The token between documents; those below are bytes.
pub const END_OF_DOCUMENT: u16 = 256;
/// Shares of documents: the rest is a test split that nothing here reads.
const SPLIT: [f64; 2] = [0.70, 0.85];
/// Longer files are no text that anyone wrote.
const LONGEST: u64 = 16 << 20;

/// Training and validation tokens of the files below `directory`, in an order that the seed gives; at most `tokens` in all.
pub fn read(
    directory: &Path,
    tokens: usize,
    seed: u64,
    progress: OnProgress<'_>,
) -> Result<(Vec<u32>, Vec<u32>), StoreError> {
    let mut files = Vec::new();
    walk(directory, &mut files)?;
    files.sort_unstable();
    let order = permutation(Stream::named(seed, "slm.documents"), files.len() as u32);
    let limits = [(tokens as f64 * SPLIT[0]) as usize, (tokens as f64 * (SPLIT[1] - SPLIT[0])) as usize];
    let mut splits = [Vec::new(), Vec::new()];
    for (done, &number) in order.iter().enumerate() {
        let place = done as f64 / files.len() as f64;
        let Some(split) = SPLIT.iter().position(|&end| place < end) else { break };
        if splits[split].len() >= limits[split] {
            continue;
        }
        let path = &files[number as usize];
        let bytes = std::fs::read(path).map_err(|error| refused(path, &error))?;
        splits[split].extend(bytes.iter().map(|&byte| u32::from(byte)));
        splits[split].push(u32::from(END_OF_DOCUMENT));
        progress("reading text", done as u64 + 1, files.len() as u64);
    }
    splits.iter_mut().zip(limits).for_each(|(split, limit)| split.truncate(limit));
    let [train, validation] = splits;
    Ok((train, validation))
}

/// Regular files that hold something, not too much of it.
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
        let read = |seed| read(directory.path(), 10_000, seed, &|_, _, _| {}).unwrap();
        let (train, validation) = read(1);
        let documents = |tokens: &[u32]| {
            let all =
                tokens.split(|&token| token == u32::from(END_OF_DOCUMENT)).filter(|document| !document.is_empty());
            all.map(|document| document.iter().map(|&b| b as u8 as char).collect::<String>()).collect::<Vec<_>>()
        };
        assert_eq!((documents(&train).len(), documents(&validation).len()), (28, 6));
        assert!(documents(&validation).iter().all(|document| !documents(&train).contains(document)));
        assert_eq!(read(1), (train.clone(), validation));
        assert_ne!(read(2).0, train);
    }
}
