//! Compiled programs, their states and memory.

use std::{sync::Arc, time::Instant};

use super::{
    Buffers, GraphCpu,
    blocks::{self, Blocks},
    bytes::{Bytes, Meter, read, write},
    comm::Comm,
    compiled::Compiled,
    fused::Memory,
    kernel::CpuKernel,
    lanes::Features,
    pool::Pool,
};
use pawl_graph::{
    array::{Array, View},
    executor::{
        ExecError, ExecOptions, Executable, MemoryReport, check_programs, find_program, find_state, find_state_for,
        unify_states,
    },
    graph::{Program, StateDecl, initial_values},
    passes::expand_norms,
};
use pawl_lower::{KernelTime, Lowered, Packing, Storage, aligned};

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
        let kernels = lowered.iter().map(CpuKernel::all).collect::<Result<Vec<_>, _>>()?;
        let most = |of: &dyn Fn(&CpuKernel) -> usize| kernels.iter().flatten().map(of).max().unwrap_or(0);
        let stride = aligned(most(&|kernel| kernel.scratch(features)));
        let threads = executor.threads.max(1);
        let workspace = aligned(most(&|kernel| kernel.workspace(features)));
        let pooled = executor.buffers == Buffers::Pooled;
        let arena = if pooled { 0 } else { lowered.iter().map(|l| l.plan.arena).max().unwrap_or(0) };
        let in_blocks = if pooled { blocks::predict(&lowered) } else { 0 };
        let own: usize = lowered.iter().map(|l| l.own().bytes).sum();
        let planned = state_size + arena + in_blocks + stride * threads + workspace + own;
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
        for (((program, place), lowered), kernels) in programs.iter().zip(places).zip(lowered).zip(kernels) {
            let place = |state: usize| state_bytes.start().wrapping_add(state_offsets[place[state]]);
            let one = Compiled::new(program, lowered, kernels, &meter, (!pooled).then(|| arena.start()), &place);
            let is_collective = |kernel: &&CpuKernel| matches!(kernel, CpuKernel::Collective(_));
            collectives = collectives.max(one.kernels.iter().filter(is_collective).count());
            compiled.push(one);
            options.compiled();
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

    /// The lowered programs, in the order in which they were compiled.
    pub fn lowered(&self) -> impl Iterator<Item = &Lowered> {
        self.programs.iter().map(|program| &program.lowered)
    }

    /// Time of each kernel of each program, in order, since compilation; zero unless [`GraphCpu::timed`].
    pub fn profile(&self) -> Vec<KernelTime> {
        self.programs.iter().flat_map(|p| p.times.table(&p.lowered)).collect()
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

impl Executable for GraphExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        let Self { features, pool, comm, meter, scratch, workspace, blocks, programs, timed, .. } = self;
        let compiled = find_program(programs, program)?;
        compiled.interface.begin();
        compiled.interface.check_inputs(inputs)?;
        for (base, buffer) in compiled.bases.iter_mut().zip(&compiled.lowered.buffers) {
            if let Storage::Input(id) = buffer.storage {
                *base = inputs[id.0 as usize].bytes().as_ptr().cast_mut();
            }
        }
        let issued = comm.issued();
        for at in 0..compiled.kernels.len() {
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
            compiled.kernels[at].run(*features, pool, memory)?;
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
        compiled.interface.end();
        Ok(())
    }

    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError> {
        find_program(&mut self.programs, program)?.output(output)
    }

    fn states(&self) -> &[StateDecl] {
        &self.states
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let state = find_state(&self.states, name)?;
        // SAFETY: the state has its place, and no run is going on.
        unsafe { read(self.state_bytes.start().add(self.state_offsets[state]), &self.states[state].meta) }
    }

    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError> {
        let state = find_state_for(&self.states, name, value)?;
        // SAFETY: as in `read_state`.
        unsafe { write(self.state_bytes.start().add(self.state_offsets[state]), value.view()) };
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { peak: self.meter.peak(), ..self.report }
    }
}
