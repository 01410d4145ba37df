//! The setting `precision: fp8`: products with weights over 8-bit floats.

use std::collections::HashMap;

use super::{rewrite::Visit, rewrite::rewrite, scopes::Pattern};
use crate::{
    array::{Array, Data},
    graph::{
        BinaryOp, Builder, DType, GraphError, Init, NodeId, Op, Program, Role, Stage, StateDecl, Var, concat,
        float8::{SMALLEST, Scaled},
    },
};

/// Formats and scales of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Float8 {
    /// Scales of the operands.
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

/// Which elements share a scale, and from which values it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scaling {
    /// One for each row of activations and gradients and for each output of a weight, from the current values.
    #[default]
    Row,
    /// One for a whole operand, from the current values.
    Tensor,
    /// One for a whole operand, from its largest magnitudes in the [`HISTORY`] micro-steps before, over all ranks, as
    /// in Transformer Engine: values are rounded as they are computed, without a pass over them before. Numbers that
    /// exceed those magnitudes are clipped. In the first micro-step the scale is [`FIRST`].
    Delayed,
}

/// Micro-steps from whose values a delayed scale is computed, as in Transformer Engine.
pub const HISTORY: usize = 16;

/// Delayed scales of forward values and of gradients before anything is known: a gradient is rather clipped than
/// rounded to zero, as one of zero would leave no magnitude to the layers before.
pub const FIRST: [f64; 2] = [1.0, 1.0 / 65_536.0];

/// Extents of products on tensor cores are multiples of this.
const TILE: usize = 16;

/// Replaces products of a 16-bit matrix with a weight by [`Op::ScaledMatMul`], in scopes that one of `scopes` names
/// entirely (scopes within are left unchanged): outputs of linear layers, and gradients of their inputs. Gradients of
/// weights stay 16-bit products: their operands would have to be quantized along the other axis. Products whose extents
/// are not all divisible by 16 are left unchanged.
///
/// A weight has one set of codes, with a scale for each output under [`Scaling::Row`]. A gradient, whose product runs
/// over the outputs, is multiplied by these scales before it is quantized, so that forward and backward pass use the
/// same rounded weight; a weight that is stored as codes ([`Init::Float8`]) is used as it is.
///
/// [`Scaling::Delayed`] adds a state for each operand, which the program updates; `world` is the number of ranks. They
/// are named by scope, so that programs that have different products share those that they both have.
///
/// To be run after differentiation: the gradient is that of the product without rounding.
///
/// # Errors
/// When the program is ill-formed.
pub fn scale_products(
    program: &Program,
    scopes: &[Pattern],
    format: Float8,
    world: usize,
) -> Result<Program, GraphError> {
    let weights = weights(program);
    let mut made = Made::default();
    let scaled = rewrite(program, |visit| {
        let Some(product) = Product::of(program, &visit, &weights) else { return visit.copy() };
        match scopes.iter().any(|scope| scope.region(visit.scope) == Some(visit.scope)) {
            true => visit.here(|| product.scaled(&visit, format, &mut made)),
            false => visit.copy(),
        }
    })?;
    made.remember(scaled, world)
}

/// Counts which numbers `program` rounds to 8-bit floats, for what it outputs and updates, that are out of their range:
/// a program with its inputs and states, without its outputs and updates, and instead with the outputs `overflow` and
/// `underflow`, float32 scalars: the numbers that are clipped, and the nonzero numbers that are rounded to zero, as
/// shares of all rounded numbers, 0 to 1.
///
/// # Errors
/// When the program is ill-formed.
pub fn count_out_of_range(program: &Program) -> Result<Program, GraphError> {
    let (mut counts, mut all) = ([const { Vec::new() }; 2], 0);
    // Where they are rounded: at the end of the program, all of them would have to be kept until then.
    let mut counted = rewrite(program, |visit| {
        let codes = visit.copy();
        // What is recomputed was counted already.
        if matches!(visit.node.op, Op::Cast(to) if to.is_float8()) && visit.node.stage != Stage::Recompute {
            let of_node = visit.here(|| out_of_range(visit.operands[0], codes));
            counts.iter_mut().zip(of_node).for_each(|(counts, count)| counts.extend(count.id()));
            all += codes.shape().elements();
        }
        codes
    })?;
    counted.name = "float8_out_of_range".into();
    counted.outputs.clear();
    counted.updates.clear();
    let b = Builder::extend(counted);
    for (name, counts) in ["overflow", "underflow"].into_iter().zip(counts) {
        let count = counts.into_iter().map(|count| b.var(count)).reduce(|sum, count| sum + count);
        b.output(name, count.unwrap_or_else(|| b.scalar(0.0, DType::F32)) * (1.0 / all.max(1) as f64));
    }
    b.finish()
}

