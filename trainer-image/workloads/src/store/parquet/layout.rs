//! The files of a table in Hive's layout: directories are named `column=value`.

use super::StoreError;
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
    names.sort_unstable_by(|a, b| place(a).cmp(&place(b)));
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

/// The place of a name in the order: partitions of one column by their values, numbers first and as numbers, then
/// texts.
fn place(name: &str) -> (&str, bool, i64, &str) {
    let (column, value) = name.split_once('=').unwrap_or((name, ""));
    let number = value.parse().ok();
    (column, number.is_none(), number.unwrap_or_default(), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_one_order_whatever_their_values_are() {
        let ordered = ["part-0.parquet", "y=-3", "y=01", "y=1", "y=9", "y=10", "y=1a", "y=b", "z=2"];
        for turn in 0..ordered.len() {
            let mut names = ordered;
            names.rotate_left(turn);
            names.sort_unstable_by_key(|name| place(name));
            assert_eq!(names, ordered);
        }
    }
}
