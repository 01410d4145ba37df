//! The operator: a transformer that maps the tokens of a state to those of the next.

use super::config::OperatorConfig;
use super::layers::{Weights, join_heads, split_heads};
use pawl_graph::graph::{AttentionSpec, Builder, DType, Var};

/// Prefix of the operator's parameters.
pub const PREFIX: &str = "operator.";
/// The constant time step, an input of the model.
const TIME_STEP: f64 = 0.1;

/// Stochastic depth of one training step.
#[derive(Clone, Copy)]
pub struct Dropping<'b> {
    /// Rate of the last block.
    pub rate: f64,
    /// A U32 scalar that differs from micro-step to micro-step and rank to rank.
    pub counter: Var<'b>,
}

/// The state that follows `z` (batch, tokens, width), of the same shape; without `dropping` nothing is random.
///
/// `z + LN(out(LN(blocks(inp(z + tau)))))` with pre-norm blocks of full attention and an MLP; no positions but those
/// that the encoder's channels carry. Between sub-layers the residual stream is rounded to `stream`; the sum is
/// float32.
pub fn predict<'b>(
    b: &'b Builder,
    z: Var<'b>,
    config: &OperatorConfig,
    stream: DType,
    dropping: Option<Dropping<'b>>,
) -> Var<'b> {
    let settle = |x: Var<'b>| x.cast(stream).cast(DType::F32);
    b.scope("operator", || {
        let w = Weights::learning(b);
        let (width, hidden) = (config.width, config.hidden);
        let time = b.fill(TIME_STEP, DType::F32, [1, 1]);
        let tau = w.linear("operator.t1", time, width).silu();
        let tau = w.linear("operator.t3", w.linear("operator.t2", tau, width), width);
        let mut x = settle(w.linear("operator.inp", z + tau, hidden));
        for block in 0..config.depth {
            let rate = dropping.map_or(0.0, |d| d.rate) * block as f64 / (config.depth.max(2) - 1) as f64;
            let dropping = dropping.filter(|_| rate > 0.0).map(|d| Dropping { rate, ..d });
            x = b.scope(&format!("blocks.{block}"), || {
                let name = format!("operator.blocks.{block}");
                let mixed = b.scope("attn", || drop_path(attention(w, &name, x, config), &name, "attn", dropping));
                let x = settle(x + mixed);
                settle(x + b.scope("mlp", || drop_path(mlp(w, &name, x, config), &name, "mlp", dropping)))
            });
        }
        let delta = w.linear("operator.out", w.layer_norm("operator.core_norm", x), width);
        z + w.layer_norm("operator.out_norm", delta)
    })
}

fn attention<'b>(w: Weights<'b>, name: &str, x: Var<'b>, config: &OperatorConfig) -> Var<'b> {
    let normed = w.layer_norm(&format!("{name}.ln1"), x);
    let qkv = w.linear(&format!("{name}.qkv"), normed, 3 * config.hidden);
    let parts = split_heads(qkv, 3, config.heads);
    let (q, k) = (w.rms_norm(&format!("{name}.qn"), parts[0]), w.rms_norm(&format!("{name}.kn"), parts[1]));
    let scale = 1.0 / ((config.hidden / config.heads) as f64).sqrt();
    let mixed = q.attention(k, parts[2], AttentionSpec { scale, causal: false });
    w.linear(&format!("{name}.proj"), join_heads(mixed), config.hidden)
}

fn mlp<'b>(w: Weights<'b>, name: &str, x: Var<'b>, config: &OperatorConfig) -> Var<'b> {
    let normed = w.layer_norm(&format!("{name}.ln2"), x);
    let inner = w.linear(&format!("{name}.fc1"), normed, config.mlp_ratio * config.hidden).gelu();
    w.linear(&format!("{name}.fc2"), inner, config.hidden)
}

/// Drops the branch for a random part of the batch and scales the rest up.
fn drop_path<'b>(branch: Var<'b>, block: &str, name: &str, dropping: Option<Dropping<'b>>) -> Var<'b> {
    let Some(Dropping { rate, counter }) = dropping else { return branch };
    let keep = 1.0 - rate;
    let draw = branch.builder().random(&format!("{block}.{name}.drop"), counter, [branch.dim(0), 1, 1]);
    branch * (draw.less(keep).cast(branch.dtype()) * (1.0 / keep))
}
