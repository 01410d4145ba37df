//! What a script says about settings: throughput, memory, losses.

use crate::noise::normal;
use crate::script::{Effect, Optimum, Script};
use pawl_contract::settings::Settings;
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether `setting` has `value` (any, when none is named).
pub(crate) fn holds(settings: &Value, setting: &str, value: Option<&Value>) -> bool {
    let pointer = format!("/{}", setting.replace('.', "/"));
    match (settings.pointer(&pointer), value) {
        (Some(have), Some(wanted)) => have == wanted,
        (have, None) => have.is_some(),
        (None, Some(_)) => false,
    }
}

/// Settings as the JSON object that effects and conditions look into.
pub(crate) fn as_json(settings: &Settings) -> Value {
    // Settings hold only strings, numbers and maps with string keys.
    serde_json::to_value(settings).unwrap_or_default()
}

fn factor(effects: &[Effect], settings: &Settings) -> f64 {
    let settings = as_json(settings);
    effects.iter().filter(|e| holds(&settings, &e.setting, e.value.as_ref())).map(|e| e.factor).product()
}

impl Script {
    /// Items per second of the gang with these settings, before noise.
    pub fn expected_items_per_second(&self, settings: &Settings) -> f64 {
        self.items_per_second * factor(&self.effects, settings)
    }

    /// Items per second that the launch of this name measures. The same name gives the same number.
    pub fn measured_items_per_second(&self, settings: &Settings, launch: &str) -> f64 {
        self.expected_items_per_second(settings) * (self.noise * normal(self.seed, launch)).exp()
    }

    /// Bytes that a rank needs.
    pub fn memory_bytes(&self, settings: &Settings) -> u64 {
        let activations = self.memory.bytes_per_item.saturating_mul(u64::from(settings.batch_per_gpu())) as f64;
        self.memory.base_bytes.saturating_add((activations * factor(&self.memory.effects, settings)) as u64)
    }

    /// Training loss after `items`, without noise and effects.
    pub fn loss(&self, items: u64) -> f64 {
        let quality = &self.quality;
        quality.final_loss + (quality.start_loss - quality.final_loss) * (-(items as f64) / quality.scale_items).exp()
    }

    /// Validation loss after `items` with these settings and the plan's `seed`.
    pub fn validation_loss(&self, settings: &Settings, items: u64, seed: u64, launch: &str) -> f64 {
        let quality = &self.quality;
        let noise = quality.seed_noise * normal(self.seed ^ seed.rotate_left(32), "seed")
            + quality.launch_noise * normal(self.seed.wrapping_add(1), launch);
        self.loss(items) * factor(&quality.effects, settings) * self.distance(settings) * noise.exp()
    }

    /// By how much the loss is larger than at the optima of the settings.
    fn distance(&self, settings: &Settings) -> f64 {
        let settings = as_json(settings);
        let value = |setting: &str| {
            let found = settings.pointer(&format!("/{}", setting.replace('.', "/")))?;
            found.as_f64().or_else(|| found.as_str()?.parse().ok())
        };
        let far = |optimum: &Optimum| {
            let distance = value(&optimum.setting).map_or(0.0, |value| (value / optimum.best).ln());
            1.0 + optimum.weight * distance * distance
        };
        self.quality.optima.iter().map(far).product()
    }

    /// Validation metrics: the loss, and a `nrmse` of a tenth of it.
    pub fn metrics(&self, loss: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("loss".to_owned(), loss), ("nrmse".to_owned(), loss / 10.0)])
    }
}
