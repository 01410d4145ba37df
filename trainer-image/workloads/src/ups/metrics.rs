//! Metrics of the evaluation.

use super::config::Config;
use pawl_graph::array::Array;
use std::collections::BTreeMap;

/// Sums per task: squared error, square of the target, absolute error, spectral error (means over the elements
/// of a state), states; relative physical error, states of that.
pub const PER_TASK: usize = 7;
const STATES: usize = 4;
const PHYSICAL: usize = 5;
const PHYSICAL_STATES: usize = 6;

/// The sums of one task.
pub struct Sums<'a>(pub &'a mut [f64]);

impl Sums<'_> {
    /// Adds the first `rows` rows of the outputs of an evaluation program.
    pub fn add(&mut self, physical: bool, rows: usize, outputs: &[Array]) {
        let (first, count) = if physical { (PHYSICAL, PHYSICAL_STATES) } else { (0, STATES) };
        for (slot, output) in (first..count).zip(outputs) {
            self.0[slot] += output.to_f64().iter().take(rows).sum::<f64>();
        }
        self.0[count] += rows as f64;
    }
}

/// Names of the [`metrics`] where the error of decoded states is evaluated (`physical`), and where it is not.
pub fn names(config: &Config, physical: bool) -> Vec<String> {
    let evaluated = |slot: usize| physical || slot % PER_TASK != PHYSICAL_STATES;
    let sums: Vec<f64> = (0..PER_TASK * config.tasks.len()).map(|slot| f64::from(u8::from(evaluated(slot)))).collect();
    metrics(config, &sums).into_keys().collect()
}

/// The metrics: `loss` (as in training without auxiliary terms; mean over the tasks), `nrmse` (relative L2 error in
/// latent space over all elements), `mse`, `mae`, `rmse`; `nrmse_TASK`; `physical_nrmse_TASK` (mean relative L2 error
/// of a decoded state) where it was evaluated.
pub fn metrics(config: &Config, sums: &[f64]) -> BTreeMap<String, f64> {
    let mut all = [0.0; STATES + 1];
    let mut metrics = BTreeMap::new();
    let mut loss = 0.0;
    for (task, sums) in config.tasks.iter().zip(sums.chunks_exact(PER_TASK)) {
        all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        loss += (sums[0] + config.loss.spectral * sums[3]) / sums[STATES];
        metrics.insert(format!("nrmse_{}", task.name()), (sums[0] / sums[1]).sqrt());
        if sums[PHYSICAL_STATES] > 0.0 {
            metrics.insert(format!("physical_nrmse_{}", task.name()), sums[PHYSICAL] / sums[PHYSICAL_STATES]);
        }
    }
    let [squared, target, absolute, _, states] = all;
    metrics.insert("loss".to_owned(), loss / config.tasks.len() as f64);
    metrics.insert("nrmse".to_owned(), (squared / target).sqrt());
    metrics.insert("mse".to_owned(), squared / states);
    metrics.insert("mae".to_owned(), absolute / states);
    metrics.insert("rmse".to_owned(), (squared / states).sqrt());
    metrics
}
