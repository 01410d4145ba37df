//! Compiled programs, their states and memory on a GPU.
//!
//! Everything is allocated before the first run. Inputs have two slots: while a run reads one, the next run's inputs
//! are copied to the other, through page-locked memory, on a separate stream. A program's first run queues its kernels
//! one by one; then they are captured, once for each slot, and replayed.

use std::{sync::Arc, time::Duration};

use cudarc::driver::sys;

use super::{
    Choices, CudaGraph, Launching,
    compiled::{Compiled, Slot},
    cudnn::CudnnPlans,
    device::{Device, Memory},
    error::{Check as _, NAME},
    host_states::States,
    kernel::{Addresses, Code, CudaKernel, KernelPlan},
    matmul::Blas,
    nccl::Nccl,
    overlap,
    planned::Planned,
    transfer::{fill, read, write},
};
use pawl_graph::{
    array::{Array, View},
    executor::{ExecError, ExecOptions, Executable, MemoryReport, find_program, find_state, find_state_for},
    graph::{InitialValues, Program, StateDecl},
};
use pawl_lower::{KernelTime, Lowered};

/// Programs compiled for a GPU.
pub struct CudaExecutable {
    programs: Vec<Compiled>,
    blas: Blas,
    gang: Option<Arc<Nccl>>,
    states: Vec<StateDecl>,
    state_memory: States,
    workspace: Memory,
    /// Held for the addresses of the programs.
    _arena: Memory,
    launching: Launching,
    pinned: bool,
    report: MemoryReport,
    /// Time for which programs waited for collectives, up to the newest output.
    waited: Duration,
    /// Time of the kernels that access optimizer state in host memory, up to the newest output.
    offloaded: Duration,
    /// Bytes free before anything was allocated.
    free: usize,
    // Last: what is above is freed first.
    device: Arc<Device>,
}

impl CudaExecutable {
    pub(super) fn new(executor: &CudaGraph, programs: &[Program], options: &ExecOptions) -> Result<Self, ExecError> {
        if options.collective.world() > 1 && executor.gang.is_none() {
            let what = "collectives of a gang without NCCL: set CudaGraph::gang".into();
            return Err(ExecError::Unsupported { executor: NAME, what });
        }
        let device = &executor.device;
        device.context().bind_to_thread().check()?;
        let card = device.card()?;
        let mut cudnn = CudnnPlans::new(executor.cudnn.clone(), executor.deterministic);
        let choices = Choices { lowering: &executor.lowering, tf32: executor.tf32, offload: executor.offload };
        let Planned { programs, lowered, plans, states, places, arena, workspace, memory } =
            Planned::new(programs, choices, card, &mut cudnn)?;
        let free = device.free_memory()?;
        let limit = options.memory_limit.unwrap_or(free).min(free);
        if memory.planned > limit {
            return Err(ExecError::OutOfMemory { needed: memory.planned, limit });
        }
        let mut code = Code::new(device, options);
        code.add(&plans.iter().flatten().flat_map(KernelPlan::sources).collect::<Vec<_>>())?;
        let mut blas = Blas::new(device)?;
        let state_memory = States::new(device, &states, executor.offload)?;
        let arena = device.allocate(arena)?;
        let workspace = device.allocate(workspace)?;
        // Algorithms are chosen by timing on this memory: numbers like those of a run, for zeros need less power.
        for memory in [state_memory.device(), &arena] {
            fill(device, memory)?;
        }
        let mut compiled = Vec::with_capacity(programs.len());
        for (((program, place), lowered), plans) in programs.iter().zip(places).zip(lowered).zip(&plans) {
            let place = |state: usize| state_memory.address(place[state]);
            let mut one = Compiled::new(device, program, lowered, arena.address(), &place)?;
            let addresses = Addresses { buffers: &one.slots[0].addresses, workspace: workspace.address() };
            one.kernels = (plans.iter())
                .map(|plan| CudaKernel::new(plan, &mut code, &mut blas, addresses, executor.tune))
                .inspect(|_| options.compiled())
                .collect::<Result<_, ExecError>>()?;
            compiled.push(one);
        }
        device.synchronize()?;
        initialize(device, &states, &state_memory, options)?;
        let mut executable = Self {
            programs: compiled,
            blas,
            gang: executor.gang.clone(),
            states,
            state_memory,
            workspace,
            _arena: arena,
            launching: executor.launching,
            pinned: executor.pinned,
            report: memory,
            waited: Duration::ZERO,
            offloaded: Duration::ZERO,
            free,
            device: Arc::clone(device),
        };
        executable.measure()?;
        Ok(executable)
    }

