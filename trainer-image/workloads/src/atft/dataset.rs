//! What batches are made of: features, returns and day graphs of a panel, and its splits in time.

use super::config::{DataConfig, FEATURES, Graphs, HORIZONS, LONGEST, WARM_UP_DAYS};
use super::features;
use super::metrics;
use super::neighbours::{DayGraph, Groups};
use super::panel::{Panel, scored};
use crate::store::OnProgress;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Days of a block, which have one graph.
const BLOCK: usize = 20;
/// Shares of the days in training and validation; the others are for the test.
const SHARES: [f64; 2] = [0.70, 0.15];

/// A part of the days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The first 70 %.
    Train,
    /// The next 15 %.
    Validation,
    /// The last ones.
    Test,
}

/// The targets of the stocks of a date, each (stocks, horizons).
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Log returns to the horizons.
    pub returns: &'a [f32],
    /// The same as scores within the date.
    pub scores: &'a [f32],
}

/// The data set, in memory.
#[derive(Debug)]
pub struct Dataset {
    stocks: usize,
    width: usize,
    /// (days, stocks, width)
    features: Vec<f32>,
    /// (days, stocks, horizons)
    returns: Vec<f32>,
    scores: Vec<f32>,
    /// (days, stocks)
    daily: Vec<f32>,
    sectors: Vec<u8>,
    segments: Vec<u8>,
    /// Graphs of the blocks, if they are made in advance.
    graphs: Vec<Arc<DayGraph>>,
    splits: [Range<usize>; 3],
}

impl Dataset {
    /// The data set of `panel`; `progress` reports what is made.
    pub fn new(panel: &Panel, config: &DataConfig, progress: OnProgress<'_>) -> Self {
        let features = table(panel, config.features, progress);
        let (returns, scores) = targets(panel);
        let mut dataset = Self {
            stocks: panel.stocks,
            width: config.features,
            features,
            returns,
            scores,
            daily: panel.returns.clone(),
            sectors: panel.sectors.clone(),
            segments: panel.segments.clone(),
            graphs: Vec::new(),
            splits: splits(config),
        };
        if config.graphs == Graphs::Cached {
            let blocks = panel.days.div_ceil(BLOCK);
            let graph = |block: usize| {
                progress("graphs", block as u64, blocks as u64);
                Arc::new(dataset.graph_before(block * BLOCK))
            };
            dataset.graphs = (0..blocks).map(graph).collect();
        }
        dataset
    }

    /// The days on which windows of a split end.
    pub fn days(&self, split: Split) -> Range<usize> {
        self.splits[split as usize].clone()
    }

    /// Stocks of the panel.
    pub fn stocks(&self) -> usize {
        self.stocks
    }

    /// Features of a stock on a date.
    pub fn width(&self) -> usize {
        self.width
    }

    /// All features: (days * stocks, width).
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// Writes the window of `stock` that ends with `day`: (lookback, width).
    pub fn write_window(&self, day: usize, stock: usize, out: &mut [f32]) {
        for (back, out) in out.chunks_exact_mut(self.width).rev().enumerate() {
            let row = ((day - back) * self.stocks + stock) * self.width;
            out.copy_from_slice(&self.features[row..row + self.width]);
        }
    }

    /// The targets of all stocks on `day`.
    pub fn targets(&self, day: usize) -> Targets<'_> {
        let rows = day * self.stocks * HORIZONS.len()..(day + 1) * self.stocks * HORIZONS.len();
        Targets { returns: &self.returns[rows.clone()], scores: &self.scores[rows] }
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

/// Returns to the horizons, and their scores within the date: (days, stocks, horizons). Those beyond the last day are 0.
fn targets(panel: &Panel) -> (Vec<f32>, Vec<f32>) {
    let (days, stocks, horizons) = (panel.days, panel.stocks, HORIZONS.len());
    let mut cumulative = vec![0.0_f64; (days + 1) * stocks];
    for (i, value) in panel.returns.iter().enumerate() {
        cumulative[i + stocks] = cumulative[i] + f64::from(*value);
    }
    let [mut returns, mut scores] = [(); 2].map(|()| vec![0.0; days * stocks * horizons]);
    for (place, horizon) in HORIZONS.iter().enumerate() {
        let forward = |i: usize| {
            let end = i + (1 + horizon.days) * stocks;
            cumulative.get(end).map_or(0.0, |end| (end - cumulative[i + stocks]) as f32)
        };
        let column: Vec<f32> = (0..days * stocks).map(forward).collect();
        let put = |out: &mut [f32], column: &[f32]| {
            out.chunks_exact_mut(horizons).zip(column).for_each(|(out, value)| out[place] = *value);
        };
        put(&mut returns, &column);
        put(&mut scores, &scored(column, stocks));
    }
    (returns, scores)
}

/// The days on which windows end: training, validation, test. The longest horizon lies between them, so that none sees the returns of another.
pub fn splits(data: &DataConfig) -> [Range<usize>; 3] {
    let (first, end) = (WARM_UP_DAYS + data.lookback, data.days - LONGEST - 1);
    let usable = end - first - 2 * LONGEST;
    let [training, validation] = SHARES.map(|share| (share * usable as f64).round() as usize);
    let validated = first + training + LONGEST;
    let tested = validated + validation + LONGEST;
    [first..first + training, validated..validated + validation, tested..end]
}

/// Ranks from 0 of each horizon (columns) of `scores` (stocks, horizons).
pub fn write_ranks(scores: &[f32], out: &mut [f32]) {
    for horizon in 0..HORIZONS.len() {
        let column: Vec<f64> = scores.iter().skip(horizon).step_by(HORIZONS.len()).map(|v| f64::from(*v)).collect();
        let places = out.iter_mut().skip(horizon).step_by(HORIZONS.len());
        places.zip(metrics::ranks(&column)).for_each(|(out, rank)| *out = (rank - 1.0) as f32);
    }
}
