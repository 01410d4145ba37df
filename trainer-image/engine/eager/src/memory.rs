//! Lifetimes of values, and the memory that they need.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use pawl_graph::graph::{AttentionSpec, Graph, Meta, Node, Op, Program};

/// Counts the bytes of live buffers.
#[derive(Debug, Clone, Default)]
pub(super) struct Meter {
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// A buffer with its size in bytes; counted until its last clone is dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: usize,
    meter: Meter,
}

impl Meter {
    /// A new buffer.
    pub(super) fn buffer(&self, bytes: usize) -> Arc<Buffer> {
        let now = self.counters.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.counters.peak.fetch_max(now, Ordering::Relaxed);
        Arc::new(Buffer { bytes, meter: self.clone() })
    }

    /// The highest number of bytes at any time.
    pub(super) fn peak(&self) -> usize {
        self.counters.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.meter.counters.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// For each node, the values that are not used after it. Outputs and updates live until the end.
pub(super) fn dying(program: &Program, needed: &[bool]) -> Vec<Vec<usize>> {
    let graph = &program.graph;
    let mut last: Vec<usize> = (0..graph.len()).collect();
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        for operand in &node.operands {
            last[operand.index()] = id.index();
        }
    }
    for root in program.roots() {
        last[root.index()] = usize::MAX;
    }
    let mut dying = vec![Vec::new(); graph.len()];
    for (value, &at) in last.iter().enumerate().filter(|&(value, &at)| needed[value] && at != usize::MAX) {
        dying[at].push(value);
    }
    dying
}

/// Bytes of temporaries of an operator, beside its operands and results.
pub(super) fn scratch(graph: &Graph, node: &Node) -> usize {
    let metas: Vec<&Meta> = node.operands.iter().map(|&o| graph.meta(o)).collect();
    match (&node.op, metas.as_slice()) {
        // Scores and probabilities, in the accumulator type, and the gradients of both.
        (Op::Attention(AttentionSpec { .. }), [q, k, ..]) => 2 * scores(q, k),
        (Op::AttentionGrad(AttentionSpec { .. }), [q, k, ..]) => 3 * scores(q, k),
        (Op::MatMul { .. }, [a, b]) if a.dtype.is_low_precision() => {
            (a.shape.elements() + b.shape.elements() + node.meta.shape.elements()) * a.dtype.accumulator().bytes()
        }
        // All in the accumulator type, and the product before it is multiplied and added to.
        (Op::MatMulAdd { .. }, [a, b, c]) => {
            (a.shape.elements() + b.shape.elements() + 3 * c.shape.elements()) * a.dtype.accumulator().bytes()
        }
        (Op::ScaledMatMul { .. }, [a, b, scale, _]) => {
            (a.shape.elements() + b.shape.elements() + 2 * node.meta.shape.elements()) * scale.dtype.bytes()
        }
        _ => 0,
    }
}

fn scores(q: &Meta, k: &Meta) -> usize {
    q.shape[..3].iter().product::<usize>() * k.shape[2] * q.dtype.accumulator().bytes()
}

/// Predicted peak bytes of values of one run, states not counted.
pub(super) fn predict(program: &Program) -> usize {
    let needed = program.needed();
    let dying = dying(program, &needed);
    let graph = &program.graph;
    // A view shares the buffer of its operand; the buffer is freed with the last of them.
    let mut buffer: Vec<usize> = (0..graph.len()).collect();
    let mut users = vec![0usize; graph.len()];
    let (mut now, mut peak) = (0usize, 0usize);
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        let i = id.index();
        if let (true, [of, ..]) = (is_view(node), node.operands.as_slice()) {
            buffer[i] = buffer[of.index()];
        }
        users[buffer[i]] += 1;
        if buffer[i] == i {
            now += owned_bytes(graph, i);
        }
        peak = peak.max(now + scratch(graph, node));
        for &dead in &dying[i] {
            let b = buffer[dead];
            users[b] -= 1;
            if users[b] == 0 {
                now -= owned_bytes(graph, b);
            }
        }
    }
    peak
}

fn owned_bytes(graph: &Graph, node: usize) -> usize {
    let node = &graph.nodes()[node];
    match &node.op {
        Op::State(_) => 0,
        Op::Fill { dtype, .. } => dtype.bytes(),
        _ => node.meta.bytes(),
    }
}

/// Whether the value is a view of its first operand.
pub(super) fn is_view(node: &Node) -> bool {
    node.op.is_alias() || matches!(node.op, Op::Broadcast(_) | Op::Slice { .. })
}
