//! The setting `precision: fp8`: products with weights over 8-bit floats.

use std::collections::HashMap;

use super::{rewrite::Visit, rewrite::rewrite, scopes::Pattern};
use crate::{
    array::{Array, Data},
    graph::{BinaryOp, DType, GraphError, NodeId, Op, Program, Role, Stage, Var, float8::Scaled},
};

/// Formats and scales of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float8 {
    /// What shares a scale.
    pub scaling: Scaling,
    /// Format of gradients: E4M3 or E5M2. Activations and weights are E4M3.
    pub gradients: DType,
}

impl Default for Float8 {
    /// A scale for each row, gradients in E4M3.
    fn default() -> Self {
        Self { scaling: Scaling::Row, gradients: DType::E4M3 }
    }
}

/// What shares a scale. Scales are always those of the current values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scaling {
    /// A row of an activation or a gradient, and what a weight has for one output.
    #[default]
    Row,
    /// A whole operand.
    Tensor,
}

/// Extents of products on tensor cores are multiples of this.
const TILE: usize = 16;

/// Replaces products of a 16-bit matrix with a weight by [`Op::ScaledMatMul`], in scopes that one of `scopes` names entirely (scopes within are left
/// unchanged): outputs of linear layers, and gradients of their inputs. Gradients of weights stay 16-bit products: their operands would have to be
/// quantized along the other axis. Products whose extents are not all divisible by 16 are left unchanged.
///
/// A weight has one set of codes, with a scale for each output. A gradient, whose product runs over the outputs, is multiplied by these scales before it
/// is quantized, so that forward and backward pass use the same rounded weight; a weight that is stored as codes ([`Init::Float8`]) is used as it is.
///
/// To be run after differentiation: the gradient is that of the product without rounding.
///
/// [`Init::Float8`]: crate::graph::Init::Float8
///
/// # Errors
/// When the program is ill-formed.
pub fn scale_products(program: &Program, scopes: &[Pattern], format: Float8) -> Result<Program, GraphError> {
    let weights = weights(program);
    let mut made = Made::default();
    rewrite(program, |visit| {
        let Some(product) = Product::of(program, &visit, &weights) else { return visit.copy() };
        match scopes.iter().any(|scope| scope.region(visit.scope) == Some(visit.scope)) {
            true => visit.here(|| product.scaled(&visit, format, &mut made)),
            false => visit.copy(),
        }
    })
}

/// For each node, whether it is computed from weights alone.
fn weights(program: &Program) -> Vec<bool> {
    let mut weights: Vec<bool> = Vec::with_capacity(program.graph.len());
    for (_, node) in program.graph.iter() {
        let is_weight = match &node.op {
            Op::State(state) => matches!(program.state_decl(*state).role, Role::Parameter | Role::Frozen),
            Op::Cast(_)
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape(_)
            | Op::Broadcast(_)
            | Op::Binary(BinaryOp::Mul) => node.operands.iter().all(|o| weights[o.index()]),
            _ => false,
        };
        weights.push(is_weight);
    }
    weights
}

/// A product with a weight.
struct Product {
    /// Index of the weight among the operands.
    weight: usize,
    /// The axis of each operand that is summed over.
    over: [usize; 2],
    output: DType,
}

/// What several products share.
#[derive(Default)]
struct Made {
    /// Codes and scales of weights, by the weight's node in the source program.
    weights: HashMap<NodeId, [NodeId; 2]>,
    /// Vectors of ones, by length.
    ones: HashMap<usize, NodeId>,
}

impl Product {
    fn of(program: &Program, visit: &Visit<'_, '_>, weights: &[bool]) -> Option<Self> {
        let Op::MatMul { transpose_a, transpose_b, output } = visit.node.op else { return None };
        let weight = match visit.node.operands.iter().map(|o| weights[o.index()]).collect::<Vec<_>>()[..] {
            [false, true] => 1,
            [true, false] => 0,
            _ => return None,
        };
        let shapes = [0, 1].map(|i| &program.graph.meta(visit.node.operands[i]).shape);
        let fits = shapes.iter().all(|shape| shape.rank() == 2 && shape.iter().all(|extent| extent % TILE == 0));
        let narrow = visit.operands.iter().all(|x| x.dtype() == DType::BF16);
        let over = [usize::from(!transpose_a), usize::from(transpose_b)];
        (fits && narrow).then_some(Self { weight, over, output })
    }

