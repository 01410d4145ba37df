//! The samples of both tasks and their latents, generated once and cached on disk.

use super::advection::Advection;
use super::config::{Config, LatentType, Source, Task};
use super::darcy::Darcy;
use super::encoder::Encoder;
use super::field::Field;
use super::pdebench::PdeBench;
use crate::store::{ArraySpec, Element, OnProgress, Recipe, Rows, Shard, Store, StoreError};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;

/// Approximate bytes per shard; a thread uses a small multiple of it in memory while generating one.
const SHARD_BYTES: usize = 32 << 20;
/// Format version: increase it when the bytes of a configuration change.
const FORMAT: u32 = 1;

/// Mean and standard deviation of a field over the training split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// Mean.
    pub mean: f64,
    /// Standard deviation (of the sample).
    pub std: f64,
}

impl Normalization {
    /// The normalised value.
    pub fn apply(self, value: f32) -> f32 {
        ((f64::from(value) - self.mean) / self.std) as f32
    }
}

/// A part of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// 80 %.
    Train,
    /// 10 %.
    Validation,
    /// 10 %.
    Test,
}

/// Samples of `task` in validation, and again in the test.
fn held_out(task: Task, config: &Config) -> usize {
    (train(task, config) / 8).max(2)
}

fn train(task: Task, config: &Config) -> usize {
    match task {
        Task::Advection1d => config.advection.trajectories,
        Task::Darcy2d => config.darcy.samples,
    }
}

/// The samples of `split`: trajectories, or pairs of coefficient and pressure.
pub fn samples(task: Task, split: Split, config: &Config) -> Range<usize> {
    let (train, held) = (train(task, config), held_out(task, config));
    match split {
        Split::Train => 0..train,
        Split::Validation => train..train + held,
        Split::Test => train + held..train + 2 * held,
    }
}

fn total(task: Task, config: &Config) -> usize {
    train(task, config) + 2 * held_out(task, config)
}

/// The opened data of a configuration.
#[derive(Debug)]
pub struct Dataset {
    store: Store,
    encoders: Vec<(Task, Encoder)>,
    normalizations: Vec<(Field, Normalization)>,
}

impl Dataset {
    /// Opens the cache of `config` under `root`, and generates what is missing. See [`Store::open`].
    ///
    /// # Errors
    /// When an I/O operation fails, or PDEBench's files are missing or invalid.
    pub fn open(root: &Path, config: &Config, progress: OnProgress<'_>) -> Result<Self, StoreError> {
        let encoders: Vec<_> = config.tasks.iter().map(|&task| (task, Encoder::new(task, config))).collect();
        let recipe = UpsRecipe::new(config, &encoders);
        let store = Store::open(root, &recipe, progress)?;
        let normalizations = fields(config).map(|field| (field, normalization(&store, field))).collect();
        Ok(Self { store, encoders, normalizations })
    }

    /// The frozen encoder of `task`.
    ///
    /// # Panics
    /// When the task is not configured.
    pub fn encoder(&self, task: Task) -> &Encoder {
        let found = self.encoders.iter().find(|(of, _)| *of == task);
        found.map(|(_, encoder)| encoder).expect("the task is configured")
    }

    /// How `field` was normalised.
    ///
    /// # Panics
    /// When its task is not configured.
    pub fn normalization(&self, field: Field) -> Normalization {
        let found = self.normalizations.iter().find(|(of, _)| *of == field);
        found.map(|(_, normalization)| *normalization).expect("the task is configured")
    }

    /// `field` in physical units, one row per sample: (frames, cells), or (rows, columns) of the grid.
    pub fn field(&self, field: Field) -> &Rows {
        self.store.rows(field.name())
    }

    /// The latents of `field`, one row per sample: (frames, tokens, width), or (tokens, width).
    pub fn latents(&self, field: Field) -> &Rows {
        self.store.rows(field.latent())
    }
}

fn fields(config: &Config) -> impl Iterator<Item = Field> {
    config.tasks.iter().flat_map(|&task| Field::of(task).iter().copied())
}

