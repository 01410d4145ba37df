//! Kernels and memory of programs on a GPU, before anything is compiled or allocated.

use super::{
    attention, card::Card, cudnn::CudnnPlans, error::NAME, host_states, kernel::KernelPlan, matmul::WORKSPACE,
};
use pawl_graph::{
    executor::{ExecError, MemoryReport, check_programs, unify_states},
    graph::{Graph, GraphError, Node, Program, StateDecl},
    passes::{expand_norms, join_sums},
};
use pawl_lower::{LowerOptions, Lowered, aligned};

/// Options that determine the kernels and the memory.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'a> {
    /// Options of lowering (`compile`, `compileScope`).
    pub lowering: &'a LowerOptions,
    /// Whether float32 products may round operands to 10 bits of significand (`precision: tf32`).
    pub tf32: bool,
    /// Whether the optimiser's state is in host memory (`optimizerOffload: Cpu`).
    pub offload: bool,
}

/// Planned programs.
pub(super) struct Planned {
    /// The programs as [`specialize`] gives them.
    pub programs: Vec<Program>,
    /// Each program's kernels and buffers.
    pub lowered: Vec<Lowered>,
    /// The plan of each kernel of each program.
    pub plans: Vec<Vec<KernelPlan>>,
    /// The states of all programs.
    pub states: Vec<StateDecl>,
    /// For each program, the indices of its states in `states`.
    pub places: Vec<Vec<usize>>,
    /// Bytes of the arena, which all programs share.
    pub arena: usize,
    /// Bytes of the workspace, which all kernels share.
    pub workspace: usize,
    /// Predicted memory.
    pub memory: MemoryReport,
}

impl Planned {
    pub(super) fn new(
        programs: &[Program],
        choices: Choices<'_>,
        card: Card,
        cudnn: &mut CudnnPlans,
    ) -> Result<Self, ExecError> {
        let programs: Vec<Program> =
            programs.iter().map(|program| specialize(program, card, choices.lowering)).collect::<Result<_, _>>()?;
        check_programs(&programs, NAME)?;
        card.check(&programs, choices.tf32)?;
        let (states, places) = unify_states(&programs)?;
        let [state_size, _] = host_states::bytes(&states, choices.offload);
        let lowered: Vec<Lowered> = programs.iter().map(|p| Lowered::new(p, choices.lowering)).collect();
        let plans = lowered.iter().map(|lowered| KernelPlan::all(lowered, card, cudnn, choices.tf32));
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

/// The program in terms of what kernels and libraries on a card compute at once: normalised attention where a kernel
/// has it, and sums of products.
///
/// # Errors
/// When the program is ill-formed.
pub fn specialize(program: &Program, card: Card, options: &LowerOptions) -> Result<Program, GraphError> {
    let fused = !options.excludes(LowerOptions::EVERYTHING);
    let joined = |graph: &Graph, node: &Node| fused && attention::joins_norms(graph, node, card);
    join_sums(&expand_norms(program, joined)?, |scope| options.excludes(scope))
}

/// Bytes of one slot of a program's inputs.
pub(super) fn input_bytes(program: &Program) -> usize {
    program.inputs.iter().map(|input| aligned(input.meta.bytes())).sum()
}

/// Predicted memory of `programs` on a GPU, in bytes; no GPU is needed. The prediction is for an H100 or H200 and
/// attention in generated kernels; cuDNN needs slightly more or less.
///
/// # Errors
/// When a program is ill-formed, or has an operator or dtype that no kernel supports.
pub fn predict(programs: &[Program], choices: Choices<'_>) -> Result<MemoryReport, ExecError> {
    predict_on(Card::H200, programs, choices)
}

/// As [`predict`], on another model of GPU.
///
/// # Errors
/// As [`predict`], and [`ExecError::Unsupported`] for what the card lacks.
pub fn predict_on(card: Card, programs: &[Program], choices: Choices<'_>) -> Result<MemoryReport, ExecError> {
    Ok(Planned::new(programs, choices, card, &mut CudnnPlans::default())?.memory)
}
