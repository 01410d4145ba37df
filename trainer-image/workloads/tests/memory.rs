//! A panel of Parquet files that is larger than the memory in which it is trained on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use parquet::data_type::{BoolType, FloatType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use pawl_workloads::atft::AtftGatFan;
use pawl_workloads::random::Stream;
use pawl_workloads::{At, Batch, Request, Workload};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DAYS: usize = 240;
const STOCKS: usize = 1000;
const FEATURES: usize = 48;
const MIB: usize = 1 << 20;

/// Writes a table with one row group per date.
fn write(path: &Path) {
    let features: Vec<String> = (0..FEATURES).map(|number| format!("required float f{number:02};")).collect();
    let schema = format!(
        "message panel {{ required int32 date (DATE); required int32 code; required int32 market (INTEGER(8, true));
         required int32 sector33 (INTEGER(8, true)); required boolean is_valid; required float target_1d; required float target_5d;
         required float target_10d; required float target_20d; {} }}",
        features.join(" ")
    );
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_dictionary_enabled(false).build());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    for day in 0..DAYS {
        let mut group = writer.next_row_group().unwrap();
        let mut number = 0;
        while let Some(mut column) = group.next_column().unwrap() {
            let integers = |of: &dyn Fn(usize) -> usize| (0..STOCKS).map(|stock| of(stock) as i32).collect::<Vec<_>>();
            let mut write = |values: Vec<i32>| column.typed::<Int32Type>().write_batch(&values, None, None).unwrap();
            match number {
                0 => drop(write(integers(&|_| 19_000 + day))),
                1 => drop(write(integers(&|stock| stock))),
                2 | 3 => drop(write(integers(&|stock| stock % 3))),
                4 => drop(column.typed::<BoolType>().write_batch(&[true; STOCKS], None, None).unwrap()),
                _ => {
                    let stream = Stream::new(7, number as u64).fork(day as u64);
                    let values: Vec<f32> = (0..STOCKS as u64).map(|stock| 0.02 * stream.normal(stock) as f32).collect();
                    column.typed::<FloatType>().write_batch(&values, None, None).unwrap();
                }
            }
            column.close().unwrap();
            number += 1;
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// One test, since the counters are the process's.
#[test]
fn batches_are_made_in_less_memory_than_the_features_take() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("part-0.parquet"));
    let config = json!({"preset": "smoke", "data": {
        "source": "Parquet", "directory": directory.path().to_string_lossy(), "cacheMib": 4,
        "stocks": STOCKS, "chunk": STOCKS, "days": DAYS, "features": FEATURES,
    }});
    let settings = serde_json::from_value(json!({"batchPerGpu": STOCKS})).unwrap();
    let config = config.as_object().unwrap().clone();
    let job = AtftGatFan.prepare(&Request { config, settings, seed: 1, rank: 0, world: 1 }).unwrap();

    let before = NOW.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let data = job.open(Path::new("unused"), &|_, _, _| {}).unwrap();
    let opened = NOW.load(Ordering::SeqCst) - before;
    let mut batch = Batch::default();
    for step in 0..60 {
        data.train(At { items: step * STOCKS as u64, micro: 0 }, &mut batch).unwrap();
    }
    let peak = PEAK.load(Ordering::SeqCst) - before;
    let features = DAYS * STOCKS * FEATURES * size_of::<f32>();
    println!("opened {opened}, peak {peak}, features {features} bytes");
    // The index takes 21 bytes per date and stock, metadata of the file the rest of what was opened; then the cache, a
    // batch, and a date that is read.
    assert!(opened < 21 * DAYS * STOCKS + 12 * MIB, "{opened} bytes when opened");
    assert!(peak < opened + 4 * MIB + 8 * MIB && 2 * peak < 3 * features / 2, "{peak} bytes of {features}");
}
