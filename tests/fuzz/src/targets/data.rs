//! Data of the workloads: CIFAR-10, PDEBench's HDF5, token streams.

use crate::parts::parts;
use crate::scratch;
use pawl_workloads::slm::config::Config as SlmConfig;
use pawl_workloads::slm::corpus::Corpus;
use pawl_workloads::slm::split::Split;
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
