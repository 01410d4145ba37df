//! Muon (Jordan 2024): momentum, orthogonalised by Newton-Schulz iterations in bfloat16; as `torch.optim.Muon` computes
//! it.

use super::{StepContext, Unit, slot};
use crate::graph::{DType, Op, Var};

/// Momentum orthogonalised by Newton-Schulz.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// Decay per step of the momentum.
    pub momentum: f64,
    /// Newton-Schulz iterations.
    pub iterations: usize,
    /// Decoupled weight decay: weights shrink by the fraction `learning rate * weight_decay` per step.
    pub weight_decay: f64,
}

impl Default for Muon {
    /// 0.95, 5 iterations, no decay.
    fn default() -> Self {
        Self { momentum: 0.95, iterations: 5, weight_decay: 0.0 }
    }
}

/// Coefficients of the quintic iteration.
const NEWTON_SCHULZ: [f64; 3] = [3.4445, -4.7750, 2.0315];

impl Muon {
    /// Appends the update of a unit. An arena is a stack of matrices `[n, rows, columns]`; a parameter is one matrix,
    /// of its first axis by all others.
    pub(super) fn step(&self, context: &StepContext<'_>, unit: &Unit<'_>) {
        let (p, g, lr) = (unit.value, unit.gradient, context.learning_rate);
        let m = context.b.state(slot(&unit.decl, "muon.m/"));
        let m_next = m + (g - m) * (1.0 - self.momentum);
        let nesterov = g + (m_next - g) * self.momentum;
        let shape = p.shape();
        let stacked = !unit.decl.parts().is_empty();
        let part = if stacked { &shape[1..] } else { &shape[..] };
        let (rows, columns) = (part[0], part[1..].iter().product::<usize>());
        let stack = if stacked { shape[0] } else { 1 };
        let direction = orthogonalise(nesterov.reshape([stack, rows, columns]), self.iterations);
        let scale = (rows as f64 / columns as f64).max(1.0).sqrt();
        let keep = -(lr * self.weight_decay) + 1.0;
        let next = p * keep - (lr * scale) * direction.reshape(&shape);
        context.update(m, m_next);
        unit.set(context, next);
    }
}

/// Approximations of the nearest semi-orthogonal matrices of a stack `[n, rows, columns]`: float32 in and out, bfloat16
/// in between.
fn orthogonalise(matrices: Var<'_>, iterations: usize) -> Var<'_> {
    let wide = matrices.dtype();
    let tall = matrices.dim(1) > matrices.dim(2);
    let x = if tall { matrices.transpose() } else { matrices }.cast(DType::BF16);
    let norm = x.cast(wide).square().sum([1, 2]).sqrt().cast(DType::BF16);
    let mut x = (x.cast(wide) / norm.cast(wide).maximum(1e-7)).cast(DType::BF16);
    let [a, b, c] = NEWTON_SCHULZ;
    for _ in 0..iterations {
        let gram = matmul(x, x, true, DType::BF16);
        let poly = (gram.cast(wide) * b + matmul(gram, gram, false, wide) * c).cast(DType::BF16);
        x = (x.cast(wide) * a + matmul(poly, x, false, wide)).cast(DType::BF16);
    }
    let x = x.cast(wide);
    if tall { x.transpose() } else { x }
}

/// A batched product of bfloat16 matrices, written in `output`.
fn matmul<'b>(a: Var<'b>, b: Var<'b>, transpose_b: bool, output: DType) -> Var<'b> {
    a.builder().push(Op::MatMul { transpose_a: false, transpose_b, output }, &[a, b])
}
