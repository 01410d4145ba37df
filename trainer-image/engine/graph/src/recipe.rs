//! From a forward program and settings to the programs that train it.

use std::collections::HashMap;

use crate::{
    autodiff::gradients,
    graph::{Builder, DType, GraphError, Init, Meta, NodeId, Op, Program, Role, Seat, Stage, StateDecl, Var, concat},
    optim::{self, Optimizer, OptimizerKernel, StepContext, Unit},
    passes::{self, Arena, Float8, GRADIENT, Pattern, Scaling},
};

/// Which kernel computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AttentionKernel {
    /// Matmul, softmax, matmul: the scores `[b,h,t,s]` are in memory, and kept for the backward pass.
    #[default]
    Math,
    /// One operator; the backward pass computes the scores again.
    Flash,
}

/// Dtype of matmuls and attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// float32 everywhere.
    #[default]
    F32,
    /// Operands and results of matmuls and attention, bfloat16.
    BF16,
    /// Operands and results of matmuls and attention, IEEE half: use a loss scale.
    F16,
    /// As bfloat16, with the products of linear layers over 8-bit floats: see [`Recipe::float8_scopes`].
    FP8,
}

/// What each rank holds a part of, instead of the whole (Rajbhandari et al. 2020, ZeRO; Zhao et al. 2023, PyTorch
/// FSDP). The optimizer's arithmetic is then laid out in shards of arenas, whatever its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharding {
    /// Nothing: data parallel.
    #[default]
    None,
    /// The optimizer's states and the moving averages.
    Zero1,
    /// The sums of gradients over micro-steps too, which are reduced in each micro-step.
    Zero2,
    /// The parameters too, which are gathered in each pass.
    Full,
}

/// Factor of the loss that keeps small gradients representable in half precision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum LossScale {
    /// 1.
    #[default]
    None,
    /// A fixed factor. A step whose gradients are not finite is skipped.
    Static(f64),
    /// As `torch.amp.GradScaler`: starts at 65,536, is halved (and the step skipped) when a gradient is not finite, and
    /// doubled after 2,000 consecutive steps with finite gradients.
    Dynamic,
}

/// The settings of a training step. Each is a pass; together they turn a forward program into the programs that train
/// it.
///
/// A forward program has a float32 scalar output `loss`, reads parameters as states of [`Role::Parameter`], and may
/// have any other inputs and outputs. Programs that update have one more input, `learning_rate` (float32 scalar, last),
/// and the outputs `gradient_norm` and, with a loss scale, `loss_scale` and `skipped` (0 or 1); with
/// [`Recipe::skip_non_finite`], `skipped`.
///
/// ```
/// use pawl_graph::{
///     graph::{Builder, DType, Init},
///     optim::{AdamW, Optimizer},
///     recipe::{Precision, Recipe},
/// };
/// let b = Builder::new("forward");
/// let (x, w) = (b.input("x", DType::F32, [8, 3]), b.parameter("w", [4, 3], Init::Uniform { bound: 0.5 }));
/// b.output("loss", x.matmul_t(w).square().mean_all());
/// let forward = b.finish()?;
///
/// let adamw = Optimizer { matrices: None, others: AdamW::default() };
/// let recipe = Recipe { precision: Precision::BF16, clip: Some(1.0), ..Recipe::new(adamw) };
/// let step = recipe.step(&forward)?;
/// let inputs: Vec<&str> = step.inputs.iter().map(|input| input.name.as_str()).collect();
/// assert_eq!(inputs, ["x", "learning_rate"]);
/// assert!(step.state("adamw.m/w").is_ok() && step.output("gradient_norm").is_ok());
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Kernel of attention.
    pub attention: AttentionKernel,
    /// Precision of matmuls and attention.
    pub precision: Precision,
    /// Scopes that stay float32 whatever the precision.
    pub full_precision: Vec<Pattern>,
    /// With [`Precision::FP8`]: scopes whose products with weights are over 8-bit floats, each named entirely, see
    /// [`passes::scale_products`].
    pub float8_scopes: Vec<Pattern>,
    /// Formats and scales of these products.
    pub float8: Float8,
    /// Loss scale.
    pub loss_scale: LossScale,
    /// Whether a step whose gradient norm is not finite is skipped without a loss scale too, as bfloat16 may need; it
    /// costs no pass over the gradients.
    pub skip_non_finite: bool,
    /// Scopes whose forward values are recomputed in the backward pass: see [`passes::recompute`](passes::recompute()).
    /// Without any, all are kept.
    pub recompute: Vec<Pattern>,
    /// Scopes whose forward values are never kept for the backward pass, which computes them again: see
    /// [`passes::rematerialize`].
    pub rematerialize: Vec<Pattern>,
    /// Micro-steps per step.
    pub accumulation: usize,
    /// Ranks; gradients are averaged over them.
    pub world: usize,
    /// This rank, below `world`: with sharding, the programs of ranks differ.
    pub rank: usize,
    /// What ranks hold a part of.
    pub sharding: Sharding,
    /// Largest size in bytes of the buckets in which gradients are summed over the ranks.
    pub bucket_bytes: usize,
    /// Optimiser.
    pub optimizer: Optimizer,
    /// Layout of the optimiser's arithmetic.
    pub kernel: OptimizerKernel,
    /// Prefixes of parameter names, each of which forms a group with its own step counter and arenas; all other
    /// parameters are one group. A step leaves a group unchanged if none of its parameters has a gradient.
    pub groups: Vec<String>,
    /// Largest global L2 norm of the gradients, to which larger ones are scaled down.
    pub clip: Option<f64>,
    /// Decay per step of the exponential moving average of the parameters, after its warm-up
    /// ([`optim::initial_share`]); `None`: no average.
    pub average: Option<f64>,
}

