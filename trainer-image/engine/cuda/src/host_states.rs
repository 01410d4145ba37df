//! Memory of states: device memory, or, for states of the optimiser, page-locked host memory.
//!
//! Kernels access page-locked memory directly, over the bus: state in host memory never takes device memory, and results are unchanged. The cost is the
//! time to transfer its bytes over the bus, once in each direction per update.

use std::sync::Arc;

use super::{
    device::{Device, Memory, Pinned},
    error::Check as _,
};
use pawl_graph::{
    executor::ExecError,
    graph::{Role, StateDecl},
};
use pawl_lower::aligned;

/// Bytes whose copy is timed, at most.
const PROBE: usize = 64 << 20;
/// Copies that are timed, after one that is not.
const PROBES: usize = 4;

/// The memory of all states.
pub(super) struct States {
    /// Address of each state, of the device or of the host.
    addresses: Vec<u64>,
    /// States in device memory, one after the other.
    device: Memory,
    /// Held for its addresses.
    _host: Option<Pinned>,
    /// Time that the host's bytes take on the bus in one update.
    seconds: Option<f64>,
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
        let mut host = if sizes[1] > 0 { Some(device.pinned(sizes[1])?) } else { None };
        let starts = [own.address(), host.as_ref().map_or(0, Pinned::address)];
        let mut used = [0; 2];
        let mut place = |state: &StateDecl| {
            let which = usize::from(offload && state.role == Role::Optimizer);
            let at = starts[which] + used[which] as u64;
            used[which] += aligned(state.meta.bytes());
            at
        };
        let addresses = states.iter().map(&mut place).collect();
        let seconds = host.as_mut().map(|host| bus_seconds(device, &own, host)).transpose()?;
        Ok(Self { addresses, device: own, _host: host, seconds })
    }

    /// Address of a state.
    pub(super) fn address(&self, state: usize) -> u64 {
        self.addresses[state]
    }

    /// The states in device memory.
    pub(super) fn device(&self) -> &Memory {
        &self.device
    }

    /// See [`Executable::offload_seconds`](pawl_graph::executor::Executable::offload_seconds).
    pub(super) fn offload_seconds(&self) -> Option<f64> {
        self.seconds
    }
}

/// Seconds to read all of `host` over the bus and to write it back, both ways at once, from copies timed in one direction.
fn bus_seconds(device: &Arc<Device>, own: &Memory, host: &mut Pinned) -> Result<f64, ExecError> {
    let (length, stream) = (host.len(), device.stream());
    let size = length.min(own.len()).min(PROBE);
    if size == 0 {
        return Ok(0.0);
    }
    let (start, end) = (device.event()?, device.event()?);
    for probe in 0..=PROBES {
        if probe == 1 {
            start.record(stream).check()?;
        }
        // SAFETY: both have that many bytes, and nothing else uses them yet.
        unsafe { cudarc::driver::result::memcpy_htod_async(own.address(), &host.bytes()[..size], stream.cu_stream()) }
            .check()?;
    }
    end.record(stream).check()?;
    device.synchronize()?;
    let seconds = f64::from(start.elapsed_ms(&end).check()?) / 1e3 / PROBES as f64;
    Ok(seconds * length as f64 / size as f64)
}
