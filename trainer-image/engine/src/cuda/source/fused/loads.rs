//! What is read: all of a step before its first use.

use super::Emitter;
use crate::{
    cuda::source::{
        geometry::{Shape, is_small},
        types,
    },
    lower::Class,
};

impl Emitter<'_> {
    pub(super) fn loads_of(&self, class: Class) -> Vec<usize> {
        (0..self.kernel.loads.len()).filter(|&value| self.class(value) == class).collect()
    }

    /// Whether a load comes as vectors (else as single elements put together).
    pub(super) fn is_vector(&self, value: usize) -> bool {
        self.walks[value].moves(&self.kernel.loads[value].from, self.geometry.vector)
    }

    pub(super) fn declare(&mut self, value: usize, extents: &str) {
        let tag = types::tag(self.dtype(value));
        let text = if self.is_vector(value) {
            format!("Raw<{tag}::bytes * V> l{value}{extents};")
        } else {
            format!("{tag}::value l{value}{extents}[V];")
        };
        self.line(text);
    }

    /// Writes `body` for each vector `i` of a row that exists.
    pub(super) fn vectors(&mut self, body: impl FnOnce(&mut Self)) {
        let guard = self.guard().unwrap_or_default();
        self.open(format!("UNROLL for (int i = 0; i < H; i++) {guard} {{"));
        body(self);
        self.close();
    }

    pub(super) fn load(&mut self, value: usize, to: &str, row: &str, col: &str) {
        let tag = types::tag(self.dtype(value));
        let how = self.loader(value);
        let walk = &self.walks[value];
        let text = if self.is_vector(value) {
            format!("{to} = {how}<{tag}::bytes * V>(a{value} + {});", walk.offset(row, col))
        } else {
            let offset = walk.offset(row, &format!("({col} + j)"));
            format!(
                "UNROLL for (int j = 0; j < V; j++) {to}[j] = get<{tag}>({how}<{tag}::bytes>(a{value} + {offset}), 0);"
            )
        };
        self.line(text);
    }

    pub(super) fn loader(&self, value: usize) -> &'static str {
        let buffer = self.kernel.loads[value].from.buffer;
        let writes = self.kernel.stores.iter().map(|s| &s.to).chain(self.kernel.folds.iter().map(|f| &f.to));
        if writes.into_iter().any(|to| to.buffer == buffer) {
            "load_written"
        } else if self.class(value) == Class::Full
            && self.is_vector(value)
            && !is_small(&self.kernel.loads[value].from, self.buffers)
        {
            "load_once"
        } else {
            "load_shared"
        }
    }

    pub(super) fn scalars(&mut self) {
        for value in self.loads_of(Class::Scalar) {
            let (tag, how) = (types::tag(self.dtype(value)), self.loader(value));
            self.line(format!("const {tag}::value v{value} = get<{tag}>({how}<{tag}::bytes>(a{value}), 0);"));
        }
        for index in 0..self.kernel.code.len() {
            let value = self.kernel.loads.len() + index;
            if self.class(value) == Class::Scalar {
                self.compute(value, &|_, v| format!("v{v}"), "const ");
            }
        }
    }

    pub(super) fn loads(&mut self) {
        let flat = self.geometry.shape == Shape::Flat;
        for value in self.loads_of(Class::Full) {
            self.declare(value, "[U][H]");
        }
        let columns = if self.hoisted { Vec::new() } else { self.loads_of(Class::Col) };
        for &value in &columns {
            self.declare(value, if flat { "[U][H]" } else { "[H]" });
        }
        for value in self.loads_of(Class::Row) {
            let tag = types::tag(self.dtype(value));
            self.line(format!("{tag}::value v{value}[U];"));
        }
        let col = if flat { "col[u]" } else { "column(i) * V" };
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        let full = self.loads_of(Class::Full);
        if !full.is_empty() || flat && !columns.is_empty() {
            self.vectors(|e| {
                for &value in &full {
                    e.load(value, &format!("l{value}[u][i]"), "row[u]", col);
                }
                for &value in columns.iter().filter(|_| flat) {
                    e.load(value, &format!("l{value}[u][i]"), "0u", col);
                }
            });
        }
        for value in self.loads_of(Class::Row) {
            let (tag, how) = (types::tag(self.dtype(value)), self.loader(value));
            let offset = self.walks[value].offset("row[u]", "0u");
            self.line(format!("v{value}[u] = get<{tag}>({how}<{tag}::bytes>(a{value} + {offset}), 0);"));
        }
        self.close();
        if !flat && !columns.is_empty() {
            self.vectors(|e| {
                for &value in &columns {
                    e.load(value, &format!("l{value}[i]"), "0u", col);
                }
            });
        }
    }
}
