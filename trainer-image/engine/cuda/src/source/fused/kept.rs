//! What a thread keeps of its elements from one phase to the next, instead of computing it again from what was loaded.
//!
//! Values that are rounded to 16 bits take half a register each: where they stand for wider or for several loads,
//! keeping them leaves registers free, without which long rows would spill.

use super::{Emitter, phase::PhaseWork, types};
use pawl_lower::Class;

/// A value that is kept, in the phase that computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    value: usize,
    phase: usize,
}

/// The values to keep: all that later phases come to first, if these are fewer bytes than the loads that they stand
/// for.
pub(super) fn kept(of: &Emitter<'_>) -> Vec<Kept> {
    let first = of.kernel.loads.len();
    let last = of.level.iter().copied().max().unwrap_or(0);
    let roots: Vec<Vec<usize>> = (0..=last).map(|phase| PhaseWork::new(of, phase).roots(of)).collect();
    let computed: Vec<Vec<usize>> = roots.iter().map(|roots| of.elements(roots, &[])).collect();
    let candidates: Vec<Kept> = (first..of.kernel.values.len())
        .filter(|&value| of.class(value) == Class::Full && of.dtype(value).is_low_precision())
        .filter_map(|value| {
            let phase = computed.iter().position(|values| values.contains(&value))?;
            Some(Kept { value, phase })
        })
        .collect();
    // What later phases need, and which candidates they come to.
    let (mut before, mut after, mut reached) = (Vec::new(), Vec::new(), Vec::new());
    for phase in 1..=last {
        let known: Vec<usize> = candidates.iter().filter(|c| c.phase < phase).map(|c| c.value).collect();
        let needed = of.elements(&roots[phase], &known);
        reached.extend(candidates.iter().filter(|c| c.phase < phase && needed.contains(&c.value)).copied());
        before.extend(&computed[phase]);
        after.extend(needed);
    }
    reached.sort_unstable_by_key(|kept| kept.value);
    reached.dedup();
    let bytes = |needed: &[usize]| -> usize {
        let loads = (0..first).filter(|load| of.class(*load) == Class::Full && needed.contains(load));
        loads.map(|load| of.dtype(load).bytes()).sum()
    };
    let own: usize = reached.iter().map(|kept| of.dtype(kept.value).bytes()).sum();
    if bytes(&after) + own < bytes(&before) { reached } else { Vec::new() }
}

impl Emitter<'_> {
    /// The values that were kept before `phase`.
    pub(super) fn known(&self, phase: usize) -> Vec<usize> {
        self.kept.iter().filter(|kept| kept.phase < phase).map(|kept| kept.value).collect()
    }

    pub(super) fn is_known(&self, value: usize, phase: usize) -> bool {
        self.kept.iter().any(|kept| kept.value == value && kept.phase < phase)
    }

    fn keeps(&self, phase: usize) -> Vec<usize> {
        self.kept.iter().filter(|kept| kept.phase == phase).map(|kept| kept.value).collect()
    }

    /// Declares what is kept of a step.
    pub(super) fn declare_kept(&mut self) {
        for Kept { value, .. } in self.kept.clone() {
            self.line(format!("Raw<{}::bytes * V> k{value}[U][H];", types::tag(self.dtype(value))));
        }
    }

    /// Before the elements of a vector.
    pub(super) fn open_kept(&mut self, phase: usize) {
        for value in self.keeps(phase) {
            self.line(format!("{}::value y{value}[V];", types::tag(self.dtype(value))));
        }
    }

    /// After the code of an element.
    pub(super) fn keep(&mut self, phase: usize) {
        for value in self.keeps(phase) {
            // As it was before it was rounded: a store of the same value then shares the conversion.
            let name = self.unrounded(value);
            self.line(format!("y{value}[j] = {name};"));
        }
    }

    /// After the elements of a vector.
    pub(super) fn close_kept(&mut self, phase: usize) {
        for value in self.keeps(phase) {
            self.line(format!("k{value}[u][i] = pack<{}, V>(y{value});", types::tag(self.dtype(value))));
        }
    }
}
