//! The compiled programs of a launch and their states: steps, evaluation, persistent state.

use crate::checkpoint::Tensors;
use crate::ending::Ending;
use pawl_contract::details::MemoryByKind;
use pawl_graph::array::{Array, View};
use pawl_graph::collective::Collective;
use pawl_graph::executor::{
    ExecError, ExecOptions, Executable, Executor, MemoryReport, read_chosen, unify_states, write_named,
};
use pawl_graph::graph::{Program, Role, StateDecl};
use pawl_graph::optim::{AVERAGE, AVERAGE_UPDATES, initial_share};
use pawl_graph::recipe::Recipe;
use pawl_workloads::{Batch, Programs};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Result of a step on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// Sum of the losses of the micro-steps.
    pub loss_sum: f64,
    /// Norm of the gradient of the gang, before clipping.
    pub gradient_norm: f64,
    /// Whether the update was skipped, because the gradient was not finite or the loss scale too large.
    pub skipped: bool,
}

/// Shares of the numbers of a micro-step that are out of the range of 8-bit floats, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// Clipped.
    pub overflow: f64,
    /// Not zero, and rounded to zero.
    pub underflow: f64,
}

/// How ranks share the evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each evaluates its own, in its own time.
    Apart,
    /// Each evaluates its own, all at the same time: they gather the same parameters.
    InStep,
    /// All evaluate each: programs gather different parameters.
    Together,
}

/// All programs, in the order of compilation.
pub struct Lineup {
    /// The programs.
    pub programs: Vec<Program>,
    /// For each training variant, the program of a micro-step (of the whole step, without accumulation).
    micro: Vec<usize>,
    /// With accumulation: the update after a step whose micro-steps ran these variants.
    applies: Vec<(BTreeSet<usize>, usize)>,
    /// For each evaluation program of the workload.
    evaluation: Vec<usize>,
    /// With 8-bit floats, for each training variant: the program that counts what is out of their range.
    float8_out_of_range: Vec<usize>,
}

impl Lineup {
    /// Builds the programs of a launch.
    ///
    /// # Errors
    /// When a program of the workload is ill-formed.
    pub fn new(recipe: &Recipe, forward: &Programs) -> Result<Self, Ending> {
        let mut lineup = Self {
            programs: Vec::new(),
            micro: Vec::new(),
            applies: Vec::new(),
            evaluation: Vec::new(),
            float8_out_of_range: Vec::new(),
        };
        for program in &forward.train {
            let micro = if recipe.accumulation == 1 { recipe.step(program)? } else { recipe.micro_step(program)? };
            let place = lineup.add(micro);
            lineup.micro.push(place);
        }
        let all_variants = 0..forward.train.len();
        let sets = if recipe.accumulation == 1 { 0..0 } else { 1..1usize << forward.train.len() };
        for set in sets {
            let variants: BTreeSet<usize> = all_variants.clone().filter(|v| set >> v & 1 == 1).collect();
            let programs: Vec<&Program> = variants.iter().map(|v| &forward.train[*v]).collect();
            let place = lineup.add(recipe.apply(&programs)?);
            lineup.applies.push((variants, place));
        }
        for program in &forward.evaluation {
            let place = lineup.add(recipe.evaluate(program, recipe.average.is_some())?);
            lineup.evaluation.push(place);
        }
        for program in &forward.train {
            let counted = recipe.float8_out_of_range(program)?;
            let place = counted.map(|counted| lineup.add(counted));
            lineup.float8_out_of_range.extend(place);
        }
        Ok(lineup)
    }

    /// The program of a micro-step of training variant `variant` (of the whole step, without accumulation).
    pub fn micro_program(&self, variant: usize) -> &Program {
        &self.programs[self.micro[variant]]
    }

    /// Bytes of each tensor in a checkpoint.
    ///
    /// # Errors
    /// When two programs declare a state differently, which is a bug.
    pub fn checkpoint_bytes(&self) -> Result<Vec<usize>, Ending> {
        let (states, _) = unify_states(&self.programs)?;
        let tensors = states.iter().filter(|decl| persists(decl)).flat_map(|decl| match decl.parts() {
            [] => std::slice::from_ref(decl),
            parts => parts,
        });
        Ok(tensors.map(|decl| decl.meta.shape.elements() * size_of::<f32>()).collect())
    }

