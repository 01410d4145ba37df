//! Clean-up: dead code, common subexpressions, constants, and identities. Always on; changes no value.

use std::collections::HashMap;

use super::rewrite::{Visit, rewrite};
use crate::{
    array::Data,
    graph::{BinaryOp, Builder, DType, GraphError, NodeId, Op, Program, Stage, UnaryOp, Var, concat},
};

/// Removes nodes that no output or update depends on, merges equal ones, folds arithmetic on constants, and drops
/// identities (`x * 1`, `x + 0`, a reshape of a reshape, [`Op::StopGradient`], [`Op::GivenGradient`]).
///
/// ```
/// use pawl_graph::{
///     graph::{Builder, DType, Op},
///     passes::simplify,
/// };
/// let b = Builder::new("twice");
/// let x = b.input("x", DType::F32, [4]);
/// b.output("y", x.exp() * 1.0 + x.exp());
/// let program = simplify(&b.finish()?)?;
/// let ops: Vec<&Op> = program.graph.nodes().iter().map(|node| &node.op).collect();
/// assert_eq!(ops.len(), 3, "the input, one exponential and the sum: {program}");
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
///
/// Nodes merge within one [`Stage`] only: a backward pass that computes a cheap value again must not keep the forward
/// one alive. Inputs, states and constants merge everywhere. Values stay bit-equal, but for the sign of zeros.
///
/// # Errors
/// When the program is ill-formed.
pub fn simplify(program: &Program) -> Result<Program, GraphError> {
    // Folding leaves constants behind that nothing needs, and makes equal what was not: again, until nothing is left to
    // do.
    let mut result = sweep(program)?;
    loop {
        let next = sweep(&result)?;
        if next.graph.len() == result.graph.len() {
            return Ok(next);
        }
        result = next;
    }
}

/// One pass over the program.
fn sweep(program: &Program) -> Result<Program, GraphError> {
    let mut seen: HashMap<Key, NodeId> = HashMap::new();
    rewrite(program, |visit| {
        if let Some(simpler) = identity(&visit).or_else(|| fold(&visit)) {
            return simpler;
        }
        let Some(key) = key(&visit) else { return visit.copy() };
        if let Some(&known) = seen.get(&key) {
            return visit.b.var(known);
        }
        let value = visit.copy();
        if let Some(id) = value.id() {
            seen.insert(key, id);
        }
        value
    })
}

type Key = (String, Vec<NodeId>, Option<Stage>);

/// The key under which equal nodes are merged; `None` for nodes that must not be merged.
fn key(visit: &Visit<'_, '_>) -> Option<Key> {
    let op = &visit.node.op;
    if op.is_collective() || op.side_results() > 0 || matches!(op, Op::Side(_) | Op::After) {
        return None;
    }
    let name = match op {
        Op::Constant(array) => format!("{:p}", std::sync::Arc::as_ptr(array)),
        _ => format!("{op:?}"),
    };
    let operands = visit.operands.iter().map(|v| v.id()).collect::<Option<Vec<_>>>()?;
    Some((name, operands, (!op.is_leaf()).then_some(visit.node.stage)))
}

/// The value that a node leaves unchanged.
fn identity<'b>(visit: &Visit<'_, 'b>) -> Option<Var<'b>> {
    let x = *visit.operands.first()?;
    let second = visit.operands.get(1).copied();
    let constant = |v: Option<Var<'b>>| v.and_then(value_of);
    match &visit.node.op {
        Op::StopGradient | Op::GivenGradient => Some(x),
        Op::Reshape(shape) => {
            if x.shape() == *shape {
                return Some(x);
            }
            let inner = operand_of(x, |op| matches!(op, Op::Reshape(_)))?;
            Some(visit.here(|| inner.reshape(shape)))
        }
        Op::Broadcast(shape) if x.shape() == *shape => Some(x),
        Op::Cast(dtype) if x.dtype() == *dtype => Some(x),
        // Widening loses nothing, so narrowing again gives the same bits.
        Op::Cast(dtype) => operand_of(x, |op| matches!(op, Op::Cast(_)))
            .filter(|inner| inner.dtype() == *dtype && widens(*dtype, x.dtype()))
            .or_else(|| narrow_view(visit, x, *dtype)),
        Op::Binary(BinaryOp::Mul | BinaryOp::Div) if constant(second) == Some(1.0) => Some(x),
        Op::Binary(BinaryOp::Mul) if constant(Some(x)) == Some(1.0) => second,
        Op::Binary(BinaryOp::Add | BinaryOp::Sub) if constant(second) == Some(0.0) => Some(x),
        Op::Binary(BinaryOp::Add) if constant(Some(x)) == Some(0.0) => second,
        Op::Concat { axis } => joined(visit, *axis),
        Op::Unary(UnaryOp::Neg) => operand_of(x, |op| matches!(op, Op::Unary(UnaryOp::Neg))),
        _ => None,
    }
}

/// A concatenation some of whose adjacent parts are contiguous elements of one value (weights in an arena, slices of a
/// gradient), with these parts joined to one.
fn joined<'b>(visit: &Visit<'_, 'b>, axis: usize) -> Option<Var<'b>> {
    let b = visit.b;
    let leads = visit.node.meta.shape.dims()[..axis].iter().all(|&extent| extent == 1);
    let mut spans: Vec<ContiguousPart> = Vec::new();
    for &operand in visit.operands {
        let next = ContiguousPart::of(operand)?;
        match spans.last_mut() {
            Some(last) if leads && last.source == next.source && last.first + last.elements == next.first => {
                last.elements += next.elements;
                last.extent += operand.dim(axis);
                last.whole = None;
            }
            _ => spans.push(ContiguousPart { extent: operand.dim(axis), ..next }),
        }
    }
    (spans.len() < visit.operands.len()).then(|| {
        visit.here(|| {
            let part = |span: &ContiguousPart| {
                let shape = visit.node.meta.shape.with(axis, span.extent);
                span.whole.map_or_else(|| span.value(b), |id| b.var(id)).reshape(shape)
            };
            let parts: Vec<Var<'b>> = spans.iter().map(part).collect();
            if let [one] = parts[..] { one } else { concat(&parts, axis) }
        })
    })
}

