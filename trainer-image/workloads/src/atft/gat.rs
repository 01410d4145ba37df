//! Graph attention: each stock reads the states of the stocks that it is joined to on its date.

use super::config::ModelConfig;
use super::layers::{EPSILON, Net, xavier};
use super::neighbours::ATTRIBUTES;
use pawl_graph::graph::{DType, Init, Var};

/// Heads of the first layer, and of the others.
const FIRST_HEADS: usize = 8;
const HEADS: usize = 4;
/// Slope of negative scores.
const SLOPE: f64 = 0.2;
/// Score of an edge that does not count.
const DROPPED: f64 = -1e30;
/// Added to attention within a logarithm.
const LEAST: f64 = 1e-8;

/// The edges of the graphs of all dates of a batch; those behind the last offset are padding.
#[derive(Clone, Copy)]
pub struct Edges<'b> {
    /// Node in which each edge begins: (edges), U32.
    pub sources: Var<'b>,
    /// Node in which it ends, ascending: (edges), U32.
    pub targets: Var<'b>,
    /// The same edge in the other direction: (edges), U32. Edges in this order are sorted by the node in which they
    /// begin.
    pub reversed: Var<'b>,
    /// First edge of each node, and the number of edges: (nodes + 1), U32. As many edges begin in a node as end in it.
    pub offsets: Var<'b>,
    /// (edges, attributes)
    pub attributes: Var<'b>,
}

/// What graph attention makes of nodes.
pub struct Attended<'b> {
    /// (nodes, hidden)
    pub nodes: Var<'b>,
    /// Per node, entropy of the attention, mean over heads and layers: (nodes).
    pub entropy: Var<'b>,
    /// Per node, sum over its edges of the squared attention of the last layer, mean over heads: (nodes).
    pub squares: Var<'b>,
}

impl<'b> Edges<'b> {
    fn count(&self) -> usize {
        self.sources.dim(0)
    }

