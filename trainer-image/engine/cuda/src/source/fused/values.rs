//! What is computed: an instruction, and what it calls its operands.

use super::Emitter;
use crate::source::{geometry::Traversal, types};
use pawl_graph::graph::DType;
use pawl_lower::{Class, Instruction};

impl Emitter<'_> {
    /// Writes the instruction of `value`, with operands as `name` gives them.
    pub(super) fn compute(&mut self, value: usize, name: &dyn Fn(&Self, usize) -> String, qualifier: &str) {
        let at = value - self.kernel.loads.len();
        let instruction = &self.kernel.code[at];
        let dtype = self.dtype(value);
        let place = if qualifier.is_empty() { name(self, value) } else { format!("v{value}") };
        let declared =
            if qualifier.is_empty() { String::new() } else { format!("{qualifier}{} ", types::value(dtype)) };
        match instruction {
            &Instruction::Iota { inner, extent } => {
                let index = self.index_along(inner, extent);
                self.line(format!("{declared}{place} = {index};"));
            }
            Instruction::Random { counter, .. } => {
                let (counter, key) = (name(self, *counter), self.keys().filter(|&(draw, _)| draw < at).count());
                // Vectors begin at even elements.
                let element =
                    if self.geometry.vector.is_multiple_of(2) { "number & ~1ull, j" } else { "number + j, 0" };
                self.line(format!("{declared}{place} = uniform(draw_stream(k{key}, {counter}), {element});"));
            }
            _ => {
                let operands: Vec<(String, DType)> =
                    instruction.operands().map(|v| (name(self, v), self.dtype(v))).collect();
                let exact = types::instruction(instruction, &operands, dtype);
                if exact.rounds && !qualifier.is_empty() {
                    // Kept as it was too: what is stored is rounded once, with its neighbour.
                    self.line(format!("{declared}x{value} = {};", exact.text));
                    self.line(format!("{declared}{place} = {};", types::rounded(&format!("x{value}"), dtype)));
                } else if exact.rounds {
                    self.line(format!("{place} = {};", types::rounded(&format!("({})", exact.text), dtype)));
                } else {
                    self.line(format!("{declared}{place} = {};", exact.text));
                }
            }
        }
    }

    /// Index of a vector's element `j` along an axis of that extent, in whose steps are `inner` elements. Where axes
    /// end with rows it is the row's number or the column's that counts: remainders of 64 bits cost more than reading
    /// an element.
    fn index_along(&self, inner: usize, extent: usize) -> String {
        let cols = self.kernel.cols;
        let (number, inner, repeats) = if self.counts_elements(inner, extent) {
            ("(number + j)".into(), inner, true)
        } else if cols.is_multiple_of(inner * extent) {
            (format!("({} + j)", self.column()), inner, cols > inner * extent)
        } else {
            ("row[u]".into(), inner / cols, true)
        };
        let step = if inner > 1 { format!("{number} / {inner}u") } else { number };
        if repeats { format!("(u32)({step} % {extent}u)") } else { format!("(u32)({step})") }
    }

    /// Whether an index along such an axis depends on an element's row and column: the axis does not end with rows.
    fn counts_elements(&self, inner: usize, extent: usize) -> bool {
        let cols = self.kernel.cols;
        !cols.is_multiple_of(inner * extent) && !inner.is_multiple_of(cols)
    }

    /// The first column of a vector.
    pub(super) fn column(&self) -> &'static str {
        if self.geometry.traversal == Traversal::Flat { "col[u]" } else { "column(i) * V" }
    }

    /// What a value is called inside of the loops over elements (`element`), or beside them.
    pub(super) fn name(&self, value: usize) -> String {
        match self.class(value) {
            Class::Scalar => format!("v{value}"),
            Class::Row => format!("v{value}[u]"),
            Class::Full | Class::Col => format!("v{value}"),
        }
    }

    /// Values of rows that are there once `phase` reductions are.
    pub(super) fn row_values(&mut self, phase: usize) {
        let first = self.kernel.loads.len();
        let values: Vec<usize> = (first..self.kernel.values.len())
            .filter(|&v| self.class(v) == Class::Row && self.level[v] == phase)
            .filter(|&v| !matches!(self.kernel.code[v - first], Instruction::Reduce(..)))
            .collect();
        if values.is_empty() {
            return;
        }
        for &value in &values {
            let declared = format!("{} v{value}[U];", types::value(self.dtype(value)));
            self.line(declared);
        }
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        for value in values {
            self.compute(value, &|e, v| e.name(v), "");
        }
        self.close();
    }

    /// Values of elements that `roots` need, in order; what `known` are computed from is not needed.
    pub(super) fn elements(&self, roots: &[usize], known: &[usize]) -> Vec<usize> {
        let first = self.kernel.loads.len();
        let mut needed = vec![false; self.kernel.values.len()];
        let mut open = roots.to_vec();
        while let Some(value) = open.pop() {
            if needed[value] || matches!(self.class(value), Class::Row | Class::Scalar) {
                continue;
            }
            needed[value] = true;
            if value >= first && !known.contains(&value) {
                open.extend(self.kernel.code[value - first].operands());
            }
        }
        (0..needed.len()).filter(|&v| needed[v]).collect()
    }

    /// The number of a vector's first element, where anything asks for it.
    pub(super) fn position(&mut self, needed: &[usize]) {
        let first = self.kernel.loads.len();
        let counts = |&v: &usize| {
            v >= first
                && match self.kernel.code[v - first] {
                    Instruction::Iota { inner, extent } => self.counts_elements(inner, extent),
                    Instruction::Random { .. } => true,
                    _ => false,
                }
        };
        if !needed.iter().any(counts) {
            return;
        }
        self.line(format!("const u64 number = (u64)row[u] * {}ull + {};", self.kernel.cols, self.column()));
    }

    pub(super) fn element(&mut self, value: usize, phase: usize) {
        let tag = types::tag(self.dtype(value));
        if self.is_known(value, phase) {
            self.line(format!("const {tag}::value v{value} = get<{tag}>(k{value}[u][i], j);"));
            return;
        }
        if value >= self.kernel.loads.len() {
            return self.compute(value, &|e, v| e.name(v), "const ");
        }
        let columns = self.class(value) == Class::Col && self.geometry.traversal == Traversal::Rows;
        let place = match columns {
            true if self.geometry.reads_columns_late(self.kernel) => format!("l{value}"),
            true => format!("l{value}[i]"),
            false => format!("l{value}[u][i]"),
        };
        if self.is_vector(value) {
            self.line(format!("const {tag}::value v{value} = get<{tag}>({place}, j);"));
        } else {
            self.line(format!("const {tag}::value v{value} = {place}[j];"));
        }
    }

    /// The name of a value before it was rounded to its dtype: storing rounds.
    pub(super) fn unrounded(&self, value: usize) -> String {
        let first = self.kernel.loads.len();
        let computed = value >= first && matches!(self.class(value), Class::Full | Class::Col);
        if computed {
            let instruction = &self.kernel.code[value - first];
            let plain =
                matches!(instruction, Instruction::Iota { .. } | Instruction::Random { .. } | Instruction::Reduce(..));
            let operands: Vec<(String, DType)> = if plain {
                Vec::new()
            } else {
                instruction.operands().map(|v| (self.name(v), self.dtype(v))).collect()
            };
            if !plain && types::instruction(instruction, &operands, self.dtype(value)).rounds {
                return format!("x{value}");
            }
        }
        self.name(value)
    }
}
