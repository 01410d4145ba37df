//! The curriculum: which parts of the model are trained when.

use super::config::{Config, StageConfig};
use super::epoch;
use super::model::{Part, Parts};

/// The stages of a run.
#[derive(Clone, Debug)]
pub struct Curriculum {
    /// The first item of each stage, and its variant.
    stages: Vec<(u64, usize)>,
    /// Factor of the learning rate of each stage.
    factors: Vec<f64>,
    /// The parts of each variant.
    variants: Vec<Parts>,
}

impl Curriculum {
    /// The stages of `config`; without any, one with all parts.
    pub fn new(config: &Config) -> Self {
        let mut all = Self { stages: Vec::new(), factors: Vec::new(), variants: Vec::new() };
        let mut start = 0;
        for stage in &config.curriculum {
            let parts = parts(stage);
            let known = all.variants.iter().position(|variant| *variant == parts);
            let variant = known.unwrap_or_else(|| {
                all.variants.push(parts);
                all.variants.len() - 1
            });
            all.stages.push((start, variant));
            all.factors.push(stage.rate);
            start += u64::from(stage.epochs) * epoch(&config.data);
        }
        if all.variants.is_empty() {
            all.variants.push(Parts { neighbours: Part::Always, adaptive: Part::Always });
        }
        all
    }

    /// The parts of each variant of the training program.
    pub fn variants(&self) -> &[Parts] {
        &self.variants
    }

    /// The parts that are evaluated: those of the last step.
    pub fn evaluated(&self) -> Parts {
        let part = if self.stages.is_empty() { Part::Always } else { Part::AsTrained };
        Parts { neighbours: part, adaptive: part }
    }

    /// The variant of the step after `items`.
    pub fn variant(&self, items: u64) -> usize {
        self.stages.iter().rev().find(|(start, _)| *start <= items).map_or(0, |(_, variant)| *variant)
    }

    /// The first item of each stage, and the factor of its learning rate.
    pub fn rates(&self) -> Vec<(u64, f64)> {
        self.stages.iter().zip(&self.factors).map(|((start, _), factor)| (*start, *factor)).collect()
    }
}

fn parts(stage: &StageConfig) -> Parts {
    let part = |on: bool| if on { Part::On } else { Part::Off };
    Parts { neighbours: part(stage.neighbours), adaptive: part(stage.adaptive) }
}
