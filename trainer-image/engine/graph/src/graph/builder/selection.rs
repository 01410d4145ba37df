//! A network for each feature, and the weighted sum of their results.

use super::Var;

/// Gated residual networks from a number to `hidden`, one for each of F features, with layers of `width` in between.
/// Parameters of all features are stacked along axis 0; each pair is a weight and a bias.
///
/// For the value x of a feature: `o = W3 d(elu(W2 d(elu(w1 x + b1)) + b2)) + b3`, `g = sigmoid(V2 d(relu(v1 x + c1)) +
/// c2)`, `s = w x + b`; the result is `layer_norm(g o + (1 - g) s) * gain + shift`. d is dropout.
#[derive(Debug, Clone, Copy)]
pub struct FeatureNetworks<'b> {
    /// `[F, 1, width]`, `[F, 1, width]`
    pub first: [Var<'b>; 2],
    /// `[F, width, width]`, `[F, 1, width]`
    pub second: [Var<'b>; 2],
    /// `[F, width, hidden]`, `[F, 1, hidden]`
    pub third: [Var<'b>; 2],
    /// `[F, 1, width]`, `[F, 1, width]`
    pub gate_first: [Var<'b>; 2],
    /// `[F, width, hidden]`, `[F, 1, hidden]`
    pub gate_second: [Var<'b>; 2],
    /// `[F, 1, hidden]`, `[F, 1, hidden]`
    pub skip: [Var<'b>; 2],
    /// Gain and shift: `[F, 1, hidden]`, `[F, 1, hidden]`
    pub norm: [Var<'b>; 2],
    /// Added to the variance.
    pub epsilon: f64,
}

/// Dropout of [`FeatureNetworks`]. See [`Var::dropout`].
#[derive(Debug, Clone, Copy)]
pub struct FeatureDropout<'b, 'n> {
    /// Unique in the program.
    pub name: &'n str,
    /// U32 scalar.
    pub counter: Var<'b>,
    /// Probability that an element is zeroed.
    pub probability: f64,
}

impl<'b> FeatureNetworks<'b> {
    /// `sum over f of weights[.., f] * network f of x[.., f]`, for `x` and `weights` `[rows, F]`: `[rows, hidden]`.
    ///
    /// Products are computed for `chunk` features at a time, in scopes `chunk.0`, `chunk.1`, ..; what follows a product
    /// is added to the sum so far, feature by feature. With these scopes in
    /// [`Recipe::rematerialize`](crate::recipe::Recipe::rematerialize), memory for the backward pass grows with `rows *
    /// chunk * hidden` instead of `rows * F * hidden`: of each chunk only `x` and `weights` are kept.
    #[track_caller]
    pub fn weighted_sum(
        &self,
        x: Var<'b>,
        weights: Var<'b>,
        chunk: usize,
        dropout: Option<FeatureDropout<'b, '_>>,
    ) -> Var<'b> {
        let (b, rows, features) = (x.builder(), x.dim(0), x.dim(1));
        let [x, weights] = [x, weights].map(|of| of.transpose().reshape([features, rows, 1]));
        let mut sum: Option<Var<'b>> = None;
        for first in (0..features).step_by(chunk.max(1)) {
            let (number, count) = (first / chunk.max(1), chunk.max(1).min(features - first));
            let drop = |part: &str, x: Var<'b>| match dropout {
                Some(FeatureDropout { name, counter, probability }) => {
                    x.dropout(&format!("{name}.{part}.{number}"), counter, probability)
                }
                None => x,
            };
            let terms = b.scope(&format!("chunk.{number}"), || {
                let [value, gate] = self.products(x, first..first + count, &drop);
                let term = |feature: usize| {
                    let at = |x: Var<'b>| x.slice(0, feature, 1).reshape([x.dim(1), x.dim(2)]);
                    let of = |x: Var<'b>| x.slice(0, feature - first, 1).reshape([rows, x.dim(2)]);
                    let value = of(value) + at(self.third[1]);
                    let gate = (of(gate) + at(self.gate_second[1])).sigmoid();
                    let skip = at(x) * at(self.skip[0]) + at(self.skip[1]);
                    let normed = (gate * value + (-gate + 1.0) * skip).layer_norm(self.epsilon);
                    (normed * at(self.norm[0]) + at(self.norm[1])) * at(weights)
                };
                (first..first + count).map(term).collect::<Vec<_>>()
            });
            // Outside of the chunk: whoever reads the sum in the backward pass would have all chunks computed again at
            // once.
            for term in terms {
                sum = Some(sum.map_or(term, |sum| sum + term));
            }
        }
        sum.unwrap_or_else(|| b.fill(0.0, x.dtype(), [rows, self.third[0].dim(2)]))
    }

    /// `W3 d(..)` and `V2 d(..)` of some features: `[count, rows, hidden]` each.
    fn products(
        &self,
        x: Var<'b>,
        features: std::ops::Range<usize>,
        drop: &dyn Fn(&str, Var<'b>) -> Var<'b>,
    ) -> [Var<'b>; 2] {
        let part = |x: Var<'b>| x.slice(0, features.start, features.len());
        let x = part(x);
        let linear = |[weight, bias]: [Var<'b>; 2]| x * part(weight) + part(bias);
        let first = drop("first", linear(self.first).elu());
        let second = drop("second", (first.matmul(part(self.second[0])) + part(self.second[1])).elu());
        let gate = drop("gate", linear(self.gate_first).relu());
        [second.matmul(part(self.third[0])), gate.matmul(part(self.gate_second[0]))]
    }
}
