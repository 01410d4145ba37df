//! Compiled programs, their states and memory on a GPU.
//!
//! Everything is allocated before the first run. Inputs come through two slots: while a run reads one, the next run's inputs are copied to
//! the other, through page-locked memory, by a stream of their own. A program's first run queues its kernels one by one; then they are
//! captured, once for each slot, and replayed.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaGraph as Captured, result, sys};

use super::{
    Choices, CudaGraph, Launching,
    cudnn::Plans,
    device::{Device, Memory, Pinned},
    error::{Check as _, NAME},
    host_states::States,
    matmul::Blas,
    nccl::Nccl,
    overlap,
    planned::{Planned, input_bytes},
    run::{Code, Places, Plan, Run, Target},
    transfer::{bytes_of, copy, fill, read, write},
};
use pawl_graph::{
    array::{Array, View},
    executor::{ExecError, ExecOptions, Executable, MemoryReport, check_inputs},
    graph::{Graph, GraphError, Meta, Node, Op, Program, ScopeId, Shape, StateDecl, initial_value},
};
use pawl_lower::{KernelTime, Lowered, Packing, Storage};

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
    /// Bytes free before anything was allocated.
    free: usize,
    // Last: what is above is freed first.
    device: Arc<Device>,
}

struct Compiled {
    /// The program's names and declarations.
    interface: Program,
    lowered: Lowered,
    runs: Vec<Run>,
    slots: Vec<Slot>,
    next: usize,
    /// Constants, then outputs.
    _own: Memory,
    outputs: Vec<u64>,
    /// For each input, its place in a slot.
    inputs: Vec<usize>,
    /// Number of first inputs that the next slot has already.
    ahead: usize,
    /// Whether a run has queued the kernels one by one, so that all code is loaded.
    warm: bool,
    ran: bool,
}

/// One set of inputs.
struct Slot {
    /// Address of each buffer when the inputs are here.
    addresses: Vec<u64>,
    staging: Pinned,
    memory: Memory,
    /// The copy from `staging` is done.
    copied: CudaEvent,
    /// The run that read `memory` is done.
    read: CudaEvent,
    graph: Option<Captured>,
}

// SAFETY: graphs are launched by the one thread that has the executable.
unsafe impl Send for Compiled {}

