//! Attention and its gradient in float64, as the operators' documentation defines them.

/// Output, log-sum-exp, and the gradients of q, k and v, from q, k, v and the gradient of the output, all row-major.
pub fn attention(
    [batch, heads, groups, queries, keys, width]: [usize; 6],
    causal: bool,
    scale: f64,
    [q, k, v, grad]: [Vec<f64>; 4],
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
            let inner = dot(&o[row..row + width], &grad[row..row + width]);
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
