//! The programs of a UPS job: training with and without the auxiliary losses, evaluation in latent and in physical
//! space.

use super::config::{Auxiliary, Config, Task};
use super::decoder::{FEATURES, cell_centres, decode, point_features};
use super::encoder::{Encoder, Tiling};
use super::layers::Weights;
use super::losses::{amplitudes, constant, encode, fourier_matrix, mean_square, token_regularizers};
use super::operator::{Dropping, predict};
use crate::workload::Regions;
use pawl_graph::graph::{Builder, DType, GraphError, Program, Var};

/// Regions of the programs that compiler passes use.
pub const REGIONS: Regions = Regions {
    float32: &["loss"],
    float8: &["operator/blocks.*/attn", "operator/blocks.*/mlp", "decoder/*/layers.*/attn", "decoder/*/layers.*/mlp"],
    blocks: &["operator/blocks.*", "decoder/*/layers.*"],
    sublayers: &[
        "operator/blocks.*/attn",
        "operator/blocks.*/mlp",
        "decoder/*/layers.*/attn",
        "decoder/*/layers.*/mlp",
    ],
    rematerialized: &[],
};

/// Number of points of the boundary loss on each of the four edges.
const EDGE_POINTS: usize = 32;

/// Sizes of a micro-batch: rows are (task, item, pair), tasks in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Items of each task.
    pub items: usize,
    /// Pairs per item.
    pub pairs: usize,
    /// Query points of the inverse encoding loss; grids with no more points are not sampled.
    pub queries: usize,
}

impl Layout {
    /// Rows of one task.
    pub fn task_rows(self) -> usize {
        self.items * self.pairs
    }

    /// Number of query points on a grid of `cells`: all of them, unless there are more than configured.
    pub fn queries_of(self, cells: usize) -> usize {
        self.queries.min(cells)
    }
}

/// Inputs of the model code beside the configuration.
pub struct Model<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Sizes of a training batch.
    pub layout: Layout,
    /// Dtype of the operator's residual stream between sub-layers.
    pub stream: DType,
    /// The frozen encoders.
    pub encoders: &'a [(Task, Encoder)],
    /// Points of the boundary loss, as (x, y).
    pub edge: &'a [[f32; 2]],
}

/// Evenly spaced points on the four edges of the unit square, as (x, y).
pub fn edge_points() -> Vec<[f32; 2]> {
    let along = |i: usize| ((i as f64 + 0.5) / EDGE_POINTS as f64) as f32;
    let sides: [fn(f32) -> [f32; 2]; 4] = [|t| [t, 0.0], |t| [t, 1.0], |t| [0.0, t], |t| [1.0, t]];
    sides.iter().flat_map(|side| (0..EDGE_POINTS).map(move |i| side(along(i)))).collect()
}

/// A time step in latent space, for other programs. Input: `z0` (rows, tokens, width). Output: `z1`, the same.
///
/// # Errors
/// Only on a bug in this code.
pub fn inference(config: &Config, rows: usize) -> Result<Program, GraphError> {
    let b = Builder::new("step");
    let z0 = b.input("z0", DType::F32, [rows, config.operator.tokens, config.operator.width]);
    b.output("z1", predict(&b, z0, &config.operator, DType::F32, None));
    b.finish()
}

