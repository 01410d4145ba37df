//! A pool of blocks: memory for `compile: Fuse`, where nothing is planned.

use std::sync::Arc;

use super::bytes::{Bytes, Meter};
use pawl_lower::{Lowered, Storage, aligned};

/// Free blocks, by size.
#[derive(Default)]
pub(super) struct Blocks {
    free: Vec<(usize, Bytes)>,
}

impl Blocks {
    /// A block of at least `bytes`: the smallest free one that wastes less than half of itself, else a new one.
    pub(super) fn take(&mut self, bytes: usize, meter: &Arc<Meter>) -> (usize, Bytes) {
        match fit(self.free.iter().map(|block| block.0), bytes) {
            Some(index) => self.free.swap_remove(index),
            None => (aligned(bytes), Bytes::new(bytes, meter)),
        }
    }

    /// Takes a block back.
    pub(super) fn give(&mut self, block: (usize, Bytes)) {
        self.free.push(block);
    }
}

fn fit(free: impl Iterator<Item = usize>, bytes: usize) -> Option<usize> {
    let wanted = aligned(bytes);
    let usable = free.enumerate().filter(|&(_, size)| size >= wanted && size <= 2 * wanted);
    usable.min_by_key(|&(index, size)| (size, index)).map(|(index, _)| index)
}

/// Bytes that the pool will have taken after running each of these programs, in order.
pub(super) fn predict(programs: &[Lowered]) -> usize {
    let mut free = Vec::new();
    programs.iter().map(|program| added(program, &mut free)).sum()
}

fn added(program: &Lowered, free: &mut Vec<usize>) -> usize {
    let buffers = &program.buffers;
    let mut held: Vec<(usize, usize)> = Vec::new();
    let mut total = 0;
    for kernel in 0..program.kernels.len() {
        for (index, buffer) in buffers.iter().enumerate() {
            if buffer.storage == Storage::Arena && buffer.life.0 == kernel {
                let size = match fit(free.iter().copied(), buffer.bytes()) {
                    Some(at) => free.swap_remove(at),
                    None => {
                        total += aligned(buffer.bytes());
                        aligned(buffer.bytes())
                    }
                };
                held.push((index, size));
            }
        }
        // Given back in the order of buffers, as the executor does.
        held.sort_unstable();
        held.retain(|&(index, size)| {
            let done = buffers[index].life.1 == kernel;
            if done {
                free.push(size);
            }
            !done
        });
    }
    total
}
