//! Fused loops as CUDA C.
//!
//! A thread has `unroll` rows at once (or vectors, where rows do not matter) and of each `held` vectors of columns. What is loaded stays in
//! registers as it is. Reductions along rows cut the code into phases: before a value of a row is there, nothing that needs it can run. Each phase
//! computes the elements that it needs from what was loaded (what an earlier phase computed as well is the compiler's to keep or to compute
//! again), so a row is read once, however many reductions there are. What is folded over rows is added up in registers, by blocks that stay until all is
//! done; their sums are joined in a fixed order by a second kernel: results never depend on timing.

use std::fmt::Write;

use super::{
    Argument, Finish, Generated, Grid,
    geometry::{Geometry, Shape, is_small},
    index::Walk,
    types,
};
use crate::{
    cuda::compile::Source,
    graph::DType,
    lower::{Access, Buffer, Class, Fold, Fused, Instruction, Store},
};

/// Blocks of a persistent grid, for each multiprocessor, at most: bounds the memory of partial sums.
const RESIDENT: usize = 8;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65_536;
/// Columns' values (of 4 bytes) that a thread keeps through all rows; beyond that they are read again for each.
const KEPT: usize = 64;

/// The kernel of fused loops, for a GPU with that many multiprocessors.
pub(super) fn fused(kernel: &Fused, buffers: &[Buffer], multiprocessors: usize) -> Generated {
    // In the only row there is, every column is an element.
    let mut kernel = kernel.clone();
    if kernel.rows == 1 {
        kernel.values.iter_mut().filter(|(_, class)| *class == Class::Col).for_each(|(_, class)| *class = Class::Full);
    }
    Emitter::new(&kernel, buffers, multiprocessors).emit()
}

struct Emitter<'k> {
    kernel: &'k Fused,
    buffers: &'k [Buffer],
    geometry: Geometry,
    /// For each value, the number of reductions it has to wait for.
    level: Vec<usize>,
    walks: Vec<Walk>,
    text: String,
    indent: usize,
    /// Whether columns' values are loaded before the loop.
    hoisted: bool,
    /// Blocks of a segment and a tile, at most.
    most: usize,
}

impl<'k> Emitter<'k> {
    fn new(kernel: &'k Fused, buffers: &'k [Buffer], multiprocessors: usize) -> Self {
        let geometry = Geometry::new(kernel, buffers);
        let mut level = vec![0; kernel.values.len()];
        for (index, instruction) in kernel.code.iter().enumerate() {
            let own = instruction.operands().map(|v| level[v]).max().unwrap_or(0);
            level[kernel.loads.len() + index] = own + usize::from(matches!(instruction, Instruction::Reduce(..)));
        }
        let walk = |access: &Access, cols: usize| {
            Walk::new(access, cols, buffers).expect("lowering cuts rows where every view's loops do")
        };
        let walks = kernel.loads.iter().map(|load| walk(&load.from, kernel.cols)).collect();
        let columns = kernel.values[..kernel.loads.len()].iter().filter(|(_, class)| *class == Class::Col);
        let words: usize = columns.map(|(dtype, _)| dtype.bytes() * geometry.held * geometry.vector).sum::<usize>() / 4;
        let hoisted = geometry.shape == Shape::Rows && words <= KEPT;
        let mut emitter =
            Self { kernel, buffers, geometry, level, walks, text: String::new(), indent: 1, hoisted, most: 0 };
        let work = emitter.run().div_ceil(emitter.geometry.step());
        let beside = kernel.segments * emitter.geometry.tiles;
        let resident = (multiprocessors * RESIDENT).div_ceil(beside).clamp(1, work);
        emitter.most = if kernel.folds.is_empty() { work } else { resident };
        emitter
    }

