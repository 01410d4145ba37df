//! The setting `precision`: which numbers are 16 bits wide.

use super::{GRADIENT, rewrite::rewrite, scopes::Pattern};
use crate::graph::{AttentionSpec, BinaryOp, DType, GraphError, Node, NodeId, Op, Program, UnaryOp, Var};

/// Makes matmuls (with the bias that is added to them) and attention of a float32 forward program read and write
/// `dtype` (bf16 or f16). Everything else is unchanged: parameters stay float32 masters, and norms, softmax, residual
/// sums and losses are computed in float32. Scopes that match one of `keep` (see [`Pattern`]) stay float32 entirely. To
/// be run before differentiation: the gradient of a cast casts back.
///
/// # Errors
/// When the program is ill-formed.
pub fn lower_precision(program: &Program, dtype: DType, keep: &[Pattern]) -> Result<Program, GraphError> {
    rewrite(program, |visit| {
        if visit.node.meta.dtype != DType::F32 || keep.iter().any(|p| p.region(visit.scope).is_some()) {
            return visit.copy();
        }
        let narrow = |x: &Var<'_>| x.dtype() == DType::F32;
        let operands_fit = visit.operands.iter().all(narrow);
        match &visit.node.op {
            Op::MatMul { transpose_a, transpose_b, .. } if operands_fit => visit.here(|| {
                let op = Op::MatMul { transpose_a: *transpose_a, transpose_b: *transpose_b, output: dtype };
                let [a, b] = [0, 1].map(|i| visit.operands[i]);
                let left = a.cast(dtype);
                // The product of a value with itself stays one, which its gradient makes use of.
                let right = if a.id() == b.id() { left } else { b.cast(dtype) };
                visit.b.push(op, &[left, right]).cast(DType::F32)
            }),
            Op::Attention(AttentionSpec { scale, causal }) if operands_fit => visit.here(|| {
                let spec = AttentionSpec { scale: *scale, causal: *causal };
                let [q, k, v] = [0, 1, 2].map(|i| visit.operands[i].cast(dtype));
                q.attention(k, v, spec).cast(DType::F32)
            }),
            Op::NormedAttention(spec) if operands_fit => visit.here(|| {
                let [q, k, v] = [0, 1, 2].map(|i| visit.operands[i].cast(dtype));
                let vectors = [3, 4, 5, 6].map(|i| visit.operands[i]);
                q.normed_attention(k, v, vectors, *spec).cast(DType::F32)
            }),
            // Rounded once more, so that its gradient, which all who read it write parts of, is 16 bits wide too.
            Op::Binary(BinaryOp::Add) if is_biased_product(program, visit.node) => {
                visit.here(|| visit.copy().cast(dtype).cast(DType::F32))
            }
            // A view of a widened value is the widened view: gradients of parts then come together as 16 bits.
            Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => match narrower(visit.operands[0], dtype) {
                Some(inner) => visit.here(|| visit.b.push(visit.node.op.clone(), &[inner]).cast(DType::F32)),
                None => visit.copy(),
            },
            Op::Side(_) => visit.operands[0],
            _ => visit.copy(),
        }
    })
}

/// What `x` was widened from, if that has the dtype.
fn narrower<'b>(x: Var<'b>, dtype: DType) -> Option<Var<'b>> {
    let id = x.id()?;
    let inner = x.builder().peek(|program| {
        let node = program.graph.node(id);
        let widened = node.op == Op::Cast(DType::F32) && program.graph.meta(node.operands[0]).dtype == dtype;
        widened.then(|| node.operands[0])
    });
    inner.map(|inner| x.builder().var(inner))
}

/// Whether a sum is a product's with one vector for all its rows.
fn is_biased_product(program: &Program, node: &Node) -> bool {
    let graph = &program.graph;
    let product = |mut at: NodeId| {
        while let Op::Reshape(_) = graph.node(at).op {
            at = graph.node(at).operands[0];
        }
        matches!(graph.node(at).op, Op::MatMul { .. })
    };
    let vector = |at: NodeId| {
        let of = graph.node(at);
        matches!(of.op, Op::Broadcast(_))
            && Some(&graph.meta(of.operands[0]).shape.elements()) == node.meta.shape.last()
    };
    let [a, b] = [node.operands[0], node.operands[1]];
    product(a) && vector(b) || product(b) && vector(a)
}