impl Recipe {
    /// Float32, one rank, no accumulation, per-tensor kernels, nothing extra.
    pub fn new(optimizer: Optimizer) -> Self {
        Self {
            attention: AttentionKernel::default(),
            precision: Precision::default(),
            full_precision: Vec::new(),
            float8_scopes: Vec::new(),
            float8: Float8::default(),
            loss_scale: LossScale::default(),
            skip_non_finite: false,
            recompute: Vec::new(),
            rematerialize: Vec::new(),
            accumulation: 1,
            world: 1,
            rank: 0,
            sharding: Sharding::default(),
            bucket_bytes: 25 << 20,
            optimizer,
            kernel: OptimizerKernel::default(),
            groups: Vec::new(),
            clip: None,
            average: None,
        }
    }

    /// Forward, backward and update in one program: a step without accumulation.
    ///
    /// # Errors
    /// When the forward program is ill-formed or has no output `loss`.
    pub fn step(&self, forward: &Program) -> Result<Program, GraphError> {
        let mut program = self.differentiated(forward)?;
        program.name = "step".into();
        self.updated(&program, &self.parameters(&[forward]))
    }

    /// Forward and backward of one micro-step; gradients are added to float32 states `gradient/<parameter>`, in the
    /// order of the micro-steps: after n of them the sum is `((g1 + g2) + ..) + gn`, which is the order in which ranks
    /// are summed too.
    ///
    /// # Errors
    /// When the forward program is ill-formed or has no output `loss`.
    pub fn micro_step(&self, forward: &Program) -> Result<Program, GraphError> {
        let parameters = self.parameters(&[forward]);
        let mut program = self.reduced_early(&self.differentiated(forward)?, &parameters)?;
        program.name = "micro_step".into();
        let found = take_gradients(&mut program);
        let b = Builder::extend(program);
        b.stage(Stage::Update, || {
            for (name, node) in found {
                let gradient = b.var(node);
                let sum = b.state(accumulator(&name, &gradient.meta()));
                b.update(sum, sum + gradient);
            }
        });
        self.laid_out(&b.finish()?, &parameters, self.sharding == Sharding::Full)
    }

