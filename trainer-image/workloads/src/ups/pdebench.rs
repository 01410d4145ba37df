//! Fields from PDEBench's HDF5 files.

use super::config::{Config, Source, Task};
use super::field::Field;
use crate::store::StoreError;
use hdf5_pure::{Chunk, Dataset, File};
use std::path::{Path, PathBuf};

/// Stride between the used frames of a file.
const TIME_STRIDE: usize = 2;
/// Maximum number of values of a sample and of a chunk: 256 MiB of them.
const MAX_ELEMENTS: u64 = 1 << 26;

/// The opened files of one task. Sample i is row i / n of file i mod n, so that every split has samples of every file.
pub struct PdeBench {
    files: Vec<(PathBuf, File)>,
    task: Task,
    /// Frames and cells of a trajectory, or rows and columns of the grid.
    extent: (usize, usize),
}

/// The number as in PDEBench's file names: `1.0`, `0.4`.
fn decimal(value: f64) -> String {
    format!("{value:?}")
}

impl PdeBench {
    /// Opens the files of `task` that `config` selects, and checks that they have `samples` samples of the right size.
    ///
    /// # Errors
    /// [`StoreError::Source`], naming the file, the problem and the remedy.
    pub fn open(task: Task, config: &Config, samples: usize) -> Result<Self, StoreError> {
        debug_assert_eq!(config.data.source, Source::PdeBench, "files are read only when they are asked for");
        let directory = Path::new(config.data.directory.as_deref().unwrap_or("."));
        let (names, extent): (Vec<String>, _) = match task {
            Task::Advection1d => (
                config
                    .advection
                    .betas
                    .values()
                    .iter()
                    .map(|&beta| format!("1D_Advection_Sols_beta{}.hdf5", decimal(beta)))
                    .collect(),
                (config.advection.frames, config.advection.cells),
            ),
            Task::Darcy2d => (
                vec![format!("2D_DarcyFlow_beta{}_Train.hdf5", decimal(config.data.darcy_beta))],
                (config.darcy.grid, config.darcy.grid),
            ),
        };
        let mut files = Vec::with_capacity(names.len());
        for name in &names {
            let path = directory.join(name);
            let file = File::open_streaming(&path).map_err(|error| {
                StoreError::Source(format!(
                    "{}: cannot be read as HDF5 ({error}): put PDEBench's file there, or set data.source: Generated",
                    path.display()
                ))
            })?;
            files.push((path, file));
        }
        let opened = Self { files, task, extent };
        opened.check(samples)?;
        Ok(opened)
    }

    fn check(&self, samples: usize) -> Result<(), StoreError> {
        let rows = samples.div_ceil(self.files.len());
        let (first, second) = self.extent;
        for file in &self.files {
            match self.task {
                Task::Advection1d => {
                    self.fits(file, "tensor", &[rows, (first - 1) * TIME_STRIDE + 1, second])?;
                }
                Task::Darcy2d => {
                    self.fits(file, "tensor", &[rows, 1, first, second])?;
                    self.fits(file, "nu", &[rows, first, second])?;
                }
            }
        }
        Ok(())
    }

    /// Files may have more samples and frames than needed; the grid must be equal.
    fn fits(&self, (path, file): &(PathBuf, File), name: &str, least: &[usize]) -> Result<(), StoreError> {
        let dataset = self.dataset(path, file, name)?;
        let has = dataset.shape().map_err(|error| unreadable(path, name, &error))?;
        let at_least = if self.task == Task::Advection1d { 2 } else { 1 };
        let fits =
            has.len() == least.len()
                && has.iter().zip(least).enumerate().all(|(axis, (&has, &least))| {
                    if axis < at_least { has >= least as u64 } else { has == least as u64 }
                });
        if fits {
            let length = std::fs::metadata(path).map_err(|error| unreadable(path, name, &error))?.len();
            return bounded(&dataset, &has, length).map_err(|error| unreadable(path, name, &*error));
        }
        Err(StoreError::Source(format!(
            "{}: dataset `{name}` is {has:?}, but the configuration needs {least:?} (samples, frames of which every second one \
             is used, grid): lower the number of samples or frames, or set the grid of the file",
            path.display()
        )))
    }

    fn dataset(&self, path: &Path, file: &File, name: &str) -> Result<Dataset, StoreError> {
        file.dataset(name).map_err(|error| unreadable(path, name, &error))
    }

    fn row(&self, file: usize, name: &str, row: usize) -> Result<Vec<f32>, StoreError> {
        let (path, file) = &self.files[file];
        let read = self.dataset(path, file, name)?.read_f32_rows(row as u64, 1);
        let values = read.map_err(|error| unreadable(path, name, &error))?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(StoreError::Source(format!(
                "{}: dataset `{name}`, row {row}, contains {} at element {at}: the file is corrupt, download it again",
                path.display(),
                values[at]
            ))),
        }
    }

    /// `field` of sample `index` in physical units: (frames, cells), or (rows, columns) of the grid.
    ///
    /// # Errors
    /// [`StoreError::Source`] when the file cannot be read or contains a number that is not finite.
    pub fn sample(&self, field: Field, index: usize) -> Result<Vec<f32>, StoreError> {
        let (file, row) = (index % self.files.len(), index / self.files.len());
        match field {
            Field::Advection => {
                let (frames, cells) = self.extent;
                let all = self.row(file, "tensor", row)?;
                Ok(all.chunks_exact(cells).step_by(TIME_STRIDE).take(frames).flatten().copied().collect())
            }
            Field::Coefficient => self.row(file, "nu", row),
            Field::Pressure => self.row(file, "tensor", row),
        }
    }
}

/// Checks that reading a row allocates no more than a file of `length` bytes can contain, whatever a corrupt header
/// announces.
fn bounded(dataset: &Dataset, shape: &[u64], length: u64) -> Result<(), Box<dyn std::error::Error>> {
    let elements = |shape: &[u64]| shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis));
    let small = |shape: &[u64]| elements(shape).is_some_and(|count| count <= MAX_ELEMENTS);
    let within = |chunk: &Chunk| chunk.address.checked_add(chunk.storage_size).is_some_and(|end| end <= length);
    if !small(&shape[1..]) {
        return Err(format!("a sample has more than {MAX_ELEMENTS} values: {shape:?}").into());
    }
    let Some(chunk_shape) = dataset.chunk_shape()? else { return Ok(()) };
    if !small(&chunk_shape) || !dataset.chunks()?.iter().all(within) {
        return Err(format!("chunks of {chunk_shape:?} are larger than the file of {length} bytes").into());
    }
    Ok(())
}

fn unreadable(path: &Path, name: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Source(format!(
        "{}: dataset `{name}` cannot be read ({error}): is this a complete file of PDEBench?",
        path.display()
    ))
}
