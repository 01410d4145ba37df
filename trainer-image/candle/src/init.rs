//! Initial weights as a function of the seed and their names.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarMap};
use pawl_graph::random::{normal_f64, stream, uniform_f64};

/// A backend of `VarBuilder` that adds to a `VarMap` what it lacks, drawn from a stream of random numbers of the
/// variable's own: on every device and rank the same values, in whatever order the layers are built.
pub(crate) struct Seeded {
    pub vars: VarMap,
    pub seed: u64,
}

impl SimpleBackend for Seeded {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        if !self.vars.contains_tensor(name) {
            let values = drawn(init, &shape, stream(self.seed, name));
            let tensor = Tensor::from_vec(values, shape.clone(), device)?.to_dtype(dtype)?;
            let mut guard = self.vars.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            guard.insert(name.to_owned(), Var::from_tensor(&tensor)?);
        }
        self.vars.get(shape, name, init, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.vars.get_unchecked(name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.vars.contains_tensor(name)
    }
}

/// The values of `init`, as candle-nn defines them.
fn drawn(init: Init, shape: &Shape, stream: u64) -> Vec<f32> {
    let uniform =
        |lo: f64, up: f64| (0..shape.elem_count() as u64).map(move |i| lo + (up - lo) * uniform_f64(stream, i));
    let normal =
        |mean: f64, stdev: f64| (0..shape.elem_count() as u64).map(move |i| mean + stdev * normal_f64(stream, i));
    let values: Vec<f64> = match init {
        Init::Const(value) => vec![value; shape.elem_count()],
        Init::Randn { mean, stdev } => normal(mean, stdev).collect(),
        Init::Uniform { lo, up } => uniform(lo, up).collect(),
        Init::Kaiming { dist, fan, non_linearity } => {
            let std = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Uniform => uniform(-3f64.sqrt() * std, 3f64.sqrt() * std).collect(),
                NormalOrUniform::Normal => normal(0.0, std).collect(),
            }
        }
    };
    values.into_iter().map(|value| value as f32).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use candle_nn::VarBuilder;

    fn weights(seed: u64) -> (Vec<f32>, VarMap) {
        let vars = VarMap::new();
        let backend = Box::new(Seeded { vars: vars.clone(), seed });
        let builder = VarBuilder::from_backend(backend, DType::F32, Device::Cpu);
        let layer = candle_nn::linear(300, 200, builder.pp("layer")).unwrap();
        (layer.weight().flatten_all().unwrap().to_vec1().unwrap(), vars)
    }

    #[test]
    fn weights_are_those_of_the_seed_with_candles_distribution() {
        let (one, vars) = weights(1);
        assert_eq!(one, weights(1).0);
        assert_ne!(one, weights(2).0);
        assert_eq!(
            crate::tensors::named(&vars).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["layer.bias", "layer.weight"]
        );
        // Weights are Kaiming normal with the gain of ReLU: a variance of 2 / 300, and a fourth moment of three times
        // its square, which would be 1.8 times if they were uniform. The tolerances are over three standard errors of
        // 60,000 draws.
        let moment = |power: i32| one.iter().map(|w| f64::from(*w).powi(power)).sum::<f64>() / one.len() as f64;
        assert!((moment(2) * 300.0 / 2.0 - 1.0).abs() < 0.02, "{}", moment(2));
        assert!((moment(4) / moment(2).powi(2) - 3.0).abs() < 0.15, "{}", moment(4));
        // Biases are uniform up to 1 / sqrt(300).
        let bias: Vec<f32> = vars.data().lock().unwrap()["layer.bias"].to_vec1().unwrap();
        let largest = bias.iter().fold(0.0, |most: f64, b| most.max(f64::from(b.abs()))) * 300f64.sqrt();
        assert!((0.9..=1.0 + 1e-6).contains(&largest), "{largest}");
    }
}
