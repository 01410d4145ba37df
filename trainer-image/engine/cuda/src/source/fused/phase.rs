//! One pass over the elements of a step, up to the next reduction along rows; and the stores.

use super::Emitter;
use crate::source::{geometry::Traversal, index::Walk, types};
use pawl_graph::graph::ReduceOp;
use pawl_lower::{Fold, Instruction, Store};

/// What one phase computes from elements.
pub(super) struct PhaseWork<'k> {
    /// Values that are reduced along rows.
    reduces: Vec<usize>,
    /// Stores of one element each, with their numbers.
    stores: Vec<(usize, &'k Store)>,
    /// Folds over rows, with their numbers.
    folds: Vec<(usize, &'k Fold)>,
}

impl<'k> PhaseWork<'k> {
    pub(super) fn new(of: &Emitter<'k>, phase: usize) -> Self {
        let kernel = of.kernel;
        let is_reduced = |value: &usize| of.reduction(*value).is_some_and(|(_, x)| of.level[x] == phase);
        Self {
            reduces: (kernel.loads.len()..kernel.values.len()).filter(is_reduced).collect(),
            stores: (kernel.stores.iter().enumerate())
                .filter(|(_, store)| !store.per_row && of.level[store.value] == phase)
                .collect(),
            folds: kernel.folds.iter().enumerate().filter(|(_, fold)| of.level[fold.value] == phase).collect(),
        }
    }

    /// The values that are consumed.
    pub(super) fn roots(&self, of: &Emitter<'_>) -> Vec<usize> {
        let operands = self.reduces.iter().filter_map(|&value| of.reduction(value)).map(|(_, x)| x);
        operands
            .chain(self.stores.iter().map(|(_, store)| store.value))
            .chain(self.folds.iter().map(|(_, fold)| fold.value))
            .collect()
    }
}

impl Emitter<'_> {
    /// Emits a phase: the loop over elements that reduces, stores and folds each value as soon as its operands are
    /// known.
    pub(super) fn phase(&mut self, phase: usize) {
        let work = PhaseWork::new(self, phase);
        let roots = work.roots(self);
        if roots.is_empty() {
            return;
        }
        for &value in &work.reduces {
            let (acc, _) = types::accumulator(self.dtype(value));
            self.line(format!("{acc} s{value}[U];"));
        }
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        for &value in &work.reduces {
            let Some((op, _)) = self.reduction(value) else { continue };
            let (acc, _) = types::accumulator(self.dtype(value));
            self.line(format!("s{value}[u] = {}::identity<{acc}>();", types::reduction(op)));
        }
        let needed = self.elements(&roots, &self.known(phase));
        self.vectors(|e| {
            for (index, store) in &work.stores {
                let tag = types::tag(e.buffers[store.to.buffer].dtype);
                e.line(format!("{tag}::value o{index}[V];"));
            }
            e.open_kept(phase);
            e.late_columns(&needed);
            e.position(&needed);
            e.open("UNROLL for (int j = 0; j < V; j++) {");
            for &value in &needed {
                e.element(value, phase);
            }
            e.consume(&work);
            e.keep(phase);
            e.close();
            e.close_kept(phase);
            for &(index, store) in &work.stores {
                e.store(index, store);
            }
        });
        self.close();
        self.reduce(&work.reduces);
    }

    /// Adds one element to the reductions and folds of a phase, and keeps it for its stores.
    fn consume(&mut self, work: &PhaseWork<'_>) {
        for &value in &work.reduces {
            let Some((op, x)) = self.reduction(value) else { continue };
            let (acc, _) = types::accumulator(self.dtype(value));
            let name = self.name(x);
            self.line(format!("s{value}[u] = {}::join(s{value}[u], ({acc}){name});", types::reduction(op)));
        }
        let live = if self.whole() { "" } else { "if (live[u]) " };
        for (index, fold) in &work.folds {
            let (acc, _) = types::accumulator(self.dtype(fold.value));
            let name = self.name(fold.value);
            let place = if fold.per_column { format!("f{index}[i][j]") } else { format!("f{index}") };
            self.line(format!("{live}{place} = {}::join({place}, ({acc}){name});", types::reduction(fold.op)));
        }
        for (index, store) in &work.stores {
            let name = self.unrounded(store.value);
            self.line(format!("o{index}[j] = {name};"));
        }
    }

    /// The operator and the operand of a value that is reduced along rows; `None` for any other value.
    fn reduction(&self, value: usize) -> Option<(ReduceOp, usize)> {
        match self.kernel.code[value.checked_sub(self.kernel.loads.len())?] {
            Instruction::Reduce(op, x) => Some((op, x)),
            _ => None,
        }
    }

    pub(super) fn store(&mut self, index: usize, store: &Store) {
        let walk = Walk::new(&store.to, self.kernel.cols, self.buffers)
            .expect("lowering cuts rows where every view's loops do");
        let tag = types::tag(self.buffers[store.to.buffer].dtype);
        let col = self.column();
        let live = if self.whole() { "" } else { "if (live[u]) " };
        let text = if walk.moves(&store.to, self.geometry.vector) {
            let offset = walk.offset("row[u]", col);
            format!("{live}store(b{index} + {offset}, pack<{tag}, V>(o{index}));")
        } else {
            let offset = walk.offset("row[u]", &format!("({col} + j)"));
            format!(
                "{live}UNROLL for (int j = 0; j < V; j++) {{ const {tag}::value one[1] = {{o{index}[j]}}; store(b{index} + {offset}, pack<{tag}, 1>(one)); }}"
            )
        };
        self.line(text);
    }

    /// Finishes reductions over a row.
    pub(super) fn reduce(&mut self, reduces: &[usize]) {
        for &value in reduces {
            let Some((op, _)) = self.reduction(value) else { continue };
            let (op, dtype) = (types::reduction(op), self.dtype(value));
            let (acc, _) = types::accumulator(dtype);
            let lanes = self.geometry.lanes;
            self.line(format!("{} v{value}[U];", types::value(dtype)));
            let sum = if lanes > 32 {
                self.line(format!("__shared__ {acc} t{value}[{}];", lanes / 32));
                format!("over_block<{op}, {}>(s{value}[u], t{value})", lanes / 32)
            } else {
                format!("over_lanes<{op}, {lanes}>(s{value}[u])")
            };
            let rounded = types::rounded(&sum, dtype);
            self.line(format!("UNROLL for (int u = 0; u < U; u++) v{value}[u] = {rounded};"));
        }
    }

    pub(super) fn row_stores(&mut self) {
        let kernel = self.kernel;
        let stores: Vec<(usize, &Store)> = kernel.stores.iter().enumerate().filter(|(_, s)| s.per_row).collect();
        if stores.is_empty() {
            return;
        }
        let tile = if self.geometry.tiles > 1 { " && blockIdx.y == 0" } else { "" };
        let mut first = if self.geometry.traversal == Traversal::Flat {
            "col[u] == 0".to_owned()
        } else {
            format!("lane == 0{tile}")
        };
        if !self.whole() {
            first.push_str(" && live[u]");
        }
        self.open(format!("UNROLL for (int u = 0; u < U; u++) if ({first}) {{"));
        for (index, store) in stores {
            let walk = Walk::new(&store.to, 1, self.buffers).expect("any view is rows of one element");
            let tag = types::tag(self.buffers[store.to.buffer].dtype);
            let (name, offset) = (self.name(store.value), walk.offset("row[u]", "0u"));
            self.line(format!("const {tag}::value one{index}[1] = {{{name}}};"));
            self.line(format!("store(b{index} + {offset}, pack<{tag}, 1>(one{index}));"));
        }
        self.close();
    }
}
