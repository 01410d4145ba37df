//! Data of the workloads: CIFAR-10, PDEBench's HDF5, Parquet, token streams.

use crate::parts::parts;
use crate::scratch;
use pawl_workloads::atft::config::{Config as AtftConfig, DataConfig as PanelConfig};
use pawl_workloads::atft::files::Files;
use pawl_workloads::forex::config::{Config as ForexConfig, DataConfig};
use pawl_workloads::forex::files;
use pawl_workloads::slm::config::Config as SlmConfig;
use pawl_workloads::slm::corpus::Corpus;
use pawl_workloads::slm::split::Split;
use pawl_workloads::store::parquet::{Date, Reader, Table, Timestamp, Value as Parquet};
use pawl_workloads::ups::config::{Config as UpsConfig, Task};
use pawl_workloads::ups::field::Field;
use pawl_workloads::ups::pdebench::PdeBench;
use pawl_workloads::vision_bdh::images::cifar as records;
use serde_json::{Value, json};
use std::path::Path;

fn map(value: Value) -> serde_json::Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// A file of CIFAR-10's binary version: every record has a class.
pub fn cifar(input: &[u8]) {
    let directory = scratch::directory();
    scratch::write(&directory.path().join(records::TEST[0]), input);
    if let Ok(read) = records::read(directory.path(), &records::TEST, 1) {
        for record in 0..read.len() {
            let (label, pixels) = read.get(record);
            assert!(label < 10 && pixels.len() == 3072);
        }
    }
}

fn pdebench(directory: &Path) -> UpsConfig {
    let config = json!({
        "preset": "smoke",
        "data": {"source": "PdeBench", "directory": directory.to_string_lossy(), "latents": "f32"},
        "advection": {"cells": 16, "frames": 5, "trajectories": 8, "betas": [1.0]},
        "darcy": {"grid": 8, "samples": 4},
        "operator": {"tokens": 4, "width": 6, "hidden": 8, "heads": 2},
        "pairs": 2, "loss": {"inversePairs": 2},
    });
    UpsConfig::parse(&map(config), &map(json!({}))).unwrap_or_else(|error| panic!("{error}"))
}

/// One file as both of PDEBench's: what is read has the size of the grid and is finite.
pub fn hdf5(input: &[u8]) {
    let directory = scratch::directory();
    scratch::write(&directory.path().join("1D_Advection_Sols_beta1.0.hdf5"), input);
    scratch::write(&directory.path().join("2D_DarcyFlow_beta1.0_Train.hdf5"), input);
    let config = pdebench(directory.path());
    let tasks =
        [(Task::Advection1d, [Field::Advection].as_slice()), (Task::Darcy2d, &[Field::Coefficient, Field::Pressure])];
    for (task, fields) in tasks {
        let Ok(file) = PdeBench::open(task, &config, 4) else { continue };
        for (field, index) in fields.iter().flat_map(|&field| [(field, 0), (field, 3)]) {
            if let Ok(values) = file.sample(field, index) {
                let wanted = if task == Task::Advection1d { 5 * 16 } else { 8 * 8 };
                assert_eq!(values.len(), wanted);
                assert!(values.iter().all(|value| value.is_finite()));
            }
        }
    }
}

/// Reads a column as `T`: every row of a row group has a value.
fn column<T: Parquet>(reader: &Reader, group: usize, name: &str, rows: &mut Vec<usize>) {
    if let Ok(values) = reader.read::<T>(group, name) {
        rows.push(values.len());
        let last = values.len() / 3..values.len();
        let some = reader.read_rows::<T>(group, name, last.clone());
        assert_eq!(some.unwrap_or_else(|error| panic!("all were read: {error}")).len(), last.len());
    }
}

/// A Parquet file as a table, of which columns are read as every type, as bars of prices, and as a panel of stocks.
pub fn parquet(input: &[u8]) {
    let directory = scratch::directory();
    let path = directory.path().join("part.parquet");
    scratch::write(&path, input);
    let Ok(table) = Table::open(directory.path()) else { return };
    let reader = table.files()[0].open().unwrap_or_else(|error| panic!("opened before: {error}"));
    assert_eq!(reader.rows(), table.rows());
    for group in 0..reader.groups().min(4) {
        let mut rows = Vec::new();
        for name in ["f32", "f64", "few", "gaps", "i8", "i32", "i64", "flag", "hole", "date", "ms"] {
            column::<f64>(&reader, group, name, &mut rows);
            column::<f32>(&reader, group, name, &mut rows);
            column::<i64>(&reader, group, name, &mut rows);
            column::<bool>(&reader, group, name, &mut rows);
            column::<Date>(&reader, group, name, &mut rows);
            column::<Timestamp>(&reader, group, name, &mut rows);
        }
        assert!(rows.windows(2).all(|pair| pair[0] == pair[1]), "{rows:?}");
    }
    let config =
        json!({"preset": "smoke", "data": {"source": "Parquet", "directory": directory.path().to_string_lossy()}});
    let config = ForexConfig::parse(&map(config), &map(json!({}))).unwrap_or_else(|error| panic!("{error}"));
    for bars in [1, 48, 2000] {
        let data = DataConfig { bars, ..config.data.clone() };
        let Ok(read) = files::read(&data) else { continue };
        assert_eq!((read.len(), read.minute.len()), (bars, bars));
        for bar in 0..bars {
            assert!(0.0 < read.low[bar] && read.low[bar] <= read.close[bar] && read.close[bar] <= read.high[bar]);
        }
    }
    panel(directory.path());
}

/// Scores are limited, and stocks that can be chosen have returns.
fn panel(directory: &Path) {
    let data = json!({"source": "Parquet", "directory": directory.to_string_lossy(), "features": 4, "marketFeatures": ["f03"], "stocks": 30, "chunk": 20});
    let config = AtftConfig::parse(&map(json!({"preset": "smoke", "data": data})), &map(json!({})));
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    for days in [1, 2] {
        let data = PanelConfig { days, ..config.data.clone() };
        let Ok((files, index)) = Files::open(&data, &|_, _, _| {}) else { continue };
        assert_eq!((index.chosen.len(), index.targets.len()), (days * 30, days * 120));
        assert!(index.targets.iter().all(|target| target.is_finite()));
        for features in (0..days).filter_map(|day| files.day(day).ok()) {
            assert!(features.len() == 120 && features.iter().all(|score| score.abs() <= 5.0));
        }
    }
}

/// `train.bin`, `validation.bin` and `order.bin` of token ids.
pub fn tokens(input: &[u8]) {
    let [train, validation, order] = parts(input);
    let directory = scratch::directory();
    scratch::write(&directory.path().join("train.bin"), train);
    scratch::write(&directory.path().join("validation.bin"), validation);
    if !order.is_empty() {
        scratch::write(&directory.path().join("order.bin"), order);
    }
    let config = json!({"size": "tiny", "sequence": 8, "data": {"source": "Tokens", "directory": directory.path().to_string_lossy()}});
    let config = SlmConfig::parse(&map(config), &map(json!({}))).unwrap_or_else(|error| panic!("{error}"));
    let Ok(corpus) = Corpus::open(&config, None, directory.path(), &|_, _, _| {}) else { return };
    for item in [0, 1, u64::MAX] {
        let _ = corpus.prescribed(item);
    }
    let mut window = [0; 9];
    corpus.read(Split::Train, corpus.len(Split::Train) - window.len(), &mut window);
}
