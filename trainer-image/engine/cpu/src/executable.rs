//! Compiled programs, their states and memory.

use std::{sync::Arc, time::Instant};

use half::{bf16, f16};

use super::{
    Buffers, GraphCpu,
    blocks::{self, Blocks},
    bytes::{Bytes, Meter},
    comm::{Comm, Job},
    fused::Memory,
    lanes::Features,
    pool::Pool,
    profile::Times,
    run::Run,
};
use pawl_graph::{
    array::{Array, Data, View},
    executor::{ExecError, ExecOptions, Executable, MemoryReport, check_inputs, check_programs, unify_states},
    graph::{DType, GraphError, Meta, Program, Shape, StateDecl, initial_values},
    passes::expand_norms,
};
use pawl_lower::{Access, CollectOp, KernelTime, Lowered, Packing, Storage, aligned};

/// Programs compiled for the CPU.
pub struct GraphExecutable {
    features: Features,
    pool: Pool,
    comm: Comm,
    meter: Arc<Meter>,
    states: Vec<StateDecl>,
    state_offsets: Vec<usize>,
    state_bytes: Bytes,
    /// Held for the addresses of the programs.
    _arena: Bytes,
    blocks: Option<Blocks>,
    scratch: (Bytes, usize),
    workspace: Bytes,
    programs: Vec<Compiled>,
    report: MemoryReport,
    timed: bool,
}

struct Compiled {
    /// The program without its graph: names and declarations.
    interface: Program,
    lowered: Lowered,
    runs: Vec<Run>,
    /// For each kernel, how many of the run's collectives must be done before it.
    waits: Vec<usize>,
    /// Address of each buffer in the current run.
    bases: Vec<*mut u8>,
    /// Constants, then outputs.
    own: Bytes,
    output_offsets: Vec<usize>,
    held: Vec<Option<(usize, Bytes)>>,
    times: Times,
    ran: bool,
}

// SAFETY: addresses point into memory that this owns (and, during a run, into the caller's inputs).
unsafe impl Send for Compiled {}

impl GraphExecutable {
    pub(super) fn new(executor: &GraphCpu, programs: &[Program], options: &ExecOptions) -> Result<Self, ExecError> {
        let expanded: Vec<Program> =
            programs.iter().map(|program| expand_norms(program, |_, _| false)).collect::<Result<_, _>>()?;
        let programs = expanded.as_slice();
        check_programs(programs, "graph-cpu")?;
        let features = Features::detect();
        let (states, places) = unify_states(programs)?;
        let mut packing = Packing::default();
        let state_offsets: Vec<usize> = states.iter().map(|s| packing.add(s.meta.bytes())).collect();
        let state_size = packing.bytes();

        let lowered: Vec<Lowered> = programs.iter().map(|p| Lowered::new(p, &executor.lowering)).collect();
        let runs = lowered.iter().map(Run::all).collect::<Result<Vec<_>, _>>()?;
        let most = |of: &dyn Fn(&Run) -> usize| runs.iter().flatten().map(of).max().unwrap_or(0);
        let stride = aligned(most(&|run| run.scratch(features)));
        let threads = executor.threads.max(1);
        let workspace = aligned(most(&|run| run.workspace(features)));
        let pooled = executor.buffers == Buffers::Pooled;
        let arena = if pooled { 0 } else { lowered.iter().map(|l| l.plan.arena).max().unwrap_or(0) };
        let in_blocks = if pooled { blocks::predict(&lowered) } else { 0 };
        let own: Vec<usize> = lowered.iter().map(Lowered::own_bytes).collect();
        let planned = state_size + arena + in_blocks + stride * threads + workspace + own.iter().sum::<usize>();
        if let Some(limit) = options.memory_limit.filter(|&limit| planned > limit) {
            return Err(ExecError::OutOfMemory { needed: planned, limit });
        }

        let meter = Arc::new(Meter::default());
        let state_bytes = Bytes::new(state_size, &meter);
        let values = initial_values(&states.iter().collect::<Vec<_>>(), options.seed)?;
        for (value, offset) in values.iter().zip(&state_offsets) {
            // SAFETY: the packing gave each state its place.
            unsafe { write(state_bytes.start().add(*offset), value.view()) };
        }
        drop(values);
        let arena = Bytes::new(arena, &meter);
        let mut compiled = Vec::with_capacity(programs.len());
        let mut collectives = 0;
        for (((program, place), lowered), runs) in programs.iter().zip(places).zip(lowered).zip(runs) {
            let place = |state: usize| state_bytes.start().wrapping_add(state_offsets[place[state]]);
            let one = Compiled::new(program, lowered, runs, &meter, &arena, pooled, &place);
            collectives = collectives.max(one.runs.iter().filter(|run| matches!(run, Run::Collective(_))).count());
            compiled.push(one);
        }
        let report = MemoryReport { states: state_size, planned, peak: 0 };
        Ok(Self {
            features,
            pool: Pool::new(threads),
            comm: Comm::new(Arc::clone(&options.collective), collectives),
            scratch: (Bytes::new(stride * threads, &meter), stride),
            workspace: Bytes::new(workspace, &meter),
            meter,
            states,
            state_offsets,
            state_bytes,
            _arena: arena,
            blocks: pooled.then(Blocks::default),
            programs: compiled,
            report,
            timed: executor.timed,
        })
    }

