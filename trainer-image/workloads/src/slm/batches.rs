//! Batches of windows, and the metrics of their evaluation.

use super::SlmSetup;
use super::config::{DataConfig, Source};
use super::corpus::{Corpus, Documents, Window};
use super::diagnosis::Diagnoses;
use super::loss::IGNORED;
use super::split::Split;
use crate::random::Stream;
use crate::sampling::Shuffle;
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums of every evaluation: of losses, and of targets that count.
const LOSS_SUMS: usize = 2;

/// Names of the metrics of evaluations on these data.
pub fn metric_names(data: &DataConfig) -> Vec<String> {
    let diagnoses = (data.source == Source::Dialogues).then_some(Diagnoses { codes: 0..0 });
    let sums = vec![1.0; LOSS_SUMS + diagnoses.as_ref().map_or(0, Diagnoses::sums)];
    metrics(diagnoses.as_ref(), &sums).into_keys().collect()
}

/// The metrics of these sums, with those of the codes where documents end in one.
fn metrics(diagnoses: Option<&Diagnoses>, sums: &[f64]) -> BTreeMap<String, f64> {
    let (losses, sums) = sums.split_at(LOSS_SUMS);
    let loss = losses[0] / losses[1];
    let mut metrics = BTreeMap::from([("loss".to_owned(), loss), ("perplexity".to_owned(), loss.exp())]);
    metrics.extend(diagnoses.into_iter().flat_map(|diagnoses| diagnoses.metrics(sums)));
    metrics
}

/// The opened data of a job.
pub struct Batches {
    setup: Arc<SlmSetup>,
    programs: Arc<Programs>,
    corpus: Corpus,
    /// The order of the training documents, if an item is a document.
    order: Option<Shuffle>,
    /// The evaluated documents, if documents end in codes.
    diagnoses: Option<Diagnoses>,
}

impl Batches {
    pub fn new(setup: Arc<SlmSetup>, programs: Arc<Programs>, corpus: Corpus) -> Self {
        let documents = corpus.documents(Split::Train).filter(|_| setup.config.data.by_document(Split::Train));
        let order = documents.map(|documents| Shuffle::new(setup.share.seed, "slm.documents", documents.count(), 1));
        let diagnoses = corpus.codes().map(|codes| Diagnoses { codes });
        Self { setup, programs, corpus, order, diagnoses }
    }

    /// The window of training item `item`, counted over the whole run: a document, a random window, or as prescribed by
    /// a file.
    fn training(&self, item: u64) -> Window {
        let len = self.setup.config.sequence;
        if let (Some(order), Some(documents)) = (&self.order, self.corpus.documents(Split::Train)) {
            return documents.window(order.sample(item), len);
        }
        let choices = (self.corpus.len(Split::Train) - len) as u64;
        let start = self.corpus.prescribed(item);
        let start = start.unwrap_or_else(|| Stream::named(self.setup.share.seed, "slm.windows").below(item, choices));
        Window { start: start.min(choices - 1) as usize, len }
    }

    /// The documents of the validation split, where those are evaluated.
    fn validation_documents(&self) -> Option<&Documents> {
        self.corpus.documents(Split::Validation).filter(|_| self.setup.config.data.by_document(Split::Validation))
    }

    /// Window `number` of the validation split, if it is evaluated.
    fn validation(&self, number: usize) -> Option<Window> {
        let sequence = self.setup.config.sequence;
        let evaluated = number < self.evaluated();
        evaluated.then(|| match self.validation_documents() {
            Some(documents) => documents.window(number, sequence),
            None => Window { start: number * sequence, len: sequence },
        })
    }

    /// Number of evaluated windows of the validation split.
    fn evaluated(&self) -> usize {
        let windows = match self.validation_documents() {
            Some(documents) => documents.count(),
            None => (self.corpus.len(Split::Validation) - 1) / self.setup.config.sequence,
        };
        windows.min(self.setup.config.evaluation.windows)
    }

    /// The documents of a split, if their prompts are masked.
    fn masked(&self, split: Split) -> Option<&Documents> {
        self.corpus.documents(split).filter(|_| self.setup.config.data.mask_prompt)
    }

    /// Number of targets of a training window that count, computed from the positions of documents without reading
    /// tokens.
    fn count(&self, window: Window) -> usize {
        let prompts = self.masked(Split::Train).map(|documents| documents.prompts(window.targets()));
        window.len - prompts.into_iter().flatten().map(|part| part.len()).sum::<usize>()
    }