    /// The lowered programs, in the order in which they were compiled.
    pub fn lowered(&self) -> impl Iterator<Item = &Lowered> {
        self.programs.iter().map(|program| &program.lowered)
    }

    /// Version of cuBLASLt: 130100.
    pub fn blas_version(&self) -> usize {
        self.blas.version()
    }

    /// Time of each kernel of a program, summed over `rounds` consecutive runs in which kernels are queued one by one
    /// with events between them. Runs the program: states change.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn profile(
        &mut self,
        program: usize,
        inputs: &[View<'_>],
        rounds: usize,
    ) -> Result<Vec<KernelTime>, ExecError> {
        self.run(program, inputs)?;
        self.device.synchronize()?;
        let Self { device, blas, workspace, programs, gang, .. } = self;
        let compiled = &programs[program];
        let addresses = Addresses { buffers: &compiled.slots[compiled.next].addresses, workspace: workspace.address() };
        let mut seconds = vec![0.0; compiled.kernels.len()];
        for round in 0..rounds + 1 {
            let events = (0..=compiled.kernels.len()).map(|_| device.event()).collect::<Result<Vec<_>, _>>()?;
            events[0].record(device.stream()).check()?;
            for (kernel, event) in compiled.kernels.iter().zip(&events[1..]) {
                if let Some(done) = kernel.enqueue(device, blas, gang.as_deref(), addresses)? {
                    device.stream().wait(&done).check()?;
                }
                event.record(device.stream()).check()?;
            }
            device.synchronize()?;
            for (at, pair) in events.windows(2).enumerate().filter(|_| round > 0) {
                seconds[at] += f64::from(pair[0].elapsed_ms(&pair[1]).check()?) / 1e3;
            }
        }
        Ok(compiled.lowered.times(&seconds, rounds as u64))
    }

