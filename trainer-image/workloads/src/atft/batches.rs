//! Batches of day chunks, and the metrics of their evaluation.

use super::AtftSetup;
use super::config::HORIZONS;
use super::dataset::{Dataset, Split, write_ranks};
use super::metrics::{self, SUMS};
use super::model::ROWS;
use super::neighbours::{ATTRIBUTES, DayGraph};
use crate::placement::Place;
use crate::random::Stream;
use crate::sampling::{self, Shuffle};
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The opened data of a job.
#[derive(Clone)]
pub struct Batches {
    setup: Arc<AtftSetup>,
    programs: Arc<Programs>,
    dataset: Arc<Dataset>,
    order: Arc<Shuffle>,
    /// The split that is evaluated.
    evaluated: Split,
}

/// Stocks of a date.
struct Chunk {
    day: usize,
    /// Ascending.
    stocks: Vec<u32>,
}

impl Batches {
    pub fn new(setup: Arc<AtftSetup>, programs: Arc<Programs>, dataset: Dataset) -> Self {
        let days = dataset.days(Split::Train).len();
        let order = Arc::new(Shuffle::new(setup.share.seed, "atft.order", days, 1));
        Self { setup, programs, dataset: Arc::new(dataset), order, evaluated: Split::Validation }
    }

    /// Training chunk `number`, counted over the whole run.
    fn training_chunk(&self, number: u64) -> Chunk {
        let day = self.dataset.days(Split::Train).start + self.order.sample(number);
        self.chunk(day, Stream::named(self.setup.share.seed, "atft.chunk").fork(number))
    }

    /// A choice of the stocks on `day`.
    fn chunk(&self, day: usize, stream: Stream) -> Chunk {
        let stocks = sampling::choose(stream, self.dataset.stocks() as u32, self.setup.config.data.chunk as u32);
        Chunk { day, stocks }
    }

    /// Evaluated dates, evenly spaced.
    fn evaluated_days(&self) -> usize {
        self.setup.config.evaluation.days.min(self.dataset.days(self.evaluated).len())
    }

    /// Chunk `place` of evaluation batch `index`; none for padding. Its stocks are the same in every evaluation.
    fn evaluated_chunk(&self, index: usize, place: usize) -> Option<Chunk> {
        let (range, days) = (self.dataset.days(self.evaluated), self.evaluated_days());
        let number = index * (self.setup.share.evaluation_batch / self.setup.config.data.chunk) + place;
        let day = range.start + number * range.len() / days;
        (number < days).then(|| self.chunk(day, Stream::named(0, "atft.evaluated").fork(day as u64)))
    }

    /// The returns of the stocks of a chunk: (stocks, horizons).
    fn returns(&self, chunk: &Chunk) -> Vec<f64> {
        let mut out = vec![0.0; chunk.stocks.len() * HORIZONS.len()];
        chosen(self.dataset.targets(chunk.day).returns, chunk, &mut out);
        out.into_iter().map(f64::from).collect()
    }

    /// Writes the inputs that are made of chunks.
    fn write(&self, program: &Program, batch: &mut Batch, chunks: &[Chunk]) -> Result<(), WorkloadError> {
        let (stocks, data) = (self.setup.config.data.chunk, &self.dataset);
        let part = stocks * HORIZONS.len();
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                ("features", Elements::F32(out)) => {
                    let window = out.len() / (chunks.len() * stocks);
                    let rows = chunks.iter().flat_map(|chunk| chunk.stocks.iter().map(|&stock| (chunk.day, stock)));
                    for ((day, stock), out) in rows.zip(out.chunks_exact_mut(window)) {
                        data.write_window(day, stock as usize, out);
                    }
                }
                (ROWS, Elements::U32(out)) => {
                    for (chunk, out) in chunks.iter().zip(out.chunks_exact_mut(stocks)) {
                        let first = (chunk.day * data.stocks()) as u32;
                        chunk.stocks.iter().zip(out).for_each(|(stock, out)| *out = first + stock);
                    }
                }
                ("returns", Elements::F32(out)) => {
                    let each = chunks.iter().zip(out.chunks_exact_mut(part));
                    each.for_each(|(chunk, out)| chosen(data.targets(chunk.day).returns, chunk, out));
                }
                ("scores", Elements::F32(out)) => {
                    let each = chunks.iter().zip(out.chunks_exact_mut(part));
                    each.for_each(|(chunk, out)| chosen(data.targets(chunk.day).scores, chunk, out));
                }
                ("ranks", Elements::F32(out)) => {
                    let mut scores = vec![0.0; part];
                    for (chunk, out) in chunks.iter().zip(out.chunks_exact_mut(part)) {
                        chosen(data.targets(chunk.day).scores, chunk, &mut scores);
                        write_ranks(&scores, out);
                    }
                }
                _ => {}
            }
        }
        let place = |name: &str| program.inputs.iter().position(|input| input.name == name);
        match place("edges.source") {
            Some(first) => self.write_edges(&mut batch.inputs[first..first + 5], chunks),
            None => Ok(()),
        }
    }

    /// Writes the edges of all chunks, one after another, with padding at the end: sources, targets, the reverse of each, offsets and attributes.
    fn write_edges(&self, inputs: &mut [Array], chunks: &[Chunk]) -> Result<(), WorkloadError> {
        let stocks = self.setup.config.data.chunk;
        let graphs: Vec<(usize, Arc<DayGraph>)> = chunks.iter().map(|chunk| (chunk.day, self.graph(chunk))).collect();
        let room = inputs[0].shape().elements();
        let needed: usize = graphs.iter().map(|(_, graph)| graph.len()).sum();
        if needed > room {
            let (day, graph) = graphs.iter().max_by_key(|(_, graph)| graph.len()).expect("a batch has chunks");
            let problem = format!(
                "gives too little room: the stocks of day {day} have {} edges; set at least {}",
                graph.len(),
                graph.len().div_ceil(stocks)
            );
            let value = self.setup.config.data.edges_per_stock.into();
            return Err(WorkloadError::config("data.edgesPerStock", &value, &problem));
        }
        let [sources, targets, reversed, offsets, attributes] = inputs else {
            unreachable!("the edges are five inputs")
        };
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

    /// The graph of the stocks of a chunk.
    fn graph(&self, chunk: &Chunk) -> Arc<DayGraph> {
        let graph = self.dataset.graph(chunk.day);
        if chunk.stocks.len() == self.dataset.stocks() { graph } else { Arc::new(graph.among(&chunk.stocks)) }
    }
}