    /// The update after the micro-steps: reads and clears the sums of the micro-steps of these forward programs.
    ///
    /// # Errors
    /// When a forward program is ill-formed or has no output `loss`.
    pub fn apply(&self, forwards: &[&Program]) -> Result<Program, GraphError> {
        let mut summed: Vec<(String, Meta)> = Vec::new();
        let parameters = self.parameters(forwards);
        for forward in forwards {
            let mut program = self.reduced_early(&self.differentiated(forward)?, &parameters)?;
            for (name, node) in take_gradients(&mut program) {
                if !summed.iter().any(|(known, _)| *known == name) {
                    summed.push((name, program.graph.meta(node).clone()));
                }
            }
        }
        let b = Builder::new("apply");
        b.stage(Stage::Update, || {
            for (name, meta) in summed {
                let sum = b.state(accumulator(&name, &meta));
                b.output(&format!("{GRADIENT}{name}"), sum);
                b.update(sum, b.fill(0.0, meta.dtype, &meta.shape));
            }
        });
        self.updated(&b.finish()?, &parameters)
    }

    /// The forward program with the same passes as in training, without gradients; with `averaged`, over the moving
    /// averages of the parameters.
    ///
    /// # Errors
    /// When the forward program is ill-formed.
    pub fn evaluate(&self, forward: &Program, averaged: bool) -> Result<Program, GraphError> {
        // Without updates there is no history of magnitudes.
        let scaling = if self.float8.scaling == Scaling::Delayed { Scaling::Tensor } else { self.float8.scaling };
        let scaled = self.scaled(self.lowered(forward)?, Float8 { scaling, ..self.float8 })?;
        let averaged = averaged && self.average.is_some();
        // Averages are sharded with the optimizer's states.
        let gather = self.sharding == Sharding::Full || averaged;
        let mut program = self.laid_out(&scaled, &self.parameters(&[forward]), gather)?;
        program.name = "evaluate".into();
        if averaged {
            for state in program.states.iter_mut().filter(|s| s.role == Role::Parameter) {
                *state = optim::average_of(state);
            }
        }
        Ok(program)
    }

    /// The forward program with the settings that act before differentiation.
    fn lowered(&self, forward: &Program) -> Result<Program, GraphError> {
        let attention = match self.attention {
            AttentionKernel::Math => passes::expand_attention(forward)?,
            // Kernels that normalise on the way are those of tensor cores: in float32 there is nothing to gain.
            AttentionKernel::Flash if self.precision != Precision::F32 => passes::join_norms(forward)?,
            AttentionKernel::Flash => forward.clone(),
        };
        match self.precision {
            Precision::F32 => Ok(attention),
            Precision::BF16 | Precision::FP8 => passes::lower_precision(&attention, DType::BF16, &self.full_precision),
            Precision::F16 => passes::lower_precision(&attention, DType::F16, &self.full_precision),
        }
    }

    /// Counts what is out of the range of 8-bit floats in a micro-step, see [`passes::count_out_of_range`]; `None` with
    /// any other precision.
    ///
    /// # Errors
    /// When the forward program is ill-formed or has no output `loss`.
    pub fn float8_out_of_range(&self, forward: &Program) -> Result<Option<Program>, GraphError> {
        if self.precision != Precision::FP8 {
            return Ok(None);
        }
        let counted = passes::simplify(&passes::count_out_of_range(&self.differentiated(forward)?)?)?;
        let program = self.laid_out(&counted, &self.parameters(&[forward]), self.sharding == Sharding::Full)?;
        Ok(Some(passes::prune_states(program)))
    }

    /// `program`, with products over 8-bit floats of `format` if the precision asks for them.
    fn scaled(&self, program: Program, format: Float8) -> Result<Program, GraphError> {
        if self.precision != Precision::FP8 {
            return Ok(program);
        }
        // Simplified before, so that weights and their codes are recognised, and after: products of one operand
        // quantize it once.
        let simple = passes::simplify(&program)?;
        passes::simplify(&passes::scale_products(&simple, &self.float8_scopes, format, self.world)?)
    }

