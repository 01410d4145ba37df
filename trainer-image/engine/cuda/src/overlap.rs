//! Overlap of collectives and kernels: kernels that access no byte of a running collective do not wait for it.

use std::ops::Range;

use cudarc::driver::{CudaEvent, CudaStream};

use super::{
    device::Device,
    kernel::{Addresses, CudaKernel},
    matmul::Blas,
    nccl::Nccl,
    spans::Timed,
};
use pawl_graph::executor::ExecError;
use pawl_lower::{Body, Lowered};

/// A running collective, and the bytes that it reads and writes.
struct Moving<E> {
    bytes: Vec<Range<u64>>,
    done: E,
}

/// Queues the kernels of a program in order; the stream waits for a collective only before the first kernel that
/// touches its bytes, and for all at the end. The waits are timed, and the kernels that access `host`, the addresses of
/// states in host memory.
pub(super) fn queue(
    lowered: &Lowered,
    kernels: &[CudaKernel],
    device: &Device,
    blas: &Blas,
    gang: Option<&Nccl>,
    addresses: Addresses<'_>,
    (host, timed): (Option<&Range<u64>>, &mut Timed),
) -> Result<(), ExecError> {
    let stream: &CudaStream = device.stream();
    let mut moving: Vec<Moving<CudaEvent>> = Vec::new();
    let mut offloading = false;
    for (kernel, of) in kernels.iter().zip(&lowered.kernels) {
        let bytes = || bytes(&of.body, lowered, addresses.buffers);
        let offloads = host.is_some_and(|host| accesses(host, &bytes()));
        let needed = if moving.is_empty() { Vec::new() } else { touched(&mut moving, &bytes()) };
        if offloading && (!offloads || !needed.is_empty()) {
            timed.offload.end(stream)?;
            offloading = false;
        }
        timed.waits.wait(device, stream, &needed)?;
        if offloads && !offloading {
            timed.offload.start(device, stream)?;
            offloading = true;
        }
        if let Some(done) = kernel.enqueue(device, blas, gang, addresses)? {
            moving.push(Moving { bytes: bytes(), done });
        }
    }
    if offloading {
        timed.offload.end(stream)?;
    }
    let left: Vec<CudaEvent> = moving.into_iter().map(|collective| collective.done).collect();
    timed.waits.wait(device, stream, &left)
}

/// The buffers that a kernel reads or writes, as addresses. Planned memory is used again, so that different buffers may
/// be the same bytes.
fn bytes(body: &Body, lowered: &Lowered, addresses: &[u64]) -> Vec<Range<u64>> {
    let range = |buffer: usize| addresses[buffer]..addresses[buffer] + lowered.buffers[buffer].bytes() as u64;
    body.reads().into_iter().chain(body.writes()).map(|access| range(access.buffer)).collect()
}

/// Whether any of `bytes` is in `memory`.
fn accesses(memory: &Range<u64>, bytes: &[Range<u64>]) -> bool {
    bytes.iter().any(|bytes| bytes.start < memory.end && memory.start < bytes.end)
}

/// Takes out the collectives that move any of `bytes`.
fn touched<E>(moving: &mut Vec<Moving<E>>, bytes: &[Range<u64>]) -> Vec<E> {
    let meet = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
    let hit =
        |collective: &mut Moving<E>| collective.bytes.iter().any(|own| bytes.iter().any(|other| meet(own, other)));
    moving.extract_if(.., hit).map(|collective| collective.done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_accesses_host_memory_if_any_of_its_buffers_is_there() {
        let host = 1000..2000;
        assert!(accesses(&host, &[0..64, 1999..2063]) && accesses(&host, std::slice::from_ref(&(1000..1001))));
        assert!(!accesses(&host, &[0..1000, 2000..2064]) && !accesses(&host, &[]));
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "one range of bytes is meant")]
    fn a_kernel_waits_for_the_collectives_whose_bytes_it_touches_and_no_other() {
        let collective = |done, bytes: Range<u64>| Moving { bytes: vec![bytes.clone(), bytes], done };
        let mut moving = vec![collective('a', 0..64), collective('b', 64..128), collective('c', 128..256)];
        assert_eq!(touched(&mut moving, &[300..400]), []);
        assert_eq!(
            touched(&mut moving, &[127..130, 500..600]),
            ['b', 'c'],
            "the last byte of one, the first of the next"
        );
        assert_eq!(touched(&mut moving, &[64..128]), [], "once is enough");
        assert_eq!(touched(&mut moving, &[10..20]), ['a'], "also in the middle");
        assert!(moving.is_empty());
    }
}
