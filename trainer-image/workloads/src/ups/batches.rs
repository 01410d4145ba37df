//! Batches of UPS: selection of pairs, gathered from the memory-mapped shards.

use super::UpsSetup;
use super::config::Task;
use super::dataset::{Dataset, Normalization, Split, samples};
use super::field::Field;
use super::metrics::{PER_TASK, Sums, metrics};
use crate::random::Stream;
use crate::sampling::{Shuffle, choose};
use crate::workload::{At, Batch, Data, Programs, WorkloadError};
use pawl_graph::array::{Array, Data as Elements};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The opened data of a UPS job.
pub struct Batches {
    setup: Arc<UpsSetup>,
    programs: Arc<Programs>,
    dataset: Dataset,
    /// One per task, in the order of the configuration.
    orders: Vec<Shuffle>,
    evaluations: Vec<Evaluation>,
}

/// A transition from one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    task: Task,
    sample: usize,
    /// Frame of the first state; 0 for Darcy flow.
    frame: usize,
}

/// One evaluation batch: pairs `first .. first + rows` of a task's list.
#[derive(Clone, Copy, Debug)]
struct Evaluation {
    program: usize,
    task: usize,
    first: usize,
    rows: usize,
}

impl Batches {
    pub fn new(setup: Arc<UpsSetup>, programs: Arc<Programs>, dataset: Dataset) -> Self {
        let config = &setup.config;
        let order = |task: &Task| {
            let count = samples(*task, Split::Train, config).len();
            let group = if *task == Task::Darcy2d { config.pairs } else { 1 };
            Shuffle::new(setup.share.seed, &format!("{}.order", task.name()), count, group)
        };
        let orders = config.tasks.iter().map(order).collect();
        let mut evaluations = Vec::new();
        for task in 0..config.tasks.len() {
            let total = pairs_in(&setup, task);
            let mut cut = |program: usize, total: usize, rows: usize| {
                for first in (0..total).step_by(rows) {
                    evaluations.push(Evaluation { program, task, first, rows: rows.min(total - first) });
                }
            };
            cut(0, total, setup.evaluation_rows);
            if setup.physical_rows > 0 {
                cut(1 + task, total.min(config.evaluation.physical_pairs), setup.physical_rows);
            }
        }
        Self { setup, programs, dataset, orders, evaluations }
    }

    /// Pair `index` of training item `item` of task number `task`, both counted over the whole run.
    fn training_pair(&self, task: usize, item: u64, index: usize) -> Pair {
        let (config, order) = (&self.setup.config, &self.orders[task]);
        match config.tasks[task] {
            Task::Advection1d => {
                let starts = (config.advection.frames - config.pairs) as u64;
                let start = Stream::named(self.setup.share.seed, "advection1d.start").below(item, starts) as usize;
                Pair { task: Task::Advection1d, sample: order.sample(item), frame: start + index }
            }
            Task::Darcy2d => {
                let position = item * config.pairs as u64 + index as u64;
                Pair { task: Task::Darcy2d, sample: order.sample(position), frame: 0 }
            }
        }
    }

    /// Pair `index` of the validation split of task number `task`.
    fn validation_pair(&self, task: usize, index: usize) -> Pair {
        let (config, task) = (&self.setup.config, self.setup.config.tasks[task]);
        let first = samples(task, Split::Validation, config).start;
        match task {
            Task::Advection1d => {
                let per_sample = config.advection.frames - 1;
                Pair { task, sample: first + index / per_sample, frame: index % per_sample }
            }
            Task::Darcy2d => Pair { task, sample: first + index, frame: 0 },
        }
    }

    /// Copies the latent of the pair's first state (`next` = 0) or of the one after (1) and those that follow it in
    /// time.
    fn read_latents(&self, pair: Pair, next: usize, out: &mut [f32]) {
        let field = match (pair.task, next) {
            (Task::Advection1d, _) => Field::Advection,
            (Task::Darcy2d, 0) => Field::Coefficient,
            (Task::Darcy2d, _) => Field::Pressure,
        };
        let state = if pair.task == Task::Advection1d { pair.frame + next } else { 0 };
        self.dataset.latents(field).read(pair.sample, state * self.state_len(), out);
    }

    /// Elements of one latent state.
    fn state_len(&self) -> usize {
        self.setup.config.operator.tokens * self.setup.config.operator.width
    }

    /// Latents of all rows of a training batch.
    fn train_latents(&self, first_item: u64, next: usize, out: &mut [f32]) {
        let (layout, tasks) = (self.setup.layout, self.orders.len());
        let item_len = layout.pairs * self.state_len();
        for (slot, out) in out.chunks_exact_mut(item_len).enumerate() {
            let (task, item) = (slot / layout.items, first_item / tasks as u64 + (slot % layout.items) as u64);
            match self.setup.config.tasks[task] {
                Task::Advection1d => self.read_latents(self.training_pair(task, item, 0), next, out),
                Task::Darcy2d => {
                    for (index, out) in out.chunks_exact_mut(self.state_len()).enumerate() {
                        self.read_latents(self.training_pair(task, item, index), next, out);
                    }
                }
            }
        }
    }