    /// `error` of compiling the programs, with a remedy when their data set is a reason.
    fn explained(&self, error: ExecError) -> Ending {
        let data = |program: &Program| -> usize {
            let states = program.states.iter().filter(|decl| decl.role == Role::Data);
            states.map(|decl| decl.meta.bytes()).sum()
        };
        let bytes = self.programs.iter().map(data).max().unwrap_or(0);
        let ending = Ending::from(error);
        match ending {
            Ending::OutOfMemory(message) if bytes > 0 => Ending::OutOfMemory(format!(
                "{message}; {bytes} bytes of it are the data set: keep it in host memory with data.placement: Host"
            )),
            other => other,
        }
    }

    /// How ranks may share the evaluations: all must run the same collectives in the same order.
    fn sharing(&self) -> Sharing {
        let collectives = |&place: &usize| -> Vec<usize> {
            let graph = &self.programs[place].graph;
            let gathers = graph.nodes().iter().filter(|node| node.op.is_collective());
            gathers.map(|node| node.meta.shape.elements()).collect()
        };
        let mut all = self.evaluation.iter().map(collectives);
        let first = all.next().unwrap_or_default();
        match all.all(|other| other == first) {
            true if first.is_empty() => Sharing::Apart,
            true => Sharing::InStep,
            false => Sharing::Together,
        }
    }

    /// Adds a program unless it exists already.
    fn add(&mut self, program: Program) -> usize {
        self.programs.iter().position(|known| *known == program).unwrap_or_else(|| {
            self.programs.push(program);
            self.programs.len() - 1
        })
    }
}

/// Whether a state is part of checkpoints: it changes, and persists between steps.
fn persists(decl: &StateDecl) -> bool {
    !matches!(decl.role, Role::Gradient | Role::Frozen | Role::Data)
}

/// A launch's compiled programs.
pub struct Session {
    lineup: Lineup,
    executable: Box<dyn Executable>,
    compile_time: Duration,
    /// Variants of the micro-steps of the current step.
    ran: BTreeSet<usize>,
    loss_sum: f64,
    /// The programs of the queued micro-step and of its update.
    queued: Option<(usize, Option<usize>)>,
    out_of_range: Option<OutOfRange>,
    /// Over which shards are joined.
    gang: Arc<dyn Collective>,
}

impl Session {
    /// Compiles a launch for `executor`.
    ///
    /// # Errors
    /// [`Ending::OutOfMemory`] when it needs more than the memory limit of `options`, [`Ending::Unsupported`] when the
    /// executor does not support an operation.
    pub fn new(lineup: Lineup, executor: &dyn Executor, options: &ExecOptions) -> Result<Self, Ending> {
        tracing::info!(executor = executor.name(), programs = lineup.programs.len(), "compiling");
        let start = Instant::now();
        let executable = executor.compile(&lineup.programs, options).map_err(|error| lineup.explained(error))?;
        let compile_time = start.elapsed();
        Ok(Self {
            lineup,
            executable,
            compile_time,
            ran: BTreeSet::new(),
            loss_sum: 0.0,
            queued: None,
            out_of_range: None,
            gang: Arc::clone(&options.collective),
        })
    }

    /// Predicted and measured memory in bytes.
    pub fn memory(&self) -> MemoryReport {
        self.executable.memory()
    }

    /// Planned memory in bytes by kind.
    pub fn memory_by_kind(&self) -> MemoryByKind {
        let of = |roles: &[Role]| -> u64 {
            let states = self.executable.states().iter().filter(|decl| roles.contains(&decl.role));
            states.map(|decl| decl.meta.bytes() as u64).sum()
        };
        let parameters = of(&[Role::Parameter, Role::Frozen, Role::Average]);
        let gradients = of(&[Role::Gradient]);
        let data = of(&[Role::Data]);
        let optimizer = if self.offload_time().is_some() { 0 } else { of(&[Role::Optimizer]) };
        let activations = (self.memory().planned as u64).saturating_sub(parameters + gradients + optimizer + data);
        MemoryByKind { parameters, gradients, optimizer, data, activations }
    }

    /// Time that compilation took.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// Time so far for which the device has accessed optimizer state in host memory; `None` when it is on the device.
    pub fn offload_time(&self) -> Option<Duration> {
        self.executable.offload_time()
    }

    /// Time so far for which the device has waited for other ranks, without that of [`ExecOptions::collective`].
    pub fn collective_wait(&self) -> Duration {
        self.executable.collective_wait()
    }

