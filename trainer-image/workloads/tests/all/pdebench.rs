//! PDEBench's files, as libhdf5 writes them (fixtures) and as written here.

use hdf5_pure::{AttrValue, FileBuilder};
use pawl_workloads::ups::config::Config;
use pawl_workloads::ups::dataset::Dataset;
use pawl_workloads::ups::field::Field;
use serde_json::{Value, json};
use std::path::Path;

fn config(directory: &Path, patch: Value) -> Config {
    let base = json!({
        "preset": "smoke",
        "data": {"source": "PdeBench", "directory": directory.to_str().unwrap(), "latents": "f32"},
        "advection": {"cells": 16, "frames": 5, "trajectories": 8, "betas": [1.0, 0.4]},
        "darcy": {"grid": 8, "samples": 4},
        "operator": {"tokens": 4, "width": 6, "hidden": 8, "heads": 2},
        "pairs": 2, "loss": {"inversePairs": 2},
    });
    Config::parse(base.as_object().unwrap(), patch.as_object().unwrap()).unwrap()
}

fn open(config: &Config) -> Result<Dataset, String> {
    let root = tempfile::tempdir().unwrap();
    Dataset::open(root.path(), config, &|_, _, _| {}).map_err(|error| error.to_string())
}

fn row(dataset: &Dataset, field: Field, index: usize) -> Vec<f32> {
    let rows = dataset.field(field);
    let mut values = vec![0.0; rows.row_len()];
    rows.read(index, 0, &mut values);
    values
}

#[test]
fn files_of_the_c_library_are_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pdebench");
    let dataset = open(&config(&fixtures, json!({}))).unwrap();
    // Sample 7 is row 3 of the second file (beta 0.4), whose value at (row, frame, x) is 100 row + 10 frame + x; every
    // second frame.
    let values = row(&dataset, Field::Advection, 7);
    for frame in 0..5 {
        for cell in 0..16 {
            let want = 300.0 + 20.0 * frame as f32 + (cell as f32 + 0.5) / 16.0;
            assert!((values[frame * 16 + cell] - want).abs() < 1e-4);
        }
    }
    assert!((row(&dataset, Field::Advection, 6)[0] - 1_300.031).abs() < 1e-3, "sample 6 is row 3 of the first file");
    // Chunked and compressed.
    let coefficient = row(&dataset, Field::Coefficient, 5);
    assert_eq!(coefficient[16..20], [1.0, 1.0, 0.1, 1.0]);
    assert!((coefficient.iter().sum::<f32>() - 33.4).abs() < 1e-4);
    assert_eq!(row(&dataset, Field::Pressure, 7)[24..27], [0.290_828_82, 0.790_127_8, 0.274_807_48]);
}

#[test]
fn a_file_written_in_that_layout_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut advection = FileBuilder::new();
    let values: Vec<f32> = (0..14 * 11 * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    advection.create_dataset("tensor").with_f32_data(&values).with_shape(&[14, 11, 32]);
    advection.write(directory.path().join("1D_Advection_Sols_beta2.0.hdf5")).unwrap();
    let mut darcy = FileBuilder::new();
    let u: Vec<f32> = (0..9 * 64).map(|i| (i as f32 * 0.11).cos()).collect();
    let nu: Vec<f32> = u.iter().map(|&u| if u > 0.0 { 1.0 } else { 0.1 }).collect();
    darcy.create_dataset("tensor").with_f32_data(&u).with_shape(&[9, 1, 8, 8]);
    darcy.create_dataset("nu").with_f32_data(&nu).with_shape(&[9, 8, 8]);
    darcy.set_attr("beta", AttrValue::F64(1.0));
    darcy.write(directory.path().join("2D_DarcyFlow_beta1.0_Train.hdf5")).unwrap();
    let patch = json!({"advection": {"cells": 32, "frames": 6, "betas": [2.0]}});
    let dataset = open(&config(directory.path(), patch)).unwrap();
    for index in [0, 3, 11] {
        let want: Vec<f32> = (0..6).flat_map(|frame| values[(index * 11 + 2 * frame) * 32..][..32].to_vec()).collect();
        assert_eq!(row(&dataset, Field::Advection, index), want);
    }
    for index in [0, 7] {
        assert_eq!(row(&dataset, Field::Pressure, index), u[index * 64..][..64]);
        assert_eq!(row(&dataset, Field::Coefficient, index), nu[index * 64..][..64]);
    }
}

#[test]
fn what_does_not_fit_is_named_with_a_remedy() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pdebench");
    let cases = [
        (json!({"advection": {"betas": [7.0]}}), "1D_Advection_Sols_beta7.0.hdf5", "data.source: Generated"),
        (json!({"advection": {"cells": 32}}), "1D_Advection_Sols_beta1.0.hdf5", "grid of the file"),
        (json!({"advection": {"trajectories": 400}}), "`tensor` is [6, 9, 16]", "lower the number of samples"),
        (json!({"darcy": {"samples": 40}}), "2D_DarcyFlow_beta1.0_Train.hdf5", "lower the number of samples"),
    ];
    for (patch, names, remedy) in cases {
        let error = open(&config(&fixtures, patch)).unwrap_err();
        assert!(error.contains(names) && error.contains(remedy), "{error}");
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = FileBuilder::new();
    let mut values = vec![0.5f32; 12 * 9 * 16];
    values[5 * 9 * 16 + 7] = f32::NAN;
    file.create_dataset("tensor").with_f32_data(&values).with_shape(&[12, 9, 16]);
    file.write(directory.path().join("1D_Advection_Sols_beta1.0.hdf5")).unwrap();
    let patch = json!({"tasks": ["advection1d"], "advection": {"betas": [1.0]}});
    let error = open(&config(directory.path(), patch.clone())).unwrap_err();
    assert!(error.contains("row 5") && error.contains("NaN"), "{error}");
    std::fs::write(directory.path().join("1D_Advection_Sols_beta1.0.hdf5"), b"not HDF5").unwrap();
    let error = open(&config(directory.path(), patch)).unwrap_err();
    assert!(error.contains("cannot be read as HDF5"), "{error}");
}
