//! A file: its metadata, and its columns by row group.

use super::StoreError;
use super::kind::{Convert, Kind};
use super::pages::{PageSource, Pages, Source};
use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, get_column_reader, get_typed_column_reader};
use parquet::data_type::{BoolType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use parquet::file::reader::Length;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use super::kind::Value;

/// Most rows of a row group; writers make groups of about a million.
const MAX_GROUP: usize = 1 << 24;
/// Rows that are decoded at a time.
const BATCH: usize = 1 << 16;
/// The remedy of a damaged file.
const DAMAGED: &str = "the file is incomplete or corrupt: write or copy it again";
/// The remedies of values that cannot be read.
const FILL: &str = "fill it, or leave the row out";
const RANGE: &str = "integers read as numbers are at most 2^53, and times are whole milliseconds";

/// A Parquet file that is open. Threads can read it at the same time.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    source: Arc<Source>,
    metadata: ParquetMetaData,
    /// Numbers of the columns, by name.
    columns: HashMap<String, usize>,
}

impl Reader {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// [`StoreError::Source`] when it cannot be read, is not Parquet, or has a row group of more than 16,777,216 rows.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let source = File::open(path).and_then(Source::new).map_err(|error| {
            StoreError::Source(format!(
                "{}: cannot be read ({error}): name a Parquet file, or the directory of a table",
                path.display()
            ))
        })?;
        let options = ParquetMetaDataOptions::new()
            .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
        let reader = ParquetMetaDataReader::new().with_metadata_options(Some(options));
        let metadata = reader.parse_and_finish(&source).map_err(|error| {
            StoreError::Source(format!(
                "{}: cannot be read as Parquet ({error}): name a Parquet file; if this is one, it is incomplete or corrupt: write or copy it \
                 again",
                path.display()
            ))
        })?;
        for (group, rows) in metadata.row_groups().iter().map(|group| group.num_rows()).enumerate() {
            if !(0..=MAX_GROUP as i64).contains(&rows) {
                return Err(StoreError::Source(format!(
                    "{}: row group {group} has {rows} rows, and at most {MAX_GROUP} are read: write smaller row groups",
                    path.display()
                )));
            }
        }
        let columns = metadata.file_metadata().schema_descr().columns().iter().enumerate();
        let columns = columns.map(|(number, column)| (column.path().string(), number)).collect();
        Ok(Self { path: path.to_owned(), source: Arc::new(source), metadata, columns })
    }

    /// Rows of all row groups together.
    pub fn rows(&self) -> u64 {
        (0..self.groups()).map(|group| self.group_rows(group) as u64).sum()
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Whether it has a column.
    pub fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// Whether `column` exists and can be read as `T`.
    pub fn is<T: Value>(&self, column: &str) -> bool {
        let number = self.columns.get(column);
        number.is_some_and(|&number| Kind::of(self.descriptor(number)).and_then(T::convert).is_some())
    }

    /// The values of a column in a row group, one for each row. Missing values of floating-point columns are NaN.
    ///
    /// # Errors
    /// [`StoreError::Source`], naming the file, the column, the row group and the remedy: when there is no such column,
    /// when it has another type, when a value is missing that must not be, and when the file is damaged.
    ///
    /// # Panics
    /// When there is no such row group.
    pub fn read<T: Value>(&self, group: usize, column: &str) -> Result<Vec<T>, StoreError> {
        self.read_rows(group, column, 0..self.group_rows(group))
    }

    /// The values of a column in some rows of a row group, which are numbered from 0. Memory is bounded by the rows and
    /// by a page; time by the rows up to the last of them.
    ///
    /// # Errors
    /// As for [`Reader::read`]; when there are no such rows.
    ///
    /// # Panics
    /// When there is no such row group.
    pub fn read_rows<T: Value>(&self, group: usize, column: &str, rows: Range<usize>) -> Result<Vec<T>, StoreError> {
        let wrong = |problem: &str, remedy: &str| self.wrong(group, column, problem, remedy);
        let &number = self
            .columns
            .get(column)
            .ok_or_else(|| wrong("does not exist", &format!("the file has {}", listed(self.columns.keys()))))?;
        let descriptor = self.descriptor(number);
        let Some(convert) = Kind::of(descriptor).and_then(T::convert) else {
            let problem = format!("has type {}", described(descriptor));
            return Err(wrong(&problem, &format!("write it as {}", T::FROM)));
        };
        let chunk = self.metadata.row_group(group).column(number);
        self.check(chunk).map_err(|(problem, remedy)| wrong(&problem, remedy))?;
        let all = self.group_rows(group);
        let source = Arc::new(PageSource(Arc::clone(&self.source)));
        let pages = SerializedPageReader::new(source, chunk, all, None);
        let pages = pages.map_err(|error| wrong(&error.to_string(), DAMAGED))?;
        let optional = descriptor.max_def_level() > 0;
        let pages = Pages::new(pages, descriptor.physical_type(), optional, all);
        let reader = get_column_reader(chunk.column_descr_ptr(), Box::new(pages));
        let read = match convert {
            Convert::Bool(convert) => decode::<BoolType, T>(reader, rows, convert),
            Convert::I32(convert) => decode::<Int32Type, T>(reader, rows, convert),
            Convert::I64(convert) => decode::<Int64Type, T>(reader, rows, convert),
            Convert::F32(convert) => decode::<FloatType, T>(reader, rows, convert),
            Convert::F64(convert) => decode::<DoubleType, T>(reader, rows, convert),
        };
        read.map_err(|(problem, remedy)| wrong(&problem, remedy))
    }

    /// Rows of a row group.
    ///
    /// # Panics
    /// When there is no such row group.
    pub fn group_rows(&self, group: usize) -> usize {
        self.metadata.row_group(group).num_rows() as usize
    }

    fn descriptor(&self, number: usize) -> &ColumnDescriptor {
        &self.metadata.file_metadata().schema_descr().columns()[number]
    }

    fn wrong(&self, group: usize, column: &str, problem: &str, remedy: &str) -> StoreError {
        StoreError::Source(format!(
            "{}: column `{column}`, row group {group}: {problem}: {remedy}",
            self.path.display()
        ))
    }

    /// Checks that the bytes of a column are in the file, and compressed in a way that is read.
    fn check(&self, chunk: &ColumnChunkMetaData) -> Result<(), Problem> {
        let first = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
        let end = first.checked_add(chunk.compressed_size());
        let within = first >= 0 && chunk.compressed_size() >= 0;
        if !within || end.is_none_or(|end| end as u64 > self.source.len()) {
            return Err((format!("is outside of the file of {} bytes", self.source.len()), DAMAGED));
        }
        match chunk.compression() {
            Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_) => Ok(()),
            other => Err((format!("is compressed with {other}"), "write it with snappy, zstd or no compression")),
        }
    }
}

