//! Attention and its gradient in float64, as the operators' documentation defines them.

/// What one result is to be.
pub struct Expected {
    pub values: Vec<f64>,
    /// What an error is set beside: the value itself or, for a sum whose terms cancel, the root of the sum of their
    /// squares.
    pub sizes: Vec<f64>,
}

impl Expected {
    pub fn value(values: Vec<f64>) -> Self {
        Self { sizes: values.clone(), values }
    }

    /// Sums over the rows of each head: of `[heads, rows, width]`.
    fn sum(terms: &[f64], rows: usize, width: usize) -> Self {
        let over = |f: fn(f64) -> f64| -> Vec<f64> {
            let column = |head: &[f64], x: usize| (0..rows).map(|row| f(head[row * width + x])).sum();
            terms.chunks(rows * width).flat_map(|head| (0..width).map(move |x| column(head, x))).collect()
        };
        Self { values: over(|term| term), sizes: over(|term| term * term).into_iter().map(f64::sqrt).collect() }
    }
}

/// Output, log-sum-exp, and the gradients of q, k and v, from q, k, v and the gradient of the output, all row-major.
/// The backward pass takes for the output what was `kept` of it; `None`: exactly it.
pub fn attention(
    [batch, heads, groups, queries, keys, width]: [usize; 6],
    causal: bool,
    scale: f64,
    [q, k, v, grad]: [Vec<f64>; 4],
    kept: Option<&[f64]>,
) -> [Vec<f64>; 5] {
    let mut o = vec![0.0; q.len()];
    let mut lse = vec![f64::NEG_INFINITY; batch * heads * queries];
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; k.len()]);
    for head in 0..batch * heads {
        let group = head / heads * groups + head % heads / (heads / groups);
        for i in 0..queries {
            let row = (head * queries + i) * width;
            let of_key = |j: usize| (group * keys + j) * width;
            let seen = if causal { (i + keys + 1).saturating_sub(queries).min(keys) } else { keys };
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let of = |x: &[f64], at: usize| x[at..at + width].to_vec();
            let scores: Vec<f64> =
                (0..seen).map(|j| scale * dot(&of(&q, row), &k[of_key(j)..of_key(j) + width])).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
            if seen == 0 {
                continue;
            }
            lse[head * queries + i] = most + sum.ln();
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp() / sum).collect();
            for (j, weight) in weights.iter().enumerate() {
                (0..width).for_each(|x| o[row + x] += weight * v[of_key(j) + x]);
            }
            let inner = dot(&kept.unwrap_or(&o)[row..row + width], &grad[row..row + width]);
            for (j, weight) in weights.iter().enumerate() {
                let slope = weight * (dot(&grad[row..row + width], &v[of_key(j)..of_key(j) + width]) - inner) * scale;
                for x in 0..width {
                    dv[of_key(j) + x] += weight * grad[row + x];
                    dq[row + x] += slope * k[of_key(j) + x];
                    dk[of_key(j) + x] += slope * q[row + x];
                }
            }
        }
    }
    [o, lse, dq, dk, dv]
}

/// Rows (`[heads, rows, width]`, of `heads` different ones) on their way into attention.
struct Prepared {
    /// Normalised.
    normal: Vec<f64>,
    /// What a row was multiplied by.
    factors: Vec<f64>,
}

impl Prepared {
    fn new(x: &[f64], bias: &[f64], heads: usize, rows: usize, width: usize, epsilon: f64) -> Self {
        let mut of = Self { normal: biased(x, bias, heads, rows, width), factors: Vec::new() };
        for row in of.normal.chunks_mut(width) {
            let factor = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / width as f64 + epsilon).sqrt();
            row.iter_mut().for_each(|v| *v *= factor);
            of.factors.push(factor);
        }
        of
    }

    /// The gradient of what was normalised, from that of the result.
    fn through(&self, grad: &[f64], width: usize) -> Vec<f64> {
        let rows = grad.chunks(width).zip(self.normal.chunks(width)).zip(&self.factors);
        rows.flat_map(|((grad, normal), factor)| {
            let mean = grad.iter().zip(normal).map(|(g, n)| g * n).sum::<f64>() / width as f64;
            grad.iter().zip(normal).map(move |(g, n)| factor * (g - n * mean))
        })
        .collect()
    }
}

fn biased(x: &[f64], bias: &[f64], heads: usize, rows: usize, width: usize) -> Vec<f64> {
    let of = |at: usize| bias[at / (rows * width) % heads * width + at % width];
    x.iter().enumerate().map(|(at, value)| value + of(at)).collect()
}

/// Output, log-sum-exp, gradients of q, k and v, then of their biases and of the gain for each batch and head, of
/// attention over normalised queries and keys. Queries and keys are `round`ed after normalisation, which gradients
/// ignore; values are not rounded, since their bias can be added to the output instead. `kept`, the stored output,
/// includes that bias, so that its rounding error exceeds that of the products.
pub fn normed(
    extents: [usize; 6],
    (causal, scale, epsilon): (bool, f64, f64),
    [q, k, v, grad]: [Vec<f64>; 4],
    [bias_q, bias_k, bias_v, gain]: [Vec<f64>; 4],
    kept: &[f64],
    round: impl Fn(f64) -> f64,
) -> Vec<Expected> {
    let [_, heads, groups, queries, keys, width] = extents;
    let normal_q = Prepared::new(&q, &bias_q, heads, queries, width, epsilon);
    let normal_k = Prepared::new(&k, &bias_k, groups, keys, width, epsilon);
    let v = biased(&v, &bias_v, groups, keys, width);
    let gained = |x: &[f64]| -> Vec<f64> { x.iter().enumerate().map(|(at, v)| v * gain[at % width]).collect() };
    let [q, k] = [normal_q.normal.clone(), gained(&normal_k.normal)].map(|of| of.into_iter().map(&round).collect());
    let [o, lse, dq, dk, dv] = attention(extents, causal, scale, [q, k, v, grad], Some(kept));
    let of_gain: Vec<f64> = dk.iter().zip(&normal_k.normal).map(|(d, n)| d * n).collect();
    let (dq, dk) = (normal_q.through(&dq, width), normal_k.through(&gained(&dk), width));
    let sums = [(&dq, queries), (&dk, keys), (&dv, keys), (&of_gain, keys)];
    let sums = sums.map(|(terms, rows)| Expected::sum(terms, rows, width));
    [o, lse, dq, dk, dv].map(Expected::value).into_iter().chain(sums).collect()
}