    /// Forward and backward, with the gradients (of `loss * scale / (accumulation * world)`) as outputs.
    fn differentiated(&self, forward: &Program) -> Result<Program, GraphError> {
        let lowered = self.lowered(forward)?;
        let loss = lowered.output("loss")?;
        let b = Builder::extend(lowered);
        let loss = b.var(loss);
        let parameters: Vec<StateDecl> =
            b.peek(|p| trainable(p).into_iter().filter(|decl| first_read(p, decl).is_some()).collect());
        // All reads of one state are one value.
        let reads: Vec<Var<'_>> = b.peek(|p| first_reads(p, &parameters)).into_iter().map(|id| b.var(id)).collect();
        let share = 1.0 / (self.accumulation * self.world) as f64;
        let scaled = b.stage(Stage::Backward, || match self.loss_scale {
            LossScale::None => loss * share,
            LossScale::Static(scale) => loss * (share * scale),
            LossScale::Dynamic => loss * share * loss_scale(&b),
        });
        let found = gradients(scaled, &reads);
        for (decl, gradient) in parameters.iter().zip(found) {
            if let Some(gradient) = gradient {
                b.output(&format!("{GRADIENT}{}", decl.name), gradient);
            }
        }
        let widened = passes::widen_products(&passes::simplify(&b.finish()?)?)?;
        let program = self.scaled(widened, self.float8)?;
        let program = if self.recompute.is_empty() { program } else { passes::recompute(&program, &self.recompute)? };
        if self.rematerialize.is_empty() { Ok(program) } else { passes::rematerialize(&program, &self.rematerialize) }
    }

    /// `program`, whose outputs include gradients, with their sum over the ranks, the optimiser, and the layout of its
    /// kernels.
    fn updated(&self, program: &Program, parameters: &[StateDecl]) -> Result<Program, GraphError> {
        let reduced = match (self.world, self.seat()) {
            (1, _) => program.clone(),
            (_, None) => passes::bucket_gradients(program, self.bucket_bytes)?,
            (world, Some(_)) => passes::scatter_gradients(program, &self.arenas(parameters), world)?,
        };
        let mut program = self.laid_out(&reduced, parameters, self.sharding == Sharding::Full)?;
        let found: HashMap<String, _> = take_gradients(&mut program).into_iter().collect();
        let b = Builder::extend(program);
        b.stage(Stage::Update, || b.within("optimizer", || self.append_update(&b, &found, parameters)));
        let program = passes::simplify(&b.finish()?)?;
        Ok(passes::prune_states(program))
    }