    /// How many targets count in an average micro-batch of the step that begins at `items`, over all ranks: as the step
    /// takes the mean of the losses of its micro-batches, it thus gets the mean over all its targets. A step without
    /// any has a loss of 0.
    fn normalizer(&self, items: u64) -> f32 {
        if self.order.is_none() && self.masked(Split::Train).is_none() {
            return (self.setup.share.batch * self.setup.config.sequence) as f32;
        }
        let targets: usize = self.setup.step(items).map(|item| self.count(self.training(item))).sum();
        (targets.max(1) as f64 / self.setup.share.micro_batches() as f64) as f32
    }

    /// Writes a window into row `row` of tokens and targets; where there is none, nothing counts.
    fn fill(&self, split: Split, window: Option<Window>, row: usize, batch: &mut Batch) -> Result<(), WorkloadError> {
        let sequence = self.setup.config.sequence;
        let vocabulary = self.setup.config.architecture.vocabulary as u32;
        let window = window.unwrap_or(Window { start: 0, len: 0 });
        for (shift, array) in batch.inputs.iter_mut().take(2).enumerate() {
            let Elements::U32(out) = array.data_mut() else { unreachable!("tokens are integers") };
            let (out, padding) = out[row * sequence..(row + 1) * sequence].split_at_mut(window.len);
            padding.fill(if shift == 0 { 0 } else { IGNORED });
            self.corpus.read(split, window.start + shift, out);
            if let Some(id) = out.iter().find(|&&id| id >= vocabulary) {
                let start = window.start;
                let message = format!(
                    "token {id} near position {start} is not below workload.config.architecture.vocabulary ({vocabulary}): \
                     generate the data for this model"
                );
                return Err(crate::store::StoreError::Source(message).into());
            }
        }
        if let (Some(documents), Elements::U32(targets)) = (self.masked(split), batch.inputs[1].data_mut()) {
            let targets = &mut targets[row * sequence..(row + 1) * sequence];
            let first = window.targets().start;
            for part in documents.prompts(window.targets()) {
                targets[part.start - first..part.end - first].fill(IGNORED);
            }
        }
        Ok(())
    }

    /// The position in its evaluated row that predicts the code of document `number`, and the code.
    fn code(&self, number: usize) -> Option<(usize, u32)> {
        self.diagnoses.as_ref()?;
        let (documents, window) = (self.validation_documents()?, self.validation(number)?);
        let place = documents.answer(number).start;
        let mut code = [0];
        self.corpus.read(Split::Validation, place, &mut code);
        Some((place - window.targets().start, code[0]))
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        batch.fit(0, &self.programs.train[0])?;
        let first = self.setup.share.first_item(at);
        for row in 0..self.setup.share.batch {
            self.fill(Split::Train, Some(self.training(first + row as u64)), row, batch)?;
        }
        if let Some(Elements::F32(out)) = batch.inputs.get_mut(2).map(Array::data_mut) {
            out.fill(self.normalizer(at.items));
        }
        if let Some(Elements::U32(out)) = batch.inputs.get_mut(3).map(Array::data_mut) {
            out.fill(self.setup.share.counter(at));
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        self.evaluated().div_ceil(self.setup.share.evaluation_batch)
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let mut batch = Batch::default();
        batch.fit(0, &self.programs.evaluation[0])?;
        let (rows, sequence) = (self.setup.share.evaluation_batch, self.setup.config.sequence);
        for row in 0..rows {
            let number = index * rows + row;
            // Padding of the last batch does not count.
            self.fill(Split::Validation, self.validation(number), row, &mut batch)?;
            let position = self.code(number).map_or(0, |(position, _)| position);
            if let Some(Elements::U32(codes)) = batch.inputs.get_mut(2).map(Array::data_mut) {
                codes[row] = (row * sequence + position) as u32;
            }
        }
        Ok(batch)
    }

    fn sums(&self) -> usize {
        LOSS_SUMS + self.diagnoses.as_ref().map_or(0, Diagnoses::sums)
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        let (losses, sums) = sums.split_at_mut(LOSS_SUMS);
        losses.iter_mut().zip(outputs).for_each(|(sum, output)| *sum += output.item());
        let (Some(diagnoses), [_, _, ranks, likeliest]) = (&self.diagnoses, outputs) else { return };
        let documents = index * self.setup.share.evaluation_batch..;
        for ((number, rank), likeliest) in documents.zip(ranks.to_f64()).zip(likeliest.to_f64()) {
            if let Some((_, code)) = self.code(number) {
                diagnoses.add(code, rank, likeliest as u32, sums);
            }
        }
    }

    /// `loss` in nats a token, and `perplexity`; of dialogues also `top1`, `top3`, `top5` and `macroF1` of their codes.
    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics(self.diagnoses.as_ref(), sums)
    }
}
