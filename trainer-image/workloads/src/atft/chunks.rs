//! Day chunks, and the inputs of programs that are made of them.

use super::config::HORIZONS;
use super::dataset::{Dataset, write_ranks};
use super::model::ROWS;
use super::neighbours::{ATTRIBUTES, DayGraph};
use crate::workload::{Batch, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::Program;
use std::sync::Arc;

/// Stocks of a date.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The day.
    pub day: usize,
    /// Its stocks, ascending.
    pub stocks: Vec<u32>,
}

impl Chunk {
    /// The returns of its stocks to the horizons: (stocks, horizons).
    pub fn returns(&self, dataset: &Dataset) -> Vec<f32> {
        let (all, width) = (dataset.returns(self.day), HORIZONS.len());
        self.stocks.iter().flat_map(|stock| &all[*stock as usize * width..][..width]).copied().collect()
    }

    /// The graph of its stocks, which are numbered by their place.
    fn graph(&self, dataset: &Dataset) -> Arc<DayGraph> {
        let graph = dataset.graph(self.day);
        if self.stocks.len() == dataset.stocks() { graph } else { Arc::new(graph.among(&self.stocks)) }
    }
}

/// Writes the inputs of `program` that are made of `chunks`, which are at least one and of equal size: windows of
/// features or the numbers of their last rows, targets, and edges.
///
/// # Errors
/// When there is no room for the edges, or features cannot be read.
pub fn write(dataset: &Dataset, program: &Program, batch: &mut Batch, chunks: &[Chunk]) -> Result<(), WorkloadError> {
    for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
        match (decl.name.as_str(), array.data_mut()) {
            ("features", Elements::F32(out)) => {
                for (chunk, out) in parts(chunks, out) {
                    dataset.write_windows(chunk.day, &chunk.stocks, out)?;
                }
            }
            (ROWS, Elements::U32(out)) => {
                for (chunk, out) in parts(chunks, out) {
                    let first = (chunk.day * dataset.stocks()) as u32;
                    chunk.stocks.iter().zip(out).for_each(|(stock, out)| *out = first + stock);
                }
            }
            ("returns", Elements::F32(out)) => {
                parts(chunks, out).for_each(|(chunk, out)| out.copy_from_slice(&chunk.returns(dataset)));
            }
            _ => {}
        }
    }
    let place = |name: &str| program.inputs.iter().position(|input| input.name == name);
    if let (Some(scores), Some(ranks)) = (place("scores"), place("ranks"))
        && let Ok([scores, ranks]) = batch.inputs.get_disjoint_mut([scores, ranks])
        && let (Elements::F32(scores), Elements::F32(ranks)) = (scores.data_mut(), ranks.data_mut())
    {
        for ((chunk, scores), (_, ranks)) in parts(chunks, scores).zip(parts(chunks, ranks)) {
            scores.copy_from_slice(&dataset.scores(chunk.day, &chunk.stocks));
            write_ranks(scores, ranks);
        }
    }
    match place("edges.source") {
        Some(first) => write_edges(dataset, &mut batch.inputs[first..first + 5], chunks),
        None => Ok(()),
    }
}

/// Each chunk, and its equal part of `out`.
fn parts<'a, T>(chunks: &'a [Chunk], out: &'a mut [T]) -> impl Iterator<Item = (&'a Chunk, &'a mut [T])> {
    let part = out.len() / chunks.len();
    chunks.iter().zip(out.chunks_exact_mut(part))
}

/// Writes the edges of all chunks, one after another, with padding at the end: sources, targets, the reverse of each,
/// offsets and attributes.
fn write_edges(dataset: &Dataset, inputs: &mut [Array], chunks: &[Chunk]) -> Result<(), WorkloadError> {
    let stocks = chunks[0].stocks.len();
    let graphs: Vec<(usize, Arc<DayGraph>)> = chunks.iter().map(|chunk| (chunk.day, chunk.graph(dataset))).collect();
    let room = inputs[0].shape().elements();
    let needed: usize = graphs.iter().map(|(_, graph)| graph.len()).sum();
    if needed > room {
        let (day, graph) = graphs.iter().max_by_key(|(_, graph)| graph.len()).expect("a batch has chunks");
        let problem = format!(
            "gives too little room: the stocks of day {day} have {} edges; set at least {}",
            graph.len(),
            graph.len().div_ceil(stocks)
        );
        let per_stock = room / (chunks.len() * stocks);
        return Err(WorkloadError::config("data.edgesPerStock", &per_stock.into(), &problem));
    }
    let [sources, targets, reversed, offsets, attributes] = inputs else { unreachable!("the edges are five inputs") };
    let numbers = |which: fn(&DayGraph) -> &Vec<u32>| {
        let shifted = graphs.iter().zip(0..).flat_map(move |((_, graph), number)| {
            which(graph).iter().map(move |&stock| stock + number * stocks as u32)
        });
        shifted.chain(std::iter::repeat(0))
    };
    fill(sources, numbers(|graph| &graph.sources));
    fill(targets, numbers(|graph| &graph.targets));
    let before: Vec<u32> = starts(&graphs).collect();
    let all = graphs.iter().zip(before);
    fill(reversed, all.flat_map(|((_, graph), first)| graph.reversed().into_iter().map(move |edge| edge + first)));
    let mut count = vec![0; chunks.len() * stocks + 1];
    numbers(|graph| &graph.targets).take(needed).for_each(|target| count[target as usize + 1] += 1);
    let mut total = 0;
    let running = count.into_iter().map(|count| {
        total += count;
        total
    });
    fill(offsets, running);
    if let Elements::F32(out) = attributes.data_mut() {
        let all = graphs.iter().flat_map(|(_, graph)| graph.attributes.iter().copied());
        let (rows, _) = out.as_chunks_mut::<ATTRIBUTES>();
        let padded = all.chain(std::iter::repeat([0.0; ATTRIBUTES]));
        rows.iter_mut().zip(padded).for_each(|(row, attributes)| *row = attributes);
    }
    Ok(())
}

/// The first edge of each graph.
fn starts(graphs: &[(usize, Arc<DayGraph>)]) -> impl Iterator<Item = u32> {
    graphs.iter().scan(0, |end, (_, graph)| {
        let start = *end;
        *end += graph.len() as u32;
        Some(start)
    })
}

/// Fills an array of numbers.
pub(super) fn fill(array: &mut Array, values: impl Iterator<Item = u32>) {
    if let Elements::U32(out) = array.data_mut() {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }
}