/// Contiguous elements of a value.
struct ContiguousPart {
    source: NodeId,
    first: usize,
    elements: usize,
    /// Extent along the axis of the concatenation.
    extent: usize,
    /// The node whose value they are.
    whole: Option<NodeId>,
}

impl ContiguousPart {
    /// The elements of `v` in the value that it is a slice of, if they are contiguous there; else all elements of `v`
    /// itself.
    fn of(v: Var<'_>) -> Option<Self> {
        let id = v.id()?;
        v.builder().peek(|program| {
            let node = |id: NodeId| program.graph.node(id);
            let unshaped = |mut id: NodeId| {
                while let Op::Reshape(_) = node(id).op {
                    id = node(id).operands[0];
                }
                id
            };
            let (elements, at) = (node(id).meta.shape.elements(), unshaped(id));
            let (source, first) = match &node(at).op {
                Op::Slice { axis, start, .. } => {
                    let from = &node(node(at).operands[0]).meta.shape;
                    let inner: usize = from.dims()[axis + 1..].iter().product();
                    let leads = from.dims()[..*axis].iter().all(|&extent| extent == 1);
                    if leads { (unshaped(node(at).operands[0]), start * inner) } else { (at, 0) }
                }
                _ => (at, 0),
            };
            Some(Self { source, first, elements, extent: 0, whole: Some(id) })
        })
    }

    fn value<'b>(&self, b: &'b Builder) -> Var<'b> {
        let source = b.var(self.source);
        let all = source.shape().elements();
        let flat = source.reshape([all]);
        if self.elements == all { flat } else { flat.slice(0, self.first, self.elements) }
    }
}

/// For `x`, a view of a widened value: the same view of the value before it was widened, if that has dtype `dtype`.
fn narrow_view<'b>(visit: &Visit<'_, 'b>, x: Var<'b>, dtype: DType) -> Option<Var<'b>> {
    let mut at = x.id()?;
    let (views, narrow) = visit.b.peek(|program| {
        let mut views = Vec::new();
        loop {
            let node = program.graph.node(at);
            match &node.op {
                Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => views.push(node.op.clone()),
                Op::Cast(wide) if !views.is_empty() && widens(dtype, *wide) => {
                    let inner = node.operands[0];
                    return (program.graph.meta(inner).dtype == dtype).then_some((views, inner));
                }
                _ => return None,
            }
            at = node.operands[0];
        }
    })?;
    let narrow = visit.b.var(narrow);
    Some(visit.here(|| views.into_iter().rev().fold(narrow, |value, view| visit.b.push(view, &[value]))))
}

/// Arithmetic on constants: values whose elements are all one number.
fn fold<'b>(visit: &Visit<'_, 'b>) -> Option<Var<'b>> {
    let meta = &visit.node.meta;
    if !meta.dtype.is_float() || visit.operands.is_empty() {
        return None;
    }
    let values: Vec<f64> = visit.operands.iter().map(|&v| value_of(v)).collect::<Option<_>>()?;
    let folded = match (&visit.node.op, values.as_slice()) {
        (Op::Reshape(_) | Op::Broadcast(_) | Op::Permute(_) | Op::Slice { .. }, [x]) => *x,
        (Op::Cast(_), [x]) if visit.operands[0].dtype().is_float() => *x,
        (Op::Unary(UnaryOp::Neg), [x]) => -x,
        (Op::Unary(UnaryOp::Square), [x]) => x * x,
        (Op::Binary(BinaryOp::Add), [a, b]) => a + b,
        (Op::Binary(BinaryOp::Sub), [a, b]) => a - b,
        (Op::Binary(BinaryOp::Mul), [a, b]) => a * b,
        (Op::Binary(BinaryOp::Div), [a, b]) => a / b,
        _ => return None,
    };
    Some(visit.here(|| visit.b.fill(rounded(folded, meta.dtype), meta.dtype, &meta.shape)))
}

/// The number that all elements of `v` are, rounded to its dtype. Sums and products of two such numbers are exact
/// enough in float64 that rounding them once more gives what the dtype's own arithmetic gives.
fn value_of(v: Var<'_>) -> Option<f64> {
    let id = v.id()?;
    v.builder().peek(|program| {
        let mut node = program.graph.node(id);
        while let Op::Broadcast(_) | Op::Reshape(_) = node.op {
            node = program.graph.node(node.operands[0]);
        }
        match node.op {
            Op::Fill { value, dtype, .. } => Some(rounded(value, dtype)),
            _ => None,
        }
    })
}

fn rounded(value: f64, dtype: DType) -> f64 {
    Data::from_f64(dtype, [value]).to_f64()[0]
}

fn widens(from: DType, to: DType) -> bool {
    let wide = matches!(to, DType::F32 | DType::F64);
    wide && (from.is_low_precision() || from.is_float8()) || (from, to) == (DType::F32, DType::F64)
}

/// The operand of the node behind `v`, if that node is of the kind.
fn operand_of<'b>(v: Var<'b>, kind: impl Fn(&Op) -> bool) -> Option<Var<'b>> {
    let id = v.id()?;
    let operand = v.builder().peek(|program| {
        let node = program.graph.node(id);
        kind(&node.op).then(|| node.operands[0])
    });
    operand.map(|o| v.builder().var(o))
}
