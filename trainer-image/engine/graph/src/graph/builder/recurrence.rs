//! Recurrences over a static axis, unrolled: each step is a few nodes of the program.

use super::{Var, concat};
use crate::graph::GraphError;

impl<'b> Var<'b> {
    /// Sums over indices `0 ..= i` of `axis`, for each i: shape of this. Unrolled, for short axes: one kernel, which
    /// reads and writes each element once.
    #[track_caller]
    pub fn cumulative_sum(self, axis: usize) -> Self {
        let mut sum: Option<Var<'b>> = None;
        let next = |index| {
            let x = self.slice(axis, index, 1);
            *sum.insert(sum.map_or(x, |sum| sum + x))
        };
        let sums: Vec<Var<'b>> = (0..self.dim(axis)).map(next).collect();
        concat(&sums, axis)
    }

    /// Long short-term memory, one layer in one direction, over `[batch, steps, 4 hidden]`: what inputs contribute to
    /// the gates, both biases included. `recurrent` is `[4 hidden, hidden]`; the result, `[batch, steps, hidden]`, the
    /// hidden states. The gates are in PyTorch's order (input, forget, cell, output), and the state before the first
    /// step is zero: `c = sigmoid(f) c + sigmoid(i) tanh(g)`, `h = sigmoid(o) tanh(c)`.
    ///
    /// A step is a product and one elementwise kernel, which writes its part of the result; so is a step of the
    /// backward pass, which reads the gates and cell states that were kept.
    ///
    /// ```
    /// use pawl_graph::graph::{Builder, DType, Init};
    /// let b = Builder::new("lstm");
    /// let x = b.input("x", DType::F32, [7, 20, 3]);
    /// let weight = |name, inputs| b.parameter(name, [4 * 5, inputs], Init::Uniform { bound: 0.4 });
    /// let bias = b.parameter("bias", [4 * 5], Init::Fill(0.0));
    /// let h = (x.matmul_t(weight("input", 3)) + bias).lstm(weight("recurrent", 5));
    /// assert_eq!(h.shape().dims(), [7, 20, 5]);
    /// ```
    #[track_caller]
    pub fn lstm(self, recurrent: Var<'b>) -> Self {
        let (gates, weight) = (self.shape(), recurrent.shape());
        let fits = gates.rank() == 3 && weight.rank() == 2 && gates[1] > 0;
        if !(fits && weight[0] == 4 * weight[1] && gates[2] == weight[0]) {
            if self.id.is_none() || recurrent.id.is_none() {
                return Self { builder: self.builder, id: None };
            }
            return self.builder.poison(GraphError::Operands {
                op: "lstm".into(),
                operands: format!("{}, {}", self.meta(), recurrent.meta()),
                reason: "gates are [batch, steps, 4 hidden], the weight is [4 hidden, hidden]".into(),
            });
        }
        let (batch, steps, hidden) = (gates[0], gates[1], weight[1]);
        let mut state: Option<[Var<'b>; 2]> = None;
        let step = |step| {
            let own = self.slice(1, step, 1).reshape([batch, 4 * hidden]);
            let product = state.map(|[h, _]| h.matmul_t(recurrent));
            // Sliced before they are added: the sum is no value of its own.
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| {
                let part = |x: Var<'b>| x.slice(1, gate * hidden, hidden);
                product.map_or(part(own), |product| part(product) + part(own))
            });
            let new = i.sigmoid() * g.tanh();
            let c = state.map_or(new, |[_, c]| f.sigmoid() * c + new);
            let [h, _] = *state.insert([o.sigmoid() * c.tanh(), c]);
            h.reshape([batch, 1, hidden])
        };
        let states: Vec<Var<'b>> = (0..steps).map(step).collect();
        concat(&states, 1)
    }
}
