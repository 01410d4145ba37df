//! Batches of windows, and the metrics of their evaluation.

use super::ForexSetup;
use super::config::{HORIZONS, TIMEFRAMES};
use super::device_windows;
use super::market::Market;
use super::metrics::{self, SUMS};
use crate::placement::Place;
use crate::sampling::Shuffle;
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::InputDecl;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The opened data of a job.
pub struct Batches {
    setup: Arc<ForexSetup>,
    programs: Arc<Programs>,
    market: Market,
    order: Shuffle,
}

impl Batches {
    pub fn new(setup: Arc<ForexSetup>, programs: Arc<Programs>, market: Market) -> Self {
        let order = Shuffle::new(setup.share.seed, "forex.order", market.training().len(), 1);
        Self { setup, programs, market, order }
    }

    /// The bar with which training item `item` ends, counted over the whole run.
    fn training_bar(&self, item: u64) -> usize {
        self.market.training().start + self.order.sample(item)
    }

    /// The bar with which row `row` of evaluation batch `index` ends; none for padding.
    fn evaluated_bar(&self, index: usize, row: usize) -> Option<usize> {
        let (range, windows) = (self.market.validation(), self.windows());
        let window = index * self.setup.share.evaluation_batch + row;
        (window < windows).then(|| range.start + window * range.len() / windows)
    }

    /// Number of windows that are evaluated.
    fn windows(&self) -> usize {
        self.setup.config.evaluation.windows.min(self.market.validation().len())
    }

    /// Writes an input that is made of windows, of which each row is one that ends with a bar, or the number of that
    /// bar.
    fn write(&self, decl: &InputDecl, array: &mut Array, bars: impl Iterator<Item = Option<usize>>) {
        let timeframe =
            TIMEFRAMES.iter().position(|timeframe| decl.name.strip_prefix("features.") == Some(timeframe.name));
        let row = decl.meta.shape.dims()[1..].iter().product();
        let out = match array.data_mut() {
            Elements::F32(out) => out,
            Elements::U32(out) => {
                // Padding is any window.
                let padding = self.market.validation().start;
                bars.zip(out).for_each(|(bar, out)| *out = bar.unwrap_or(padding) as u32);
                return;
            }
            other => unreachable!("windows are float32 or numbers of bars, not {other:?}"),
        };
        for (bar, out) in bars.zip(out.chunks_exact_mut(row)).filter_map(|(bar, out)| Some((bar?, out))) {
            match timeframe {
                Some(timeframe) => self.market.write_features(bar, timeframe, out),
                None => self.market.write_patches(bar, out),
            }
        }
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let program = &self.programs.train[0];
        batch.fit(0, program)?;
        let first = self.setup.share.first_item(at);
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                ("kl_weight", Elements::F32(out)) => out.fill(self.setup.kl_weight(at) as f32),
                ("counter", Elements::U32(out)) => out.fill(self.setup.share.counter(at)),
                _ => self.write(decl, array, (first..).map(|item| Some(self.training_bar(item)))),
            }
        }
        Ok(())
    }

    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        if self.setup.config.data.placement == Place::Host {
            return Ok(Vec::new());
        }
        Ok(device_windows::resident(&self.market)?)
    }

    fn evaluations(&self) -> usize {
        self.windows().div_ceil(self.setup.share.evaluation_batch)
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let program = &self.programs.evaluation[0];
        let mut batch = Batch::default();
        batch.fit(0, program)?;
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            self.write(decl, array, (0..).map(|row| self.evaluated_bar(index, row)));
        }
        Ok(batch)
    }

    fn sums(&self) -> usize {
        SUMS
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        let bars = (0..self.setup.share.evaluation_batch).map_while(|row| self.evaluated_bar(index, row));
        let returns: Vec<[f64; HORIZONS.len()]> = bars.map(|bar| self.market.returns(bar)).collect();
        metrics::add(outputs, &returns, sums);
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics::metrics(sums)
    }
}
