//! A compiled program: its kernels, where their buffers lie, and which collectives each waits for.

use std::sync::Arc;

use super::{
    blocks::Blocks,
    bytes::{Bytes, Meter, read, write},
    comm::{Comm, Job},
    kernel::CpuKernel,
    profile::Times,
};
use pawl_graph::{
    array::Array,
    executor::{ExecError, Interface},
    graph::Program,
};
use pawl_lower::{Access, BaseAddresses, Body, CollectOp, Lowered, Storage};

/// One program, ready to run.
pub(super) struct Compiled {
    pub(super) interface: Interface,
    pub(super) lowered: Lowered,
    pub(super) kernels: Vec<CpuKernel>,
    /// For each kernel, how many of the run's collectives must be done before it.
    pub(super) waits: Vec<usize>,
    /// Address of each buffer in the current run.
    pub(super) bases: Vec<*mut u8>,
    /// Constants, then outputs.
    own: Bytes,
    /// Offset of each output in `own`.
    outputs: Vec<usize>,
    held: Vec<Option<(usize, Bytes)>>,
    pub(super) times: Times,
}

// SAFETY: addresses point into memory that this owns (and, during a run, into the caller's inputs).
unsafe impl Send for Compiled {}

impl Compiled {
    pub(super) fn new(
        program: &Program,
        lowered: Lowered,
        kernels: Vec<CpuKernel>,
        meter: &Arc<Meter>,
        arena: Option<*mut u8>,
        state: &dyn Fn(usize) -> *mut u8,
    ) -> Self {
        let own_plan = lowered.own();
        let own = Bytes::new(own_plan.bytes, meter);
        let bases = lowered.addresses(&own_plan, &BaseAddresses { arena, own: own.start(), state });
        for (index, array) in lowered.constants() {
            // SAFETY: the plan gave the constant its place.
            unsafe { write(bases[index], array.view()) };
        }
        let waits = waits(&lowered);
        let held = (0..lowered.buffers.len()).map(|_| None).collect();
        let times = Times::new(lowered.kernels.len());
        Self {
            interface: Interface::new(program),
            lowered,
            kernels,
            waits,
            bases,
            own,
            outputs: own_plan.outputs,
            held,
            times,
        }
    }

    /// Takes blocks for buffers that `kernel` is the first to touch.
    pub(super) fn take(&mut self, kernel: usize, blocks: &mut Blocks, meter: &Arc<Meter>) {
        for (index, buffer) in self.lowered.buffers.iter().enumerate() {
            if buffer.storage == Storage::Arena && buffer.life.0 == kernel {
                let block = blocks.take(buffer.bytes(), meter);
                self.bases[index] = block.1.start();
                self.held[index] = Some(block);
            }
        }
    }

    /// Gives back what `kernel` is the last to touch.
    pub(super) fn give(&mut self, kernel: usize, blocks: &mut Blocks) {
        for (index, buffer) in self.lowered.buffers.iter().enumerate() {
            if buffer.life.1 == kernel
                && let Some(block) = self.held[index].take()
            {
                blocks.give(block);
            }
        }
    }

    /// Begins the collective that kernel `at` is, if it is one.
    pub(super) fn issue(&self, at: usize, comm: &Comm) -> Result<(), ExecError> {
        let CpuKernel::Collective(collect) = &self.kernels[at] else {
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

    /// Output `output` of the last run.
    pub(super) fn output(&self, output: usize) -> Result<Array, ExecError> {
        let meta = self.interface.output(output)?;
        // SAFETY: the output has its place, and no run is going on.
        unsafe { read(self.own.start().wrapping_add(self.outputs[output]), meta) }
    }
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
        if let Body::Collective(collect) = &kernel.body {
            let number = busy.last().map_or(0, |&(_, number)| number) + 1;
            busy.push((collect.from.buffer, number));
            busy.push((collect.to.buffer, number));
        }
    }
    waits
}
