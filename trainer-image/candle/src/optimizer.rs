//! Optimizers whose state is part of checkpoints.

use crate::error::{Error, Result};
use crate::tensors;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::{ParamsAdamW, SGD, VarMap};
use pawl_graph::array::Array;
use std::collections::BTreeMap;

/// An optimizer of candle-nn that can resume exactly.
pub trait Optimizer: candle_nn::Optimizer {
    /// Its state, by name; names must differ from those of the model's variables.
    ///
    /// # Errors
    /// When the device fails.
    fn state(&self) -> Result<Vec<(String, Tensor)>>;

    /// Sets its state to that of a checkpoint. What the checkpoint lacks stays as it is.
    ///
    /// # Errors
    /// When a shape differs, or the device fails.
    fn restore(&mut self, state: &BTreeMap<&str, &Array>) -> Result<()>;
}

/// It has none.
impl Optimizer for SGD {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &BTreeMap<&str, &Array>) -> Result<()> {
        Ok(())
    }
}

/// AdamW, equal to [`candle_nn::AdamW`] to the bit, with state that is part of checkpoints (that of candle-nn is not
/// accessible).
///
/// The state has the names of the built-in trainer: `adamw.m/NAME`, `adamw.v/NAME` and `adamw.step/`.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, Optimizer as _, ParamsAdamW, VarMap};
/// use pawl_candle::AdamW;
///
/// let vars = VarMap::new();
/// let x = vars.get((), "x", Init::Const(2.0), DType::F32, &Device::Cpu)?;
/// let mut optimizer = AdamW::over(&vars, ParamsAdamW { lr: 0.5, ..ParamsAdamW::default() })?;
/// optimizer.backward_step(&x.sqr()?)?;
/// # let x = vars.data().lock().unwrap()["x"].to_scalar::<f32>()?;
/// assert!(x < 2.0);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct AdamW {
    units: Vec<Unit>,
    steps: u32,
    params: ParamsAdamW,
}

/// A variable with its moments.
#[derive(Debug)]
struct Unit {
    name: String,
    var: Var,
    first: Var,
    second: Var,
}

impl Unit {
    fn new(name: String, var: Var) -> candle_core::Result<Self> {
        let (first, second) = (var.zeros_like()?, var.zeros_like()?);
        Ok(Self { name, var, first: Var::from_tensor(&first)?, second: Var::from_tensor(&second)? })
    }
}

impl AdamW {
    /// The optimizer of all variables of `vars` with floating-point values.
    ///
    /// # Errors
    /// When the device has no memory for the moments.
    pub fn over(vars: &VarMap, params: ParamsAdamW) -> Result<Self> {
        let floats = tensors::named(vars).into_iter().filter(|(_, var)| var.dtype().is_float());
        let units = floats.map(|(name, var)| Unit::new(name, var)).collect::<candle_core::Result<_>>()?;
        Ok(Self { units, steps: 0, params })
    }
}

impl candle_nn::Optimizer for AdamW {
    type Config = ParamsAdamW;

    /// As [`AdamW::over`], for variables without names: the state is named by their positions.
    fn new(vars: Vec<Var>, params: ParamsAdamW) -> candle_core::Result<Self> {
        let floats = vars.into_iter().enumerate().filter(|(_, var)| var.dtype().is_float());
        let units = floats.map(|(index, var)| Unit::new(index.to_string(), var)).collect::<candle_core::Result<_>>()?;
        Ok(Self { units, steps: 0, params })
    }

    fn step(&mut self, gradients: &GradStore) -> candle_core::Result<()> {
        self.steps += 1;
        let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = self.params;
        let scale_first = 1.0 / (1.0 - beta1.powi(self.steps as i32));
        let scale_second = 1.0 / (1.0 - beta2.powi(self.steps as i32));
        for Unit { var, first, second, .. } in &self.units {
            let Some(gradient) = gradients.get(var) else { continue };
            let next_first = ((first.as_tensor() * beta1)? + (gradient * (1.0 - beta1))?)?;
            let next_second = ((second.as_tensor() * beta2)? + (gradient.sqr()? * (1.0 - beta2))?)?;
            let direction = ((&next_first * scale_first)? / ((&next_second * scale_second)?.sqrt()? + eps)?)?;
            let kept = (var.as_tensor() * (1.0 - lr * weight_decay))?;
            var.set(&(kept - (direction * lr)?)?)?;
            first.set(&next_first)?;
            second.set(&next_second)?;
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, rate: f64) {
        self.params.lr = rate;
    }
}

impl Optimizer for AdamW {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let steps = Tensor::new(self.steps as f32, &candle_core::Device::Cpu)?;
        let moments = self.units.iter().flat_map(|Unit { name, first, second, .. }| {
            [
                (format!("adamw.m/{name}"), first.as_tensor().clone()),
                (format!("adamw.v/{name}"), second.as_tensor().clone()),
            ]
        });
        Ok(moments.chain([("adamw.step/".to_owned(), steps)]).collect())
    }

    fn restore(&mut self, state: &BTreeMap<&str, &Array>) -> Result<()> {
        for Unit { name, first, second, .. } in &self.units {
            for (prefix, moment) in [("adamw.m/", first), ("adamw.v/", second)] {
                let name = format!("{prefix}{name}");
                match state.get(name.as_str()) {
                    Some(array) => tensors::set(&name, moment, array)?,
                    None => tracing::info!(state = name, "not in the checkpoint: initialized"),
                }
            }
        }
        if let Some(steps) = state.get("adamw.step/") {
            let steps = steps.to_f64().first().copied().unwrap_or_default();
            if !(0.0..=f64::from(u32::MAX)).contains(&steps) {
                return Err(Error::invalid(format!("the checkpoint has {steps} steps of AdamW, which is no count")));
            }
            self.steps = steps as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_nn::Optimizer as _;

    #[test]
    fn it_is_candles_adamw_to_the_bit() {
        let params = || ParamsAdamW { lr: 0.05, weight_decay: 0.1, ..ParamsAdamW::default() };
        let var = || Var::from_slice(&[0.3f32, -1.7, 4.0], 3, &Device::Cpu).unwrap();
        let (ours, theirs) = (var(), var());
        let mut mine = AdamW::new(vec![ours.clone()], params()).unwrap();
        let mut peer = candle_nn::AdamW::new(vec![theirs.clone()], params()).unwrap();
        let target = Tensor::new(&[1.0f32, 2.0, 3.0], &Device::Cpu).unwrap();
        for _ in 0..20 {
            for (var, step) in [(&ours, 0), (&theirs, 1)] {
                let loss = (var.as_tensor() - &target).unwrap().sqr().unwrap().sum_all().unwrap();
                if step == 0 { mine.backward_step(&loss).unwrap() } else { peer.backward_step(&loss).unwrap() }
            }
            assert_eq!(ours.to_vec1::<f32>().unwrap(), theirs.to_vec1::<f32>().unwrap());
        }
    }
}