fn normalization(store: &Store, field: Field) -> Normalization {
    // Statistics are strings: JSON numbers may lose their last bit.
    let statistics = &store.summary(0)[field.name()];
    let number = |name: &str| statistics[name].as_str().and_then(|text| text.parse().ok());
    match (number("mean"), number("std")) {
        (Some(mean), Some(std)) => Normalization { mean, std },
        _ => Normalization { mean: 0.0, std: 1.0 },
    }
}

enum Fields {
    Advection(Advection),
    Darcy(Darcy),
    PdeBench(PdeBench),
}

struct UpsRecipe<'a> {
    config: &'a Config,
    encoders: &'a [(Task, Encoder)],
    /// Opened when the first shard is generated, so that a complete cache needs no source.
    sources: Vec<(Task, std::sync::OnceLock<Fields>)>,
}

impl<'a> UpsRecipe<'a> {
    fn new(config: &'a Config, encoders: &'a [(Task, Encoder)]) -> Self {
        Self { config, encoders, sources: config.tasks.iter().map(|&task| (task, Default::default())).collect() }
    }

    fn source(&self, task: Task) -> Result<&Fields, StoreError> {
        let (_, slot) = self.sources.iter().find(|(of, _)| *of == task).expect("recipes only make configured tasks");
        if let Some(open) = slot.get() {
            return Ok(open);
        }
        let (seed, count) = (self.config.data.seed, total(task, self.config));
        let opened = match (self.config.data.source, task) {
            (Source::PdeBench, _) => Fields::PdeBench(PdeBench::open(task, self.config, count)?),
            (Source::Generated, Task::Advection1d) => {
                Fields::Advection(Advection::new(seed, count, &self.config.advection))
            }
            (Source::Generated, Task::Darcy2d) => Fields::Darcy(Darcy::new(seed, count, self.config.darcy.grid)),
        };
        Ok(slot.get_or_init(|| opened))
    }

    fn row_shape(&self, field: Field) -> Vec<usize> {
        match field {
            Field::Advection => vec![self.config.advection.frames, self.config.advection.cells],
            Field::Coefficient | Field::Pressure => vec![self.config.darcy.grid; 2],
        }
    }

    /// States per sample that are encoded one by one.
    fn states(&self, field: Field) -> usize {
        if field == Field::Advection { self.config.advection.frames } else { 1 }
    }

    fn make_field(&self, field: Field, shard: Shard<'_>) -> Result<Vec<f32>, StoreError> {
        let row_len = shard.array.row_len();
        let mut out = vec![0.0; shard.rows * row_len];
        let source = self.source(field.task())?;
        out.par_chunks_exact_mut(row_len).enumerate().try_for_each(|(row, out)| {
            let index = shard.first + row;
            match source {
                Fields::Advection(advection) => advection.trajectory(index, out),
                Fields::Darcy(darcy) => {
                    let a = darcy.coefficient(index);
                    let values = if field == Field::Coefficient { a } else { darcy.solve(&a).u };
                    out.iter_mut().zip(values).for_each(|(out, value)| *out = value as f32);
                }
                Fields::PdeBench(files) => out.copy_from_slice(&files.sample(field, index)?),
            }
            Ok(())
        })?;
        Ok(out)
    }

    fn make_latents(&self, field: Field, shard: Shard<'_>, done: &Store) -> Vec<f32> {
        let found = self.encoders.iter().find(|(task, _)| *task == field.task());
        let (_, encoder) = found.expect("every configured task has an encoder");
        let (normalization, rows, states) = (normalization(done, field), done.rows(field.name()), self.states(field));
        let mut values = vec![0.0; rows.row_len() / states];
        let mut patches = Vec::new();
        let mut out = vec![0.0; shard.rows * shard.array.row_len()];
        for (at, latent) in out.chunks_exact_mut(encoder.latent_len()).enumerate() {
            let (row, state) = (shard.first + at / states, at % states);
            rows.read(row, state * values.len(), &mut values);
            values.iter_mut().for_each(|value| *value = normalization.apply(*value));
            encoder.encode(&values, &mut patches, latent);
        }
        out
    }
}

