//! Vision-BDH, in both arms.

use crate::Precision;
use crate::export::{self, Tensors};
use crate::ours::Entry;
use anyhow::Context;
use clap::ValueEnum;
use pawl_contract::settings::{MemoryFormat, Settings};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::Program;
use pawl_workloads::random::Stream;
use pawl_workloads::vision_bdh::augment::{self, Crop};
use pawl_workloads::vision_bdh::config::{CLASSES, Config};
use pawl_workloads::vision_bdh::images::BYTES;
use pawl_workloads::{At, Batch, Data, Job, RatePosition, WorkloadError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The peer's cosine is 50 epochs of 40,000 images long, whatever the number of its images.
const TOTAL_ITEMS: u64 = 50 * 40_000;

/// Which of the peer's modes is compared, each with the settings that correspond to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Mode {
    /// Nothing compiled, weights as published.
    Baseline,
    /// All optimisations.
    Optimised,
}

/// What both arms run.
#[derive(clap::Args, Clone, Debug, Serialize, Deserialize)]
pub struct VisionExperiment {
    /// Settings of both arms.
    #[arg(long, value_enum, default_value = "optimised")]
    pub mode: Mode,
    /// Preset, known to both arms.
    #[arg(long, default_value = "medium", value_parser = ["smoke", "medium"])]
    pub preset: String,
    /// Images of a micro-step.
    #[arg(long, default_value_t = 128)]
    pub images: usize,
    /// Micro-steps of a step.
    #[arg(long, default_value_t = 2)]
    pub accumulation: usize,
    /// Steps of a round.
    #[arg(long, default_value_t = 60)]
    pub steps: usize,
    /// Steps that are not timed.
    #[arg(long, default_value_t = 20)]
    pub warmup: usize,
    /// Precision of products and attention.
    #[arg(long, value_enum, default_value = "bf16")]
    pub precision: Precision,
    /// Weigh tokens by raw scores.
    #[arg(long)]
    pub raw: bool,
    /// Dropout probability of the gated neurons. The arms draw different masks: losses are comparable only with 0.
    #[arg(long, default_value_t = 0.1)]
    pub dropout: f64,
    /// Whether training images are cropped and mirrored. The arms draw different crops: losses are comparable only
    /// without.
    #[arg(long)]
    pub augment: bool,
    /// Recompute each level in the backward pass.
    #[arg(long)]
    pub recompute: bool,
    /// `cpu`, or `cuda`.
    #[arg(long, default_value = "cuda", value_parser = ["cpu", "cuda"])]
    pub device: String,
}

impl VisionExperiment {
    /// The settings of our arm.
    ///
    /// # Errors
    /// Never for values that the command line accepts.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = json!({
            "batchPerGpu": self.images,
            "accumulationSteps": self.accumulation,
            "precision": self.precision,
            "activationCheckpointing": if self.recompute { "Full" } else { "None" },
        });
        if self.mode == Mode::Optimised {
            let optimised = json!({
                "compile": "Graph", "optimizerKernel": "Fused", "ropeCache": "Cached", "parameterLayout": "Linear",
                "memoryFormat": "ChannelsLast",
            });
            settings
                .as_object_mut()
                .into_iter()
                .for_each(|map| map.extend(optimised.as_object().cloned().unwrap_or_default()));
        }
        Ok(serde_json::from_value(settings)?)
    }

    /// The configuration of our arm.
    pub fn config(&self) -> Map<String, Value> {
        let config = json!({
            "preset": self.preset,
            "model": {"dropout": self.dropout, "scores": if self.raw { "Raw" } else { "Softmax" }},
            "data": {"augmentation": if self.augment { "CropFlip" } else { "None" }},
        });
        config.as_object().cloned().unwrap_or_default()
    }

    /// First weights, data and learning rates of our arm, from the export in `folder`.
    ///
    /// # Errors
    /// When the export cannot be read.
    pub fn entry(&self, job: &dyn Job, folder: &Path) -> anyhow::Result<Entry> {
        let (rate, schedule) = (job.optimization().learning_rate, job.optimization().schedule);
        let step_items = (self.images * self.accumulation) as u64;
        let factor = move |step: usize| {
            let step = step as u64;
            schedule.factor(RatePosition { step, items: step * step_items, step_items, total_items: TOTAL_ITEMS })
        };
        Ok(Entry {
            weights: Some(export::weights(&folder.join("init.safetensors"))?),
            data: Arc::new(VisionBatches::open(folder, job, self)?),
            rate: Box::new(move |step| rate * factor(step)),
        })
    }

    /// Command-line arguments of the peer for the same experiment.
    pub fn peer_arguments(&self) -> Vec<String> {
        let Self { preset, images, accumulation, steps, warmup, dropout, device, .. } = self;
        let mode = if self.mode == Mode::Optimised { "optimised" } else { "baseline" };
        let precision = match self.precision {
            Precision::Fp32 => "--amp none --no-tf32",
            Precision::Bf16 => "--amp bf16 --tf32",
        };
        let scores = if self.raw { "raw" } else { "softmax" };
        let augment = if self.augment { "--augment" } else { "--no-augment" };
        let checkpoint = if self.recompute { "--ckpt" } else { "--no-ckpt" };
        let line = format!(
            "--mode {mode} --preset {preset} --batch {images} --accum {accumulation} --steps {steps} --warmup {warmup} --dropout {dropout} \
             --attn {scores} {augment} {checkpoint} {precision} --device {device}"
        );
        line.split_whitespace().map(str::to_owned).collect()
    }
}

