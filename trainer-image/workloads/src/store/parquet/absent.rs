//! The reader of a build without the feature `parquet`: there is none.

use super::{Date, StoreError, Timestamp};
use std::ops::Range;
use std::path::Path;

/// A Parquet file that is open; none can be.
#[derive(Debug)]
pub enum Reader {}

/// What a column can be read as.
pub trait Value: Sized {}

impl Value for bool {}
impl Value for i32 {}
impl Value for i64 {}
impl Value for f32 {}
impl Value for f64 {}
impl Value for Date {}
impl Value for Timestamp {}

impl Reader {
    /// An error that names the feature.
    ///
    /// # Errors
    /// Always.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Err(StoreError::Source(format!(
            "{}: this build of pawl does not read Parquet: build it with `--features parquet`, or use the released program",
            path.display()
        )))
    }

    /// Rows of all row groups together.
    pub fn rows(&self) -> u64 {
        match *self {}
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        match *self {}
    }

    /// The values of a column in a row group.
    ///
    /// # Errors
    /// None: there is no reader.
    pub fn read<T: Value>(&self, _group: usize, _column: &str) -> Result<Vec<T>, StoreError> {
        match *self {}
    }

    /// The values of a column in some rows of a row group.
    ///
    /// # Errors
    /// None: there is no reader.
    pub fn read_rows<T: Value>(&self, _group: usize, _column: &str, _rows: Range<usize>) -> Result<Vec<T>, StoreError> {
        match *self {}
    }

    /// Rows of a row group.
    pub fn group_rows(&self, _group: usize) -> usize {
        match *self {}
    }

    /// Whether it has a column.
    pub fn has(&self, _column: &str) -> bool {
        match *self {}
    }

    /// Whether `column` can be read as `T`.
    pub fn is<T: Value>(&self, _column: &str) -> bool {
        match *self {}
    }
}