/// What is wrong, and the remedy.
type Problem = (String, &'static str);

/// Decodes the values of `rows`. Those before them are decoded and dropped: the library skips pages by another way to
/// read them, in which what they announce is not checked.
fn decode<D: DataType, T: Value>(
    reader: ColumnReader,
    rows: Range<usize>,
    convert: fn(D::T) -> Option<T>,
) -> Result<Vec<T>, Problem> {
    let mut column = get_typed_column_reader::<D>(reader);
    let (mut values, mut levels, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = 0;
    while at < rows.end {
        values.clear();
        levels.clear();
        let end = if at < rows.start { rows.start } else { rows.end };
        // The library panics at some damaged values, such as fewer than a page announces. The column is not read again
        // after that.
        let read = catch_unwind(AssertUnwindSafe(|| {
            column.read_records(BATCH.min(end - at), Some(&mut levels), None, &mut values)
        }));
        let read = read.map_err(|_| ("values cannot be decoded".to_owned(), DAMAGED))?;
        let (read, _, _) = read.map_err(|error| (error.to_string(), DAMAGED))?;
        if read == 0 {
            return Err((format!("ends after {at} of {} rows", rows.end), DAMAGED));
        }
        let mut present = values.drain(..);
        for row in (0..read).filter(|_| at >= rows.start) {
            let number = at + row;
            let value = match levels.get(row) {
                Some(0) => T::MISSING.ok_or_else(|| (format!("row {number} has no value"), FILL))?,
                _ => {
                    present.next().and_then(convert).ok_or_else(|| (format!("row {number} is out of range"), RANGE))?
                }
            };
            out.push(value);
        }
        at += read;
    }
    Ok(out)
}

/// The type of a column, as its file names it.
fn described(column: &ColumnDescriptor) -> String {
    let nested = if column.max_rep_level() > 0 || column.path().parts().len() != 1 { "nested " } else { "" };
    match column.logical_type_ref() {
        Some(logical) => format!("{nested}{} ({logical:?})", column.physical_type()),
        None => format!("{nested}{}", column.physical_type()),
    }
}

/// Some of the names, in order.
fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    const SHOWN: usize = 20;
    let mut names: Vec<&str> = names.map(String::as_str).collect();
    names.sort_unstable();
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    names.truncate(SHOWN);
    format!("{}{more}", names.join(", "))
}