/// Makes 16-bit products that only gradients of parameters are computed from, and that are read as float32, write
/// float32, the dtype in which matmuls accumulate: weight gradients are not rounded, and a cast is saved. Other
/// products stay 16-bit: they are kept for the backward pass, whose time depends on their bytes. To be run after
/// differentiation.
///
/// # Errors
/// When the program is ill-formed.
pub fn widen_products(program: &Program) -> Result<Program, GraphError> {
    let mut readers = vec![0usize; program.graph.len()];
    let mut widened = vec![false; program.graph.len()];
    for (_, node) in program.graph.iter() {
        for operand in &node.operands {
            readers[operand.index()] += 1;
            widened[operand.index()] = node.op == Op::Cast(DType::F32);
        }
    }
    for root in program.roots() {
        readers[root.index()] += 1;
    }
    let of_gradients = of_gradients(program);
    for (wide, gradient) in widened.iter_mut().zip(of_gradients) {
        *wide &= gradient;
    }
    rewrite(program, |visit| match &visit.node.op {
        Op::MatMul { transpose_a, transpose_b, output }
            if output.is_low_precision() && readers[visit.id.index()] == 1 && widened[visit.id.index()] =>
        {
            let op = Op::MatMul { transpose_a: *transpose_a, transpose_b: *transpose_b, output: DType::F32 };
            visit.here(|| visit.b.push(op, visit.operands))
        }
        Op::Cast(DType::F32) if visit.operands[0].dtype() == DType::F32 => visit.operands[0],
        _ => visit.copy(),
    })
}

/// For each node, whether its value goes into outputs `gradient/..` and nothing else, by sums, scaling and
/// rearrangement.
fn of_gradients(program: &Program) -> Vec<bool> {
    let graph = &program.graph;
    let mut only = vec![true; graph.len()];
    let mut used = vec![false; graph.len()];
    for output in &program.outputs {
        used[output.node.index()] = true;
        only[output.node.index()] &= output.name.starts_with(GRADIENT);
    }
    for update in &program.updates {
        only[update.value.index()] = false;
    }
    for (id, node) in graph.iter().rev() {
        let arranges = matches!(
            node.op,
            Op::Cast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Concat { .. } | Op::Pad { .. }
        );
        let scales =
            matches!(node.op, Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) | Op::Unary(UnaryOp::Neg));
        let passes_on = used[id.index()] && only[id.index()] && (arranges || scales);
        for operand in &node.operands {
            only[operand.index()] &= passes_on;
            used[operand.index()] = true;
        }
    }
    only.iter().zip(used).map(|(&only, used)| only && used).collect()
}

/// The program with all floats, inputs and states included, in float64: the oracle, without rounding to 16 bits. 8-bit
/// floats stay. Collectives cannot be widened.
///
/// # Errors
/// When the program is ill-formed, or has a collective.
pub fn widen_all(program: &Program) -> Result<Program, GraphError> {
    let wide = |dtype: DType| if dtype.is_float() { DType::F64 } else { dtype };
    let mut source = program.clone();
    for input in &mut source.inputs {
        input.meta.dtype = wide(input.meta.dtype);
    }
    for state in &mut source.states {
        state.meta.dtype = wide(state.meta.dtype);
    }
    rewrite(&source, |visit| {
        let mut node = visit.node.clone();
        node.meta.dtype = wide(node.meta.dtype);
        match &mut node.op {
            Op::Fill { dtype, .. }
            | Op::Cast(dtype)
            | Op::MatMul { output: dtype, .. }
            | Op::ScaledMatMul { output: dtype, .. } => *dtype = wide(*dtype),
            _ => {}
        }
        match &node.op {
            Op::Random { .. } | Op::Constant(_) if visit.node.meta.dtype.is_float() => visit.copy().cast(DType::F64),
            Op::Cast(dtype) if visit.operands[0].dtype() == *dtype => visit.operands[0],
            _ => visit.b.copy(&node, visit.scope, visit.operands),
        }
    })
}
