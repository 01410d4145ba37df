//! Convolutions along one axis, composed of other operators: the inputs of each output are gathered side by side (an
//! explicit "im2col"), so that one matrix product computes all outputs. Gradients, precisions and executors are those
//! of the operators.

use super::{Var, concat};
use crate::graph::GraphError;

impl<'b> Var<'b> {
    /// Convolution of this, `[batch, length, in]`, with `weight`, `[out, in, taps]`: `[batch, n, out]`, where `n =
    /// (length + 2 * padding - taps) / stride + 1` and `y[i] = sum over k of weight[.., k] x[i * stride + k -
    /// padding]`. Beyond its ends, x is 0.
    ///
    /// ```
    /// use pawl_graph::graph::{Builder, DType, Init};
    /// let b = Builder::new("convolution");
    /// let (x, w) = (b.input("x", DType::F32, [2, 64, 7]), b.parameter("w", [16, 7, 3], Init::Fill(0.1)));
    /// assert_eq!(x.conv1d(w, 2, 1).shape().dims(), [2, 32, 16]);
    /// ```
    #[track_caller]
    pub fn conv1d(self, weight: Var<'b>, stride: usize, padding: usize) -> Self {
        let (x, w) = (self.shape(), weight.shape());
        let fits = x.rank() == 3 && w.rank() == 3 && x[2] == w[1] && stride > 0 && x[1] + 2 * padding >= w[2];
        if !fits {
            return self.refuse(
                "conv1d",
                weight,
                "x is [batch, length, in], the weight [out, in, taps] with taps <= length + 2 * padding",
            );
        }
        let (batch, length, inputs, outputs, taps) = (x[0], x[1], x[2], w[0], w[2]);
        let padded = length + 2 * padding;
        let steps = (padded - taps) / stride + 1;
        // Position p is in row p / stride, column p % stride: each tap reads one column of consecutive rows.
        let rows = padded.div_ceil(stride);
        let grid = self.pad(1, padding, rows * stride - length - padding).reshape([batch, rows, stride, inputs]);
        let tap = |k: usize| grid.slice(1, k / stride, steps).slice(2, k % stride, 1).reshape([batch, steps, inputs]);
        let unfolded = concat(&(0..taps).map(tap).collect::<Vec<_>>(), 2);
        unfolded.matmul_t(weight.permute([0, 2, 1]).reshape([outputs, taps * inputs]))
    }

    /// Transposed convolution of this, `[batch, length, in]`, with `weight`, `[in, out, taps]`: `[batch, n, out]`,
    /// where `n = (length - 1) * stride + taps - 2 * padding` and `x[i]` adds `weight[.., k] x[i]` to `y[i * stride + k
    /// - padding]`.
    ///
    /// ```
    /// use pawl_graph::graph::{Builder, DType, Init};
    /// let b = Builder::new("upsampling");
    /// let (x, w) = (b.input("x", DType::F32, [2, 8, 7]), b.parameter("w", [7, 5, 4], Init::Fill(0.1)));
    /// assert_eq!(x.conv_transpose1d(w, 2, 1).shape().dims(), [2, 16, 5]);
    /// ```
    #[track_caller]
    pub fn conv_transpose1d(self, weight: Var<'b>, stride: usize, padding: usize) -> Self {
        let (x, w) = (self.shape(), weight.shape());
        let fits = x.rank() == 3 && w.rank() == 3 && x[2] == w[0] && stride > 0 && x[1] > 0;
        if !fits || (x[1] - 1) * stride + w[2] <= 2 * padding {
            return self.refuse(
                "conv_transpose1d",
                weight,
                "x is [batch, length, in], the weight [in, out, taps], the result not empty",
            );
        }
        let (batch, length, inputs, outputs, taps) = (x[0], x[1], x[2], w[1], w[2]);
        let produced = (length - 1) * stride + taps - 2 * padding;
        let steps = produced.div_ceil(stride);
        // Output j * stride + phase gets tap k of input j + offset(k), for each tap that makes the offset an integer.
        let offset = |phase: usize, k: usize| {
            let distance = (phase + padding) as isize - k as isize;
            (distance.rem_euclid(stride as isize) == 0).then_some(distance.div_euclid(stride as isize))
        };
        let before = taps.div_ceil(stride);
        let after = (steps + (stride + padding) / stride).saturating_sub(length);
        let padded = self.pad(1, before, after);
        let matrices = weight.permute([2, 0, 1]);
        let phase = |phase: usize| {
            let (mut read, mut with) = (Vec::new(), Vec::new());
            for (k, offset) in (0..taps).filter_map(|k| Some((k, offset(phase, k)?))) {
                read.push(padded.slice(1, before.saturating_add_signed(offset), steps));
                with.push(matrices.slice(0, k, 1).reshape([inputs, outputs]));
            }
            let all = match read.is_empty() {
                true => self.builder.fill(0.0, self.dtype(), [batch, steps, outputs]),
                false => concat(&read, 2).matmul(concat(&with, 0)),
            };
            all.reshape([batch, steps, 1, outputs])
        };
        let phases: Vec<Var<'b>> = (0..stride).map(phase).collect();
        concat(&phases, 2).reshape([batch, steps * stride, outputs]).slice(1, 0, produced)
    }

