//! Columns of Parquet files, read one column of one row group at a time.
//!
//! A [`Table`] is a file, or a directory of files that is partitioned in Hive's layout
//! (`table/year=2024/part-0.parquet`). Its files are read in the order of their partitions, so that a table sorted by
//! its partitions is read sorted. What is in memory at a time is one column of one row group, however large the table
//! is.
//!
//! Bytes come from outside: what a file announces is checked before memory is reserved for it, and a damaged file is an
//! error that names the file, the column, the row group and the remedy.
//!
//! Reading needs the feature `parquet`, which the images, the released programs and the tests have; without it, opening
//! a table is an error that says so.

#[cfg_attr(not(feature = "parquet"), path = "absent.rs")]
mod file;
#[cfg(feature = "parquet")]
mod kind;
mod layout;
#[cfg(feature = "parquet")]
mod pages;

pub use file::{Reader, Value};

use super::StoreError;
use std::path::{Path, PathBuf};

/// A date, in days since 1970-01-01.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub i32);

impl Date {
    /// The date in the calendar; `None` beyond the years -9999 to 9999.
    pub fn civil(self) -> Option<jiff::civil::Date> {
        jiff::civil::Date::constant(1970, 1, 1).checked_add(jiff::Span::new().try_days(self.0).ok()?).ok()
    }
}

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.civil() {
            Some(date) => write!(f, "{date}"),
            None => write!(f, "day {} since 1970-01-01", self.0),
        }
    }
}

/// A time, in milliseconds since 1970-01-01 00:00 UTC. A column without a time zone is taken as UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// Files with the same columns, as one table.
#[derive(Debug)]
pub struct Table {
    files: Vec<Part>,
}

/// A file of a table.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    partitions: Vec<(String, String)>,
    rows: u64,
}

impl Table {
    /// Opens the file at `path`, or all files below the directory at `path` whose names end with `.parquet`, and reads
    /// their metadata. Files and directories whose names begin with `.` or `_` are left out, as other readers do.
    ///
    /// # Errors
    /// [`StoreError::Source`] when there is no such file or directory, when it has no rows, or when a file is not
    /// Parquet.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut files = Vec::new();
        for (path, partitions) in layout::files(path)? {
            let rows = Reader::open(&path)?.rows();
            files.push(Part { path, partitions, rows });
        }
        let table = Self { files };
        if table.rows() == 0 {
            return Err(StoreError::Source(format!("{}: has no rows: name a table with rows", path.display())));
        }
        Ok(table)
    }

    /// The files, in the order in which they are read.
    pub fn files(&self) -> &[Part] {
        &self.files
    }

    /// Rows of all files together.
    pub fn rows(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.rows))
    }

    /// The values of a column in all rows. For tables that are larger than memory, read [`files`](Self::files) one
    /// after the other.
    ///
    /// # Errors
    /// As for [`Reader::read`].
    pub fn column<T: Value>(&self, name: &str) -> Result<Vec<T>, StoreError> {
        let mut values = Vec::new();
        for file in &self.files {
            let reader = file.open()?;
            for group in 0..reader.groups() {
                values.append(&mut reader.read(group, name)?);
            }
        }
        Ok(values)
    }
}

impl Part {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names and values of its partition, from the outermost directory on: `year=2024/month=03` is `[("year", "2024"),
    /// ("month", "03")]`.
    pub fn partitions(&self) -> &[(String, String)] {
        &self.partitions
    }

    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`StoreError::Source`] when it can no longer be read.
    pub fn open(&self) -> Result<Reader, StoreError> {
        Reader::open(&self.path)
    }
}
