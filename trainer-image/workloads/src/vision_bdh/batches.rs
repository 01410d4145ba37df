//! Batches of images, and the metrics of their evaluation.

use super::VisionSetup;
use super::augment::{self, Crop};
use super::config::{Augmentation, CLASSES};
use super::device_images::{self, IMAGES, WORDS};
use super::images::{BYTES, Images, Split};
use crate::placement::Place;
use crate::random::Stream;
use crate::sampling::Shuffle;
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums of every evaluation: of losses, of images classified correctly, and of images.
pub const SUMS: usize = 3;

/// The metrics of these sums.
pub fn metrics([losses, correct, images]: [f64; SUMS]) -> BTreeMap<String, f64> {
    BTreeMap::from([("loss".to_owned(), losses / images), ("accuracy".to_owned(), correct / images)])
}

/// The opened data of a job.
#[derive(Clone)]
pub struct Batches {
    setup: Arc<VisionSetup>,
    programs: Arc<Programs>,
    images: Arc<Images>,
    order: Arc<Shuffle>,
    /// The split that is evaluated.
    evaluated: Split,
}

impl Batches {
    pub fn new(setup: Arc<VisionSetup>, programs: Arc<Programs>, images: Images) -> Self {
        let training = images.range(Split::Train).len();
        let order = Arc::new(Shuffle::new(setup.share.seed, "vision-bdh.order", training, 1));
        Self { setup, programs, images: Arc::new(images), order, evaluated: Split::Validation }
    }

    /// The crop of training item `item`, counted over the whole run, if images are augmented.
    fn crop(&self, item: u64) -> Option<Crop> {
        (self.setup.config.data.augmentation == Augmentation::CropFlip).then(|| self.drawn_crop(item))
    }

    fn drawn_crop(&self, item: u64) -> Crop {
        Crop::draw(Stream::named(self.setup.share.seed, "vision-bdh.augmentation").fork(item))
    }

    /// The image in row `row` of evaluation batch `index`.
    fn evaluated(&self, index: usize, row: usize) -> Option<usize> {
        let mut range = self.images.range(self.evaluated);
        range.nth(index * self.setup.share.evaluation_batch + row)
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let program = &self.programs.train[0];
        batch.fit(0, program)?;
        let (setup, first) = (&self.setup, self.setup.share.first_item(at));
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                ("images", Elements::F32(out)) => {
                    for (item, out) in (first..).zip(out.chunks_exact_mut(BYTES)) {
                        let pixels = self.images.pixels(self.order.sample(item));
                        augment::write(pixels, self.crop(item), setup.memory_format, out);
                    }
                }
                ("pixels", Elements::U32(out)) => {
                    for (item, out) in (first..).zip(out.chunks_exact_mut(WORDS)) {
                        device_images::packed(self.images.pixels(self.order.sample(item)), out);
                    }
                }
                ("items", Elements::U32(out)) => {
                    (first..).zip(out).for_each(|(item, out)| *out = self.order.sample(item) as u32);
                }
                ("crops", Elements::F32(out)) => {
                    for (item, out) in (first..).zip(out.as_chunks_mut().0) {
                        *out = self.drawn_crop(item).numbers();
                    }
                }
                ("labels", Elements::U32(out)) => {
                    for (item, out) in (first..).zip(out) {
                        *out = u32::from(self.images.label(self.order.sample(item)));
                    }
                }
                ("counter", Elements::U32(out)) => out.fill(setup.share.counter(at)),
                (name, _) => unreachable!("the programs of this workload have no input `{name}`"),
            }
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        self.images.range(self.evaluated).len().div_ceil(self.setup.share.evaluation_batch)
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let mut batch = Batch::default();
        batch.fit(0, &self.programs.evaluation[0])?;
        // Padding of the last batch does not count.
        match batch.inputs[0].data_mut() {
            Elements::F32(images) => {
                for (row, out) in images.chunks_exact_mut(BYTES).enumerate() {
                    if let Some(position) = self.evaluated(index, row) {
                        augment::write(self.images.pixels(position), None, self.setup.memory_format, out);
                    }
                }
            }
            Elements::U32(items) => {
                for (row, out) in items.iter_mut().enumerate() {
                    *out = self.evaluated(index, row).unwrap_or(0) as u32;
                }
            }
            other => unreachable!("an evaluation reads images or their numbers, not {other:?}"),
        }
        Ok(batch)
    }

    fn sums(&self) -> usize {
        SUMS
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        for (row, logits) in outputs[0].to_f64().chunks_exact(CLASSES).enumerate() {
            let Some(position) = self.evaluated(index, row) else { break };
            let label = usize::from(self.images.label(position));
            let likeliest = (0..CLASSES).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
            let largest = logits[likeliest.unwrap_or(0)];
            let log_sum = logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln() + largest;
            sums[0] += log_sum - logits[label];
            sums[1] += f64::from(u8::from(likeliest == Some(label)));
            sums[2] += 1.0;
        }
    }

    /// `loss` in nats per image, and `accuracy`, the fraction of images whose likeliest class is their label.
    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics([sums[0], sums[1], sums[2]])
    }

    fn resident(&self) -> Result<Vec<(String, Array)>, WorkloadError> {
        if self.setup.config.data.placement == Place::Host {
            return Ok(Vec::new());
        }
        let count = self.images.range(Split::Test).end;
        let mut words = vec![0; count * WORDS];
        for (position, out) in words.chunks_exact_mut(WORDS).enumerate() {
            device_images::packed(self.images.pixels(position), out);
        }
        Ok(vec![(IMAGES.to_owned(), Array::new([count, WORDS], Elements::U32(words))?)])
    }

    fn test_split(&self) -> Option<Arc<dyn Data>> {
        let exists = !self.images.range(Split::Test).is_empty();
        exists.then(|| Arc::new(Self { evaluated: Split::Test, ..self.clone() }) as Arc<dyn Data>)
    }
}
