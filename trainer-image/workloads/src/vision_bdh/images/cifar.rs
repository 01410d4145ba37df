//! CIFAR-10's binary version: records of one label byte and the bytes of an image.

use super::BYTES;
use crate::store::StoreError;
use crate::vision_bdh::config::CLASSES;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The files of training images.
pub const TRAINING: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
/// The file of test images.
pub const TEST: [&str; 1] = ["test_batch.bin"];

/// Bytes of a record.
const RECORD: usize = 1 + BYTES;
/// Records of a file of the original data set, the most that are read.
const RECORDS: usize = 10_000;

/// Records in memory, in the order of the files.
#[derive(Debug)]
pub struct Records(Vec<u8>);

impl Records {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.0.len() / RECORD
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Label and bytes of a record.
    pub fn get(&self, record: usize) -> (u8, &[u8]) {
        let bytes = &self.0[record * RECORD..(record + 1) * RECORD];
        (bytes[0], &bytes[1..])
    }
}

/// Reads `files` of `directory`, which must have at least `needed` records together.
///
/// # Errors
/// [`StoreError::Source`] when a file is missing, has the wrong size or a label above 9, or there are too few records.
pub fn read(directory: &Path, files: &[&str], needed: usize) -> Result<Records, StoreError> {
    let mut bytes = Vec::new();
    for name in files {
        append(&directory.join(name), &mut bytes)?;
    }
    let records = Records(bytes);
    if records.len() < needed {
        return Err(StoreError::Source(format!(
            "{}: {} have {} images, and the configuration uses {needed} of them: lower data.training, data.validation or data.test",
            directory.display(),
            files.join(", "),
            records.len()
        )));
    }
    Ok(records)
}

fn append(path: &Path, bytes: &mut Vec<u8>) -> Result<(), StoreError> {
    let wrong = |problem: String| {
        StoreError::Source(format!(
            "{}: {problem}: put the files of CIFAR-10's binary version (cifar-10-binary.tar.gz) there, or set data.source: Generated",
            path.display()
        ))
    };
    let start = bytes.len();
    let mut file = File::open(path).map_err(|error| wrong(format!("cannot be read ({error})")))?;
    // One byte more than allowed shows that a file is too long, without reading all of it.
    let read = file.by_ref().take((RECORDS * RECORD + 1) as u64).read_to_end(bytes);
    let length = read.map_err(|error| wrong(format!("cannot be read ({error})")))?;
    if length > RECORDS * RECORD {
        return Err(wrong(format!("more than {RECORDS} records of {RECORD} bytes")));
    }
    if length == 0 || !length.is_multiple_of(RECORD) {
        return Err(wrong(format!("{length} bytes are not a number of records of {RECORD} bytes")));
    }
    let labels = bytes[start..].iter().step_by(RECORD);
    match labels.enumerate().find(|(_, label)| usize::from(**label) >= CLASSES) {
        Some((record, label)) => Err(wrong(format!("record {record} has label {label}, and the last class is 9"))),
        None => Ok(()),
    }
}