/// Everything that the data of `config` depend on.
pub fn key(config: &Config) -> Value {
    let Config { data, advection, darcy, operator, tasks, .. } = config;
    let mut key = json!({
        "format": FORMAT,
        "source": data.source,
        "seed": data.seed,
        "latents": data.latents,
        "tokens": operator.tokens,
        "width": operator.width,
    });
    if data.source == Source::PdeBench {
        key["directory"] = json!(data.directory);
    }
    for task in tasks {
        key[task.name()] = match task {
            Task::Advection1d => json!({
                "cells": advection.cells, "frames": advection.frames, "trajectories": advection.trajectories,
                "betas": advection.betas.values(),
            }),
            Task::Darcy2d if data.source == Source::PdeBench => {
                json!({"grid": darcy.grid, "samples": darcy.samples, "beta": data.darcy_beta})
            }
            Task::Darcy2d => json!({"grid": darcy.grid, "samples": darcy.samples}),
        };
    }
    key
}

impl Recipe for UpsRecipe<'_> {
    fn key(&self) -> Value {
        key(self.config)
    }

    fn stages(&self) -> Vec<Vec<ArraySpec>> {
        let (tokens, width) = (self.config.operator.tokens, self.config.operator.width);
        let latents = match self.config.data.latents {
            LatentType::F16 => Element::F16,
            LatentType::F32 => Element::F32,
        };
        let rows = |field: Field| total(field.task(), self.config);
        let raw = fields(self.config)
            .map(|field| ArraySpec::new(field.name(), Element::F32, rows(field), &self.row_shape(field), SHARD_BYTES));
        let encoded = fields(self.config).map(|field| {
            let mut shape = vec![tokens, width];
            if field == Field::Advection {
                shape.insert(0, self.states(field));
            }
            ArraySpec::new(field.latent(), latents, rows(field), &shape, SHARD_BYTES)
        });
        vec![raw.collect(), encoded.collect()]
    }

    fn make(&self, shard: Shard<'_>, done: &Store) -> Result<Vec<f32>, StoreError> {
        let name = shard.array.name.as_str();
        let all = [Field::Advection, Field::Coefficient, Field::Pressure];
        match all.iter().find(|field| field.name() == name) {
            Some(&field) => self.make_field(field, shard),
            None => {
                let field =
                    all.iter().find(|field| field.latent() == name).expect("stages name fields and latents only");
                Ok(self.make_latents(*field, shard, done))
            }
        }
    }

    fn summarize(&self, stage: usize, done: &Store) -> Result<Value, StoreError> {
        let mut summary = json!({});
        if stage > 0 {
            return Ok(summary);
        }
        for field in fields(self.config) {
            let (rows, train) = (done.rows(field.name()), samples(field.task(), Split::Train, self.config));
            let Normalization { mean, std } = statistics(rows, train);
            if std == 0.0 || !std.is_finite() {
                return Err(StoreError::Source(format!("{}: all values are equal or not finite", field.name())));
            }
            summary[field.name()] = json!({"mean": mean.to_string(), "std": std.to_string()});
        }
        Ok(summary)
    }
}

/// Mean and standard deviation over all elements of `rows`, by the parallel form of Welford's update (Chan et al.,
/// 1979), in a fixed order.
fn statistics(rows: &Rows, range: Range<usize>) -> Normalization {
    let mut values = vec![0.0; rows.row_len()];
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for row in range {
        rows.read(row, 0, &mut values);
        let n = values.len() as f64;
        let row_mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let row_squares: f64 = values.iter().map(|&v| (f64::from(v) - row_mean).powi(2)).sum();
        let delta = row_mean - mean;
        squares += row_squares + delta * delta * count * n / (count + n);
        mean += delta * n / (count + n);
        count += n;
    }
    Normalization { mean, std: (squares / (count - 1.0)).sqrt() }
}