    /// Queues a micro-step; with `last`, the update too.
    ///
    /// # Errors
    /// When the device fails or a peer is lost.
    pub fn start(&mut self, batch: &Batch, learning_rate: f64, last: bool) -> Result<(), Ending> {
        let program = self.lineup.micro[batch.program];
        let rate = Array::scalar(learning_rate as f32);
        let mut inputs: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        let whole_step = self.lineup.applies.is_empty();
        if whole_step {
            inputs.push(rate.view());
        }
        self.executable.run(program, &inputs)?;
        self.ran.insert(batch.program);
        let mut update = program;
        if last && !whole_step {
            let found = self.lineup.applies.iter().find(|(variants, _)| *variants == self.ran);
            update =
                found.map(|(_, place)| *place).ok_or_else(|| Ending::Failed("a step without micro-steps".into()))?;
            self.executable.run(update, &[rate.view()])?;
        }
        self.queued = Some((program, last.then_some(update)));
        Ok(())
    }

    /// Starts to copy the next batch to the device, while queued work runs.
    ///
    /// # Errors
    /// When the device fails.
    pub fn prefetch(&mut self, batch: &Batch) -> Result<(), Ending> {
        let inputs: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        Ok(self.executable.prefetch(self.lineup.micro[batch.program], &inputs)?)
    }

    /// Waits for the queued micro-step; returns the result of the step if it was the last one.
    ///
    /// # Errors
    /// When the device fails or a peer is lost.
    pub fn finish(&mut self) -> Result<Option<StepResult>, Ending> {
        let (program, update) =
            self.queued.take().ok_or_else(|| Ending::Failed("no micro-step was started".to_owned()))?;
        self.loss_sum += self.named_output(program, "loss")?.unwrap_or(f64::NAN);
        let Some(update) = update else { return Ok(None) };
        self.ran.clear();
        Ok(Some(StepResult {
            loss_sum: std::mem::take(&mut self.loss_sum),
            gradient_norm: self.named_output(update, "gradient_norm")?.unwrap_or(0.0),
            skipped: self.named_output(update, "skipped")?.is_some_and(|skipped| skipped != 0.0),
        }))
    }

    /// How ranks share the evaluations.
    pub fn sharing(&self) -> Sharing {
        self.lineup.sharing()
    }

