//! What is read: all of a step before its first use.

use super::Emitter;
use crate::source::{
    geometry::{Traversal, is_small},
    types,
};
use pawl_lower::Class;

impl Emitter<'_> {
    pub(super) fn loads_of(&self, class: Class) -> Vec<usize> {
        (0..self.kernel.loads.len()).filter(|&value| self.class(value) == class).collect()
    }

    /// Whether a load comes as vectors (else as single elements put together).
    pub(super) fn is_vector(&self, value: usize) -> bool {
        self.walks[value].moves(&self.kernel.loads[value].from, self.geometry.vector)
    }

    /// Where a load is kept.
    pub(super) fn array(&self, value: usize, extents: &str) -> Array {
        let (tag, name) = (types::tag(self.dtype(value)), format!("l{value}"));
        if self.is_vector(value) {
            Array { of: format!("Raw<{tag}::bytes * V>"), name, extents: extents.into() }
        } else {
            Array { of: format!("{tag}::value"), name, extents: format!("{extents}[V]") }
        }
    }

    /// What a step has: its rows, and all that is read for them.
    pub(super) fn arrays(&self) -> Vec<Array> {
        let flat = self.geometry.traversal == Traversal::Flat;
        let own = |of: &str, name: &str| Array { of: of.into(), name: name.into(), extents: "[U]".into() };
        let mut arrays = vec![own("u32", "row")];
        arrays.extend(flat.then(|| own("u32", "col")));
        arrays.extend((!self.whole()).then(|| own("bool", "live")));
        arrays.extend(self.loads_of(Class::Full).into_iter().map(|value| self.array(value, "[U][H]")));
        let extents = if flat { "[U][H]" } else { "[H]" };
        arrays.extend(self.columns_of_step().into_iter().map(|value| self.array(value, extents)));
        let of_row = |value| own(&format!("{}::value", types::tag(self.dtype(value))), &format!("v{value}"));
        arrays.extend(self.loads_of(Class::Row).into_iter().map(of_row));
        arrays
    }

    /// Columns' values that are read with each step.
    fn columns_of_step(&self) -> Vec<usize> {
        let elsewhere = self.geometry.hoists(self.kernel) || self.geometry.reads_columns_late(self.kernel);
        if elsewhere { Vec::new() } else { self.loads_of(Class::Col) }
    }

    /// Reads columns' values of one vector, of those that are `needed`, if they are read where they are used.
    pub(super) fn late_columns(&mut self, needed: &[usize]) {
        if !self.geometry.reads_columns_late(self.kernel) {
            return;
        }
        for value in self.loads_of(Class::Col).into_iter().filter(|value| needed.contains(value)) {
            let array = self.array(value, "");
            self.line(array.declaration());
            self.load(value, &format!("l{value}"), "0u", "column(i) * V");
        }
    }

    /// Names of [`Emitter::arrays`].
    pub(super) fn names(&self) -> String {
        self.arrays().into_iter().map(|array| array.name).collect::<Vec<_>>().join(", ")
    }

    /// Writes a function that reads the step from row (or vector) `start` on. In place of what lies beyond the last it
    /// reads the last.
    pub(super) fn fetch(&mut self) {
        self.open("struct Step {");
        self.arrays().iter().for_each(|array| self.line(array.declaration()));
        self.close_with("};");
        self.open("auto fetch = [&](u32 start) {");
        self.line("Step step;");
        self.line(format!("auto& [{}] = step;", self.names()));
        self.step();
        self.line("return step;");
        self.close_with("};");
    }

    /// Fills [`Emitter::arrays`] with the step from row (or vector) `start` on.
    pub(super) fn step(&mut self) {
        let groups = self.geometry.groups;
        let (run, per_segment) = (self.run(), self.kernel.rows / self.kernel.segments);
        let vectors = self.kernel.cols / self.geometry.vector;
        let segment = self.segment();
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        self.line(format!("u32 at = start + u * {groups}u + group;"));
        if !self.whole() {
            self.line(format!("live[u] = at < {run}u;"));
        }
        if !self.whole() || self.geometry.ahead {
            self.line(format!("if (at >= {run}u) at = {}u;", run - 1));
        }
        if self.geometry.traversal == Traversal::Flat {
            self.line(format!("row[u] = {segment} * {per_segment}u + at / {vectors}u;"));
            self.line(format!("col[u] = at % {vectors}u * V;"));
        } else {
            self.line(format!("row[u] = {segment} * {per_segment}u + at;"));
        }
        self.close();
        self.loads();
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

    fn loads(&mut self) {
        let flat = self.geometry.traversal == Traversal::Flat;
        let columns = self.columns_of_step();
        let col = self.column();
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

/// An array of a thread.
pub(super) struct Array {
    /// Type of its elements.
    of: String,
    name: String,
    extents: String,
}

impl Array {
    pub(super) fn declaration(&self) -> String {
        format!("{} {}{};", self.of, self.name, self.extents)
    }
}
