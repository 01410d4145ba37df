//! Windows that programs cut from the bars and the features on the device: a batch is the numbers of their last bars.

use super::config::{CHANNELS, CLOSE, HORIZONS, PATCH, TIMEFRAMES, Timeframe};
use super::market::{Market, PRICES, ROW, UNIT};
use super::model::{CUTTING, Model, Windows};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, DType, GraphError, Init, Meta, Role, StateDecl, Var, concat};

/// State that holds all bars: (bars, [`ROW`]), float32.
pub const BARS: &str = "data.bars";

/// State that holds the features of a timeframe: (its bars, width), float32.
pub fn features_state(timeframe: &Timeframe) -> String {
    format!("data.features.{}", timeframe.name)
}

/// The states of the bars and features of a market.
///
/// # Errors
/// Never: the shapes are those of the market.
pub fn resident(market: &Market) -> Result<Vec<(String, Array)>, GraphError> {
    let array = |values: Vec<f32>, width: usize| Array::new([values.len() / width, width], Data::F32(values));
    let mut all = vec![(BARS.to_owned(), array(market.table(), ROW)?)];
    for (number, timeframe) in TIMEFRAMES.iter().enumerate() {
        all.push((features_state(timeframe), array(market.features(number).to_vec(), market.width())?));
    }
    Ok(all)
}

impl Model<'_> {
    /// `batch` windows of a data set of `bars` five-minute bars. Input `bars` (batch), U32: the bar with which each
    /// window ends.
    pub(super) fn cut_windows<'b>(&self, b: &'b Builder, batch: usize, bars: usize) -> Result<Windows<'b>, GraphError> {
        let table = |name: &str, rows: usize, width: usize| {
            let meta = Meta::new(DType::F32, [rows, width]);
            b.state(StateDecl { name: name.into(), meta, role: Role::Data, init: Init::Fill(0.0) })
        };
        let all = table(BARS, bars, ROW);
        let last = b.input("bars", DType::U32, [batch]);
        b.scope(CUTTING, || {
            let feature = |(timeframe, &length): (&Timeframe, &usize)| {
                let rows = table(&features_state(timeframe), bars / timeframe.factor, self.config.width);
                let number = |value: usize| b.scalar(value as f64, DType::U32);
                // After the last completed bar.
                let end = (last + number(1)) / number(timeframe.factor);
                rows.gather(0, (end - number(length)).reshape([batch, 1]) + b.iota(1, [1, length]))
            };
            let features = TIMEFRAMES.iter().zip(&self.lookback).map(feature).collect();
            Ok(Windows { patches: patches(all, last)?, features })
        })
    }
}

/// The patches (batch, 1 + horizons, 64, channels) of windows that end with the bars `last` (batch).
fn patches<'b>(all: Var<'b>, last: Var<'b>) -> Result<Var<'b>, GraphError> {
    let (b, batch, slots) = (last.builder(), last.dim(0), 1 + HORIZONS.len());
    let ends = std::iter::once(0).chain(HORIZONS.iter().map(|horizon| horizon.bars));
    let offsets = ends.flat_map(|end| (0..PATCH).map(move |step| (end + step) as u32)).collect();
    let offsets = b.constant(Array::new([1, slots, PATCH], Data::U32(offsets))?);
    let first = last - b.scalar((PATCH - 1) as f64, DType::U32);
    let rows = all.gather(0, first.reshape([batch, 1, 1]) + offsets);
    let now = all.gather(0, last).reshape([batch, 1, 1, ROW]);
    let prices = (rows.slice(3, 0, PRICES) - now.slice(3, CLOSE, 1)) / now.slice(3, UNIT, 1);
    Ok(concat(&[prices, rows.slice(3, PRICES, CHANNELS - PRICES)], 3))
}
