//! The programs of the model.

use super::adaptive::normalized;
use super::config::{DataConfig, HORIZONS, LossConfig, ModelConfig, QUANTILES};
use super::gat::{Edges, attend};
use super::heads::forecasts;
use super::layers::{Net, uniform};
use super::losses::{Portfolio, Targets, loss, medians};
use super::neighbours::ATTRIBUTES;
use super::temporal::temporal;
use crate::workload::Regions;
use pawl_graph::graph::{Builder, DType, GraphError, Init, Meta, Program, Role, StateDecl, Var};

/// State that holds the features on the device: (days * stocks, features), float32.
pub const FEATURES: &str = "data.features";
/// Input of the numbers of the rows with which windows end, where the features are on the device.
pub const ROWS: &str = "rows";
/// Scope of the operations that cut windows from the features on the device.
const CUTTING: &str = "windows";

/// Regions of the programs that compiler passes use.
pub const REGIONS: Regions = Regions {
    float32: &["tft/selection/weights", "gat/layers.*/softmax", "adaptive", "loss", CUTTING],
    float8: &[],
    blocks: &["tft/selection/weights", "tft/attention", "tft/ffn", "tft/gate", "gat/layers.*"],
    sublayers: &["tft/attention", "tft/ffn"],
    // Of the features' networks only the features and their weights are kept: all else would be the largest part of the
    // memory.
    rematerialized: &["tft/selection/features/chunk.*"],
};

/// Prefixes of the parameters of the parts that a curriculum switches.
pub const SWITCHED: [&str; 3] = ["gat.", "fan.", "san."];

/// Whether a part of the model takes part in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It always does: there is no curriculum.
    Always,
    /// In this stage.
    On,
    /// Not in this stage.
    Off,
    /// As in the last training step, which a state remembers.
    AsTrained,
}

/// The parts of the model that a curriculum switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Graph attention.
    pub neighbours: Part,
    /// Adaptive normalization.
    pub adaptive: Part,
}

impl Part {
    /// The state that remembers the last training step, of which evaluation multiplies the part by the value.
    fn factor<'b>(self, b: &'b Builder, name: &str) -> Option<Var<'b>> {
        let state = || b.state(StateDecl::f32(format!("curriculum.{name}"), [], Role::Buffer, Init::Fill(0.0)));
        let remember = |used: f64| b.update(state(), b.scalar(used, DType::F32));
        match self {
            Self::Always => None,
            Self::On => {
                remember(1.0);
                None
            }
            Self::Off => {
                remember(0.0);
                None
            }
            Self::AsTrained => Some(state()),
        }
    }
}

fn scaled<'b>(value: Var<'b>, factor: Option<Var<'b>>) -> Var<'b> {
    factor.map_or(value, |factor| value * factor)
}

/// Inputs of the model code.
pub struct Model<'a> {
    /// Sizes.
    pub config: &'a ModelConfig,
    /// Shape of the batches.
    pub data: &'a DataConfig,
    /// Factors of the loss.
    pub loss: &'a LossConfig,
}

/// What the model makes of a batch.
struct Outcome<'b> {
    /// (dates, stocks, horizons, quantiles)
    forecasts: Var<'b>,
    /// Regularization of each date (dates), or of the batch (1).
    regularization: Var<'b>,
}

