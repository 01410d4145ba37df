//! The memory plan: the offset of each buffer in one arena, known before the first run.

use super::{Buffer, Storage};

/// Alignment of every buffer, in bytes: a cache line.
pub const ALIGNMENT: usize = 64;

/// Offsets of arena buffers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryPlan {
    /// Byte offset in the arena of each buffer; `None` for buffers of other storage.
    pub offsets: Vec<Option<usize>>,
    /// Size of the arena in bytes.
    pub arena: usize,
    /// Largest number of bytes that are alive at one kernel: a lower bound of every plan's arena.
    pub floor: usize,
}

/// `bytes` rounded up to [`ALIGNMENT`].
pub fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Offsets of consecutive buffers, each a multiple of [`ALIGNMENT`].
#[derive(Debug, Default)]
pub struct Packing(usize);

impl Packing {
    /// The byte offset of the next buffer, which has `bytes` bytes.
    pub fn add(&mut self, bytes: usize) -> usize {
        let at = self.0;
        self.0 += aligned(bytes);
        at
    }

    /// Size in bytes of all buffers so far, with alignment.
    pub fn bytes(&self) -> usize {
        self.0
    }
}

/// Offsets of the buffers that belong to one program: its constants, and its outputs, which last until its next run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnPlan {
    /// Byte offset of each buffer; `None` for buffers of other storage.
    pub offsets: Vec<Option<usize>>,
    /// Byte offset of each output, by its index in the program.
    pub outputs: Vec<usize>,
    /// Size in bytes of all of them.
    pub bytes: usize,
}

impl OwnPlan {
    /// Packs the constants and outputs among `buffers` in order.
    pub fn new(buffers: &[Buffer]) -> Self {
        let mut packing = Packing::default();
        let own = |b: &Buffer| matches!(b.storage, Storage::Constant(_) | Storage::Output(_));
        let offsets: Vec<_> = buffers.iter().map(|b| own(b).then(|| packing.add(b.bytes()))).collect();
        let mut outputs = Vec::new();
        for (buffer, offset) in buffers.iter().zip(&offsets) {
            if let (Storage::Output(index), Some(offset)) = (&buffer.storage, offset) {
                outputs.resize(outputs.len().max(index + 1), 0);
                outputs[*index] = *offset;
            }
        }
        Self { offsets, outputs, bytes: packing.bytes() }
    }
}

impl MemoryPlan {
    /// Places buffers greedily, the largest first, each at the lowest offset that is free during its lifetime.
    pub fn new(buffers: &[Buffer]) -> Self {
        let lives = |b: &Buffer| b.storage == Storage::Arena && b.life.0 <= b.life.1;
        let mut by_size: Vec<usize> = (0..buffers.len()).filter(|&i| lives(&buffers[i])).collect();
        by_size.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].bytes()), i));
        let mut offsets = vec![None; buffers.len()];
        let mut placed: Vec<usize> = Vec::new();
        let mut arena = 0;
        for &index in &by_size {
            let (size, life) = (aligned(buffers[index].bytes()), buffers[index].life);
            let mut at = 0;
            // `placed` is ordered by offset.
            for &other in &placed {
                let (start, theirs) = (offsets[other].unwrap_or(0), buffers[other].life);
                let end = start + aligned(buffers[other].bytes());
                if theirs.0 <= life.1 && life.0 <= theirs.1 && end > at {
                    if start >= at + size {
                        break;
                    }
                    at = end;
                }
            }
            offsets[index] = Some(at);
            arena = arena.max(at + size);
            let place = placed.partition_point(|&other| offsets[other] < Some(at));
            placed.insert(place, index);
        }
        Self { offsets, arena, floor: floor(buffers, &by_size) }
    }
}

fn floor(buffers: &[Buffer], arena: &[usize]) -> usize {
    let kernels = arena.iter().map(|&i| buffers[i].life.1 + 1).max().unwrap_or(0);
    let mut change = vec![0isize; kernels + 1];
    for &index in arena {
        let bytes = aligned(buffers[index].bytes()) as isize;
        change[buffers[index].life.0] += bytes;
        change[buffers[index].life.1 + 1] -= bytes;
    }
    let mut now = 0;
    change
        .iter()
        .map(|c| {
            now += c;
            now
        })
        .max()
        .unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pawl_graph::graph::DType;

    proptest! {
        #[test]
        fn buffers_alive_together_never_overlap(
            lives in prop::collection::vec((0usize..40, 0usize..12, 1usize..5000), 1..60)
        ) {
            let buffers: Vec<Buffer> = lives.iter().map(|&(from, span, elements)| Buffer {
                dtype: DType::BF16, elements, storage: Storage::Arena, life: (from, from + span),
            }).collect();
            let plan = MemoryPlan::new(&buffers);
            for (i, a) in buffers.iter().enumerate() {
                let at = plan.offsets[i].expect("it lives");
                prop_assert!(at.is_multiple_of(ALIGNMENT) && at + a.bytes() <= plan.arena);
                for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                    let other = plan.offsets[j].expect("it lives");
                    let together = a.life.0 <= b.life.1 && b.life.0 <= a.life.1;
                    prop_assert!(!together || at + a.bytes() <= other || other + b.bytes() <= at);
                }
            }
            prop_assert!(plan.arena >= plan.floor && plan.arena <= plan.floor * 2);
        }
    }
}