    /// Registers per thread and spilled bytes per thread of a kernel; `None` for kernels of libraries.
    pub fn registers(&self, program: usize, kernel: usize) -> Option<(i32, i32)> {
        self.programs.get(program)?.kernels.get(kernel)?.registers()
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// When queued work failed, or a gang made no progress within its deadline.
    pub fn synchronize(&self) -> Result<(), ExecError> {
        match &self.gang {
            Some(gang) => gang.wait(self.device.stream()),
            None => self.device.stream().synchronize().check(),
        }
    }

    /// Adds what was timed of all runs, which must be complete.
    fn read_times(&mut self) -> Result<(), ExecError> {
        for slot in self.programs.iter_mut().flat_map(|program| &mut program.slots) {
            self.waited += slot.timed.waits.read()?;
            self.offloaded += slot.timed.offload.read()?;
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<(), ExecError> {
        let used = self.free.saturating_sub(self.device.free_memory()?);
        self.report.peak = self.report.peak.max(used);
        Ok(())
    }
}

/// Gives states their first values, one at a time: all of a large model may be more than the host has room for.
fn initialize(device: &Device, states: &[StateDecl], memory: &States, options: &ExecOptions) -> Result<(), ExecError> {
    let all: Vec<&StateDecl> = states.iter().collect();
    let mut values = InitialValues::new(&all, options.seed);
    for (at, decl) in all.iter().enumerate() {
        let value = values.of(decl)?;
        // SAFETY: each state has its place; nothing runs.
        unsafe { write(device, memory.address(at), value.view()) }?;
        // It takes its time for a large model, too.
        options.compiled();
    }
    Ok(())
}

impl Executable for CudaExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        self.device.context().bind_to_thread().check()?;
        let compiled = find_program(&mut self.programs, program)?;
        compiled.interface.begin();
        compiled.interface.check_inputs(inputs)?;
        compiled.next = (compiled.next + 1) % compiled.slots.len();
        if compiled.slots[compiled.next].timed.is_open() {
            // Its events would be recorded again: a caller that reads outputs never comes here.
            self.synchronize()?;
            self.read_times()?;
        }
        let Self { device, blas, gang, workspace, programs, launching, pinned, state_memory, .. } = self;
        let host = state_memory.host();
        let compiled = find_program(programs, program)?;
        let ahead = std::mem::take(&mut compiled.ahead);
        compiled.bring(device, compiled.next, ahead, inputs, *pinned)?;
        device.stream().wait(&compiled.slots[compiled.next].copied).check()?;
        let Slot { addresses, graph: captured, timed, .. } = &mut compiled.slots[compiled.next];
        let addresses = Addresses { buffers: addresses, workspace: workspace.address() };
        let (lowered, kernels) = (&compiled.lowered, &compiled.kernels);
        let mut queue = |capture: bool| {
            timed.begin(capture);
            overlap::queue(lowered, kernels, device, blas, gang.as_deref(), addresses, (host, &mut *timed))
        };
        let first = !compiled.warm;
        match captured {
            _ if first || *launching == Launching::Streamed => queue(false)?,
            Some(graph) => graph.launch().check()?,
            None => {
                let stream = device.stream();
                stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).check()?;
                let queued = queue(true);
                let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let graph = stream.end_capture(flags);
                queued?;
                let Some(graph) = graph.check()? else {
                    return Err(ExecError::Device("nothing was captured".into()));
                };
                graph.upload().check()?;
                graph.launch().check()?;
                *captured = Some(graph);
            }
        }
        timed.queued();
        compiled.slots[compiled.next].read.record(device.stream()).check()?;
        compiled.warm = true;
        compiled.interface.end();
        if first {
            self.measure()?;
        }
        Ok(())
    }

    fn prefetch(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        self.device.context().bind_to_thread().check()?;
        let Self { device, programs, pinned, .. } = self;
        let compiled = find_program(programs, program)?;
        compiled.interface.check_first_inputs(inputs)?;
        let next = (compiled.next + 1) % compiled.slots.len();
        compiled.bring(device, next, 0, inputs, *pinned)?;
        compiled.ahead = inputs.len();
        Ok(())
    }

    fn output(&mut self, program: usize, output: usize) -> Result<Array, ExecError> {
        let compiled = find_program(&mut self.programs, program)?;
        let (meta, address) = (compiled.interface.output(output)?.clone(), compiled.outputs[output]);
        self.device.context().bind_to_thread().check()?;
        if let Err(error) = self.synchronize() {
            find_program(&mut self.programs, program)?.interface.begin();
            return Err(error);
        }
        self.read_times()?;
        // SAFETY: the output has its place; nothing runs.
        unsafe { read(address, &meta) }
    }

    fn offload_time(&self) -> Option<Duration> {
        self.state_memory.host().map(|_| self.offloaded)
    }

    fn collective_wait(&self) -> Duration {
        self.waited
    }

    fn states(&self) -> &[StateDecl] {
        &self.states
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let state = find_state(&self.states, name)?;
        self.device.context().bind_to_thread().check()?;
        self.synchronize()?;
        // SAFETY: the state has its place; nothing runs.
        unsafe { read(self.state_memory.address(state), &self.states[state].meta) }
    }

    fn write_state(&mut self, name: &str, value: &Array) -> Result<(), ExecError> {
        let state = find_state_for(&self.states, name, value)?;
        self.device.context().bind_to_thread().check()?;
        self.synchronize()?;
        // SAFETY: as in `read_state`.
        unsafe { write(&self.device, self.state_memory.address(state), value.view()) }
    }

    fn memory(&self) -> MemoryReport {
        self.report
    }
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Memory must not be freed while it is in use; the wait for a gang is bounded by its deadline.
        if self.device.context().bind_to_thread().is_ok() {
            let _ = self.synchronize();
        }
    }
}
