//! Attention and its gradient as generated kernels: the family of kernels for a shape, and its launches.
//!
//! | family | for | how |
//! |---|---|---|
//! | [`Family::Tile`] | up to 128 queries and keys, 16-bit floats | a block holds a whole head; backward in one kernel |
//! | [`Family::Flash`] | any length, 16-bit floats | blocks of keys, running maximum; backward in two kernels |
//! | [`Family::Plain`] | everything else: float32, float64, odd widths, unaligned views, GPUs before compute capability 8.0 | no tensor cores |
//!
//! [`Family::Tile`] also normalises queries and keys ([`Op::NormedAttention`]), for the shapes of [`joins_norms`].
//!
//! All three handle causal masks, grouped queries and views with free strides, keep the log-sum-exp as
//! [`Op::Attention`] defines it, and give bit-equal results from run to run. Extents and strides are constants of the
//! generated source: layers of one shape share one.
//!
//! [`Op::Attention`]: pawl_graph::graph::Op::Attention
//! [`Op::NormedAttention`]: pawl_graph::graph::Op::NormedAttention

mod source;

use super::{card::Card, compile::Source};
use pawl_graph::{
    executor::ExecError,
    graph::{DType, Graph, Node, Op},
};
use pawl_lower::{Access, Attention, AttentionGrad, Buffer, Norm};
use source::Head;

/// An argument of a kernel of attention.
#[derive(Debug, Clone, PartialEq)]
pub enum AttentionArgument {
    /// Address of a byte of a buffer.
    Buffer {
        /// The buffer.
        buffer: usize,
        /// Bytes from its start.
        offset: usize,
    },
    /// Address of the scratch memory.
    Workspace,
    /// No address: the kernel does not access it.
    Null,
}

impl AttentionArgument {
    /// The first element of a view.
    pub(super) fn first(view: &Access, buffers: &[Buffer]) -> Self {
        Self::Buffer { buffer: view.buffer, offset: view.offset * buffers[view.buffer].dtype.bytes() }
    }
}

/// A launch of a generated kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionLaunch {
    /// Its source; launches of equal source share the machine code.
    pub source: Source,
    /// Name of the kernel in it.
    pub entry: &'static str,
    /// Number of blocks.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Parameters, in order: all are addresses.
    pub arguments: Vec<AttentionArgument>,
}

/// The launches that make up an operator, in order, and the scratch memory they share.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionPlan {
    /// The launches in order; each reads the results of earlier ones.
    pub launches: Vec<AttentionLaunch>,
    /// Bytes of scratch memory; its content need not be initialised and is not kept.
    pub workspace: usize,
    /// The family chosen.
    pub family: Family,
}

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// One tile.
    Tile,
    /// Blocks of keys.
    Flash,
    /// Without tensor cores.
    Plain,
}

/// Longest sequence of [`Family::Tile`].
const TILE: usize = 128;
/// Keys (or queries) that [`Family::Flash`] processes at a time.
const CHUNK: usize = 64;
/// Side of a tile of [`Family::Plain`].
const PLAIN: usize = 32;
/// Widest head of the tensor-core families.
const WIDEST: usize = 128;

/// Launches of the forward pass.
///
/// # Errors
/// [`ExecError::Unsupported`] when heads are too wide for the GPU's shared memory.
pub fn forward(kernel: &Attention, buffers: &[Buffer], card: Card) -> Result<AttentionPlan, ExecError> {
    let shape = AttentionShape::new(kernel, buffers);
    let mut views = vec![&kernel.q, &kernel.k, &kernel.v, &kernel.o];
    let family = shape.family(&views, shape.forward_bytes(), card);
    shape.must_normalise(family)?;
    views.extend(&kernel.lse);
    let head = Head::new(&shape, kernel);
    let mut arguments: Vec<_> = views.into_iter().map(|view| AttentionArgument::first(view, buffers)).collect();
    arguments.resize(5, AttentionArgument::Null);
    arguments.extend(vectors_of(kernel.norm.as_ref(), buffers));
    let launch = |entry, grid: usize, warps, blocks, shared_bytes, part| {
        head.launch(family, entry, (grid, warps, blocks, shared_bytes), part, arguments.clone())
    };
    let AttentionShape { batch, heads, queries, width, .. } = shape;
    let launch = match family {
        Family::Tile => {
            let warps = queries.div_ceil(16);
            launch(
                "attention_tile_forward",
                batch * heads,
                warps,
                if width <= 64 { 2 } else { 1 },
                shape.tile_forward(),
                0,
            )
        }
        Family::Flash => {
            let warps = shape.flash_warps(queries, 8);
            let grid = queries.div_ceil(16 * warps) * batch * heads;
            let blocks = if width <= 64 { 2 } else { 1 };
            launch("attention_flash_forward", grid, warps, blocks, shape.flash(warps, 1), 0)
        }
        Family::Plain => {
            let bytes = shape.plain(3, 1);
            shape.must_fit(bytes, card.shared)?;
            launch("attention_plain_forward", queries.div_ceil(PLAIN) * batch * heads, 8, 1, bytes, 0)
        }
    };
    Ok(AttentionPlan { launches: vec![launch], workspace: 0, family })
}

