//! A compiled program on a GPU: its kernels, the addresses of their buffers, and the two slots of its inputs.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaGraph as Captured, result};

use super::{
    device::{Device, Memory, Pinned},
    error::Check as _,
    kernel::CudaKernel,
    planned::input_bytes,
    spans::Timed,
    transfer::{copy, fill, write},
};
use pawl_graph::{
    array::View,
    executor::{ExecError, Interface},
    graph::Program,
};
use pawl_lower::{Address as _, BaseAddresses, Lowered, Packing, Storage};

/// One program, ready to run.
pub(super) struct Compiled {
    pub(super) interface: Interface,
    pub(super) lowered: Lowered,
    pub(super) kernels: Vec<CudaKernel>,
    pub(super) slots: Vec<Slot>,
    pub(super) next: usize,
    /// Constants, then outputs.
    _own: Memory,
    /// Address of each output.
    pub(super) outputs: Vec<u64>,
    /// For each input, its byte offset in a slot.
    inputs: Vec<usize>,
    /// Number of inputs that were prefetched to the next slot.
    pub(super) ahead: usize,
    /// Whether a run has queued the kernels one by one, so that all code is loaded.
    pub(super) warm: bool,
}

/// One set of inputs.
pub(super) struct Slot {
    /// Address of each buffer when the inputs are here.
    pub(super) addresses: Vec<u64>,
    staging: Pinned,
    memory: Memory,
    /// The copy from `staging` is done.
    pub(super) copied: CudaEvent,
    /// The run that read `memory` is done.
    pub(super) read: CudaEvent,
    pub(super) graph: Option<Captured>,
    /// What is timed of the newest run with these inputs.
    pub(super) timed: Timed,
}

// SAFETY: graphs are launched by the one thread that has the executable.
unsafe impl Send for Compiled {}

impl Compiled {
    pub(super) fn new(
        device: &Arc<Device>,
        program: &Program,
        lowered: Lowered,
        arena: u64,
        state: &dyn Fn(usize) -> u64,
    ) -> Result<Self, ExecError> {
        let own_plan = lowered.own();
        let own = device.allocate(own_plan.bytes)?;
        let addresses = lowered.addresses(&own_plan, &BaseAddresses { arena: Some(arena), own: own.address(), state });
        for (index, array) in lowered.constants() {
            // SAFETY: the plan gave the constant its place; nothing runs.
            unsafe { write(device, addresses[index], array.view()) }?;
        }
        let mut packing = Packing::default();
        let inputs: Vec<usize> = program.inputs.iter().map(|input| packing.add(input.meta.bytes())).collect();
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
            Ok(Slot { addresses, staging, memory, copied, read, graph: None, timed: Timed::default() })
        };
        let slots = vec![slot()?, slot()?];
        let outputs = own_plan.outputs.iter().map(|&offset| own.address().plus(offset)).collect();
        Ok(Self {
            interface: Interface::new(program),
            lowered,
            kernels: Vec::new(),
            slots,
            next: 0,
            outputs,
            _own: own,
            inputs,
            ahead: 0,
            warm: false,
        })
    }

    /// Copies all inputs but the first `from` to slot `to`, after the run that reads the slot.
    pub(super) fn bring(
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
            let bytes = view.bytes();
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
            // SAFETY: the staging memory is written again only after `copied`; the driver takes what is not page-locked
            // before it returns.
            unsafe { result::memcpy_htod_async(slot.memory.address() + offset as u64, source, copies.cu_stream()) }
                .check()?;
        }
        slot.copied.record(copies).check()
    }
}