    fn scaled<'b>(&self, visit: &Visit<'_, 'b>, format: Float8, made: &mut Made) -> Var<'b> {
        let (b, other) = (visit.b, 1 - self.weight);
        let weight = visit.operands[self.weight];
        let stored = stored_codes(weight);
        let by_row = format.scaling == Scaling::Row || stored.is_some();
        let codes = stored.unwrap_or_else(|| {
            let source = visit.node.operands[self.weight];
            let axes: &[usize] = if by_row { &[1] } else { &[0, 1] };
            made.codes(source, || Scaled::new(widest(weight), axes, DType::E4M3), b)
        });
        let outputs = weight.dim(0);
        let along = |axis: usize, vector: Var<'b>| {
            let extent = vector.shape().elements();
            vector.reshape(if axis == 0 { [extent, 1] } else { [1, extent] })
        };
        let x = visit.operands[other].cast(DType::F32);
        // The scales of a weight whose outputs are summed over go into the other operand.
        let folds = by_row && self.over[self.weight] == 0;
        let x = if folds { x * along(self.over[other], codes.scale.reshape([outputs])) } else { x };
        let dtype = if visit.node.stage == Stage::Backward { format.gradients } else { DType::E4M3 };
        let axes: &[usize] = if by_row { &[self.over[other]] } else { &[0, 1] };
        let x = Scaled::new(x, axes, dtype);
        let weight_scale = if folds { made.ones(b, weight.dim(1)) } else { codes.scale };
        // The first operand's scales go along rows of the result, the second's along columns.
        let mut operands = [(x.codes, along(other, x.scale)), (codes.codes, along(self.weight, weight_scale))];
        if self.weight == 0 {
            operands.reverse();
        }
        let [(left, left_scale), (right, right_scale)] = operands;
        let op =
            Op::ScaledMatMul { transpose_a: self.over[0] == 0, transpose_b: self.over[1] == 1, output: self.output };
        b.push(op, &[left, right, left_scale, right_scale])
    }
}

impl Made {
    fn codes<'b>(
        &mut self,
        weight: NodeId,
        make: impl FnOnce() -> Scaled<'b>,
        b: &'b crate::graph::Builder,
    ) -> Scaled<'b> {
        if let Some(&[codes, scale]) = self.weights.get(&weight) {
            return Scaled { codes: b.var(codes), scale: b.var(scale) };
        }
        let scaled = make();
        if let (Some(codes), Some(scale)) = (scaled.codes.id(), scaled.scale.id()) {
            self.weights.insert(weight, [codes, scale]);
        }
        scaled
    }

    fn ones<'b>(&mut self, b: &'b crate::graph::Builder, len: usize) -> Var<'b> {
        if let Some(&ones) = self.ones.get(&len) {
            return b.var(ones);
        }
        // A constant, which is made once, rather than a number, which would be written to memory for each product.
        let ones = b.constant(Array::new([len], Data::F32(vec![1.0; len])).expect("as many ones as elements"));
        if let Some(id) = ones.id() {
            self.ones.insert(len, id);
        }
        ones
    }
}

/// What `x` was before it was rounded to 16 bits.
fn widest(x: Var<'_>) -> Var<'_> {
    let wide = x.id().and_then(|id| {
        x.builder().peek(|program| {
            let node = program.graph.node(id);
            let rounded = matches!(node.op, Op::Cast(_)) && program.graph.meta(node.operands[0]).dtype == DType::F32;
            rounded.then(|| node.operands[0])
        })
    });
    wide.map_or(x, |id| x.builder().var(id))
}

/// The codes of a weight that is computed as [`Scaled::value`], with one scale a row.
fn stored_codes(weight: Var<'_>) -> Option<Scaled<'_>> {
    let id = widest(weight).id()?;
    let [codes, scale] = weight.builder().peek(|program| {
        let node = |id: NodeId| program.graph.node(id);
        let (Op::Binary(BinaryOp::Mul), &[value, scale]) = (&node(id).op, node(id).operands.as_slice()) else {
            return None;
        };
        let codes = matches!(node(value).op, Op::Cast(_)).then(|| node(value).operands[0])?;
        let scale = matches!(node(scale).op, Op::Broadcast(_)).then(|| node(scale).operands[0])?;
        let rows = [node(id).meta.shape[0], 1];
        (node(codes).meta.dtype.is_float8() && *node(scale).meta.shape == rows).then_some([codes, scale])
    })?;
    let b = weight.builder();
    Some(Scaled { codes: b.var(codes), scale: b.var(scale) })
}