/// Launches of the gradient; see [`forward`].
///
/// # Errors
/// As [`forward`].
pub fn backward(kernel: &AttentionGrad, buffers: &[Buffer], card: Card) -> Result<AttentionPlan, ExecError> {
    let fwd = &kernel.forward;
    let shape = AttentionShape::new(fwd, buffers);
    let views = [&fwd.q, &fwd.k, &fwd.v, &fwd.o, &kernel.grad, &kernel.dq, &kernel.dk, &kernel.dv];
    let family = shape.family(&views, shape.backward_bytes(), card);
    shape.must_normalise(family)?;
    let head = Head::new(&shape, fwd).with_gradients(kernel);
    let [q, k, v, o, grad, dq, dk, dv] = views.map(|view| AttentionArgument::first(view, buffers));
    let lse = fwd.lse.as_ref().map_or(AttentionArgument::Null, |view| AttentionArgument::first(view, buffers));
    let AttentionShape { batch, heads, groups, queries, keys, width, .. } = shape;
    let launches = match family {
        Family::Tile => {
            let warps = queries.max(keys).div_ceil(16);
            let numbers = (batch * groups, warps, if width <= 64 { 2 } else { 1 }, shape.tile_backward());
            let mut arguments = vec![q, k, v, o, lse, grad, dq, dk, dv];
            arguments.extend(vectors_of(fwd.norm.as_ref(), buffers));
            arguments.extend(kernel.sums.iter().flatten().map(|sums| AttentionArgument::first(sums, buffers)));
            vec![head.launch(family, "attention_tile_backward", numbers, 1, arguments)]
        }
        Family::Flash => {
            let (most, blocks) = if width <= 64 { (8, 2) } else { (4, 1) };
            let warps = shape.flash_warps(queries, most);
            let grid = queries.div_ceil(16 * warps) * batch * heads;
            let arguments = [&q, &k, &v, &o, &lse, &grad, &dq, &AttentionArgument::Workspace]
                .into_iter()
                .cloned()
                .collect::<Vec<_>>();
            let numbers = (grid, warps, blocks, shape.flash(warps, 2) + 4 * 16 * warps);
            let first = head.launch(family, "attention_flash_queries", numbers, 1, arguments);
            let warps = shape.flash_warps(keys, most);
            let grid = keys.div_ceil(16 * warps) * batch * groups;
            let numbers = (grid, warps, blocks, shape.flash(warps, 2) + 4 * 4 * CHUNK);
            let arguments = vec![q, k, v, lse, grad, AttentionArgument::Workspace, dk, dv];
            vec![first, head.launch(family, "attention_flash_keys", numbers, 2, arguments)]
        }
        Family::Plain => {
            let (first, second) = (shape.plain(4, 1), shape.plain(4, 2) + 2 * PLAIN * shape.real());
            shape.must_fit(second, card.shared)?;
            let grid = queries.div_ceil(PLAIN) * batch * heads;
            let arguments = [&q, &k, &v, &o, &lse, &grad, &dq].into_iter().cloned().collect();
            let first = head.launch(family, "attention_plain_queries", (grid, 8, 1, first), 1, arguments);
            let grid = keys.div_ceil(PLAIN) * batch * groups;
            let arguments = vec![q, k, v, o, lse, grad, dk, dv];
            vec![first, head.launch(family, "attention_plain_keys", (grid, 8, 1, second), 2, arguments)]
        }
    };
    let workspace = if family == Family::Flash { batch * heads * queries * 4 } else { 0 };
    Ok(AttentionPlan { launches, workspace, family })
}

/// Whether the kernels of a card support this [`Op::NormedAttention`], or its gradient.
pub fn joins_norms(graph: &Graph, node: &Node, card: Card) -> bool {
    let (Op::NormedAttention(spec) | Op::NormedAttentionGrad(spec)) = &node.op else { return false };
    let [q, k] = [0, 1].map(|i| graph.meta(node.operands[i]));
    let shape = AttentionShape {
        dtype: q.dtype,
        batch: q.shape[0],
        heads: q.shape[1],
        groups: k.shape[1],
        queries: q.shape[2],
        keys: k.shape[2],
        width: q.shape[3],
        scale: spec.attention.scale,
        normed: true,
    };
    shape.heads == shape.groups && shape.family(&[], shape.backward_bytes(), card) == Family::Tile
}

/// The biases and the gain of the normalisation, as arguments.
fn vectors_of(norm: Option<&Norm>, buffers: &[Buffer]) -> Vec<AttentionArgument> {
    let views = norm.into_iter().flat_map(|norm| norm.biases.iter().chain([&norm.gain]));
    views.map(|view| AttentionArgument::first(view, buffers)).collect()
}

