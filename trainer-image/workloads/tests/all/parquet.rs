//! Parquet files of pyarrow, whole and damaged.

use pawl_workloads::store::parquet::{Date, Reader, Table, Timestamp, Value};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

const ROWS: usize = 300;
/// Milliseconds of 2024-01-01, and of five minutes.
const FIRST: i64 = 1_704_067_200_000;
const STEP: i64 = 300_000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet").join(name)
}

fn column<T: Value>(file: &str, name: &str) -> Vec<T> {
    Table::open(&fixture(file)).and_then(|table| table.column(name)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused<T: Value + std::fmt::Debug>(file: &str, name: &str) -> String {
    let read = Table::open(&fixture(file)).and_then(|table| table.column::<T>(name));
    read.expect_err("the column cannot be read").to_string()
}

fn each<T>(value: impl Fn(usize) -> T) -> Vec<T> {
    (0..ROWS).map(value).collect()
}

#[test]
fn columns_of_every_type_have_the_values_that_pyarrow_wrote() {
    for file in ["table.parquet", "plain.parquet"] {
        assert_eq!(column::<f32>(file, "f32"), each(|row| row as f32 / 4.0), "{file}");
        assert_eq!(column::<f64>(file, "f64"), each(|row| row as f64 / 8.0), "{file}");
        assert_eq!(column::<f32>(file, "few"), each(|row| (row % 3) as f32), "{file}");
        assert_eq!(column::<i32>(file, "i8"), each(|row| row as i32 % 100 - 50), "{file}");
        assert_eq!(column::<i32>(file, "i32"), each(|row| row as i32 * 1000 - 7), "{file}");
        assert_eq!(column::<i64>(file, "i64"), each(|row| row as i64 * 10_000_000_000), "{file}");
        assert_eq!(column::<bool>(file, "flag"), each(|row| row % 3 == 0), "{file}");
        assert_eq!(column::<Date>(file, "date"), each(|row| Date(19_723 + row as i32)), "{file}");
        assert_eq!(column::<Timestamp>(file, "ms"), each(|row| Timestamp(FIRST + STEP * row as i64)), "{file}");
        for (row, value) in column::<f32>(file, "gaps").into_iter().enumerate() {
            assert!(if row % 7 == 3 { value.is_nan() } else { value == row as f32 / 2.0 }, "{file}: {row} is {value}");
        }
    }
    for unit in ["us", "ns"] {
        assert_eq!(column::<Timestamp>("table.parquet", unit), column("table.parquet", "ms"), "{unit}");
    }
    // Wider types.
    assert_eq!(
        column::<f64>("table.parquet", "f32"),
        column("table.parquet", "f32").into_iter().map(f32::into).collect::<Vec<f64>>()
    );
    assert_eq!(column::<i64>("table.parquet", "i8"), each(|row| row as i64 % 100 - 50));
    assert_eq!(column::<f64>("table.parquet", "i64"), each(|row| row as f64 * 1e10));
}

#[test]
fn a_row_group_is_read_alone() {
    let reader = Reader::open(&fixture("table.parquet")).unwrap();
    assert_eq!((reader.groups(), reader.rows()), (3, ROWS as u64));
    let lengths: Vec<usize> = (0..3).map(|group| reader.read::<f32>(group, "f32").unwrap().len()).collect();
    assert_eq!(lengths, [120, 120, 60]);
    assert_eq!(reader.read::<i32>(2, "i32").unwrap()[0], 240 * 1000 - 7);
    assert!(reader.has("f32") && reader.is::<f32>("f32") && !reader.is::<bool>("f32") && !reader.has("f33"));
}

#[test]
fn some_rows_of_a_group_are_read_without_the_others() {
    for file in ["table.parquet", "plain.parquet"] {
        let reader = Reader::open(&fixture(file)).unwrap();
        for rows in [0..120, 5..6, 17..101, 119..120, 64..64] {
            let all = |name: &str| reader.read::<f32>(1, name).unwrap()[rows.clone()].to_vec();
            let same =
                |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() && !b.is_infinite());
            for name in ["f32", "f64", "few", "gaps"] {
                let some = reader.read_rows::<f32>(1, name, rows.clone()).unwrap();
                assert!(some.len() == rows.len() && same(&some, &all(name)), "{file}, {name}, {rows:?}: {some:?}");
            }
            assert_eq!(
                reader.read_rows::<bool>(1, "flag", rows.clone()).unwrap(),
                reader.read::<bool>(1, "flag").unwrap()[rows.clone()]
            );
            assert_eq!(
                reader.read_rows::<i32>(1, "i32", rows.clone()).unwrap(),
                reader.read::<i32>(1, "i32").unwrap()[rows]
            );
        }
        let error = reader.read_rows::<f32>(1, "f32", 100..121).unwrap_err().to_string();
        assert!(error.contains("ends after 120 of 121 rows"), "{error}");
    }
    let hole = |rows| Reader::open(&fixture("table.parquet")).unwrap().read_rows::<i32>(1, "hole", rows);
    assert!(hole(0..87).is_ok() && hole(88..120).is_ok());
    assert!(hole(80..90).unwrap_err().to_string().contains("row 87 has no value"));
}

#[test]
fn partitions_are_read_in_the_order_of_their_numbers() {
    let table = Table::open(&fixture("hive")).unwrap();
    assert_eq!(
        table.column::<i64>("row").unwrap(),
        (0..40).collect::<Vec<i64>>(),
        "9, 10 and 2024, not 10, 2024 and 9"
    );
    assert_eq!(table.rows(), 40);
    let years: Vec<&str> = table.files().iter().map(|file| file.partitions()[0].1.as_str()).collect();
    assert_eq!(years, ["9", "10", "10", "2024"]);
    assert_eq!(table.files()[3].partitions(), [("year".to_owned(), "2024".to_owned())]);
    let last = &table.files()[3];
    assert_eq!((last.rows(), last.open().unwrap().read::<f64>(2, "half").unwrap()), (10, vec![19.0, 19.5]));
}

#[test]
fn what_cannot_be_read_names_the_file_the_column_the_row_group_and_the_remedy() {
    for (error, parts) in [
        (
            refused::<f32>("table.parquet", "close"),
            ["table.parquet: column `close`, row group 0", "does not exist", "f32, f64, few"],
        ),
        (refused::<f32>("table.parquet", "flag"), ["column `flag`", "has type BOOLEAN", "write it as float32"]),
        (refused::<i32>("table.parquet", "u32"), ["column `u32`", "has type INT32 (Integer", "int32"]),
        (refused::<i32>("table.parquet", "date"), ["column `date`", "INT32 (Date)", "int32"]),
        (refused::<i64>("table.parquet", "name"), ["column `name`", "BYTE_ARRAY (String)", "int64"]),
        (
            refused::<i32>("table.parquet", "hole"),
            ["column `hole`, row group 1", "row 87 has no value", "leave the row out"],
        ),
        (
            refused::<Timestamp>("table.parquet", "odd"),
            ["column `odd`, row group 0", "row 5 is out of range", "whole milliseconds"],
        ),
        (refused::<f64>("table.parquet", "large"), ["column `large`", "row 0 is out of range", "2^53"]),
        (refused::<f32>("gzip.parquet", "f32"), ["gzip.parquet: column `f32`", "compressed with GZIP", "snappy, zstd"]),
        (refused::<f32>("none.parquet", "f32"), ["none.parquet", "cannot be read", "name a Parquet file"]),
        (refused::<f32>("make.py", "f32"), ["make.py", "cannot be read as Parquet", "name a Parquet file"]),
    ] {
        for part in parts {
            assert!(error.contains(part), "{part:?} in: {error}");
        }
    }
    let empty = tempfile::tempdir().unwrap();
    let error = Table::open(empty.path()).unwrap_err().to_string();
    assert!(error.contains("has no files whose names end with .parquet"), "{error}");
}

/// Reads all columns of a file as each type, which must return for any bytes.
fn read_all(bytes: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.parquet");
    std::fs::write(&path, bytes).unwrap();
    let Ok(reader) = Reader::open(&path) else { return };
    for group in 0..reader.groups().min(4) {
        for name in ["f32", "f64", "few", "gaps", "i64"] {
            let _ = reader.read::<f64>(group, name);
            let _ = reader.read_rows::<f64>(group, name, 33..70);
        }
        for name in ["i8", "i32", "hole"] {
            let _ = reader.read::<i32>(group, name);
            let _ = reader.read_rows::<i32>(group, name, 33..70);
        }
        let _ = reader.read::<bool>(group, "flag");
        let _ = reader.read_rows::<bool>(group, "flag", 33..70);
        let _ = reader.read::<Date>(group, "date");
        let _ = reader.read::<Timestamp>(group, "ms");
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let bytes = std::fs::read(fixture("plain.parquet")).unwrap();
    for length in [0, 4, 8, 100, bytes.len() - 1] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("short.parquet");
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = Table::open(&path).unwrap_err().to_string();
        assert!(error.contains("short.parquet") && error.contains("write or copy it again"), "{error}");
    }
}

#[test]
fn a_page_that_announces_more_than_is_read_is_refused_before_memory_is_reserved() {
    let mut bytes = std::fs::read(fixture("plain.parquet")).unwrap();
    // The first page: type 0x15 .., then the size as the next field, here of two bytes; a number of five bytes takes
    // its place.
    assert_eq!((bytes[4], bytes[6]), (0x15, 0x15), "the header of a page");
    bytes[7..12].copy_from_slice(&[0xfe, 0xff, 0xff, 0xff, 0x0f]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.parquet");
    std::fs::write(&path, &bytes).unwrap();
    let error = Table::open(&path).unwrap().column::<f32>("f32").unwrap_err().to_string();
    assert!(error.contains("column `f32`, row group 0: ") && error.contains("announces 2147483647 bytes"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_bytes_are_errors_and_not_panics(
        file in prop::sample::select(vec!["table.parquet", "plain.parquet"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = std::fs::read(fixture(file)).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_all(&bytes);
    }
}