    /// Normalised values, at `queries` of the grid (all when `None`), of the first states of the inverse pairs of a
    /// task.
    fn inverse_fields(&self, first_item: u64, task: usize, queries: Option<&[u32]>, out: &mut [f32]) {
        let (layout, config) = (self.setup.layout, &self.setup.config);
        let (field, cells) = match config.tasks[task] {
            Task::Advection1d => (Field::Advection, config.advection.cells),
            Task::Darcy2d => (Field::Coefficient, config.darcy.grid * config.darcy.grid),
        };
        let (rows, normalization) = (self.dataset.field(field), self.dataset.normalization(field));
        let (chosen, points) = (config.loss.inverse_pairs, queries.map_or(cells, <[u32]>::len));
        for (slot, out) in out.chunks_exact_mut(points).enumerate() {
            let item = first_item / self.orders.len() as u64 + (slot / chosen) as u64;
            debug_assert!(slot / chosen < layout.items, "one row for each inverse pair");
            let pair = self.training_pair(task, item, slot % chosen);
            match queries {
                Some(queries) => rows.gather(pair.sample, pair.frame * cells, queries, out),
                None => rows.read(pair.sample, pair.frame * cells, out),
            }
            out.iter_mut().for_each(|value| *value = normalization.apply(*value));
        }
    }

    /// The query points of `task` in the batch that begins at `first_item`; `None` where the whole grid is used.
    fn queries(&self, first_item: u64, task: Task, cells: usize) -> Option<Vec<u32>> {
        let count = self.setup.layout.queries_of(cells);
        (count < cells).then(|| {
            let stream = Stream::named(self.setup.share.seed, &format!("{}.queries", task.name())).fork(first_item);
            choose(stream, cells as u32, count as u32)
        })
    }

    fn cells(&self, task: Task) -> usize {
        let config = &self.setup.config;
        if task == Task::Advection1d { config.advection.cells } else { config.darcy.grid * config.darcy.grid }
    }

    /// The normalised value of the pressure on the boundary, which is 0.
    fn edge_value(&self) -> f32 {
        self.dataset.normalization(Field::Pressure).apply(0.0)
    }
}

/// Pairs in the validation split of task number `task`.
fn pairs_in(setup: &UpsSetup, task: usize) -> usize {
    let task = setup.config.tasks[task];
    let count = samples(task, Split::Validation, &setup.config).len();
    if task == Task::Advection1d { count * (setup.config.advection.frames - 1) } else { count }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let (setup, train) = (&self.setup, &self.programs.train);
        let number = usize::from(train.len() > 1 && !setup.is_auxiliary(at));
        let program = &train[number];
        batch.fit(number, program)?;
        let first_item = setup.share.first_item(at);
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            match (decl.name.as_str(), array.data_mut()) {
                ("z0", Elements::F32(out)) => self.train_latents(first_item, 0, out),
                ("z1", Elements::F32(out)) => self.train_latents(first_item, 1, out),
                ("counter", Elements::U32(out)) => out.fill(setup.share.counter(at)),
                ("inverse_weight", Elements::F32(out)) => out.fill(setup.inverse_weight(at) as f32),
                ("darcy2d.edge", Elements::F32(out)) => out.fill(self.edge_value()),
                (name, out) => {
                    let of = |&(_, task): &(usize, &Task)| name.starts_with(task.name());
                    let Some((number, &task)) = setup.config.tasks.iter().enumerate().find(of) else {
                        unreachable!("the programs of this workload have no input `{name}`")
                    };
                    let queries = self.queries(first_item, task, self.cells(task));
                    match (out, queries) {
                        (Elements::F32(out), queries) => {
                            self.inverse_fields(first_item, number, queries.as_deref(), out);
                        }
                        (Elements::U32(out), Some(queries)) => out.copy_from_slice(&queries),
                        _ => unreachable!("input `{name}` is a field or indices into a sampled grid"),
                    }
                }
            }
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        self.evaluations.len()
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let Evaluation { program: number, task, first, rows } = self.evaluations[index];
        let (program, mut batch) = (&self.programs.evaluation[number], Batch::default());
        batch.fit(number, program)?;
        // Physical evaluation uses a few pairs, spread over the split.
        let (total, physical) = (pairs_in(&self.setup, task), number > 0);
        let used = if physical { total.min(self.setup.config.evaluation.physical_pairs) } else { total };
        // Padding rows of the last batch repeat its last pair; their results are not counted.
        let pair = |row: usize| self.validation_pair(task, (first + row.min(rows - 1)) * total / used);
        let field = if self.setup.config.tasks[task] == Task::Advection1d { Field::Advection } else { Field::Pressure };
        let Normalization { mean, std } = self.dataset.normalization(field);
        let cells = self.cells(self.setup.config.tasks[task]);
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            let Elements::F32(out) = array.data_mut() else {
                unreachable!("evaluation inputs are float32");
            };
            match decl.name.as_str() {
                name @ ("z0" | "z1") => {
                    for (row, out) in out.chunks_exact_mut(self.state_len()).enumerate() {
                        self.read_latents(pair(row), usize::from(name == "z1"), out);
                    }
                }
                "field" => {
                    for (row, out) in out.chunks_exact_mut(cells).enumerate() {
                        let Pair { task, sample, frame } = pair(row);
                        let next = if task == Task::Advection1d { frame + 1 } else { 0 };
                        self.dataset.field(field).read(sample, next * cells, out);
                    }
                }
                "mean" => out.fill(mean as f32),
                "std" => out.fill(std as f32),
                name => unreachable!("the evaluation programs of this workload have no input `{name}`"),
            }
        }
        Ok(batch)
    }

    fn sums(&self) -> usize {
        PER_TASK * self.setup.config.tasks.len()
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        let Evaluation { program, task, rows, .. } = self.evaluations[index];
        let of_task: &mut [f64] = &mut sums[task * PER_TASK..][..PER_TASK];
        Sums(of_task).add(program > 0, rows, outputs);
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        metrics(&self.setup.config, sums)
    }
}
