//! Batches of windows, and what evaluation makes of them.

use super::Plan;
use super::corpus::{Corpus, Split};
use super::loss::IGNORED;
use crate::random::Stream;
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_engine::array::{Array, Data as Elements};
use pawl_engine::graph::GraphError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The opened data of a job.
pub struct Batches {
    plan: Arc<Plan>,
    programs: Arc<Programs>,
    corpus: Corpus,
}

impl Batches {
    pub fn new(plan: Arc<Plan>, programs: Arc<Programs>, corpus: Corpus) -> Self {
        Self { plan, programs, corpus }
    }

    /// First token of the window of training item `item`, counted over the whole run: anywhere, or as a file says.
    fn window(&self, item: u64) -> usize {
        let choices = (self.corpus.len(Split::Train) - self.plan.config.sequence) as u64;
        let start = self.corpus.prescribed(item);
        start.unwrap_or_else(|| Stream::named(self.plan.seed, "slm.windows").below(item, choices)).min(choices - 1)
            as usize
    }

    /// Windows of the validation split that are evaluated.
    fn evaluated(&self) -> usize {
        let windows = (self.corpus.len(Split::Validation) - 1) / self.plan.config.sequence;
        windows.min(self.plan.config.evaluation.windows)
    }

    /// Writes the window at `start` into row `row` of tokens and targets.
    fn fill(&self, split: Split, start: usize, row: usize, batch: &mut Batch) -> Result<(), WorkloadError> {
        let sequence = self.plan.config.sequence;
        let vocabulary = self.plan.config.architecture.vocabulary as u32;
        for (shift, array) in batch.inputs.iter_mut().take(2).enumerate() {
            let Elements::U32(out) = array.data_mut() else { unreachable!("tokens are integers") };
            let out = &mut out[row * sequence..(row + 1) * sequence];
            self.corpus.read(split, start + shift, out);
            if let Some(id) = out.iter().find(|&&id| id >= vocabulary) {
                let message = format!(
                    "token {id} near position {start} is not below workload.config.architecture.vocabulary ({vocabulary}): make the data for this model"
                );
                return Err(crate::store::StoreError::Source(message).into());
            }
        }
        Ok(())
    }

    /// Makes `batch` one for program `number`, keeping buffers that fit.
    fn fit(&self, batch: &mut Batch, number: usize, evaluation: bool) -> Result<(), GraphError> {
        let programs = if evaluation { &self.programs.evaluation } else { &self.programs.train };
        let program = &programs[number];
        let like = |(array, decl): (&Array, &pawl_engine::graph::InputDecl)| {
            *array.shape() == decl.meta.shape && array.dtype() == decl.meta.dtype
        };
        batch.program = number;
        if batch.inputs.len() != program.inputs.len() || !batch.inputs.iter().zip(&program.inputs).all(like) {
            let zeros = |decl: &pawl_engine::graph::InputDecl| {
                let shape = decl.meta.shape.clone();
                let elements = shape.elements();
                Array::new(shape, Elements::zeros(decl.meta.dtype, elements))
            };
            batch.inputs = program.inputs.iter().map(zeros).collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        self.fit(batch, 0, false)?;
        let first = self.plan.first_item(at);
        for row in 0..self.plan.batch {
            self.fill(Split::Train, self.window(first + row as u64), row, batch)?;
        }
        // Windows are full: every micro-batch of every rank counts as many tokens.
        let tokens = self.plan.batch * self.plan.config.sequence;
        if let Some(Elements::F32(out)) = batch.inputs.get_mut(2).map(Array::data_mut) {
            out.fill(tokens as f32);
        }
        if let Some(Elements::U32(out)) = batch.inputs.get_mut(3).map(Array::data_mut) {
            out.fill(self.plan.counter(at));
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        self.evaluated().div_ceil(self.plan.evaluation_batch)
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let mut batch = Batch::default();
        self.fit(&mut batch, 0, true)?;
        let (rows, sequence) = (self.plan.evaluation_batch, self.plan.config.sequence);
        for row in 0..rows {
            let window = index * rows + row;
            if window < self.evaluated() {
                self.fill(Split::Validation, window * sequence, row, &mut batch)?;
            } else if let Elements::U32(targets) = batch.inputs[1].data_mut() {
                // What fills up the last batch does not count.
                targets[row * sequence..(row + 1) * sequence].fill(IGNORED);
            }
        }
        Ok(batch)
    }

    fn sums(&self) -> usize {
        2
    }

    fn add(&self, _index: usize, outputs: &[Array], sums: &mut [f64]) {
        sums.iter_mut().zip(outputs).for_each(|(sum, output)| *sum += output.item());
    }

    /// `loss` in nats a token, and `perplexity`.
    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        let loss = sums[0] / sums[1];
        BTreeMap::from([("loss".to_owned(), loss), ("perplexity".to_owned(), loss.exp())])
    }
}
