//! The files of a table in Hive's layout: directories are named `column=value`.

use super::StoreError;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Directories below each other that are searched.
const DEEPEST: usize = 8;
/// Most files of a table.
const MOST: usize = 1 << 16;

/// A file, and the names and values of its partition.
pub type Found = (PathBuf, Vec<(String, String)>);

/// The file at `path`, or the Parquet files below it, ordered by partition (numbers as numbers) and then by name.
pub fn files(path: &Path) -> Result<Vec<Found>, StoreError> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), Vec::new())]);
    }
    let mut found = Vec::new();
    search(path, &mut Vec::new(), &mut found)?;
    if found.is_empty() {
        return Err(StoreError::Source(format!(
            "{}: has no files whose names end with .parquet: name a Parquet file, or the directory of a table",
            path.display()
        )));
    }
    Ok(found)
}

fn search(directory: &Path, partition: &mut Vec<(String, String)>, found: &mut Vec<Found>) -> Result<(), StoreError> {
    let failed = |error| StoreError::io(directory, "cannot list the directory", error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with(['.', '_']) {
            names.push(name);
        }
    }
    names.sort_by(|a, b| ordered(a, b));
    for name in names {
        let path = directory.join(&name);
        if path.is_dir() {
            if partition.len() == DEEPEST {
                return Err(too_many(directory, &format!("is more than {DEEPEST} directories deep")));
            }
            let (column, value) = name.split_once('=').unwrap_or(("", &name));
            partition.push((column.to_owned(), value.to_owned()));
            search(&path, partition, found)?;
            partition.pop();
        } else if name.ends_with(".parquet") {
            if found.len() == MOST {
                return Err(too_many(directory, &format!("has more than {MOST} files")));
            }
            found.push((path, partition.iter().filter(|(column, _)| !column.is_empty()).cloned().collect()));
        }
    }
    Ok(())
}

fn too_many(directory: &Path, problem: &str) -> StoreError {
    StoreError::Source(format!("{}: the table {problem}: write fewer and larger files", directory.display()))
}

/// The order of names: partitions of one column by their values, as numbers if both are.
fn ordered(a: &str, b: &str) -> Ordering {
    let number = |name: &str| -> Option<(String, i64)> {
        let (column, value) = name.split_once('=')?;
        Some((column.to_owned(), value.parse().ok()?))
    };
    match (number(a), number(b)) {
        (Some(a), Some(b)) if a.0 == b.0 => a.1.cmp(&b.1),
        _ => a.cmp(b),
    }
}