    /// The lowered programs, to be dumped.
    pub fn lowered(&self) -> impl Iterator<Item = &Lowered> {
        self.programs.iter().map(|program| &program.lowered)
    }

    /// Time of each kernel of each program, in order; zero unless [`GraphCpu::timed`].
    pub fn profile(&self) -> Vec<KernelTime> {
        self.programs.iter().flat_map(|p| p.times.table(&p.lowered)).collect()
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn program(&mut self, program: usize) -> Result<&mut Compiled, GraphError> {
        let count = self.programs.len();
        self.programs.get_mut(program).ok_or_else(|| GraphError::Unknown {
            kind: "program",
            name: program.to_string(),
            known: format!("0..{count}"),
        })
    }

    fn state(&self, name: &str) -> Result<usize, GraphError> {
        self.states.iter().position(|s| s.name == name).ok_or_else(|| GraphError::Unknown {
            kind: "state",
            name: name.to_owned(),
            known: self.states.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

impl Compiled {
    fn new(
        program: &Program,
        lowered: Lowered,
        runs: Vec<Run>,
        meter: &Arc<Meter>,
        arena: &Bytes,
        pooled: bool,
        state: &dyn Fn(usize) -> *mut u8,
    ) -> Self {
        let own = Bytes::new(lowered.own_bytes(), meter);
        let mut packing = Packing::default();
        let mut output_offsets = vec![0; program.outputs.len()];
        let mut bases = vec![std::ptr::null_mut(); lowered.buffers.len()];
        for ((base, buffer), offset) in bases.iter_mut().zip(&lowered.buffers).zip(&lowered.plan.offsets) {
            *base = match &buffer.storage {
                Storage::Input(_) => std::ptr::null_mut(),
                Storage::State(id) => state(id.0 as usize),
                Storage::Arena => match offset {
                    Some(offset) if !pooled => arena.start().wrapping_add(*offset),
                    _ => std::ptr::null_mut(),
                },
                Storage::Constant(array) => {
                    let at = own.start().wrapping_add(packing.add(buffer.bytes()));
                    // SAFETY: the packing gave the constant its place.
                    unsafe { write(at, array.view()) };
                    at
                }
                Storage::Output(index) => {
                    output_offsets[*index] = packing.add(buffer.bytes());
                    own.start().wrapping_add(output_offsets[*index])
                }
            };
        }
        let waits = waits(&lowered);
        let interface = Program { graph: pawl_graph::graph::Graph::default(), ..program.clone() };
        let held = (0..lowered.buffers.len()).map(|_| None).collect();
        let times = Times::new(lowered.kernels.len());
        // Outputs are described by their nodes, which the interface no longer has.
        let mut compiled =
            Self { interface, lowered, runs, waits, bases, own, output_offsets, held, times, ran: false };
        compiled.interface.graph = skeleton(program);
        compiled
    }

    /// Takes blocks for buffers that `kernel` is the first to touch.
    fn take(&mut self, kernel: usize, blocks: &mut Blocks, meter: &Arc<Meter>) {
        for (index, buffer) in self.lowered.buffers.iter().enumerate() {
            if buffer.storage == Storage::Arena && buffer.life.0 == kernel {
                let block = blocks.take(buffer.bytes(), meter);
                self.bases[index] = block.1.start();
                self.held[index] = Some(block);
            }
        }
    }

    /// Gives back what `kernel` is the last to touch.
    fn give(&mut self, kernel: usize, blocks: &mut Blocks) {
        for (index, buffer) in self.lowered.buffers.iter().enumerate() {
            if buffer.life.1 == kernel
                && let Some(block) = self.held[index].take()
            {
                blocks.give(block);
            }
        }
    }

    fn issue(&self, at: usize, comm: &Comm) -> Result<(), ExecError> {
        let Run::Collective(collect) = &self.runs[at] else {
            return Ok(());
        };
        let place =
            |access: &Access| (self.bases[access.buffer].cast::<f32>().wrapping_add(access.offset), access.elements());
        let (from, to) = (place(&collect.from), place(&collect.to));
        if collect.op == CollectOp::AllReduce && from.0 != to.0 {
            // SAFETY: both are buffers of that many elements, and not the same one.
            unsafe { to.0.copy_from_nonoverlapping(from.0, to.1) };
        }
        comm.issue(Job { op: collect.op, from: (from.0, from.1), to })?;
        Ok(())
    }
}

/// The nodes of a program with nothing but their metas kept: outputs are described by theirs.
fn skeleton(program: &Program) -> pawl_graph::graph::Graph {
    let mut graph = pawl_graph::graph::Graph::default();
    for node in program.graph.nodes() {
        let op = pawl_graph::graph::Op::Fill { value: 0.0, shape: node.meta.shape.clone(), dtype: node.meta.dtype };
        graph.push_unchecked(pawl_graph::graph::Node {
            op,
            operands: Vec::new(),
            meta: node.meta.clone(),
            scope: pawl_graph::graph::ScopeId::default(),
            stage: node.stage,
        });
    }
    graph
}

/// For each kernel, how many of the program's collectives must be done before it runs.
fn waits(lowered: &Lowered) -> Vec<usize> {
    let mut waits = vec![0; lowered.kernels.len()];
    let mut busy: Vec<(usize, usize)> = Vec::new();
    for (at, kernel) in lowered.kernels.iter().enumerate() {
        let touched = kernel.body.reads().into_iter().chain(kernel.body.writes());
        waits[at] = touched
            .flat_map(|access| busy.iter().filter(move |job| job.0 == access.buffer))
            .map(|&(_, number)| number)
            .max()
            .unwrap_or(0);
        if let pawl_lower::Body::Collective(collect) = &kernel.body {
            let number = busy.last().map_or(0, |&(_, number)| number) + 1;
            busy.push((collect.from.buffer, number));
            busy.push((collect.to.buffer, number));
        }
    }
    waits
}

impl Executable for GraphExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        self.program(program)?.ran = false;
        let Self { features, pool, comm, meter, scratch, workspace, blocks, programs, timed, .. } = self;
        let compiled = &mut programs[program];
        // The check proper allocates; a run may not.
        let declared = &compiled.interface.inputs;
        let fits = |(decl, view): (&pawl_graph::graph::InputDecl, &View<'_>)| {
            decl.meta.dtype == view.dtype() && decl.meta.shape.elements() == view.len()
        };
        if declared.len() != inputs.len() || !declared.iter().zip(inputs).all(fits) {
            check_inputs(&compiled.interface, inputs)?;
        }
        for (base, buffer) in compiled.bases.iter_mut().zip(&compiled.lowered.buffers) {
            if let Storage::Input(id) = buffer.storage {
                *base = start(inputs[id.0 as usize]).cast_mut();
            }
        }
        let issued = comm.issued();
        for at in 0..compiled.runs.len() {
            if let Some(blocks) = blocks {
                compiled.take(at, blocks, meter);
            }
            let began = timed.then(Instant::now);
            if compiled.waits[at] > 0 {
                comm.wait(Some(issued + compiled.waits[at]))?;
            }
            let memory = Memory {
                bases: &compiled.bases,
                scratch: scratch.0.start(),
                stride: scratch.1,
                workspace: workspace.start(),
            };
            compiled.runs[at].run(*features, pool, memory)?;
            compiled.issue(at, comm)?;
            if let Some(began) = began {
                compiled.times.add(at, began.elapsed().as_secs_f64());
            }
            if let Some(blocks) = blocks {
                compiled.give(at, blocks);
            }
        }
        comm.wait(None)?;
        compiled.times.ran();
        compiled.ran = true;
        Ok(())
    }

    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError> {
        let compiled = self.program(program)?;
        let declared = compiled.interface.outputs.get(output).filter(|_| compiled.ran);
        let Some(declared) = declared else {
            let known = compiled.interface.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ");
            let name = if compiled.ran { output.to_string() } else { format!("{output} (the program has not run)") };
            return Err(GraphError::Unknown { kind: "output", name, known }.into());
        };
        let meta = compiled.interface.graph.meta(declared.node);
        // SAFETY: the output has its place, and no run is going on.
        let data = unsafe { read(compiled.own.start().add(compiled.output_offsets[output]), meta) };
        Ok(Array::new(&meta.shape, data)?)
    }

    fn states(&self) -> &[StateDecl] {
        &self.states
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let state = self.state(name)?;
        let meta = &self.states[state].meta;
        // SAFETY: the state has its place, and no run is going on.
        let data = unsafe { read(self.state_bytes.start().add(self.state_offsets[state]), meta) };
        Ok(Array::new(&meta.shape, data)?)
    }

    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError> {
        let state = self.state(name)?;
        let Meta { dtype, shape } = &self.states[state].meta;
        if value.dtype() != *dtype || value.shape() != shape {
            return Err(GraphError::Mismatch {
                what: format!("state `{name}`"),
                dtype: *dtype,
                shape: shape.clone(),
                got_dtype: value.dtype(),
                got_shape: Shape::clone(value.shape()),
            }
            .into());
        }
        // SAFETY: as in `read_state`.
        unsafe { write(self.state_bytes.start().add(self.state_offsets[state]), value.view()) };
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { peak: self.meter.peak(), ..self.report }
    }
}

/// First byte of a view's elements.
fn start(view: View<'_>) -> *const u8 {
    match view {
        View::F64(v) => v.as_ptr().cast(),
        View::F32(v) => v.as_ptr().cast(),
        View::BF16(v) => v.as_ptr().cast(),
        View::F16(v) => v.as_ptr().cast(),
        View::U32(v) => v.as_ptr().cast(),
        View::Bool(v) => v.as_ptr(),
    }
}

/// Copies elements to memory.
///
/// # Safety
/// There is room for them.
unsafe fn write(to: *mut u8, view: View<'_>) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(start(view), view.len() * view.dtype().bytes()) };
}

/// A copy of the elements at `from`.
///
/// # Safety
/// There are as many as the meta says.
unsafe fn read(from: *const u8, meta: &Meta) -> Data {
    let len = meta.shape.elements();
    macro_rules! copy {
        ($variant:ident, $ty:ty) => {
            // SAFETY: the caller's promise; memory is aligned to a cache line.
            Data::$variant(unsafe { std::slice::from_raw_parts(from.cast::<$ty>(), len) }.to_vec())
        };
    }
    match meta.dtype {
        DType::F64 => copy!(F64, f64),
        DType::F32 => copy!(F32, f32),
        DType::BF16 => copy!(BF16, bf16),
        DType::F16 => copy!(F16, f16),
        DType::U32 => copy!(U32, u32),
        DType::Bool => copy!(Bool, u8),
    }
}
