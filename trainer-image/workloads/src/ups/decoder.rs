//! The decoder: query points attend to the tokens of a state and become field values.

use super::config::DecoderConfig;
use super::layers::{Weights, join_heads, split_heads};
use pawl_graph::graph::{AttentionSpec, Init, Var};
use std::f64::consts::TAU;

/// Prefix of the decoder's parameters.
pub const PREFIX: &str = "decoder.";
/// Features of a query point.
pub const FEATURES: usize = 18;

/// Features of query points (x, y): x, y, then sin(2 pi f x), sin(2 pi f y) for f = 1, 2, 4, 8, then the cosines;
/// (points, 18).
pub fn point_features(points: &[[f32; 2]]) -> Vec<f32> {
    let mut features = Vec::with_capacity(points.len() * FEATURES);
    for point in points {
        features.extend(point);
        for wave in [libm::sin as fn(f64) -> f64, libm::cos] {
            for frequency in [1.0, 2.0, 4.0, 8.0] {
                features.extend(point.map(|c| wave(TAU * frequency * f64::from(c)) as f32));
            }
        }
    }
    features
}

/// Centres of the cells of a `rows` x `columns` grid, row-major, as (x, y).
pub fn cell_centres(rows: usize, columns: usize) -> Vec<[f32; 2]> {
    let centre = |i: usize, n: usize| ((i as f64 + 0.5) / n as f64) as f32;
    (0..rows * columns).map(|at| [centre(at % columns, columns), centre(at / columns, rows)]).collect()
}

/// The field at points with `features` (points, 18), read from the tokens `z` (batch, tokens, width): (batch, points).
///
/// Post-norm cross-attention layers; points never attend to points. `part` tells the scope of this use from those of
/// others, so that each recomputes its activations on its own.
pub fn decode<'b>(w: Weights<'b>, part: &str, features: Var<'b>, z: Var<'b>, config: &DecoderConfig) -> Var<'b> {
    w.builder().scope(&format!("decoder/{part}"), || {
        let (batch, points, hidden) = (z.dim(0), features.dim(0), config.hidden);
        let memory = w.linear("decoder.mem", z, hidden);
        let mut x = w.linear("decoder.embed", features, hidden).broadcast([batch, points, hidden]);
        for layer in 0..config.layers {
            let name = format!("decoder.layers.{layer}");
            x = w.builder().scope(&format!("layers.{layer}"), || {
                let x = w.builder().scope("attn", || {
                    w.layer_norm(&format!("{name}.ln_a"), x + cross_attention(w, &name, x, memory, config))
                });
                w.builder().scope("mlp", || {
                    let inner = w.linear(&format!("{name}.f1"), x, hidden).gelu();
                    w.layer_norm(&format!("{name}.ln_f"), x + w.linear(&format!("{name}.f2"), inner, hidden))
                })
            });
        }
        let inner = w.linear("decoder.h1", x, hidden).gelu();
        w.linear("decoder.h2", inner, 1).reshape([batch, points])
    })
}

fn cross_attention<'b>(w: Weights<'b>, name: &str, x: Var<'b>, memory: Var<'b>, config: &DecoderConfig) -> Var<'b> {
    let (hidden, heads) = (config.hidden, config.heads);
    // Xavier's bound for the packed (3 hidden, hidden) weight of queries, keys and values.
    let packed = Init::Uniform { bound: (6.0 / (4 * hidden) as f64).sqrt() };
    let q = w.affine(&format!("{name}.q"), x, hidden, packed.clone(), Init::Fill(0.0));
    let kv = w.affine(&format!("{name}.kv"), memory, 2 * hidden, packed, Init::Fill(0.0));
    let (q, kv) = (split_heads(q, 1, heads), split_heads(kv, 2, heads));
    let scale = 1.0 / ((hidden / heads) as f64).sqrt();
    let mixed = join_heads(q[0].attention(kv[0], kv[1], AttentionSpec { scale, causal: false }));
    let out = Init::Uniform { bound: 1.0 / (hidden as f64).sqrt() };
    w.affine(&format!("{name}.o"), mixed, hidden, out, Init::Fill(0.0))
}
