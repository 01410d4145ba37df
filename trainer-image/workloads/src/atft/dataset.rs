//! What batches are made of: features, returns and day graphs of a panel, and its splits in time.

use super::config::{DataConfig, FEATURES, Graphs, HORIZONS, WARM_UP_DAYS};
use super::features;
use super::files::{Files, Index};
use super::metrics;
use super::neighbours::{DayGraph, Groups};
use super::panel::{Panel, scored};
use crate::store::{OnProgress, StoreError};
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Days of a block, which have one graph.
const BLOCK: usize = 20;

/// A part of the days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The first days.
    Train,
    /// Those after them.
    Validation,
    /// The last ones.
    Test,
}

/// The data set. Tables are row-major; features of files are read when they are used, all else is in memory.
#[derive(Debug)]
pub struct Dataset {
    stocks: usize,
    width: usize,
    features: Features,
    /// Whether a stock can be chosen on a day: (days, stocks).
    chosen: Vec<bool>,
    /// Returns to the horizons, 0 beyond the last day: (days, stocks, horizons).
    returns: Vec<f32>,
    /// Returns of a day, NaN where there is none: (days, stocks).
    daily: Vec<f32>,
    sectors: Vec<u8>,
    segments: Vec<u8>,
    /// Graphs of the blocks, if they are made in advance.
    graphs: Vec<Arc<DayGraph>>,
    splits: [Range<usize>; 3],
}

/// The features (stocks, width) of each day.
#[derive(Debug)]
enum Features {
    Memory(Vec<Arc<[f32]>>),
    Files(Box<Files>),
}

/// A panel as another program made it, all of its days; tables are row-major.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Features: (days, stocks, width).
    pub features: Vec<f32>,
    /// Returns to the horizons: (days, stocks, horizons).
    pub returns: Vec<f32>,
    /// Returns of a day: (days, stocks).
    pub daily: Vec<f32>,
    /// Sector of each stock.
    pub sectors: Vec<u8>,
    /// Market segment of each stock.
    pub segments: Vec<u8>,
}

impl Dataset {
    /// The data set of a simulated panel; `progress` reports what is made.
    pub fn simulated(config: &DataConfig, progress: OnProgress<'_>) -> Self {
        progress("panel", 0, 1);
        let panel = Panel::simulated(config.days, config.stocks, config.signal, config.seed);
        Self::of_panel(&panel, config, progress)
    }

    /// The data set of `panel`; `progress` reports what is made.
    pub fn of_panel(panel: &Panel, config: &DataConfig, progress: OnProgress<'_>) -> Self {
        let features = table(panel, config.features, progress);
        let tables = Tables {
            features,
            returns: targets(panel),
            daily: panel.returns.clone(),
            sectors: panel.sectors.clone(),
            segments: panel.segments.clone(),
        };
        Self::new(tables, config, progress)
    }

    /// The data set of `tables`, in which every stock can be chosen on every day.
    pub fn new(tables: Tables, config: &DataConfig, progress: OnProgress<'_>) -> Self {
        let Tables { features, returns, daily, sectors, segments } = tables;
        let days = features.chunks_exact(config.stocks * config.features).map(Arc::from).collect();
        let dataset = Self {
            stocks: config.stocks,
            width: config.features,
            features: Features::Memory(days),
            chosen: vec![true; daily.len()],
            returns,
            daily,
            sectors,
            segments,
            graphs: Vec::new(),
            splits: config.splits(),
        };
        dataset.with_graphs(config, progress)
    }

    /// The data set of the table of Parquet files in `config.directory`; `progress` reports what is read.
    ///
    /// # Errors
    /// As for [`Files::open`]; when a date of a split has fewer stocks than a chunk.
    pub fn read(config: &DataConfig, progress: OnProgress<'_>) -> Result<Self, StoreError> {
        let (files, index) = Files::open(config, progress)?;
        let Index { segments, sectors, chosen, targets, daily } = index;
        let splits = config.splits();
        for day in splits.iter().cloned().flatten() {
            let stocks = chosen[day * config.stocks..][..config.stocks].iter().filter(|chosen| **chosen).count();
            if stocks < config.chunk {
                let directory = Path::new(config.directory.as_deref().unwrap_or("."));
                return Err(StoreError::Source(format!(
                    "{}: {} has {stocks} valid stocks with all targets, and data.chunk is {}: lower data.chunk, or leave out the date",
                    directory.display(),
                    files.date(day),
                    config.chunk
                )));
            }
        }
        let dataset = Self {
            stocks: config.stocks,
            width: config.features,
            features: Features::Files(Box::new(files)),
            chosen,
            returns: targets,
            daily,
            sectors,
            segments,
            graphs: Vec::new(),
            splits,
        };
        Ok(dataset.with_graphs(config, progress))
    }

    /// Makes the graphs of the blocks, if they are to be made in advance.
    fn with_graphs(mut self, config: &DataConfig, progress: OnProgress<'_>) -> Self {
        if config.graphs == Graphs::Cached {
            let blocks = config.days.div_ceil(BLOCK);
            let graph = |block: usize| {
                progress("graphs", block as u64, blocks as u64);
                Arc::new(self.graph_before(block * BLOCK))
            };
            self.graphs = (0..blocks).map(graph).collect();
        }
        self
    }

    /// The days on which windows of a split end.
    pub fn days(&self, split: Split) -> Range<usize> {
        self.splits[split as usize].clone()
    }

    /// Places for stocks on a day.
    pub fn stocks(&self) -> usize {
        self.stocks
    }