/// The first edge of each graph.
fn starts(graphs: &[(usize, Arc<DayGraph>)]) -> impl Iterator<Item = u32> {
    graphs.iter().scan(0, |end, (_, graph)| {
        let start = *end;
        *end += graph.len() as u32;
        Some(start)
    })
}

fn fill(array: &mut Array, values: impl Iterator<Item = u32>) {
    if let Elements::U32(out) = array.data_mut() {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }
}

/// The rows (of the horizons) of the chosen stocks.
fn chosen(all: &[f32], chunk: &Chunk, out: &mut [f32]) {
    for (&stock, out) in chunk.stocks.iter().zip(out.chunks_exact_mut(HORIZONS.len())) {
        out.copy_from_slice(&all[stock as usize * HORIZONS.len()..][..HORIZONS.len()]);
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let variant = self.setup.curriculum.variant(at.items);
        let program = &self.programs.train[variant];
        batch.fit(variant, program)?;
        let (share, chunk) = (&self.setup.share, self.setup.config.data.chunk);
        let first = share.first_item(at) / chunk as u64;
        let chunks: Vec<Chunk> =
            (first..first + (share.batch / chunk) as u64).map(|number| self.training_chunk(number)).collect();
        self.write(program, batch, &chunks)?;
        let counter = program.inputs.iter().position(|input| input.name == "counter");
        if let Some(place) = counter {
            fill(&mut batch.inputs[place], std::iter::once(share.counter(at)));
        }
        Ok(())
    }

    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        if self.setup.config.data.placement == Place::Host {
            return Ok(Vec::new());
        }
        let (features, width) = (self.dataset.features().to_vec(), self.dataset.width());
        let table = Array::new([features.len() / width, width], Elements::F32(features))?;
        Ok(vec![(super::model::FEATURES.to_owned(), table)])
    }

    fn evaluations(&self) -> usize {
        self.evaluated_days().div_ceil(self.setup.share.evaluation_batch / self.setup.config.data.chunk)
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let program = &self.programs.evaluation[0];
        let mut batch = Batch::default();
        batch.fit(0, program)?;
        let places = self.setup.share.evaluation_batch / self.setup.config.data.chunk;
        // Padding repeats the first date of the batch and does not count.
        let chunks =
            (0..places).filter_map(|place| self.evaluated_chunk(index, place).or(self.evaluated_chunk(index, 0)));
        self.write(program, &mut batch, &chunks.collect::<Vec<_>>())?;
        Ok(batch)
    }

    fn sums(&self) -> usize {
        SUMS
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        let [losses, medians] = [&outputs[0], &outputs[1]].map(Array::to_f64);
        let each = medians.chunks_exact(self.setup.config.data.chunk * HORIZONS.len()).zip(losses);
        for (place, (medians, loss)) in each.enumerate() {
            let Some(chunk) = self.evaluated_chunk(index, place) else { break };
            metrics::add(loss, medians, &self.returns(&chunk), sums);
        }
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics::metrics(sums)
    }

    fn test_split(&self) -> Option<Arc<dyn Data>> {
        Some(Arc::new(Self { evaluated: Split::Test, ..self.clone() }))
    }
}