/// Extents of one attention.
#[derive(Debug, Clone, Copy)]
struct AttentionShape {
    dtype: DType,
    batch: usize,
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    width: usize,
    scale: f64,
    /// Whether queries and keys are normalised.
    normed: bool,
}

impl AttentionShape {
    fn new(kernel: &Attention, buffers: &[Buffer]) -> Self {
        let (q, k) = (&kernel.q.dims, &kernel.k.dims);
        Self {
            dtype: buffers[kernel.q.buffer].dtype,
            batch: q[0],
            heads: q[1],
            groups: k[1],
            queries: q[2],
            keys: k[2],
            width: q[3],
            scale: kernel.spec.scale,
            normed: kernel.norm.is_some(),
        }
    }

    /// The fastest family that takes this shape with these views, given the shared memory that tile and flash need.
    fn family(&self, views: &[&Access], bytes: [usize; 2], card: Card) -> Family {
        let cores = card.is_ampere()
            && matches!(self.dtype, DType::BF16 | DType::F16)
            && self.width.is_multiple_of(16)
            && (16..=WIDEST).contains(&self.width)
            // The largest product is the largest score.
            && self.scale > 0.0
            && views.iter().all(|view| vectors(view));
        match bytes.map(|bytes| cores && bytes <= card.shared) {
            [true, _] if self.queries.max(self.keys) <= TILE => Family::Tile,
            [_, true] => Family::Flash,
            _ => Family::Plain,
        }
    }

    /// Shared memory of the forward pass as tile and as flash.
    fn forward_bytes(&self) -> [usize; 2] {
        [self.tile_forward(), self.flash(self.flash_warps(self.queries, 8), 1)]
    }

    /// Shared memory of the backward pass as tile and as flash.
    fn backward_bytes(&self) -> [usize; 2] {
        let warps = self.flash_warps(self.queries.max(self.keys), if self.width <= 64 { 8 } else { 4 });
        [self.tile_backward(), self.flash(warps, 2) + 4 * 4 * CHUNK.max(16 * warps)]
    }

    /// Bytes of a padded row of a head.
    fn row(&self) -> usize {
        2 * (self.width + 8)
    }

    fn tile_forward(&self) -> usize {
        let vectors = if self.normed { 4 * 4 * self.width } else { 0 };
        (pad(self.queries) + 2 * pad(self.keys)) * self.row() + vectors
    }

    fn tile_backward(&self) -> usize {
        let (queries, keys) = (pad(self.queries), pad(self.keys));
        // What rows were multiplied by, the vectors, and the keys without the gain.
        let normed = 4 * (queries + keys) + 4 * 4 * self.width + keys * self.row();
        let plain = 2 * (queries + keys) * self.row() + 2 * keys * (queries + 8) + 2 * 4 * queries;
        if self.normed { plain + normed } else { plain }
    }

    /// Warps of 16 rows each: `most`, or as many as there are rows.
    fn flash_warps(&self, rows: usize, most: usize) -> usize {
        rows.div_ceil(16).clamp(1, most)
    }

    /// `own` tiles of the block's own rows, and two stages of two chunks.
    fn flash(&self, warps: usize, own: usize) -> usize {
        (own * 16 * warps + 4 * CHUNK) * self.row()
    }

    /// Bytes of a number in shared memory.
    fn real(&self) -> usize {
        self.dtype.accumulator().bytes()
    }

    fn plain(&self, tiles: usize, scores: usize) -> usize {
        (tiles * PLAIN * (self.width + 1) + scores * PLAIN * (PLAIN + 1)) * self.real()
    }

    fn must_normalise(&self, family: Family) -> Result<(), ExecError> {
        if !self.normed || family == Family::Tile && self.heads == self.groups {
            return Ok(());
        }
        let what = format!(
            "attention over normalised heads of {} {} elements that do not start at multiples of 16 bytes; use settings.attention: Math",
            self.width, self.dtype
        );
        Err(ExecError::Unsupported { executor: "graph-cuda", what })
    }

    fn must_fit(&self, bytes: usize, shared: usize) -> Result<(), ExecError> {
        if bytes <= shared {
            return Ok(());
        }
        let what = format!(
            "attention with heads of {} {} elements: its kernel needs {bytes} bytes of shared memory of {shared}; use settings.attention: Math",
            self.width, self.dtype
        );
        Err(ExecError::Unsupported { executor: "graph-cuda", what })
    }
}

fn pad(rows: usize) -> usize {
    rows.next_multiple_of(16)
}

/// Whether every row of a view can be read 16 bytes at a time, for a 16-bit type.
fn vectors(view: &Access) -> bool {
    let aligned = |axis: usize| view.dims[axis] == 1 || view.strides[axis].is_multiple_of(8);
    view.strides[3] == 1 && view.offset.is_multiple_of(8) && (0..3).all(aligned)
}

#[cfg(test)]
mod tests;