impl Model<'_> {
    /// One training micro-step of `batch` samples. Inputs: those of [`Model::windows`]; of the edges, if there are
    /// layers of graph attention: `edges.source`, `edges.target`, `edges.reverse`, `edges.offset` and
    /// `edges.attribute`; `returns`, `scores` and `ranks` (dates, stocks, horizons); `counter`, if there is dropout.
    /// Output: `loss`.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn training(&self, batch: usize, parts: Parts) -> Result<Program, GraphError> {
        let b = Builder::new("training");
        let random = [self.config.dropout, self.config.head_dropout, self.config.gat_dropout, self.config.edge_dropout];
        let (windows, edges, targets) =
            (self.windows(&b, batch), self.edges(&b, batch, parts), self.targets(&b, batch));
        let counter = random.iter().any(|p| *p > 0.0).then(|| b.input("counter", DType::U32, []));
        let outcome = self.outcome(Net { b: &b, counter }, windows, edges, parts, Portfolio::Batch)?;
        let loss = b.scope("loss", || loss(self.loss, outcome.forecasts, targets, Portfolio::Batch))?;
        b.output("loss", (loss + outcome.regularization).reshape([]));
        b.finish()
    }

    /// Evaluation of `batch` samples, without dropout. Inputs: as for training. Outputs: `loss` of each date (dates),
    /// and `medians` (dates, stocks, horizons).
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn evaluation(&self, batch: usize, parts: Parts) -> Result<Program, GraphError> {
        let b = Builder::new("evaluation");
        let (windows, edges, targets) =
            (self.windows(&b, batch), self.edges(&b, batch, parts), self.targets(&b, batch));
        let outcome = self.outcome(Net { b: &b, counter: None }, windows, edges, parts, Portfolio::Date)?;
        let loss = b.scope("loss", || loss(self.loss, outcome.forecasts, targets, Portfolio::Date))?;
        b.output("loss", loss + outcome.regularization);
        b.output("medians", medians(outcome.forecasts));
        b.finish()
    }

    /// Forecasts of `batch` samples, for other programs. Inputs: `features` (batch, days, features), and those of the
    /// edges as for training. Output: `quantiles` (dates, stocks, horizons, quantiles).
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn inference(&self, batch: usize, parts: Parts) -> Result<Program, GraphError> {
        let b = Builder::new("forecasts");
        let windows = b.input("features", DType::F32, [batch, self.data.lookback, self.data.features]);
        let edges = self.edges(&b, batch, parts);
        let outcome = self.outcome(Net { b: &b, counter: None }, windows, edges, parts, Portfolio::Date)?;
        b.output("quantiles", outcome.forecasts);
        b.finish()
    }

    /// Windows (batch, days, features). Input: `features`, the same; or, where the features are on the device, `rows`
    /// (batch), the row with which each window ends.
    fn windows<'b>(&self, b: &'b Builder, batch: usize) -> Var<'b> {
        let (days, width) = (self.data.lookback, self.data.features);
        let Some(rows) = self.data.resident_rows() else {
            return b.input("features", DType::F32, [batch, days, width]);
        };
        let meta = Meta::new(DType::F32, [rows, width]);
        let table = b.state(StateDecl { name: FEATURES.into(), meta, role: Role::Data, init: Init::Fill(0.0) });
        let last = b.input(ROWS, DType::U32, [batch]);
        b.scope(CUTTING, || {
            let number = |value: usize| b.scalar(value as f64, DType::U32);
            let back = (number(days - 1) - b.iota(1, [1, days])) * number(self.data.stocks);
            table.gather(0, last.reshape([batch, 1]) - back)
        })
    }

    fn edges<'b>(&self, b: &'b Builder, batch: usize, parts: Parts) -> Option<Edges<'b>> {
        let count = batch * self.data.edges_per_stock;
        (self.config.gat_layers > 0 && parts.neighbours != Part::Off).then(|| Edges {
            sources: b.input("edges.source", DType::U32, [count]),
            targets: b.input("edges.target", DType::U32, [count]),
            reversed: b.input("edges.reverse", DType::U32, [count]),
            offsets: b.input("edges.offset", DType::U32, [batch + 1]),
            attributes: b.input("edges.attribute", DType::F32, [count, ATTRIBUTES]),
        })
    }

    fn targets<'b>(&self, b: &'b Builder, batch: usize) -> Targets<'b> {
        let shape = [batch / self.data.chunk, self.data.chunk, HORIZONS.len()];
        let [returns, scores, ranks] = ["returns", "scores", "ranks"].map(|name| b.input(name, DType::F32, shape));
        Targets { returns, scores, ranks }
    }

    fn outcome<'b>(
        &self,
        net: Net<'b>,
        windows: Var<'b>,
        edges: Option<Edges<'b>>,
        parts: Parts,
        portfolio: Portfolio,
    ) -> Result<Outcome<'b>, GraphError> {
        let (b, batch, days, stocks) = (net.b, windows.dim(0), windows.dim(1), self.data.chunk);
        let (hidden, dates) = (self.config.hidden, windows.dim(0) / stocks);
        let states = b.scope("tft", || temporal(net, self.config, windows))?;
        // Of each date, or of the batch.
        let sum = |of_rows: Var<'b>| {
            let of_dates = of_rows.reshape([dates, stocks]).sum([1]).reshape([dates]);
            if portfolio == Portfolio::Batch { of_dates.sum([0]) } else { of_dates }
        };
        let samples = (batch / if portfolio == Portfolio::Batch { 1 } else { dates }) as f64;
        let mut regularization = sum(states.weights) * (self.loss.selection / samples);
        let last = states.states.slice(1, days - 1, 1).reshape([batch, hidden]);
        let attended = edges.map(|edges| (edges, b.scope("gat", || attend(net, self.config, last, edges, stocks))));
        let used = parts.neighbours.factor(b, "neighbours");
        let joined = b.scope("fusion", || {
            let inputs = hidden * if self.config.gat_layers > 0 { 2 } else { 1 };
            let weight = b.parameter("backbone.weight", [hidden, inputs], uniform(inputs));
            let bias = b.parameter("backbone.bias", [hidden], uniform(inputs));
            let joined = states.states.matmul_t(weight.slice(1, 0, hidden)) + bias;
            let Some((_, attended)) = &attended else { return joined };
            joined + scaled(attended.nodes, used).matmul_t(weight.slice(1, hidden, hidden)).reshape([batch, 1, hidden])
        });
        if let Some((edges, attended)) = &attended {
            let squares = sum(attended.squares) / sum(edges.degrees());
            regularization =
                regularization + squares * self.loss.attention - sum(attended.entropy) * (self.loss.entropy / samples);
        }
        let last = joined.slice(1, days - 1, 1).reshape([batch, hidden]);
        let used = parts.adaptive.factor(b, "adaptive");
        let adapted = match parts.adaptive {
            Part::Off => last,
            _ => last + scaled(b.scope("adaptive", || normalized(net, self.config, joined))?, used),
        };
        let forecasts = b.scope("head", || forecasts(net, self.config, adapted));
        let forecasts = forecasts.reshape([dates, stocks, HORIZONS.len(), QUANTILES.len()]);
        Ok(Outcome { forecasts, regularization })
    }
}