/// The peer's batches, in its order, and the images that it holds out.
struct VisionBatches {
    data: Tensors,
    labels: Vec<usize>,
    /// Numbers of the images of all micro-steps.
    plan: Vec<usize>,
    training: usize,
    program: Program,
    evaluation: Option<Program>,
    format: MemoryFormat,
    augment: bool,
    images: usize,
    accumulation: usize,
}

impl VisionBatches {
    fn open(folder: &Path, job: &dyn Job, experiment: &VisionExperiment) -> anyhow::Result<Self> {
        let data = Tensors::open(&folder.join("data.safetensors"))?;
        let training = Config::parse(&experiment.config(), &Map::new())?.data.training;
        let programs = job.programs();
        Ok(Self {
            labels: data.integers("labels")?,
            plan: Tensors::open(&folder.join("plan.safetensors"))?.integers("index")?,
            data,
            training,
            program: programs.train.first().context("the workload has a training program")?.clone(),
            evaluation: programs.evaluation.first().cloned(),
            format: experiment.settings()?.memory_format(),
            augment: experiment.augment,
            images: experiment.images,
            accumulation: experiment.accumulation,
        })
    }

    fn write(&self, image: usize, crop: Option<Crop>, out: &mut [f32]) {
        let pixels = self.data.raw("images", image * BYTES, BYTES).unwrap_or_else(|e| panic!("{e:#}"));
        augment::write(pixels, crop, self.format, out);
    }

    /// Images of an evaluation batch.
    fn rows(&self) -> usize {
        self.evaluation.as_ref().map_or(1, |program| program.inputs[0].meta.shape[0])
    }

    /// The held-out image in row `row` of evaluation batch `index`.
    fn held_out(&self, index: usize, row: usize) -> Option<usize> {
        (self.training..self.labels.len()).nth(index * self.rows() + row)
    }
}

impl Data for VisionBatches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let step = at.items as usize / (self.images * self.accumulation);
        // What is prepared ahead of the last step is not used.
        let micro = (step * self.accumulation + at.micro as usize).min(self.plan.len() / self.images - 1);
        batch.fit(0, &self.program)?;
        let plan = &self.plan[micro * self.images..(micro + 1) * self.images];
        for (array, decl) in batch.inputs.iter_mut().zip(&self.program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                (_, Elements::F32(out)) => {
                    for (row, (&image, out)) in plan.iter().zip(out.chunks_exact_mut(BYTES)).enumerate() {
                        let stream = || Stream::named(42, "crops").fork((micro * self.images + row) as u64);
                        self.write(image, self.augment.then(|| Crop::draw(stream())), out);
                    }
                }
                ("labels", Elements::U32(out)) => {
                    out.iter_mut().zip(plan).for_each(|(out, &image)| *out = self.labels[image] as u32);
                }
                (_, Elements::U32(out)) => out.fill(micro as u32),
                (name, _) => unreachable!("the workload has no input `{name}`"),
            }
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        (self.labels.len() - self.training).div_ceil(self.rows())
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let mut batch = Batch::default();
        let Some(program) = &self.evaluation else { return Ok(batch) };
        batch.fit(0, program)?;
        if let Elements::F32(out) = batch.inputs[0].data_mut() {
            for (row, out) in out.chunks_exact_mut(BYTES).enumerate() {
                if let Some(image) = self.held_out(index, row) {
                    self.write(image, None, out);
                }
            }
        }
        Ok(batch)
    }

    /// Images that are classified correctly, and all images.
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        for (row, logits) in outputs[0].to_f64().chunks_exact(CLASSES).enumerate() {
            let Some(image) = self.held_out(index, row) else { break };
            let largest = logits.iter().copied().fold(f64::MIN, f64::max);
            sums[0] +=
                f64::from(u8::from(logits.iter().position(|logit| *logit == largest) == Some(self.labels[image])));
            sums[1] += 1.0;
        }
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        BTreeMap::from([("accuracy".to_owned(), sums[0] / sums[1])])
    }
}
