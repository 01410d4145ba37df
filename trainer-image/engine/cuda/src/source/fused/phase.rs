//! One pass over the elements of a step, up to the next reduction along rows; and what is written.

use super::Emitter;
use crate::source::{geometry::Traversal, index::Walk, types};
use pawl_lower::{Fold, Instruction, Store};

impl Emitter<'_> {
    /// Elements of a phase: what is reduced, stored and folded as soon as it can be.
    pub(super) fn phase(&mut self, phase: usize) {
        let first = self.kernel.loads.len();
        let reduces: Vec<usize> = (first..self.kernel.values.len())
            .filter(|&v| match self.kernel.code[v - first] {
                Instruction::Reduce(_, x) => self.level[x] == phase,
                _ => false,
            })
            .collect();
        let kernel = self.kernel;
        let stores: Vec<(usize, &Store)> = (kernel.stores.iter().enumerate())
            .filter(|(_, store)| !store.per_row && self.level[store.value] == phase)
            .collect();
        let folds: Vec<(usize, &Fold)> =
            kernel.folds.iter().enumerate().filter(|(_, fold)| self.level[fold.value] == phase).collect();
        let operand = |v: usize| match kernel.code[v - first] {
            Instruction::Reduce(_, x) => x,
            _ => v,
        };
        let roots: Vec<usize> = (reduces.iter().map(|&v| operand(v)))
            .chain(stores.iter().map(|(_, s)| s.value))
            .chain(folds.iter().map(|(_, f)| f.value))
            .collect();
        if roots.is_empty() {
            return;
        }
        for &value in &reduces {
            let (acc, _) = types::accumulator(self.dtype(value));
            self.line(format!("{acc} s{value}[U];"));
        }
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        for &value in &reduces {
            let Instruction::Reduce(op, _) = kernel.code[value - first] else { continue };
            let (acc, _) = types::accumulator(self.dtype(value));
            self.line(format!("s{value}[u] = {}::identity<{acc}>();", types::reduction(op)));
        }
        let needed = self.elements(&roots);
        self.vectors(|e| {
            for (index, store) in &stores {
                let tag = types::tag(e.buffers[store.to.buffer].dtype);
                e.line(format!("{tag}::value o{index}[V];"));
            }
            e.position(&needed);
            e.open("UNROLL for (int j = 0; j < V; j++) {");
            for &value in &needed {
                e.element(value);
            }
            for &value in &reduces {
                let Instruction::Reduce(op, x) = kernel.code[value - first] else { continue };
                let (acc, _) = types::accumulator(e.dtype(value));
                let name = e.name(x);
                e.line(format!("s{value}[u] = {}::join(s{value}[u], ({acc}){name});", types::reduction(op)));
            }
            let live = if e.whole() { "" } else { "if (live[u]) " };
            for (index, fold) in &folds {
                let (acc, _) = types::accumulator(e.dtype(fold.value));
                let name = e.name(fold.value);
                let place = if fold.per_column { format!("f{index}[i][j]") } else { format!("f{index}") };
                e.line(format!("{live}{place} = {}::join({place}, ({acc}){name});", types::reduction(fold.op)));
            }
            for (index, store) in &stores {
                let name = e.unrounded(store.value);
                e.line(format!("o{index}[j] = {name};"));
            }
            e.close();
            for &(index, store) in &stores {
                e.store(index, store);
            }
        });
        self.close();
        self.reduce(&reduces);
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
        let first = self.kernel.loads.len();
        for &value in reduces {
            let Instruction::Reduce(op, _) = self.kernel.code[value - first] else { continue };
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