    /// The outputs of an evaluation batch.
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&mut self, batch: &Batch) -> Result<Vec<Array>, Ending> {
        let program = self.lineup.evaluation[batch.program];
        let inputs: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        self.executable.run(program, &inputs)?;
        let count = self.lineup.programs[program].outputs.len();
        (0..count).map(|output| Ok(self.executable.output(program, output)?)).collect()
    }

    /// Counts what is out of the range of 8-bit floats in a micro-step of `batch`, which changes no state. With any
    /// other precision, nothing is counted.
    ///
    /// # Errors
    /// When the device fails.
    pub fn count_out_of_range(&mut self, batch: &Batch) -> Result<(), Ending> {
        let Some(&program) = self.lineup.float8_out_of_range.get(batch.program) else { return Ok(()) };
        let inputs: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        self.executable.run(program, &inputs)?;
        let (overflow, underflow) = (self.named_output(program, "overflow")?, self.named_output(program, "underflow")?);
        self.out_of_range = overflow.zip(underflow).map(|(overflow, underflow)| OutOfRange { overflow, underflow });
        Ok(())
    }

    /// What was out of the range of 8-bit floats when it was counted last.
    pub fn out_of_range(&self) -> Option<OutOfRange> {
        self.out_of_range
    }

    /// Writes a state of [`Role::Data`].
    ///
    /// # Errors
    /// When the programs have no such state, or the device fails.
    pub fn write_data(&mut self, name: &str, value: &Array) -> Result<(), Ending> {
        Ok(self.executable.write_state(name, value)?)
    }

    /// All mutable states that persist between steps, by name; shards are joined. Frozen states are functions of
    /// configuration and seed.
    ///
    /// # Errors
    /// When the device or a peer fails.
    pub fn states(&mut self) -> Result<Tensors, Ending> {
        Ok(read_chosen(self.executable.as_mut(), self.gang.as_ref(), persists)?)
    }

    /// Whether ranks hold parts of states, so that all of them have to call [`Session::states`] together.
    pub fn is_sharded(&self) -> bool {
        self.executable.states().iter().any(|decl| persists(decl) && decl.whole().is_some())
    }

    /// Share of the initial weights in the moving averages with this decay, of the group of parameters with the most
    /// updates: what few losses train is evaluated by no metric. `None` when there are no averages.
    ///
    /// # Errors
    /// When the device fails.
    pub fn initial_weights_share(&mut self, decay: f64) -> Result<Option<f64>, Ending> {
        let counters = self.executable.states().iter().filter(|decl| decl.name.starts_with(AVERAGE_UPDATES));
        let counters: Vec<String> = counters.map(|decl| decl.name.clone()).collect();
        let mut updates = None;
        for counter in counters {
            updates = updates.max(Some(self.executable.read_state(&counter)?.item() as u64));
        }
        Ok(updates.map(|updates| initial_share(decay, updates)))
    }

    /// Sets states by name. Missing averages start from the weights; other missing states keep their initial values,
    /// and are logged. With `weights_only` only parameters and frozen arrays are set.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] when a weight is missing or has another shape: the checkpoint belongs to another model.
    pub fn restore(&mut self, mut tensors: Tensors, weights_only: bool) -> Result<(), Ending> {
        let decls: Vec<_> = self
            .executable
            .states()
            .iter()
            .flat_map(|decl| match decl.parts() {
                [] => vec![(decl.name.clone(), decl.role)],
                parts => parts.iter().map(|part| (part.name.clone(), part.role)).collect(),
            })
            .collect();
        if weights_only {
            let weight = |name: &str| {
                decls
                    .iter()
                    .any(|(known, role)| known == name && matches!(role, Role::Parameter | Role::Frozen | Role::Buffer))
            };
            tensors.retain(|(name, _)| weight(name));
        }
        let kept = |role: &Role| !matches!(role, Role::Gradient | Role::Frozen | Role::Data);
        for (name, role) in decls.iter().filter(|(_, role)| kept(role)) {
            let find = |wanted: &str| tensors.iter().find(|(known, _)| known == wanted).map(|(_, array)| array.clone());
            if find(name).is_some() {
                continue;
            }
            let weight = name.strip_prefix(AVERAGE).and_then(find);
            // Checkpoints of versions before the warm-up have no such counter: one of the optimizer has counted the
            // same updates.
            let steps = || find(&format!("adamw.step/{}", name.strip_prefix(AVERAGE_UPDATES)?));
            match (role, weight.or_else(steps)) {
                (Role::Average | Role::Optimizer, Some(known)) => tensors.push((name.clone(), known)),
                (Role::Parameter, _) => {
                    return Err(Ending::InvalidPlan(format!(
                        "the checkpoint has no weight {name}: it belongs to another model; use an empty checkpoint storage"
                    )));
                }
                _ => tracing::info!(state = name, "not in the checkpoint: initialized"),
            }
        }
        let unused = write_named(self.executable.as_mut(), &tensors).map_err(|error| {
            Ending::InvalidPlan(format!(
                "the checkpoint does not fit the model: {error}; use an empty checkpoint storage"
            ))
        })?;
        if !unused.is_empty() {
            tracing::debug!(tensors = unused.join(", "), "in the checkpoint, not in these programs");
        }
        Ok(())
    }

    /// The first tensor, in order of declaration, that contains NaN or infinity, for the error message. Of shards, only
    /// this rank's are looked at.
    pub fn first_non_finite(&mut self) -> Option<String> {
        let decls: Vec<StateDecl> = self.executable.states().iter().filter(|decl| persists(decl)).cloned().collect();
        decls.into_iter().find_map(|decl| {
            let values = self.executable.read_state(&decl.name).ok()?.to_f64();
            let first = values.iter().position(|value| !value.is_finite())?;
            let mut place = first + decl.whole().map_or(0, |(_, seat)| seat.rank * values.len());
            let part = decl.parts().iter().find(|part| {
                let len = part.meta.shape.elements();
                let holds = place < len;
                place = place.saturating_sub(len);
                holds
            });
            Some(part.map_or(decl.name.clone(), |part| part.name.clone()))
        })
    }

    fn named_output(&mut self, program: usize, name: &str) -> Result<Option<f64>, Ending> {
        match self.lineup.programs[program].outputs.iter().position(|output| output.name == name) {
            Some(output) => Ok(Some(self.executable.output(program, output)?.item())),
            None => Ok(None),
        }
    }
}