    /// Causal convolution of each channel of this, `[channels, batch, length]`, with its own `kernel`, `[channels,
    /// length]`: `y[t] = sum over s <= t of kernel[t - s] x[s]`. Computed as products with Toeplitz matrices: `block`
    /// outputs at a time are a product of all inputs up to them with a part of one matrix, `[length, block]` per
    /// channel, so that memory grows with `length * block` and half of the full product's arithmetic is saved.
    ///
    /// ```
    /// use pawl_graph::graph::{Builder, DType};
    /// let b = Builder::new("filter");
    /// let (x, kernel) = (b.input("x", DType::F32, [5, 2, 50]), b.input("kernel", DType::F32, [5, 50]));
    /// assert_eq!(x.causal_conv(kernel, 16).shape().dims(), [5, 2, 50]);
    /// ```
    #[track_caller]
    pub fn causal_conv(self, kernel: Var<'b>, block: usize) -> Self {
        let (x, k) = (self.shape(), kernel.shape());
        if x.rank() != 3 || k.dims() != [x[0], x[2]] || block == 0 {
            return self.refuse(
                "causal_conv",
                kernel,
                "x is [channels, batch, length], the kernel [channels, length], the block at least 1",
            );
        }
        let length = x[2];
        let block = block.min(length);
        let padded = length.next_multiple_of(block);
        let (x, kernel) = (self.pad(2, 0, padded - length), kernel.pad(1, 0, padded - length));
        let matrix = toeplitz(kernel, block);
        let outputs = |end: usize| x.slice(2, 0, end).matmul(matrix.slice(1, padded - end, end));
        let parts: Vec<Var<'b>> = (block..=padded).step_by(block).map(outputs).collect();
        concat(&parts, 2).slice(2, 0, length)
    }

    fn refuse(self, op: &str, other: Var<'b>, reason: &str) -> Self {
        if self.id.is_none() || other.id.is_none() {
            return Self { builder: self.builder, id: None };
        }
        let operands = format!("{}, {}", self.meta(), other.meta());
        self.builder.poison(GraphError::Operands { op: op.into(), operands, reason: reason.into() })
    }
}

/// The matrices `[channels, length, block]` whose element (r, c) is `kernel[length - block + c - r]`, and 0 where that
/// index is negative: the last `block` columns of each channel's Toeplitz matrix. `block` divides the length.
fn toeplitz<'b>(kernel: Var<'b>, block: usize) -> Var<'b> {
    let (channels, length) = (kernel.dim(0), kernel.dim(1));
    let blocks = length / block;
    let zeros = kernel.builder.fill(0.0, kernel.dtype(), [channels, block]);
    let latest_first: Vec<Var<'b>> =
        (0..blocks).rev().map(|j| kernel.slice(1, j * block, block)).chain([zeros]).collect();
    let latest_first = concat(&latest_first, 1);
    let from = |start: usize| latest_first.slice(1, start, length).reshape([channels, blocks, block]);
    // Element (r, c) of a square block is element c - r of these periods, counted from the end where it is negative. A
    // sequence of equal rows that is cut into rows that are one element shorter moves them by one element each.
    let width = 2 * block;
    let period = concat(&[from(0), from(block)], 2).reshape([channels, blocks, 1, width]);
    let rows = period.broadcast([channels, blocks, block, width]).reshape([channels, blocks, block * width]);
    let moved = rows.slice(2, 0, block * (width - 1)).reshape([channels, blocks, block, width - 1]);
    moved.slice(3, 0, block).reshape([channels, length, block])
}