impl CudaExecutable {
    pub(super) fn new(executor: &CudaGraph, programs: &[Program], options: &ExecOptions) -> Result<Self, ExecError> {
        if options.collective.world() > 1 && executor.gang.is_none() {
            let what = "collectives of a gang without NCCL: set CudaGraph::gang".into();
            return Err(ExecError::Unsupported { executor: NAME, what });
        }
        let device = &executor.device;
        device.context().bind_to_thread().check()?;
        let target = Target { multiprocessors: device.multiprocessors(), shared: shared_memory(device)? };
        let mut cudnn = Plans::new(executor.cudnn.clone(), executor.deterministic);
        let choices = Choices { lowering: &executor.lowering, tf32: executor.tf32, offload: executor.offload };
        let Planned { programs, lowered, kernels, states, places, arena, workspace, memory } =
            Planned::new(programs, choices, &target, &mut cudnn)?;
        let free = device.free_memory()?;
        let limit = options.memory_limit.unwrap_or(free).min(free);
        if memory.planned > limit {
            return Err(ExecError::OutOfMemory { needed: memory.planned, limit });
        }
        let mut code = Code::new(device);
        code.add(&kernels.iter().flatten().flat_map(Plan::sources).collect::<Vec<_>>())?;
        let mut blas = Blas::new(device)?;
        let state_memory = States::new(device, &states, executor.offload)?;
        let arena = device.allocate(arena)?;
        let workspace = device.allocate(workspace)?;
        // Algorithms are chosen by timing on this memory: numbers like those of a run, for zeros need less power.
        for memory in [state_memory.device(), &arena] {
            fill(device, memory)?;
        }
        let mut compiled = Vec::with_capacity(programs.len());
        for (((program, place), lowered), plans) in programs.iter().zip(places).zip(lowered).zip(&kernels) {
            let place = |state: usize| state_memory.address(place[state]);
            let mut one = Compiled::new(device, program, lowered, arena.address(), &place)?;
            let at = Places { buffers: &one.slots[0].addresses, workspace: workspace.address() };
            one.runs = (plans.iter())
                .map(|plan| Run::new(plan, &mut code, &mut blas, at, executor.tune))
                .collect::<Result<_, ExecError>>()?;
            compiled.push(one);
        }
        device.synchronize()?;
        // One at a time: all of a large model may be more than the host has room for.
        let all: Vec<&StateDecl> = states.iter().collect();
        for (at, decl) in all.iter().enumerate() {
            let value = initial_value(&all, decl, options.seed)?;
            // SAFETY: each state has its place; nothing runs.
            unsafe { write(state_memory.address(at), value.view()) }?;
        }
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
            free,
            device: Arc::clone(device),
        };
        executable.measure()?;
        Ok(executable)
    }

    /// The lowered programs, to be dumped.
    pub fn lowered(&self) -> impl Iterator<Item = &Lowered> {
        self.programs.iter().map(|program| &program.lowered)
    }

    /// Version of cuBLASLt: 130100.
    pub fn blas_version(&self) -> usize {
        self.blas.version()
    }

    /// Time of each kernel of a program, from `rounds` runs without a pause, kernels queued one by one with events between them. It runs the program:
    /// states change.
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
        let places = Places { buffers: &compiled.slots[compiled.next].addresses, workspace: workspace.address() };
        let mut seconds = vec![0.0; compiled.runs.len()];
        for round in 0..rounds + 1 {
            let events = (0..=compiled.runs.len()).map(|_| device.event()).collect::<Result<Vec<_>, _>>()?;
            events[0].record(device.stream()).check()?;
            for (run, event) in compiled.runs.iter().zip(&events[1..]) {
                if let Some(done) = run.enqueue(device, blas, gang.as_deref(), places)? {
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

    /// Registers and spilled bytes of a kernel's threads; `None` for those of libraries.
    pub fn registers(&self, program: usize, kernel: usize) -> Option<(i32, i32)> {
        self.programs.get(program)?.runs.get(kernel)?.registers()
    }

    /// Waits until all that was queued is done.
    ///
    /// # Errors
    /// When something queued failed, or a gang stays silent.
    pub fn synchronize(&self) -> Result<(), ExecError> {
        match &self.gang {
            Some(gang) => gang.wait(self.device.stream()),
            None => self.device.stream().synchronize().check(),
        }
    }

    fn measure(&mut self) -> Result<(), ExecError> {
        let used = self.free.saturating_sub(self.device.free_memory()?);
        self.report.peak = self.report.peak.max(used);
        Ok(())
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

/// Dynamic shared memory that a block may have.
fn shared_memory(device: &Device) -> Result<usize, ExecError> {
    let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    Ok(device.context().attribute(which).check()?.max(0) as usize)
}

impl Compiled {
    fn new(
        device: &Arc<Device>,
        program: &Program,
        lowered: Lowered,
        arena: u64,
        state: &dyn Fn(usize) -> u64,
    ) -> Result<Self, ExecError> {
        let own = device.allocate(lowered.own_bytes())?;
        let mut packing = Packing::default();
        let inputs: Vec<usize> = program.inputs.iter().map(|input| packing.add(input.meta.bytes())).collect();
        let mut packing = Packing::default();
        let mut outputs = vec![0; program.outputs.len()];
        let mut addresses = vec![0; lowered.buffers.len()];
        for ((address, buffer), offset) in addresses.iter_mut().zip(&lowered.buffers).zip(&lowered.plan.offsets) {
            *address = match &buffer.storage {
                Storage::Input(_) => 0,
                Storage::State(id) => state(id.0 as usize),
                Storage::Arena => arena + offset.unwrap_or(0) as u64,
                Storage::Constant(array) => {
                    let at = own.address() + packing.add(buffer.bytes()) as u64;
                    // SAFETY: the packing gave the constant its place; nothing runs.
                    unsafe { write(at, array.view()) }?;
                    at
                }
                Storage::Output(index) => {
                    outputs[*index] = own.address() + packing.add(buffer.bytes()) as u64;
                    outputs[*index]
                }
            };
        }
        let slot = || -> Result<Slot, ExecError> {
            let memory = device.allocate(input_bytes(program))?;
            fill(device, &memory)?;
            let mut addresses = addresses.clone();
            for (address, buffer) in addresses.iter_mut().zip(&lowered.buffers) {
                if let Storage::Input(id) = buffer.storage {
                    *address = memory.address() + inputs[id.0 as usize] as u64;
                }
            }
            let staging = device.pinned(input_bytes(program))?;
            let (copied, read) = (device.event()?, device.event()?);
            Ok(Slot { addresses, staging, memory, copied, read, graph: None })
        };
        let slots = vec![slot()?, slot()?];
        let mut interface = Program { graph: Graph::default(), ..program.clone() };
        // Outputs are described by their nodes, of which only the metas are kept.
        for node in program.graph.nodes() {
            let op = Op::Fill { value: 0.0, shape: node.meta.shape.clone(), dtype: node.meta.dtype };
            let (meta, stage) = (node.meta.clone(), node.stage);
            interface.graph.push_unchecked(Node { op, operands: Vec::new(), meta, scope: ScopeId::default(), stage });
        }
        let runs = Vec::new();
        let (warm, ran) = (false, false);
        Ok(Self { interface, lowered, runs, slots, next: 0, _own: own, outputs, inputs, ahead: 0, warm, ran })
    }

    /// Brings inputs, of which `from` are there, to slot `to`, behind the run that reads it.
    fn bring(
        &mut self,
        device: &Device,
        to: usize,
        from: usize,
        inputs: &[View<'_>],
        pinned: bool,
    ) -> Result<(), ExecError> {
        let slot = &mut self.slots[to];
        let copies = device.copies();
        if from == 0 {
            slot.copied.synchronize().check()?;
            copies.wait(&slot.read).check()?;
        }
        for (view, &offset) in inputs.iter().zip(&self.inputs).skip(from) {
            let bytes = bytes_of(*view);
            if bytes.is_empty() {
                continue;
            }
            let source = if pinned {
                let staging = &mut slot.staging.bytes()[offset..offset + bytes.len()];
                copy(bytes, staging);
                staging
            } else {
                bytes
            };
            // SAFETY: the staging memory is written again only after `copied`; the driver takes what is not page-locked before it returns.
            unsafe { result::memcpy_htod_async(slot.memory.address() + offset as u64, source, copies.cu_stream()) }
                .check()?;
        }
        slot.copied.record(copies).check()
    }

    /// Whether `inputs` are the first ones of this program, all of them if `all`. (The check proper allocates.)
    fn fits(&self, inputs: &[View<'_>], all: bool) -> bool {
        let declared = &self.interface.inputs;
        let fits = |(decl, view): (&pawl_graph::graph::InputDecl, &View<'_>)| {
            decl.meta.dtype == view.dtype() && decl.meta.shape.elements() == view.len()
        };
        let count = if all { declared.len() == inputs.len() } else { declared.len() >= inputs.len() };
        count && declared.iter().zip(inputs).all(fits)
    }
}

impl Executable for CudaExecutable {
    fn run(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        self.program(program)?.ran = false;
        self.device.context().bind_to_thread().check()?;
        let Self { device, blas, gang, workspace, programs, launching, pinned, .. } = self;
        let compiled = &mut programs[program];
        if !compiled.fits(inputs, true) {
            check_inputs(&compiled.interface, inputs)?;
        }
        compiled.next = (compiled.next + 1) % compiled.slots.len();
        let ahead = std::mem::take(&mut compiled.ahead);
        compiled.bring(device, compiled.next, ahead, inputs, *pinned)?;
        device.stream().wait(&compiled.slots[compiled.next].copied).check()?;
        let slot = &compiled.slots[compiled.next];
        let places = Places { buffers: &slot.addresses, workspace: workspace.address() };
        let (lowered, runs) = (&compiled.lowered, &compiled.runs);
        let queue = || overlap::queue(lowered, runs, device, blas, gang.as_deref(), places);
        let first = !compiled.warm;
        match &slot.graph {
            _ if first || *launching == Launching::Streamed => queue()?,
            Some(graph) => graph.launch().check()?,
            None => {
                let stream = device.stream();
                stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).check()?;
                let queued = queue();
                let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
                let graph = stream.end_capture(flags);
                queued?;
                let Some(graph) = graph.check()? else {
                    return Err(ExecError::Device("nothing was captured".into()));
                };
                graph.upload().check()?;
                graph.launch().check()?;
                compiled.slots[compiled.next].graph = Some(graph);
            }
        }
        compiled.slots[compiled.next].read.record(device.stream()).check()?;
        compiled.warm = true;
        compiled.ran = true;
        if first {
            self.measure()?;
        }
        Ok(())
    }

    fn prefetch(&mut self, program: usize, inputs: &[View<'_>]) -> Result<(), ExecError> {
        self.program(program)?;
        self.device.context().bind_to_thread().check()?;
        let Self { device, programs, pinned, .. } = self;
        let compiled = &mut programs[program];
        if !compiled.fits(inputs, false) {
            check_inputs(&compiled.interface, inputs)?;
        }
        let next = (compiled.next + 1) % compiled.slots.len();
        compiled.bring(device, next, 0, inputs, *pinned)?;
        compiled.ahead = inputs.len();
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
        let meta = compiled.interface.graph.meta(declared.node).clone();
        let address = compiled.outputs[output];
        self.device.context().bind_to_thread().check()?;
        if let Err(error) = self.synchronize() {
            self.program(program)?.ran = false;
            return Err(error);
        }
        // SAFETY: the output has its place; nothing runs.
        let data = unsafe { read(address, &meta) }?;
        Ok(Array::new(&meta.shape, data)?)
    }

    fn offload_seconds(&self) -> Option<f64> {
        self.state_memory.offload_seconds()
    }

    fn states(&self) -> &[StateDecl] {
        &self.states
    }

    fn read_state(&mut self, name: &str) -> Result<Array, ExecError> {
        let state = self.state(name)?;
        self.device.context().bind_to_thread().check()?;
        self.synchronize()?;
        let meta = &self.states[state].meta;
        // SAFETY: the state has its place; nothing runs.
        let data = unsafe { read(self.state_memory.address(state), meta) }?;
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
        self.device.context().bind_to_thread().check()?;
        self.synchronize()?;
        // SAFETY: as in `read_state`.
        unsafe { write(self.state_memory.address(state), value.view()) }
    }

    fn memory(&self) -> MemoryReport {
        self.report
    }
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Nothing may be freed that is still in use; a gang that is silent is waited for no longer than its deadline.
        if self.device.context().bind_to_thread().is_ok() {
            let _ = self.synchronize();
        }
    }
}
