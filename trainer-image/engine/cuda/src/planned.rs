//! What programs will run and take on a GPU, before anything is compiled or allocated.

use super::{
    attention,
    cudnn::CudnnPlans,
    error::NAME,
    host_states,
    kernel::{GpuProperties, KernelPlan},
    matmul::WORKSPACE,
};
use pawl_graph::{
    executor::{ExecError, MemoryReport, check_programs, unify_states},
    graph::{Graph, Node, Program, StateDecl},
    passes::expand_norms,
};
use pawl_lower::{LowerOptions, Lowered, aligned};

/// The GPU that is planned for while there is none: an H100 or H200.
const USUAL: GpuProperties = GpuProperties { multiprocessors: 132, shared: 227 << 10 };

/// Choices that decide what runs.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'a> {
    /// Of lowering (`compile`, `compileScope`).
    pub lowering: &'a LowerOptions,
    /// Whether float32 products may round operands to 10 bits of significand (`precision: tf32`).
    pub tf32: bool,
    /// Whether the optimiser's state lies in host memory (`optimizerOffload: Cpu`).
    pub offload: bool,
}

/// Programs, planned.
pub(super) struct Planned {
    /// With norms apart where no kernel joins them.
    pub programs: Vec<Program>,
    /// Each program's kernels and buffers.
    pub lowered: Vec<Lowered>,
    /// How each kernel of each program will run.
    pub plans: Vec<Vec<KernelPlan>>,
    /// The states of all programs.
    pub states: Vec<StateDecl>,
    /// For each program, the places of its states among all.
    pub places: Vec<Vec<usize>>,
    /// Bytes that all programs share for values.
    pub arena: usize,
    /// Bytes that all kernels share for themselves.
    pub workspace: usize,
    /// Bytes of states, and of all.
    pub memory: MemoryReport,
}

impl Planned {
    pub(super) fn new(
        programs: &[Program],
        choices: Choices<'_>,
        gpu: &GpuProperties,
        cudnn: &mut CudnnPlans,
    ) -> Result<Self, ExecError> {
        let fused = !choices.lowering.unfused.iter().any(|scope| scope == LowerOptions::EVERYTHING);
        let joined = |graph: &Graph, node: &Node| fused && attention::joins_norms(graph, node, gpu.shared);
        let programs: Vec<Program> = programs.iter().map(|p| expand_norms(p, joined)).collect::<Result<_, _>>()?;
        check_programs(&programs, NAME)?;
        let (states, places) = unify_states(&programs)?;
        let [state_size, _] = host_states::bytes(&states, choices.offload);
        let lowered: Vec<Lowered> = programs.iter().map(|p| Lowered::new(p, choices.lowering)).collect();
        let plans = lowered.iter().map(|lowered| KernelPlan::all(lowered, gpu, cudnn, choices.tf32));
        let plans = plans.collect::<Result<Vec<_>, ExecError>>()?;
        let arena = lowered.iter().map(|l| l.plan.arena).max().unwrap_or(0);
        let workspace = plans.iter().flatten().map(KernelPlan::workspace).max().unwrap_or(0);
        let slots: usize = programs.iter().map(|p| 2 * input_bytes(p)).sum();
        let own: usize = lowered.iter().map(|l| l.own().bytes).sum();
        let planned = state_size + arena + workspace + WORKSPACE + slots + own;
        let memory = MemoryReport { states: state_size, planned, peak: 0 };
        Ok(Self { programs, lowered, plans, states, places, arena, workspace, memory })
    }
}

/// Bytes of one slot of a program's inputs.
pub(super) fn input_bytes(program: &Program) -> usize {
    program.inputs.iter().map(|input| aligned(input.meta.bytes())).sum()
}

/// Bytes that `programs` will take on a GPU, found without one. They are those of an H100 or H200 whose attention runs in
/// generated kernels; cuDNN's takes a little more or less.
///
/// # Errors
/// When a program is ill-formed, or has something that no kernel computes.
pub fn predict(programs: &[Program], choices: Choices<'_>) -> Result<MemoryReport, ExecError> {
    Ok(Planned::new(programs, choices, &USUAL, &mut CudnnPlans::default())?.memory)
}
