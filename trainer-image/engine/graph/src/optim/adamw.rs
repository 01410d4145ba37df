//! AdamW (Loshchilov, Hutter 2019), in the order of operations of `torch.optim.AdamW`.

use super::{StepContext, Unit, counter, slot};
use crate::graph::{DType, StateDecl};

/// Adam with decoupled weight decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay per step of the mean of gradients.
    pub beta1: f64,
    /// Decay per step of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the square root of the mean of squared gradients.
    pub eps: f64,
    /// Decoupled weight decay: weights shrink by the fraction `learning rate * weight_decay` per step.
    pub weight_decay: f64,
    /// Whether weight decay applies to parameters with fewer than two axes (gains, biases) too.
    pub decay_vectors: bool,
    /// Names of further parameters to which weight decay does not apply, such as embeddings.
    pub undecayed: &'static [&'static str],
}

impl Default for AdamW {
    /// 0.9, 0.999, 1e-8, no decay (of anything).
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decay_vectors: true, undecayed: &[] }
    }
}

impl AdamW {
    /// Whether weight decay applies to a parameter.
    pub(super) fn decays(&self, parameter: &StateDecl) -> bool {
        (self.decay_vectors || parameter.meta.shape.rank() >= 2) && !self.undecayed.contains(&parameter.name.as_str())
    }

    /// `p (1 - lr wd) - lr/(1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)`; t counts the steps of the group. Its powers
    /// are taken in float64.
    pub(super) fn step(&self, context: &StepContext<'_>, group: &str, units: &[&Unit<'_>]) {
        let lr = context.learning_rate;
        let before = counter(context.b, format!("adamw.step/{group}"));
        let now = before + 1.0;
        context.update(before, now);
        let t = now.cast(DType::F64);
        let missing = |beta: f64| -((t * beta.ln()).exp()) + 1.0;
        let rate = (lr.cast(DType::F64) / missing(self.beta1)).cast(lr.dtype());
        let root = missing(self.beta2).sqrt().cast(lr.dtype());
        let keep = -(lr * self.weight_decay) + 1.0;
        for unit in units {
            let (p, g) = (unit.value, unit.gradient);
            let m = context.b.state(slot(&unit.decl, "adamw.m/"));
            let v = context.b.state(slot(&unit.decl, "adamw.v/"));
            let m_next = m + (g - m) * (1.0 - self.beta1);
            let v_next = v * self.beta2 + g.square() * (1.0 - self.beta2);
            let denominator = v_next.sqrt() / root + self.eps;
            let kept = if self.decays(unit.first_part()) { p * keep } else { p };
            let next = kept - rate * (m_next / denominator);
            context.update(m, m_next);
            context.update(v, v_next);
            unit.set(context, next);
        }
    }
}