    /// The stocks that can be chosen on `day`, ascending.
    pub fn chosen(&self, day: usize) -> Vec<u32> {
        let of_day = &self.chosen[day * self.stocks..(day + 1) * self.stocks];
        (0..).zip(of_day).filter_map(|(stock, chosen)| chosen.then_some(stock)).collect()
    }

    /// All features in memory: (days * stocks, width).
    ///
    /// # Errors
    /// As for [`Files::day`].
    pub fn features(&self) -> Result<Vec<f32>, StoreError> {
        let days = self.chosen.len() / self.stocks;
        let mut all = Vec::with_capacity(self.chosen.len() * self.width);
        for day in 0..days {
            all.extend_from_slice(&self.of_day(day)?);
        }
        Ok(all)
    }

    /// The features of a day: (stocks, width).
    fn of_day(&self, day: usize) -> Result<Arc<[f32]>, StoreError> {
        match &self.features {
            Features::Memory(days) => Ok(Arc::clone(&days[day])),
            Features::Files(files) => files.day(day),
        }
    }

    /// Writes the windows of `stocks` that end with `day`: (stocks, lookback, width).
    ///
    /// # Errors
    /// As for [`Files::day`].
    pub fn write_windows(&self, day: usize, stocks: &[u32], out: &mut [f32]) -> Result<(), StoreError> {
        let (window, width) = (out.len() / stocks.len(), self.width);
        for (back, end) in (1..=window / width).rev().map(|step| step * width).enumerate() {
            let features = self.of_day(day - back)?;
            for (&stock, out) in stocks.iter().zip(out.chunks_exact_mut(window)) {
                let row = stock as usize * width;
                out[end - width..end].copy_from_slice(&features[row..row + width]);
            }
        }
        Ok(())
    }

    /// Returns to the horizons on `day`: (stocks, horizons).
    pub fn returns(&self, day: usize) -> &[f32] {
        &self.returns[day * self.stocks * HORIZONS.len()..][..self.stocks * HORIZONS.len()]
    }

    /// Returns of `stocks` on `day` to the horizons as scores within the date, of all stocks that can be chosen:
    /// (stocks, horizons).
    pub fn scores(&self, day: usize, stocks: &[u32]) -> Vec<f32> {
        let (returns, all) = (self.returns(day), self.chosen(day));
        let mut out = vec![0.0; stocks.len() * HORIZONS.len()];
        for horizon in 0..HORIZONS.len() {
            let column = all.iter().map(|stock| returns[*stock as usize * HORIZONS.len() + horizon]).collect();
            let scores = scored(column, all.len().max(1));
            for (row, stock) in stocks.iter().enumerate() {
                if let Ok(place) = all.binary_search(stock) {
                    out[row * HORIZONS.len() + horizon] = scores[place];
                }
            }
        }
        out
    }

    /// The graph of `day`, of returns before its block (if graphs are made in advance) or before the day.
    pub fn graph(&self, day: usize) -> Arc<DayGraph> {
        match self.graphs.get(day / BLOCK) {
            Some(graph) => Arc::clone(graph),
            None => Arc::new(self.graph_before(day)),
        }
    }

    fn graph_before(&self, day: usize) -> DayGraph {
        let days = day.saturating_sub(WARM_UP_DAYS)..day.max(BLOCK);
        let groups = Groups { segments: &self.segments, sectors: &self.sectors };
        DayGraph::new(&self.daily[days.start * self.stocks..days.end * self.stocks], groups)
    }
}

/// Features (days, stocks, width), each made by one thread and then put in its place.
fn table(panel: &Panel, width: usize, progress: OnProgress<'_>) -> Vec<f32> {
    assert!(width <= FEATURES, "the configuration is valid");
    let done = AtomicU64::new(0);
    let column = |number: usize| {
        let column = features::column(panel, number);
        progress("features", done.fetch_add(1, Ordering::Relaxed), width as u64);
        column
    };
    let columns: Vec<Vec<f32>> = (0..width).into_par_iter().map(column).collect();
    let mut table = vec![0.0; panel.days * panel.stocks * width];
    table.par_chunks_exact_mut(width).enumerate().for_each(|(row, out)| {
        out.iter_mut().zip(&columns).for_each(|(out, column)| *out = column[row]);
    });
    table
}

/// Returns to the horizons: (days, stocks, horizons). Those beyond the last day are 0.
fn targets(panel: &Panel) -> Vec<f32> {
    let stocks = panel.stocks;
    let mut cumulative = vec![0.0_f64; (panel.days + 1) * stocks];
    for (i, value) in panel.returns.iter().enumerate() {
        cumulative[i + stocks] = cumulative[i] + f64::from(*value);
    }
    let forward = |i: usize, days: usize| {
        let end = i + (1 + days) * stocks;
        cumulative.get(end).map_or(0.0, |end| (end - cumulative[i + stocks]) as f32)
    };
    (0..panel.days * stocks).flat_map(|i| HORIZONS.map(|horizon| forward(i, horizon.days))).collect()
}

/// Ranks from 0 of each horizon (columns) of `scores` (stocks, horizons).
pub fn write_ranks(scores: &[f32], out: &mut [f32]) {
    for horizon in 0..HORIZONS.len() {
        let column: Vec<f64> = scores.iter().skip(horizon).step_by(HORIZONS.len()).map(|v| f64::from(*v)).collect();
        let places = out.iter_mut().skip(horizon).step_by(HORIZONS.len());
        places.zip(metrics::ranks(&column)).for_each(|(out, rank)| *out = (rank - 1.0) as f32);
    }
}
