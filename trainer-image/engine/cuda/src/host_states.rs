//! Memory of states: device memory, or, for states of the optimiser, page-locked host memory.
//!
//! Kernels access page-locked memory directly, over the bus: state in host memory never takes device memory, and
//! results are unchanged. The cost is the time to transfer its bytes over the bus, once in each direction per update.

use std::{ops::Range, sync::Arc};

use super::device::{Device, Memory, Pinned};
use pawl_graph::{
    executor::ExecError,
    graph::{Role, StateDecl},
};
use pawl_lower::aligned;

/// The memory of all states.
pub(super) struct States {
    /// Address of each state, of the device or of the host.
    addresses: Vec<u64>,
    /// States in device memory, one after the other.
    device: Memory,
    /// Held for its addresses.
    _host: Option<Pinned>,
    /// Addresses in host memory.
    host: Option<Range<u64>>,
}

/// Bytes of states in device and in host memory.
pub(super) fn bytes(states: &[StateDecl], offload: bool) -> [usize; 2] {
    let mut sums = [0; 2];
    for state in states {
        sums[usize::from(offload && state.role == Role::Optimizer)] += aligned(state.meta.bytes());
    }
    sums
}

impl States {
    /// Memory for `states`, of which those of the optimiser lie in host memory with `offload`.
    pub(super) fn new(device: &Arc<Device>, states: &[StateDecl], offload: bool) -> Result<Self, ExecError> {
        let sizes = bytes(states, offload);
        let own = device.allocate(sizes[0])?;
        let host = if sizes[1] > 0 { Some(device.pinned(sizes[1])?) } else { None };
        let range = host.as_ref().map(|host| host.address()..host.address() + sizes[1] as u64);
        let starts = [own.address(), range.as_ref().map_or(0, |range| range.start)];
        let mut used = [0; 2];
        let mut place = |state: &StateDecl| {
            let which = usize::from(offload && state.role == Role::Optimizer);
            let at = starts[which] + used[which] as u64;
            used[which] += aligned(state.meta.bytes());
            at
        };
        let addresses = states.iter().map(&mut place).collect();
        Ok(Self { addresses, device: own, _host: host, host: range })
    }

    /// Address of a state.
    pub(super) fn address(&self, state: usize) -> u64 {
        self.addresses[state]
    }

    /// The states in device memory.
    pub(super) fn device(&self) -> &Memory {
        &self.device
    }

    /// Addresses of the states in host memory; `None` when there are none.
    pub(super) fn host(&self) -> Option<&Range<u64>> {
        self.host.as_ref()
    }
}
