//! Batches of day chunks, and the metrics of their evaluation.

use super::AtftSetup;
use super::chunks::{self, Chunk, fill};
use super::config::HORIZONS;
use super::dataset::{Dataset, Split};
use super::metrics::{self, SUMS};
use crate::placement::Place;
use crate::random::Stream;
use crate::sampling::{self, Shuffle};
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
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
        let all = self.dataset.chosen(day);
        let places = sampling::choose(stream, all.len() as u32, self.setup.config.data.chunk as u32);
        Chunk { day, stocks: places.into_iter().map(|place| all[place as usize]).collect() }
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
        chunks::write(&self.dataset, program, batch, &chunks)?;
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
        let (features, width) = (self.dataset.features()?, self.setup.config.data.features);
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
        chunks::write(&self.dataset, program, &mut batch, &chunks.collect::<Vec<_>>())?;
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
            let returns: Vec<f64> = chunk.returns(&self.dataset).into_iter().map(f64::from).collect();
            metrics::add(loss, medians, &returns, sums);
        }
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics::metrics(sums)
    }

    fn test_split(&self) -> Option<Arc<dyn Data>> {
        let test = Self { evaluated: Split::Test, ..self.clone() };
        (test.evaluated_days() > 0).then(|| Arc::new(test) as _)
    }
}