/// How many of the numbers `value` are clipped in `codes`, and how many that are not zero are zero there.
fn out_of_range<'b>(value: Var<'b>, codes: Var<'b>) -> [Var<'b>; 2] {
    let clipped = value.abs().greater(f64::from(codes.dtype().overflow_threshold()));
    let vanished = codes.cast(DType::F32).equal(0.0).cast(DType::F32) * value.not_equal(0.0).cast(DType::F32);
    [clipped.cast(DType::F32).sum_all(), vanished.sum_all()]
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
    /// Codes and scales of operands, by the node in the source program.
    codes: HashMap<(NodeId, DType), [NodeId; 2]>,
    /// Vectors of ones, by length.
    ones: HashMap<usize, NodeId>,
    /// Operands with a delayed scale: the state with the largest magnitudes, newest first `[HISTORY]`, and the current
    /// one `[1, 1]`.
    delayed: Vec<[NodeId; 2]>,
    /// Number of such operands by scope and direction.
    names: HashMap<String, usize>,
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
        let [of_weight, of_other] = [self.weight, other].map(|operand| visit.node.operands[operand]);
        let weight = visit.operands[self.weight];
        let codes = stored_codes(weight).unwrap_or_else(|| {
            made.codes((of_weight, DType::E4M3), b, |made| match format.scaling {
                Scaling::Row => Scaled::new(widest(weight), &[1], DType::E4M3),
                Scaling::Tensor => Scaled::new(widest(weight), &[0, 1], DType::E4M3),
                Scaling::Delayed => made.delayed(visit, widest(weight), DType::E4M3),
            })
        });
        let along = |axis: usize, vector: Var<'b>| {
            let extent = vector.shape().elements();
            vector.reshape(if axis == 0 { [extent, 1] } else { [1, extent] })
        };
        // The scales of a weight whose outputs are summed over go into the other operand.
        let folds = self.over[self.weight] == 0 && codes.scale.shape().elements() > 1;
        let narrow = visit.operands[other].cast(DType::F32);
        let x = if folds { narrow * along(self.over[other], codes.scale) } else { narrow };
        let dtype = if visit.node.stage == Stage::Backward { format.gradients } else { DType::E4M3 };
        let x = match format.scaling {
            Scaling::Row => Scaled::new(x, &[self.over[other]], dtype),
            Scaling::Tensor => Scaled::new(x, &[0, 1], dtype),
            Scaling::Delayed if folds => made.delayed(visit, x, dtype),
            // Operands of several products have one history, as they have one set of codes.
            Scaling::Delayed => made.codes((of_other, dtype), b, |made| made.delayed(visit, x, dtype)),
        };
        let weight_scale = if folds { made.ones(b, weight.dim(1)) } else { codes.scale };
        // Scales are those of rows and columns, or one each.
        let single = [x.scale, weight_scale].map(|scale| scale.shape().elements() == 1);
        let extents = [visit.operands[other].dim(1 - self.over[other]), weight.dim(1 - self.over[self.weight])];
        let [x_scale, weight_scale] = [0, 1].map(|i| {
            let scale = [x.scale, weight_scale][i];
            if single == [true; 2] || !single[i] { scale } else { scale.reshape([1]).broadcast([extents[i]]) }
        });
        // The first operand's scales go along rows of the result, the second's along columns.
        let mut operands = [(x.codes, along(other, x_scale)), (codes.codes, along(self.weight, weight_scale))];
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
    /// The codes of an operand, made once.
    fn codes<'b>(
        &mut self,
        operand: (NodeId, DType),
        b: &'b Builder,
        make: impl FnOnce(&mut Self) -> Scaled<'b>,
    ) -> Scaled<'b> {
        if let Some(&[codes, scale]) = self.codes.get(&operand) {
            return Scaled { codes: b.var(codes), scale: b.var(scale) };
        }
        let scaled = make(self);
        if let (Some(codes), Some(scale)) = (scaled.codes.id(), scaled.scale.id()) {
            self.codes.insert(operand, [codes, scale]);
        }
        scaled
    }

    fn ones<'b>(&mut self, b: &'b Builder, len: usize) -> Var<'b> {
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

    /// `x` with the scale of its history.
    fn delayed<'b>(&mut self, visit: &Visit<'_, 'b>, x: Var<'b>, dtype: DType) -> Scaled<'b> {
        let b = visit.b;
        let backward = visit.node.stage == Stage::Backward;
        let place = format!("float8/{}/{}", visit.scope, if backward { "gradient" } else { "value" });
        let count = self.names.entry(place.clone()).or_insert(0);
        let name = format!("{place}.{count}");
        *count += 1;
        let history = b.state(StateDecl::f32(name, [HISTORY], Role::Optimizer, Init::Fill(0.0)));
        let x = x.cast(DType::F32);
        self.delayed.extend(history.id().zip(x.abs().max([0, 1]).id()).map(<[NodeId; 2]>::from));
        let largest = history.max([0]).reshape([1, 1]);
        let known = largest.maximum(f64::from(SMALLEST)) * f64::from(1.0 / dtype.largest());
        let scale = largest.greater(0.0).select(known, FIRST[usize::from(backward)]);
        Scaled { codes: (x * scale.recip()).cast(dtype), scale }
    }

    /// `program`, which these operands are of, with the updates of their histories. A magnitude that is not finite
    /// leaves no trace.
    fn remember(self, program: Program, world: usize) -> Result<Program, GraphError> {
        let count = self.delayed.len();
        if count == 0 {
            return Ok(program);
        }
        let b = Builder::extend(program);
        b.stage(Stage::Update, || {
            b.within("float8", || {
                let own = concat(&self.delayed.iter().map(|&[_, newest]| b.var(newest)).collect::<Vec<_>>(), 0);
                let own = own.is_finite().select(own, 0.0).reshape([count]);
                let newest = if world == 1 {
                    own
                } else {
                    let all = b.push(Op::AllGather { world }, &[own]);
                    all.reshape([world, count]).max([0]).reshape([count])
                };
                for (at, &[history, _]) in self.delayed.iter().enumerate() {
                    let history = b.var(history);
                    b.update(history, concat(&[newest.slice(0, at, 1), history.slice(0, 0, HISTORY - 1)], 0));
                }
            });
        });
        b.finish()
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
