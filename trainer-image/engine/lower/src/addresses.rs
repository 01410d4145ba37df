//! Addresses of a program's buffers, once its memory is allocated.

use super::{Buffer, Lowered, OwnPlan, Storage};
use pawl_graph::array::Array;

/// An address of a device or of the host.
pub trait Address: Copy {
    /// No address.
    const NULL: Self;

    /// The address `bytes` bytes further on.
    fn plus(self, bytes: usize) -> Self;
}

impl Address for u64 {
    const NULL: Self = 0;

    fn plus(self, bytes: usize) -> Self {
        self + bytes as u64
    }
}

impl Address for *mut u8 {
    const NULL: Self = std::ptr::null_mut();

    fn plus(self, bytes: usize) -> Self {
        self.wrapping_add(bytes)
    }
}

/// The start of each region of a compiled program's memory.
pub struct BaseAddresses<'r, A> {
    /// The arena, of [`MemoryPlan::arena`](super::MemoryPlan::arena) bytes; `None` when buffers are allocated one by
    /// one while the program runs.
    pub arena: Option<A>,
    /// Constants and outputs, of [`OwnPlan::bytes`] bytes.
    pub own: A,
    /// Each state, by its index in the program.
    pub state: &'r dyn Fn(usize) -> A,
}

impl Lowered {
    /// The address of each buffer, by its index in [`Lowered::buffers`]. Null for inputs, whose address each run gives;
    /// for arena buffers without an arena; and for buffers that no kernel touches.
    pub fn addresses<A: Address>(&self, own: &OwnPlan, bases: &BaseAddresses<'_, A>) -> Vec<A> {
        let address = |(index, buffer): (usize, &Buffer)| match buffer.storage {
            Storage::Input(_) => A::NULL,
            Storage::State(id) => (bases.state)(id.0 as usize),
            Storage::Arena => match (bases.arena, self.plan.offsets[index]) {
                (Some(arena), Some(offset)) => arena.plus(offset),
                _ => A::NULL,
            },
            Storage::Constant(_) | Storage::Output(_) => bases.own.plus(own.offsets[index].unwrap_or(0)),
        };
        self.buffers.iter().enumerate().map(address).collect()
    }

    /// The embedded arrays, each with the index of its buffer in [`Lowered::buffers`].
    pub fn constants(&self) -> impl Iterator<Item = (usize, &Array)> {
        self.buffers.iter().enumerate().filter_map(|(index, buffer)| match &buffer.storage {
            Storage::Constant(array) => Some((index, array.as_ref())),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LowerOptions;
    use pawl_graph::graph::{Builder, DType, Init};

    #[test]
    fn buffers_lie_in_the_region_of_their_storage() {
        let b = Builder::new("bases");
        let (x, w) = (b.input("x", DType::F32, [4]), b.parameter("w", [4], Init::Fill(1.0)));
        let table = b.constant(Array::new([2], pawl_graph::array::Data::F32(vec![1.0, 2.0])).expect("two elements"));
        let sum = (x + w).sum_all();
        b.output("sum", sum);
        b.output("scaled", (x / sum).exp().reshape([2, 2]).matmul(table.reshape([2, 1])));
        let program = b.finish().expect("it is well formed");
        let lowered = Lowered::new(&program, &LowerOptions::default());
        let own = lowered.own();
        let state = |index: usize| 1_000_000 + index as u64;
        let of = |arena| lowered.addresses(&own, &BaseAddresses { arena, own: 2_000_000, state: &state });
        for (index, (&address, buffer)) in of(Some(3_000_000)).iter().zip(&lowered.buffers).enumerate() {
            match buffer.storage {
                Storage::Input(_) => assert_eq!(address, 0),
                Storage::State(_) => assert_eq!(address, 1_000_000),
                Storage::Arena => {
                    assert_eq!(address, lowered.plan.offsets[index].map_or(0, |offset| 3_000_000 + offset as u64));
                    assert_eq!(of(None)[index], 0);
                }
                Storage::Constant(_) | Storage::Output(_) => {
                    assert!((2_000_000..2_000_000 + own.bytes as u64).contains(&address));
                }
            }
        }
        let constants: Vec<_> = lowered.constants().map(|(_, array)| array.to_f64()).collect();
        assert_eq!(constants, [[1.0, 2.0]]);
    }
}
