//! Graphs of the stocks of a date: each is joined to those whose returns were most correlated with its own.

use rayon::prelude::*;

/// Neighbours that a stock is joined to at most (others may be joined to it as well), and at least.
const MOST: usize = 10;
const LEAST: usize = 5;
/// Correlation above which the neighbours beyond the least are joined.
const THRESHOLD: f32 = 0.3;
/// Numbers that describe an edge: (correlation + 1) / 2, same market segment, same sector.
pub const ATTRIBUTES: usize = 3;

/// A directed graph that contains the reverse of each edge, and a loop at each stock; edges are sorted by target, then
/// by source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DayGraph {
    /// Stock in which each edge begins.
    pub sources: Vec<u32>,
    /// Stock in which it ends.
    pub targets: Vec<u32>,
    /// Its attributes.
    pub attributes: Vec<[f32; ATTRIBUTES]>,
}

/// Groups of the stocks.
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// Market segment of each stock.
    pub segments: &'a [u8],
    /// Sector of each stock.
    pub sectors: &'a [u8],
}

impl DayGraph {
    /// The graph of stocks with these `returns` (days, stocks), of which missing ones are NaN. A stock without returns
    /// has its loop only.
    pub fn new(returns: &[f32], groups: Groups<'_>) -> Self {
        let stocks = groups.sectors.len();
        let scores = scores(returns, stocks);
        let known: Vec<bool> =
            (0..stocks).map(|stock| returns.iter().skip(stock).step_by(stocks).any(|value| !value.is_nan())).collect();
        let of_stock =
            |stock: usize| nearest(&scores, &known, stock).into_iter().map(move |(other, r)| (stock, other, r));
        let with_returns = (0..stocks).into_par_iter().filter(|stock| known[*stock]);
        let nearest: Vec<(usize, usize, f32)> = with_returns.flat_map_iter(of_stock).collect();
        let mut edges: Vec<(usize, usize, f32)> =
            nearest.iter().flat_map(|&(a, b, r)| [(a, b, r), (b, a, r)]).collect();
        edges.extend((0..stocks).map(|stock| (stock, stock, 1.0)));
        edges.sort_unstable_by_key(|&(target, source, _)| (target, source));
        edges.dedup_by_key(|&mut (target, source, _)| (target, source));
        let mut graph = Self::default();
        for (target, source, correlation) in edges {
            let same = |of: &[u8]| f32::from(u8::from(of[target] == of[source]));
            graph.sources.push(source as u32);
            graph.targets.push(target as u32);
            graph.attributes.push([(correlation + 1.0) / 2.0, same(groups.segments), same(groups.sectors)]);
        }
        graph
    }

    /// Number of edges.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// The same edge in the other direction, for each edge. Edges in this order are sorted by source, then by target.
    pub fn reversed(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by_key(|&edge| (self.sources[edge as usize], self.targets[edge as usize]));
        order
    }

    /// Whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The edges between the stocks `chosen`, ascending, which are numbered by their place there.
    #[must_use]
    pub fn among(&self, chosen: &[u32]) -> Self {
        let place = |stock: u32| chosen.binary_search(&stock).ok().map(|place| place as u32);
        let mut part = Self::default();
        for ((&source, &target), attributes) in self.sources.iter().zip(&self.targets).zip(&self.attributes) {
            if let (Some(source), Some(target)) = (place(source), place(target)) {
                part.sources.push(source);
                part.targets.push(target);
                part.attributes.push(*attributes);
            }
        }
        part
    }
}

/// Returns without the mean of their day, then standardized per stock: (days, stocks). A missing one counts as the
/// mean.
fn scores(returns: &[f32], stocks: usize) -> Vec<f32> {
    let days = (returns.len() / stocks) as f64;
    let mut scores: Vec<f64> = returns.iter().map(|value| f64::from(*value)).collect();
    for day in scores.chunks_exact_mut(stocks) {
        let known = day.iter().filter(|value| !value.is_nan());
        let mean = known.clone().sum::<f64>() / known.count() as f64;
        day.iter_mut().for_each(|value| *value = if value.is_nan() { 0.0 } else { *value - mean });
    }
    let mut moments = vec![[0.0; 2]; stocks];
    for day in scores.chunks_exact(stocks) {
        moments.iter_mut().zip(day).for_each(|(moments, value)| moments[0] += value / days);
    }
    for day in scores.chunks_exact(stocks) {
        for (moments, value) in moments.iter_mut().zip(day) {
            moments[1] += (value - moments[0]) * (value - moments[0]) / (days - 1.0);
        }
    }
    let standardized =
        |(value, [mean, variance]): (&f64, &[f64; 2])| ((value - mean) / (variance.sqrt() + 1e-8)) as f32;
    scores.chunks_exact(stocks).flat_map(|day| day.iter().zip(&moments).map(standardized)).collect()
}

/// The neighbours that `stock` chooses among those that are `known`, with their correlations.
fn nearest(scores: &[f32], known: &[bool], stock: usize) -> Vec<(usize, f32)> {
    let stocks = known.len();
    let mut correlations = vec![0.0_f32; stocks];
    for day in scores.chunks_exact(stocks) {
        let own = day[stock];
        correlations.iter_mut().zip(day).for_each(|(sum, other)| *sum += own * other);
    }
    let days = (scores.len() / stocks) as f32;
    let other = |(place, _): &(usize, f32)| *place != stock && known[*place];
    let mut others: Vec<(usize, f32)> =
        correlations.into_iter().map(|sum| sum / days).enumerate().filter(other).collect();
    let descending = |a: &(usize, f32), b: &(usize, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if others.len() > MOST {
        others.select_nth_unstable_by(MOST - 1, descending);
        others.truncate(MOST);
    }
    others.sort_unstable_by(descending);
    let kept = |(place, (_, correlation)): (usize, &(usize, f32))| place < LEAST || *correlation > THRESHOLD;
    others.iter().enumerate().filter(|&other| kept(other)).map(|(_, other)| *other).collect()
}