    fn append_update(&self, b: &Builder, found: &HashMap<String, NodeId>, parameters: &[StateDecl]) {
        let gradient = |name: &str| found.get(name).map(|&id| b.var(id));
        let mut groups: Vec<(&str, Vec<Unit<'_>>)> = Vec::new();
        for (group, members) in self.grouped(parameters) {
            let arenas = self.optimizer.arenas(group, &members, (self.seat(), self.sharding == Sharding::Full));
            let mut names = members.iter().map(|decl| &decl.name).chain(arenas.iter().map(|arena| &arena.name));
            if !names.any(|name| found.contains_key(name)) {
                continue;
            }
            let units = match (self.kernel, self.seat()) {
                (_, Some(seat)) => arenas.iter().map(|arena| self.sharded(b, arena, seat, &gradient)).collect(),
                (OptimizerKernel::PerTensor, None) => members
                    .iter()
                    .filter_map(|decl| {
                        let (value, gradient) = (b.state(decl.clone()), gradient(&decl.name)?);
                        Some(Unit { decl: decl.clone(), value, gradient, replica: None })
                    })
                    .collect(),
                (OptimizerKernel::Fused, None) => arenas.iter().map(|arena| fused(b, arena, &gradient)).collect(),
            };
            groups.push((group, units));
        }
        let lr = b.input("learning_rate", DType::F32, []);
        let mut context = StepContext { b, learning_rate: lr, valid: None };
        if self.loss_scale != LossScale::None {
            context.valid = Some(self.unscale(b, &mut groups));
        }
        let all: Vec<Var<'_>> = groups.iter().flat_map(|(_, units)| units.iter().map(|u| u.gradient)).collect();
        let squares = all.iter().map(|g| g.square().sum_all()).reduce(|sum, square| sum + square);
        let norm = self.over_shards(squares.unwrap_or_else(|| b.scalar(0.0, DType::F32))).sqrt();
        b.output("gradient_norm", norm);
        if self.skip_non_finite && context.valid.is_none() {
            context.valid = Some(output_skipped(b, norm.is_finite()));
        }
        let clip = self.clip.map(|limit| (b.scalar(limit, DType::F32) / (norm + 1e-6)).minimum(1.0));
        for (group, mut units) in groups {
            for unit in &mut units {
                unit.gradient = clip.map_or(unit.gradient, |factor| unit.gradient * factor);
            }
            self.optimizer.step(&context, group, &units);
            if let Some(decay) = self.average {
                let decay = optim::average_decay(&context, group, decay);
                for unit in &units {
                    optim::average(&context, unit, decay);
                }
            }
        }
    }

    /// The unit of this rank's shard of an arena; zeros, if no parameter of it has a gradient.
    fn sharded<'b>(
        &self,
        b: &'b Builder,
        arena: &Arena,
        seat: Seat,
        gradient: &impl Fn(&str) -> Option<Var<'b>>,
    ) -> Unit<'b> {
        let decl = arena.decl().shard(seat);
        let shape = &decl.meta.shape;
        let gradient =
            gradient(&arena.name).map_or_else(|| b.fill(0.0, DType::F32, shape), |gradient| gradient.reshape(shape));
        let replica = (self.sharding != Sharding::Full).then(|| b.state(arena.decl()));
        let value = replica.map_or_else(|| b.state(decl.clone()), |all| optim::own_rows(all, seat.rank, shape));
        Unit { value, gradient, replica, decl }
    }

    /// A scalar that each rank has of its shards, summed over the ranks.
    fn over_shards<'b>(&self, own: Var<'b>) -> Var<'b> {
        match self.seat() {
            Some(_) => own.reshape([1]).all_reduce().reshape([]),
            None => own,
        }
    }

    /// Divides the gradients by the loss scale and updates a dynamic scale; returns whether all gradients are finite
    /// (Bool scalar).
    fn unscale<'b>(&self, b: &'b Builder, groups: &mut [(&str, Vec<Unit<'b>>)]) -> Var<'b> {
        let scale = match self.loss_scale {
            LossScale::Dynamic => loss_scale(b),
            LossScale::Static(scale) => b.scalar(scale, DType::F32),
            LossScale::None => b.scalar(1.0, DType::F32),
        };
        let mut broken = b.scalar(0.0, DType::F32);
        for unit in groups.iter_mut().flat_map(|(_, units)| units) {
            let finite = unit.gradient.is_finite().cast(DType::F32);
            broken = broken + (-finite + 1.0).sum_all();
            unit.gradient = unit.gradient * scale.recip();
        }
        let valid = self.over_shards(broken).equal(0.0);
        if self.loss_scale == LossScale::Dynamic {
            let good = optim::counter(b, "loss_scale.good_steps".into());
            let next = valid.select(good + 1.0, 0.0);
            let grow = next.equal(GROWTH_INTERVAL);
            b.update(good, grow.select(b.scalar(0.0, DType::U32), next));
            b.update(scale, valid.select(grow.select(scale * 2.0, scale), scale * 0.5));
        }
        b.output("loss_scale", scale);
        output_skipped(b, valid)
    }

    /// The program with parameters in arenas if they are sharded or the optimiser's kernel is fused; with `gather`, in
    /// arenas that are gathered from shards; simplified.
    fn laid_out(&self, program: &Program, parameters: &[StateDecl], gather: bool) -> Result<Program, GraphError> {
        let arenas = self.arenas(parameters);
        let placed = match self.seat().filter(|_| gather) {
            Some(seat) => passes::gather_shards(program, &arenas, seat)?,
            None => passes::place_in_arenas(program, &arenas)?,
        };
        passes::simplify(&placed)
    }

    /// The arenas of all groups; none, if each parameter is a state of its own.
    fn arenas(&self, parameters: &[StateDecl]) -> Vec<Arena> {
        let seat = self.seat();
        if self.kernel == OptimizerKernel::PerTensor && seat.is_none() {
            return Vec::new();
        }
        let layout = (seat, self.sharding == Sharding::Full);
        let groups = self.grouped(parameters);
        groups.iter().flat_map(|(group, members)| self.optimizer.arenas(group, members, layout)).collect()
    }

    /// This rank's place, if anything is sharded.
    fn seat(&self) -> Option<Seat> {
        let sharded = self.sharding != Sharding::None && self.world > 1;
        sharded.then_some(Seat { rank: self.rank, world: self.world })
    }

    /// The gradients of a micro-step, reduced over the ranks if their sums are sharded.
    fn reduced_early(&self, program: &Program, parameters: &[StateDecl]) -> Result<Program, GraphError> {
        match (self.sharding, self.seat()) {
            (Sharding::Zero2 | Sharding::Full, Some(seat)) => {
                passes::scatter_gradients(program, &self.arenas(parameters), seat.world)
            }
            _ => Ok(program.clone()),
        }
    }

    /// Trainable parameters of these programs, each once.
    fn parameters(&self, forwards: &[&Program]) -> Vec<StateDecl> {
        let mut all: Vec<StateDecl> = Vec::new();
        for decl in forwards.iter().flat_map(|p| trainable(p)) {
            if !all.iter().any(|known| known.name == decl.name) {
                all.push(decl);
            }
        }
        all
    }

    fn grouped<'s>(&'s self, parameters: &[StateDecl]) -> Vec<(&'s str, Vec<StateDecl>)> {
        let group = |decl: &StateDecl| self.groups.iter().find(|g| decl.name.starts_with(*g)).map_or("", |g| g);
        let mut groups: Vec<(&str, Vec<StateDecl>)> = Vec::new();
        for decl in parameters {
            let name = group(decl);
            match groups.iter_mut().find(|(known, _)| *known == name) {
                Some((_, members)) => members.push(decl.clone()),
                None => groups.push((name, vec![decl.clone()])),
            }
        }
        groups
    }
}