impl Model<'_> {
    /// One training micro-step. Outputs: `loss`, `core` (prediction and spectrum) and, with `auxiliary`, each auxiliary
    /// loss unweighted.
    ///
    /// Inputs: `z0`, `z1` (rows, tokens, width); `counter` with stochastic depth; with `auxiliary` also
    /// `inverse_weight`, for each task `TASK.field` (its inverse pairs, query points) and, where the grid is sampled,
    /// `TASK.queries` (U32), and `darcy2d.edge`, the normalised value on the boundary.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn training(&self, auxiliary: bool) -> Result<Program, GraphError> {
        let Config { operator, loss, tasks, .. } = self.config;
        let b = Builder::new(if auxiliary { "auxiliary" } else { "plain" });
        let rows = self.layout.task_rows() * tasks.len();
        let (z0, z1) = self.states(&b, rows);
        let dropping = (operator.drop_path > 0.0)
            .then(|| Dropping { rate: operator.drop_path, counter: b.input("counter", DType::U32, []) });
        let prediction = predict(&b, z0, operator, self.stream, dropping);
        let mut total = b.scope("loss", || mean_square(prediction, z1));
        if loss.spectral > 0.0 {
            let spectral = self.spectral(&b, prediction, z1)?;
            total = b.scope("loss", || total + spectral.mean_all() * loss.spectral);
        }
        let core = total;
        let mut terms = Vec::new();
        if auxiliary {
            total = total + self.auxiliary(&b, z0, prediction, &mut terms)?;
        }
        b.output("loss", total);
        b.output("core", core);
        for (name, term) in terms {
            b.output(name, term);
        }
        b.finish()
    }

    /// Evaluation of `rows` pairs. Outputs, each (rows): means over a state's elements of `squared_error`,
    /// `target_square`, `absolute_error`, and `spectral`.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn latent_evaluation(&self, rows: usize) -> Result<Program, GraphError> {
        let b = Builder::new("evaluation");
        let (z0, z1) = self.states(&b, rows);
        let prediction = predict(&b, z0, &self.config.operator, self.stream, None);
        let error = prediction - z1;
        let elements = [
            ("squared_error", error.square()),
            ("target_square", z1.square()),
            ("absolute_error", error.abs()),
            ("spectral", self.spectral(&b, prediction, z1)?),
        ];
        for (name, elements) in elements {
            b.output(name, elements.mean([1, 2]).reshape([rows]));
        }
        b.finish()
    }

    /// Evaluation of `rows` pairs of `task` on the decoded grid. Inputs: `z0`; `field` (rows, cells), the next state in
    /// physical units; `mean` and `std`, how it was normalised. Output `relative_error` (rows): ||prediction - field||
    /// / ||field||.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn physical_evaluation(&self, task: Task, rows: usize) -> Result<Program, GraphError> {
        let b = Builder::new(format!("physical-{}", task.name()));
        let (grid_rows, grid_columns) = Tiling::of(task, self.config).grid();
        let cells = grid_rows * grid_columns;
        let shape = [rows, self.config.operator.tokens, self.config.operator.width];
        let z0 = b.input("z0", DType::F32, shape);
        let field = b.input("field", DType::F32, [rows, cells]);
        let (mean, std) = (b.input("mean", DType::F32, []), b.input("std", DType::F32, []));
        let prediction = predict(&b, z0, &self.config.operator, self.stream, None);
        let features = self.grid_features(&b, task)?;
        let decoded = decode(Weights::learning(&b), "grid", features, prediction, &self.config.decoder) * std + mean;
        let error = (decoded - field).square().sum([1]);
        let ratio = (error / field.square().sum([1])).sqrt().reshape([rows]);
        b.output("relative_error", ratio);
        b.finish()
    }

    fn states<'b>(&self, b: &'b Builder, rows: usize) -> (Var<'b>, Var<'b>) {
        let shape = [rows, self.config.operator.tokens, self.config.operator.width];
        (b.input("z0", DType::F32, shape), b.input("z1", DType::F32, shape))
    }

    /// Squared differences of the amplitudes, (rows, tokens, width / 2 + 1).
    fn spectral<'b>(&self, b: &'b Builder, x: Var<'b>, y: Var<'b>) -> Result<Var<'b>, GraphError> {
        let width = self.config.operator.width;
        b.scope("loss", || {
            let matrix = constant(b, &[width, 2 * (width / 2 + 1)], fourier_matrix(width))?;
            Ok((amplitudes(x, matrix) - amplitudes(y, matrix)).square())
        })
    }

    /// Features of the cell centres of `task`'s grid, (cells, 18).
    fn grid_features<'b>(&self, b: &'b Builder, task: Task) -> Result<Var<'b>, GraphError> {
        let (rows, columns) = Tiling::of(task, self.config).grid();
        constant(b, &[rows * columns, FEATURES], point_features(&cell_centres(rows, columns)))
    }

    /// The weighted sum of the auxiliary losses; each is added to `terms`.
    fn auxiliary<'b>(
        &self,
        b: &'b Builder,
        z0: Var<'b>,
        prediction: Var<'b>,
        terms: &mut Vec<(&'static str, Var<'b>)>,
    ) -> Result<Var<'b>, GraphError> {
        let Config { loss, tasks, decoder, .. } = self.config;
        let live = loss.auxiliary == Auxiliary::Live;
        let w = if live { Weights::learning(b) } else { Weights::frozen(b) };
        let weight = b.input("inverse_weight", DType::F32, []);
        let (mut encoding, mut decoding) = (Vec::new(), Vec::new());
        for (number, (task, encoder)) in self.encoders.iter().enumerate() {
            let (name, latents) = (task.name(), self.inverse_rows(z0, number));
            let features = self.grid_features(b, *task)?;
            let (cells, rows) = (features.dim(0), latents.dim(0));
            let queries = self.layout.queries_of(cells);
            let field = b.input(&format!("{name}.field"), DType::F32, [rows, queries]);
            let whole = decode(w, &format!("{name}.grid"), features, latents, decoder);
            let at_queries = if queries < cells {
                let indices = b.input(&format!("{name}.queries"), DType::U32, [queries]);
                decode(w, &format!("{name}.queries"), features.gather(0, indices), latents, decoder)
            } else {
                whole
            };
            encoding.push(b.scope("loss", || mean_square(at_queries, field)));
            let again = encode(Weights::frozen(b), &format!("encoder.{name}"), encoder, whole)?;
            decoding.push(b.scope("loss", || mean_square(again, latents)));
        }
        let mean = |all: &[Var<'b>]| {
            let sum = all[1..].iter().fold(all[0], |sum, &term| sum + term);
            sum * (1.0 / all.len() as f64)
        };
        let (encoding, decoding) = (mean(&encoding), mean(&decoding));
        let mut total = (encoding + decoding) * weight;
        terms.extend([("inverse_encoding", encoding), ("inverse_decoding", decoding)]);
        let (norm, diversity) = b.scope("loss", || token_regularizers(if live { prediction } else { z0 }));
        total = total + norm * loss.norm + diversity * loss.diversity;
        terms.extend([("norm", norm), ("diversity", diversity)]);
        if let (true, Some(darcy)) = (live, tasks.iter().position(|&task| task == Task::Darcy2d)) {
            let value = b.input("darcy2d.edge", DType::F32, []);
            let features = constant(b, &[self.edge.len(), FEATURES], point_features(self.edge))?;
            let decoded = decode(w, "edge", features, self.inverse_rows(prediction, darcy), decoder);
            let boundary = b.scope("loss", || (decoded - value).square().mean_all());
            total = total + boundary * loss.boundary;
            terms.push(("boundary", boundary));
        }
        Ok(total)
    }

    /// The rows of task number `task` that enter the inverse losses: the first `inverse_pairs` pairs of each item.
    fn inverse_rows<'b>(&self, z: Var<'b>, task: usize) -> Var<'b> {
        let Layout { items, pairs, .. } = self.layout;
        let (tokens, width, chosen) = (z.dim(1), z.dim(2), self.config.loss.inverse_pairs);
        z.slice(0, task * self.layout.task_rows(), self.layout.task_rows())
            .reshape([items, pairs, tokens * width])
            .slice(1, 0, chosen)
            .reshape([items * chosen, tokens, width])
    }
}
