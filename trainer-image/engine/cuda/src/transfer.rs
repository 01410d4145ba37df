//! Copies between the host and the GPU.

use super::{
    device::{Device, Memory},
    error::Check as _,
};
use cudarc::driver::{result, sys};
use pawl_graph::{
    array::{Array, Data, View},
    executor::ExecError,
    graph::Meta,
};

/// Inputs larger than this, in bytes, are copied to page-locked memory by several threads.
const PARALLEL_COPY: usize = 8 << 20;

/// Fills memory with a pattern that is a number near 1 in 16 and in 32 bits.
pub(super) fn fill(device: &Device, memory: &Memory) -> Result<(), ExecError> {
    if memory.is_empty() {
        return Ok(());
    }
    // SAFETY: the memory has that many words.
    let status =
        unsafe { sys::cuMemsetD32Async(memory.address(), 0x3f8d_3f93, memory.len() / 4, device.stream().cu_stream()) };
    status.result().check()
}

/// Copies, by several threads when there is much: one does not reach the speed of the bus.
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    if from.len() < PARALLEL_COPY {
        return to.copy_from_slice(from);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let part = from.len().div_ceil(threads).next_multiple_of(4096);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}

/// Copies elements to the device, and waits.
///
/// # Safety
/// There is room for them, and nothing runs that uses it.
pub(super) unsafe fn write(device: &Device, to: u64, view: View<'_>) -> Result<(), ExecError> {
    let bytes = view.bytes();
    if bytes.is_empty() {
        return Ok(());
    }
    // The driver's own stream would not do: from pageable memory its copies may return before the last bytes are there,
    // and kernels of this stream do not wait for it. SAFETY: the caller's promise; the bytes are borrowed until the
    // stream has copied them.
    unsafe { result::memcpy_htod_async(to, bytes, device.stream().cu_stream()) }.check()?;
    device.stream().synchronize().check()
}

/// A copy of the elements at `from`.
///
/// # Safety
/// There are as many as the meta says, and nothing runs that writes them.
pub(super) unsafe fn read(from: u64, meta: &Meta) -> Result<Array, ExecError> {
    let mut data = Data::zeros(meta.dtype, meta.shape.elements());
    let bytes = data.bytes_mut();
    if !bytes.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_sync(bytes, from) }.check()?;
    }
    Ok(Array::new(&meta.shape, data)?)
}