    fn line(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.text, "{:1$}{2}", "", self.indent * 4, text.as_ref());
    }

    fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.indent += 1;
    }

    fn close(&mut self) {
        self.indent -= 1;
        self.line("}");
    }

    fn emit(mut self) -> Generated {
        let partials = self.partials();
        let body = self.body();
        let mut text = String::new();
        let sixteen = |access: &Access| self.buffers[access.buffer].dtype.is_low_precision();
        let fast = self.kernel.loads.iter().any(|l| sixteen(&l.from))
            || self.kernel.stores.iter().any(|s| sixteen(&s.to))
            || self.kernel.folds.iter().any(|f| sixteen(&f.to));
        let _ = writeln!(text, "#define FAST {}", u8::from(fast));
        text.push_str(super::PRELUDE);
        text.push('\n');
        let mut parameters: Vec<String> = Vec::new();
        let mut arguments = Vec::new();
        for (index, load) in self.kernel.loads.iter().enumerate() {
            parameters.push(format!("const u8* a{index}"));
            arguments.push(argument(&load.from, self.buffers));
        }
        for (index, store) in self.kernel.stores.iter().enumerate() {
            parameters.push(format!("u8* b{index}"));
            arguments.push(argument(&store.to, self.buffers));
        }
        if !self.kernel.folds.is_empty() {
            parameters.push("u8* partials".into());
            arguments.push(Argument::Workspace(0));
        }
        let bounds = match self.resident() {
            Some(blocks) => format!("__launch_bounds__({}, {blocks})", self.geometry.threads()),
            None => format!("__launch_bounds__({})", self.geometry.threads()),
        };
        let _ = writeln!(text, "extern \"C\" __global__ void {bounds} main_kernel({}) {{", parameters.join(", "));
        text.push_str(&body);
        text.push_str("}\n");
        let finish = (!self.kernel.folds.is_empty()).then(|| self.finish(&mut text, &partials));
        let options = if fast { vec!["--prec-div=false".into(), "--prec-sqrt=false".into()] } else { Vec::new() };
        let name = format!("fused_{}x{}", self.kernel.rows, self.kernel.cols);
        Generated {
            source: Source { name, text, options },
            threads: self.geometry.threads(),
            grid: Grid {
                blocks: self.most,
                beside: self.kernel.segments,
                tiles: self.geometry.tiles,
                persistent: !self.kernel.folds.is_empty(),
            },
            arguments,
            finish,
            workspace: partials.last().map_or(0, |p| p.offset + p.bytes),
        }
    }

    /// Rows of a segment; vectors of it, for [`Shape::Flat`].
    fn run(&self) -> usize {
        let rows = self.kernel.rows / self.kernel.segments;
        match self.geometry.shape {
            Shape::Rows => rows,
            Shape::Flat => rows * (self.kernel.cols / self.geometry.vector),
        }
    }

    fn partials(&self) -> Vec<Partials> {
        let mut offset = 0;
        let place = |fold: &Fold| {
            let width = if fold.per_column { self.kernel.cols } else { 1 };
            // Sums of everything have one partial result for each block, tiles included.
            let columns = if fold.per_column { width } else { self.geometry.tiles };
            let (_, size) = types::accumulator(self.kernel.values[fold.value].0);
            let bytes = (self.kernel.segments * self.most * columns * size).next_multiple_of(256);
            let own = Partials { offset, bytes, width };
            offset += bytes;
            own
        };
        self.kernel.folds.iter().map(place).collect()
    }

    /// Blocks of a multiprocessor to ask the compiler for: as many as what is held in registers leaves room for.
    fn resident(&self) -> Option<usize> {
        let Geometry { vector, held, unroll, .. } = self.geometry;
        let elements = unroll * held * vector;
        let class = |value: usize| self.kernel.values[value].1;
        let words = |access: &Access| elements * self.buffers[access.buffer].dtype.bytes() / 4;
        let loads: usize = (self.kernel.loads.iter().enumerate())
            .map(|(value, load)| match class(value) {
                Class::Full => words(&load.from),
                Class::Col if self.hoisted => words(&load.from) / unroll,
                _ => 2,
            })
            .sum();
        let sums = self.kernel.folds.iter().filter(|f| f.per_column).count() * held * vector;
        let kept = if self.level.iter().any(|&level| level > 0) { elements } else { 0 };
        let registers = (48 + loads + sums + kept).next_multiple_of(8);
        let blocks = REGISTERS / (registers * self.geometry.threads());
        (blocks > 1).then_some(blocks.min(2048 / self.geometry.threads()).min(RESIDENT))
    }

    /// Whether every row (or vector) that a thread looks at exists.
    fn whole(&self) -> bool {
        self.run().is_multiple_of(self.geometry.step())
    }

    /// Condition under which vector `i` of a row exists, if it may not.
    fn guard(&self) -> Option<String> {
        let Geometry { vector, lanes, held, tiles, .. } = self.geometry;
        let vectors = self.kernel.cols / vector;
        let exact = lanes * held * tiles == vectors || self.geometry.shape == Shape::Flat;
        (!exact).then(|| format!("if (column(i) < {vectors}u)"))
    }

    fn body(&mut self) -> String {
        let Geometry { vector, lanes, held, unroll, tiles, groups, .. } = self.geometry.clone();
        let run = self.run();
        let flat = self.geometry.shape == Shape::Flat;
        let per_segment = self.kernel.rows / self.kernel.segments;
        let vectors = self.kernel.cols / vector;
        self.line(format!("constexpr int U = {unroll}, H = {held}, V = {vector};"));
        let (block, segment) = if self.kernel.segments > 1 {
            self.line(format!("const u32 segment = blockIdx.x % {}u;", self.kernel.segments));
            (format!("blockIdx.x / {}u", self.kernel.segments), "segment")
        } else {
            ("blockIdx.x".into(), "0u")
        };
        self.line(format!("const u32 block = {block}, blocks = gridDim.x / {}u;", self.kernel.segments));
        if flat {
            self.line("const u32 group = threadIdx.x;");
        } else {
            self.line(format!("const u32 lane = threadIdx.x % {lanes}u, group = threadIdx.x / {lanes}u;"));
            let tile = if tiles > 1 { format!("blockIdx.y * {}u + ", lanes * held) } else { String::new() };
            self.line(format!("auto column = [&](int i) -> u32 {{ return {tile}lane + i * {lanes}u; }};"));
        }
        self.scalars();
        if self.hoisted {
            for value in self.loads_of(Class::Col) {
                self.declare(value, "[H]");
                self.vectors(|e| e.load(value, &format!("l{value}[i]"), "0u", "column(i) * V"));
            }
        }
        for (index, fold) in self.kernel.folds.iter().enumerate() {
            let (acc, _) = types::accumulator(self.kernel.values[fold.value].0);
            let identity = format!("{}::identity<{acc}>()", types::reduction(fold.op));
            if fold.per_column {
                self.line(format!("{acc} f{index}[H][V];"));
                let fill = format!(
                    "UNROLL for (int i = 0; i < H; i++) UNROLL for (int j = 0; j < V; j++) f{index}[i][j] = {identity};"
                );
                self.line(fill);
            } else {
                self.line(format!("{acc} f{index} = {identity};"));
            }
        }
        let step = self.geometry.step();
        let head = if self.kernel.folds.is_empty() {
            format!("const u32 start = block * {step}u; {{")
        } else {
            format!("for (u32 start = block * {step}u; start < {run}u; start += blocks * {step}u) {{")
        };
        self.open(head);
        self.line("u32 row[U];");
        if flat {
            self.line("u32 col[U];");
        }
        let whole = self.whole();
        if !whole {
            self.line("bool live[U];");
        }
        self.open("UNROLL for (int u = 0; u < U; u++) {");
        self.line(format!("u32 at = start + u * {groups}u + group;"));
        if !whole {
            self.line(format!("live[u] = at < {run}u;"));
            self.line(format!("if (!live[u]) at = {}u;", run - 1));
        }
        if flat {
            self.line(format!("row[u] = {segment} * {per_segment}u + at / {vectors}u;"));
            self.line(format!("col[u] = at % {vectors}u * V;"));
        } else {
            self.line(format!("row[u] = {segment} * {per_segment}u + at;"));
        }
        self.close();
        self.loads();
        let last = self.level.iter().copied().max().unwrap_or(0);
        for phase in 0..=last {
            self.row_values(phase);
            self.phase(phase);
        }
        self.row_stores();
        self.close();
        self.sums();
        std::mem::take(&mut self.text)
    }

    fn class(&self, value: usize) -> Class {
        self.kernel.values[value].1
    }

    fn dtype(&self, value: usize) -> DType {
        self.kernel.values[value].0
    }

    fn loads_of(&self, class: Class) -> Vec<usize> {
        (0..self.kernel.loads.len()).filter(|&value| self.class(value) == class).collect()
    }

    /// Whether a load comes as vectors (else as single elements put together).
    fn is_vector(&self, value: usize) -> bool {
        self.walks[value].moves(&self.kernel.loads[value].from, self.geometry.vector)
    }

    fn declare(&mut self, value: usize, extents: &str) {
        let tag = types::tag(self.dtype(value));
        let text = if self.is_vector(value) {
            format!("Raw<{tag}::bytes * V> l{value}{extents};")
        } else {
            format!("{tag}::value l{value}{extents}[V];")
        };
        self.line(text);
    }

    /// Writes `body` for each vector `i` of a row that exists.
    fn vectors(&mut self, body: impl FnOnce(&mut Self)) {
        let guard = self.guard().unwrap_or_default();
        self.open(format!("UNROLL for (int i = 0; i < H; i++) {guard} {{"));
        body(self);
        self.close();
    }

    fn load(&mut self, value: usize, to: &str, row: &str, col: &str) {
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

    fn loader(&self, value: usize) -> &'static str {
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

    fn scalars(&mut self) {
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

    /// Writes the instruction of `value`, with operands as `name` gives them.
    fn compute(&mut self, value: usize, name: &dyn Fn(&Self, usize) -> String, qualifier: &str) {
        let instruction = &self.kernel.code[value - self.kernel.loads.len()];
        let dtype = self.dtype(value);
        let place = if qualifier.is_empty() { name(self, value) } else { format!("v{value}") };
        let declared =
            if qualifier.is_empty() { String::new() } else { format!("{qualifier}{} ", types::value(dtype)) };
        match instruction {
            Instruction::Iota { inner, extent } => {
                self.line(format!("{declared}{place} = (u32)((number + j) / {inner}u % {extent}u);"));
            }
            Instruction::Random { key, counter } => {
                let counter = name(self, *counter);
                self.line(format!("{declared}{place} = uniform(draw_stream({key}ull, {counter}), number + j);"));
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

    /// What a value is called inside of the loops over elements (`element`), or beside them.
    fn name(&self, value: usize) -> String {
        match self.class(value) {
            Class::Scalar => format!("v{value}"),
            Class::Row => format!("v{value}[u]"),
            Class::Full | Class::Col => format!("v{value}"),
        }
    }

    /// Values of rows that are there once `phase` reductions are.
    fn row_values(&mut self, phase: usize) {
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

    /// Elements of a phase: what is reduced, stored and folded as soon as it can be.
    fn phase(&mut self, phase: usize) {
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

    /// Values of elements that `roots` need, in order.
    fn elements(&self, roots: &[usize]) -> Vec<usize> {
        let first = self.kernel.loads.len();
        let mut needed = vec![false; self.kernel.values.len()];
        let mut open = roots.to_vec();
        while let Some(value) = open.pop() {
            if needed[value] || matches!(self.class(value), Class::Row | Class::Scalar) {
                continue;
            }
            needed[value] = true;
            if value >= first {
                open.extend(self.kernel.code[value - first].operands());
            }
        }
        (0..needed.len()).filter(|&v| needed[v]).collect()
    }

    /// The number of a vector's first element, where anything asks for it.
    fn position(&mut self, needed: &[usize]) {
        let first = self.kernel.loads.len();
        let counts = |v: &usize| {
            *v >= first && matches!(self.kernel.code[*v - first], Instruction::Iota { .. } | Instruction::Random { .. })
        };
        if !needed.iter().any(counts) {
            return;
        }
        let col = if self.geometry.shape == Shape::Flat { "col[u]" } else { "column(i) * V" };
        self.line(format!("const u64 number = (u64)row[u] * {}ull + {col};", self.kernel.cols));
    }

    fn element(&mut self, value: usize) {
        if value >= self.kernel.loads.len() {
            return self.compute(value, &|e, v| e.name(v), "const ");
        }
        let columns = self.class(value) == Class::Col && self.geometry.shape == Shape::Rows;
        let place = if columns { format!("l{value}[i]") } else { format!("l{value}[u][i]") };
        let tag = types::tag(self.dtype(value));
        if self.is_vector(value) {
            self.line(format!("const {tag}::value v{value} = get<{tag}>({place}, j);"));
        } else {
            self.line(format!("const {tag}::value v{value} = {place}[j];"));
        }
    }

    /// The name of a value before it was rounded to its dtype: storing rounds.
    fn unrounded(&self, value: usize) -> String {
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

    fn store(&mut self, index: usize, store: &Store) {
        let walk = Walk::new(&store.to, self.kernel.cols, self.buffers)
            .expect("lowering cuts rows where every view's loops do");
        let tag = types::tag(self.buffers[store.to.buffer].dtype);
        let col = if self.geometry.shape == Shape::Flat { "col[u]" } else { "column(i) * V" };
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
    fn reduce(&mut self, reduces: &[usize]) {
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

    fn row_stores(&mut self) {
        let kernel = self.kernel;
        let stores: Vec<(usize, &Store)> = kernel.stores.iter().enumerate().filter(|(_, s)| s.per_row).collect();
        if stores.is_empty() {
            return;
        }
        let tile = if self.geometry.tiles > 1 { " && blockIdx.y == 0" } else { "" };
        let mut first =
            if self.geometry.shape == Shape::Flat { "col[u] == 0".to_owned() } else { format!("lane == 0{tile}") };
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

    /// What the block has added up, to memory.
    fn sums(&mut self) {
        if self.kernel.folds.is_empty() {
            return;
        }
        let Geometry { vector, lanes, held, groups, tiles, .. } = self.geometry.clone();
        let segment = if self.kernel.segments > 1 { "segment" } else { "0u" };
        let mut offset = 0;
        let most = self.most;
        for index in 0..self.kernel.folds.len() {
            let fold = &self.kernel.folds[index];
            let (acc, size) = types::accumulator(self.kernel.values[fold.value].0);
            let op = types::reduction(fold.op);
            let columns = if fold.per_column { self.kernel.cols } else { tiles };
            let start = format!("({acc}*)(partials + {offset}ull) + ((u64){segment} * {most}u + block) * {columns}u");
            offset += (self.kernel.segments * most * columns * size).next_multiple_of(256);
            self.open("{");
            if !fold.per_column {
                let threads = self.geometry.threads();
                let warps = threads.div_ceil(32);
                self.line(format!("{acc}* to = {start};"));
                self.line(format!("__shared__ {acc} table[{threads}];"));
                self.line(format!("table[threadIdx.x] = f{index};"));
                self.line("__syncthreads();");
                self.open("if (threadIdx.x < 32) {");
                self.line(format!("{acc} sum = {op}::identity<{acc}>();"));
                self.line(format!("UNROLL for (u32 w = 0; w < {warps}u; w++) if (threadIdx.x + w * 32 < {threads}u) sum = {op}::join(sum, table[threadIdx.x + w * 32]);"));
                self.line(format!("sum = over_lanes<{op}, 32>(sum);"));
                let tile = if tiles > 1 { "blockIdx.y" } else { "0" };
                self.line(format!("if (threadIdx.x == 0) to[{tile}] = sum;"));
                self.close();
                self.close();
                continue;
            }
            self.line(format!("{acc}* to = {start};"));
            if groups == 1 {
                self.vectors(|e| {
                    e.line(format!("UNROLL for (int j = 0; j < V; j++) to[column(i) * V + j] = f{index}[i][j];"));
                });
            } else {
                // Groups add up in turn: a fixed order.
                let width = lanes * held * vector;
                self.line(format!("__shared__ {acc} table[{width}];"));
                self.open(format!("for (u32 g = 0; g < {groups}u; g++) {{"));
                self.line("__syncthreads();");
                self.line(format!("if (group == g) UNROLL for (int i = 0; i < H; i++) UNROLL for (int j = 0; j < V; j++) {{ {acc}& x = table[(lane + i * {lanes}u) * V + j]; x = g ? {op}::join(x, f{index}[i][j]) : f{index}[i][j]; }}"));
                self.close();
                self.line("__syncthreads();");
                let tile = if tiles > 1 { format!("blockIdx.y * {width}u + ") } else { String::new() };
                self.line(format!(
                    "for (u32 c = threadIdx.x; c < {width}u; c += {}u) if ({tile}c < {}u) to[{tile}c] = table[c];",
                    self.geometry.threads(),
                    self.kernel.cols
                ));
            }
            self.close();
        }
    }

    /// The kernel that joins the sums of blocks; gives how it is launched.
    fn finish(&self, text: &mut String, partials: &[Partials]) -> Finish {
        let kernel = self.kernel;
        let columns = partials.iter().map(|p| p.width.div_ceil(32)).max().unwrap_or(1);
        let targets: Vec<String> = (0..kernel.folds.len()).map(|index| format!("u8* c{index}")).collect();
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__(1024) finish_kernel(const u8* partials, u32 blocks, {}) {{\n    \
             const u32 first = blockIdx.x % {columns}u * 32, segment = blockIdx.x / {columns}u;",
            targets.join(", ")
        );
        for (index, (fold, place)) in kernel.folds.iter().zip(partials).enumerate() {
            let (acc, _) = types::accumulator(kernel.values[fold.value].0);
            let tag = types::tag(self.buffers[fold.to.buffer].dtype);
            let (op, width, offset) = (types::reduction(fold.op), place.width, place.offset);
            let tiles = if fold.per_column { 1 } else { self.geometry.tiles };
            let row = width * tiles;
            let _ = writeln!(
                text,
                "    if (blockIdx.y == {index} && first < {width}u) {{\n        \
                 const {acc}* part = (const {acc}*)(partials + {offset}ull) + (u64)segment * {}u * {row}u;\n        \
                 const {acc} sum = over_partials<{op}>(part, blocks * {tiles}u, {width}u, first);\n        \
                 const {tag}::value one[1] = {{({tag}::value)sum}};\n        \
                 if (threadIdx.x < 32 && first + threadIdx.x < {width}u)\n            \
                 store(c{index} + ((u64)segment * {width}u + first + threadIdx.x) * {tag}::bytes, pack<{tag}, 1>(one));\n    }}",
                self.most
            );
        }
        text.push_str("}\n");
        let arguments = kernel.folds.iter().map(|fold| argument(&fold.to, self.buffers)).collect();
        Finish { arguments, grid: [(columns * kernel.segments) as u32, kernel.folds.len() as u32, 1] }
    }
}

/// Where the partial results of a fold lie.
struct Partials {
    offset: usize,
    bytes: usize,
    /// Columns of the result.
    width: usize,
}

fn argument(access: &Access, buffers: &[Buffer]) -> Argument {
    let offset = access.offset * buffers[access.buffer].dtype.bytes();
    Argument::Buffer { buffer: access.buffer, offset }
}