/// Consecutive steps with finite gradients after which a dynamic loss scale grows.
const GROWTH_INTERVAL: f64 = 2000.0;

/// Reports whether the step is skipped; returns whether it is valid.
fn output_skipped<'b>(b: &'b Builder, valid: Var<'b>) -> Var<'b> {
    b.output("skipped", -valid.cast(DType::F32) + 1.0);
    valid
}

fn loss_scale(b: &Builder) -> Var<'_> {
    b.state(StateDecl::f32("loss_scale", [], Role::Optimizer, Init::Fill(65_536.0)))
}

fn accumulator(parameter: &str, meta: &Meta) -> StateDecl {
    let name = format!("{GRADIENT}{parameter}");
    StateDecl { name, meta: meta.clone(), role: Role::Gradient, init: Init::Fill(0.0) }
}

fn trainable(program: &Program) -> Vec<StateDecl> {
    program.states.iter().filter(|s| s.role == Role::Parameter).cloned().collect()
}

fn first_read(program: &Program, decl: &StateDecl) -> Option<NodeId> {
    let state = program.state(&decl.name).ok()?;
    program.graph.iter().find(|(_, node)| node.op == Op::State(state)).map(|(id, _)| id)
}

fn first_reads(program: &Program, parameters: &[StateDecl]) -> Vec<NodeId> {
    parameters.iter().filter_map(|decl| first_read(program, decl)).collect()
}

/// Removes the gradient outputs and returns them by parameter.
fn take_gradients(program: &mut Program) -> Vec<(String, NodeId)> {
    let mut taken = Vec::new();
    program.outputs.retain(|output| match output.name.strip_prefix(GRADIENT) {
        Some(parameter) => {
            taken.push((parameter.to_owned(), output.node));
            false
        }
        None => true,
    });
    taken
}

/// The unit of an arena: gradients concatenated in the order of its parts, zeros for parameters without gradient.
fn fused<'b>(b: &'b Builder, arena: &Arena, gradient: &impl Fn(&str) -> Option<Var<'b>>) -> Unit<'b> {
    let flat: Vec<Var<'b>> = arena
        .parts
        .iter()
        .map(|part| {
            let len = part.meta.shape.elements();
            gradient(&part.name).map_or_else(|| b.fill(0.0, DType::F32, [len]), |g| g.reshape([len]))
        })
        .collect();
    let decl = arena.decl();
    Unit { value: b.state(decl.clone()), gradient: concat(&flat, 0).reshape(&arena.shape), replica: None, decl }
}