    /// Number of edges of each node: (nodes), float32.
    pub fn degrees(&self) -> Var<'b> {
        let nodes = self.offsets.dim(0) - 1;
        (self.offsets.slice(0, 1, nodes) - self.offsets.slice(0, 0, nodes)).cast(DType::F32)
    }

    /// Sums over the edges (edges, ..) that end in each node: (nodes, ..).
    fn sums(&self, values: Var<'b>) -> Var<'b> {
        values.segment_sum(self.offsets)
    }

    /// The value (nodes, ..) of the node in which each edge begins: (edges, ..).
    fn sent(&self, values: Var<'b>) -> Var<'b> {
        values.gather_by(self.sources, self.reversed, self.offsets)
    }
}

/// One layer of attention.
struct Layer {
    name: String,
    heads: usize,
    /// Channels of a head.
    channels: usize,
    /// Heads are joined; otherwise their mean is taken.
    joined: bool,
    /// The scores depend on the attributes of edges.
    attributed: bool,
}

/// The nodes `x` (nodes, hidden) of dates of `stocks` nodes each, after all layers.
pub fn attend<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>, edges: Edges<'b>, stocks: usize) -> Attended<'b> {
    let (layers, hidden) = (config.gat_layers, config.hidden);
    let (mut x, mut entropies, mut squares) = (x, Vec::new(), None);
    for number in 0..layers {
        let heads = if number == 0 { FIRST_HEADS } else { HEADS };
        let joined = number + 1 < layers;
        let channels = if joined { hidden / heads } else { hidden };
        let layer = Layer { name: format!("gat.layers.{number}"), heads, channels, joined, attributed: number == 0 };
        x = net.b.scope(&format!("layers.{number}"), || {
            let (read, attention) = layer.read(net, config, x, edges);
            let logarithm = (attention + LEAST).log();
            entropies.push(-(edges.sums(attention * logarithm).mean([1])));
            squares = Some(edges.sums(attention.square()).mean([1]));
            normalized(net, number, read + x, stocks).relu()
        });
    }
    let count = x.dim(0);
    let zero = net.b.fill(0.0, DType::F32, [count]);
    let entropy = entropies.into_iter().reduce(|sum, entropy| sum + entropy);
    Attended {
        nodes: x,
        entropy: entropy.map_or(zero, |sum| sum.reshape([count]) * (1.0 / layers as f64)),
        squares: squares.map_or(zero, |squares| squares.reshape([count])),
    }
}

impl Layer {
    /// What each node reads (nodes, hidden), and the attention (edges, heads).
    fn read<'b>(&self, net: Net<'b>, config: &ModelConfig, x: Var<'b>, edges: Edges<'b>) -> (Var<'b>, Var<'b>) {
        let (heads, channels, nodes) = (self.heads, self.channels, x.dim(0));
        let wide = heads * channels;
        let parameter = |part: &str, shape: [usize; 2]| net.b.parameter(&self.of(part), shape, xavier(shape));
        let dropped = net.drop(&self.of("drop"), x, config.gat_dropout);
        let states = dropped.matmul_t(parameter("lin.weight", [wide, x.dim(1)])).reshape([nodes, heads, channels]);
        let score = |name: &str| (states * parameter(name, [heads, channels])).sum([2]).reshape([nodes, heads]);
        let mut scores = edges.sent(score("a_src")) + score("a_dst").segment_repeat(edges.offsets, edges.count());
        if self.attributed {
            // The product of the attributes with a vector per head.
            let of_edge = parameter("lin_edge.weight", [wide, ATTRIBUTES]).reshape([heads, channels, ATTRIBUTES]);
            let vectors = (of_edge * parameter("a_edge", [heads, channels]).reshape([heads, channels, 1])).sum([1]);
            scores = scores + edges.attributes.matmul_t(vectors.reshape([heads, ATTRIBUTES]));
        }
        let scores = scores.leaky_relu(SLOPE);
        let attention =
            net.b.scope("softmax", || self.without_some(net, config, scores, edges).segment_softmax(edges.offsets));
        let count = edges.count();
        let sent = edges.sent(states) * attention.reshape([count, heads, 1]);
        let received = edges.sums(sent);
        let combined =
            if self.joined { received.reshape([nodes, wide]) } else { received.mean([1]).reshape([nodes, channels]) };
        let width = combined.dim(1);
        let out = combined + net.b.parameter(&self.of("bias"), [width], Init::Fill(0.0));
        (if self.joined { out } else { net.linear(&self.of("out"), out, channels) }, attention)
    }

    fn of(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// Scores without those of the edges that are dropped; loops never are.
    fn without_some<'b>(&self, net: Net<'b>, config: &ModelConfig, scores: Var<'b>, edges: Edges<'b>) -> Var<'b> {
        let Some(counter) = net.counter.filter(|_| config.edge_dropout > 0.0) else { return scores };
        let draws = net.b.random(&self.of("edge_drop"), counter, [edges.count()]);
        let loops = edges.sources.equal(edges.targets);
        let kept = loops.select(net.b.fill(1.0, DType::F32, [edges.count()]), draws);
        kept.less(config.edge_dropout).reshape([edges.count(), 1]).select(net.b.scalar(DROPPED, DType::F32), scores)
    }
}

/// Normalization over the stocks of a date, per channel.
fn normalized<'b>(net: Net<'b>, number: usize, x: Var<'b>, stocks: usize) -> Var<'b> {
    let (nodes, hidden) = (x.dim(0), x.dim(1));
    let dates = x.reshape([nodes / stocks, stocks, hidden]);
    let centred = dates - dates.mean([1]);
    let scaled = (centred * (centred.square().mean([1]) + EPSILON).rsqrt()).reshape([nodes, hidden]);
    let gain = net.b.parameter(&format!("gat.gamma.{number}"), [hidden], Init::Fill(1.0));
    scaled * gain + net.b.parameter(&format!("gat.beta.{number}"), [hidden], Init::Fill(0.0))
}
