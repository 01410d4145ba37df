//! Fused loops as CUDA C.
//!
//! A thread has `unroll` rows at once (or vectors, where rows do not matter) and of each `held` vectors of columns.
//! What is loaded stays in registers as it is. Reductions along rows cut the code into phases: before a value of a row
//! is there, nothing that needs it can run. Each phase computes the elements that it needs from what was loaded, or
//! from 16-bit values that an earlier phase kept (what else it computed is the compiler's to keep or to compute again),
//! so a row is read once, however many reductions there are. What is folded over rows is added up in registers, by
//! blocks that stay until all is done and read the next rows while they work on these; sums of several blocks are
//! joined in a fixed order by a second kernel: results never depend on timing.
//!
//! This module emits the frame; [`loads`] reads, [`values`] computes, [`phase`] loops over the elements and writes,
//! [`kept`] keeps, [`folds`] accumulates.

mod folds;
mod kept;
mod loads;
mod phase;
mod values;

use std::fmt::Write;

use folds::Partials;
use kept::Kept;

use super::{
    Argument, Generated, Grid,
    geometry::{Geometry, Traversal},
    index::Walk,
    types,
};
use crate::compile::Source;
use pawl_graph::graph::DType;
use pawl_lower::{Access, Buffer, Class, Fused, Instruction};

/// Blocks of a persistent grid, for each multiprocessor, at most: bounds the memory of partial sums.
const RESIDENT: usize = 8;
/// Registers of a multiprocessor.
const REGISTERS: usize = 65_536;

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
    kept: Vec<Kept>,
    text: String,
    indent: usize,
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
        let mut emitter =
            Self { kernel, buffers, geometry, level, walks, kept: Vec::new(), text: String::new(), indent: 1, most: 0 };
        emitter.kept = kept::kept(&emitter);
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
        self.close_with("}");
    }

    fn close_with(&mut self, end: &str) {
        self.indent -= 1;
        self.line(end);
    }

    fn emit(mut self) -> Generated {
        let partials = self.partials();
        let body = self.body(&partials);
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
        for (index, key) in self.keys().map(|(_, key)| key).enumerate() {
            parameters.push(format!("u64 k{index}"));
            arguments.push(Argument::Key(key));
        }
        let joins = !self.kernel.folds.is_empty() && !self.alone();
        if joins {
            parameters.push("u8* partials".into());
            arguments.push(Argument::Workspace(0));
        } else {
            for (index, fold) in self.kernel.folds.iter().enumerate() {
                parameters.push(format!("u8* c{index}"));
                arguments.push(argument(&fold.to, self.buffers));
            }
        }
        let bounds = match self.resident() {
            Some(blocks) => format!("__launch_bounds__({}, {blocks})", self.geometry.threads()),
            None => format!("__launch_bounds__({})", self.geometry.threads()),
        };
        let _ = writeln!(text, "extern \"C\" __global__ void {bounds} main_kernel({}) {{", parameters.join(", "));
        text.push_str(&body);
        text.push_str("}\n");
        let finish = joins.then(|| self.finish(&mut text, &partials));
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
            workspace: partials.last().filter(|_| joins).map_or(0, |p| p.offset + p.bytes),
        }
    }

    /// The random draws: the position of each in the code, and its key.
    fn keys(&self) -> impl Iterator<Item = (usize, u64)> {
        self.kernel.code.iter().enumerate().filter_map(|(at, instruction)| match instruction {
            Instruction::Random { key, .. } => Some((at, *key)),
            _ => None,
        })
    }

    /// Rows of a segment; vectors of it, for [`Traversal::Flat`].
    fn run(&self) -> usize {
        let rows = self.kernel.rows / self.kernel.segments;
        match self.geometry.traversal {
            Traversal::Rows => rows,
            Traversal::Flat => rows * (self.kernel.cols / self.geometry.vector),
        }
    }

    /// Resident blocks per multiprocessor to request from the compiler, as far as registers allow; `None` for one.
    fn resident(&self) -> Option<usize> {
        let blocks = REGISTERS / (self.geometry.registers(self.kernel, self.buffers) * self.geometry.threads());
        (blocks > 1).then_some(blocks.min(2048 / self.geometry.threads()).min(RESIDENT))
    }

    /// The segment of a block.
    fn segment(&self) -> &'static str {
        if self.kernel.segments > 1 { "segment" } else { "0u" }
    }

    /// Whether every row (or vector) index of a thread is in range.
    fn whole(&self) -> bool {
        self.run().is_multiple_of(self.geometry.step())
    }

    /// Condition under which vector `i` of a row exists, if it may not.
    fn guard(&self) -> Option<String> {
        let Geometry { vector, lanes, held, tiles, .. } = self.geometry;
        let vectors = self.kernel.cols / vector;
        let exact = lanes * held * tiles == vectors || self.geometry.traversal == Traversal::Flat;
        (!exact).then(|| format!("if (column(i) < {vectors}u)"))
    }

    fn body(&mut self, partials: &[Partials]) -> String {
        self.indices();
        self.scalars();
        if self.geometry.hoists(self.kernel) {
            for value in self.loads_of(Class::Col) {
                let array = self.array(value, "[H]");
                self.line(array.declaration());
                self.vectors(|e| e.load(value, &format!("l{value}[i]"), "0u", "column(i) * V"));
            }
        }
        self.accumulators();
        self.steps();
        self.sums(partials);
        std::mem::take(&mut self.text)
    }

    /// Declares which elements the thread computes: block, segment, lane, group and columns.
    fn indices(&mut self) {
        let Geometry { vector, lanes, held, unroll, tiles, .. } = self.geometry.clone();
        self.line(format!("constexpr int U = {unroll}, H = {held}, V = {vector};"));
        let block = if self.kernel.segments > 1 {
            self.line(format!("const u32 segment = blockIdx.x % {}u;", self.kernel.segments));
            format!("blockIdx.x / {}u", self.kernel.segments)
        } else {
            "blockIdx.x".into()
        };
        self.line(format!("const u32 block = {block}, blocks = gridDim.x / {}u;", self.kernel.segments));
        if self.geometry.traversal == Traversal::Flat {
            self.line("const u32 group = threadIdx.x;");
        } else {
            self.line(format!("const u32 lane = threadIdx.x % {lanes}u, group = threadIdx.x / {lanes}u;"));
            let tile = if tiles > 1 { format!("blockIdx.y * {}u + ", lanes * held) } else { String::new() };
            self.line(format!("auto column = [&](int i) -> u32 {{ return {tile}lane + i * {lanes}u; }};"));
        }
    }

    /// Declares the accumulator of each fold.
    fn accumulators(&mut self) {
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
    }

    /// The loop over the steps of a block: loads, phases and what is stored once per row.
    fn steps(&mut self) {
        let (step, run) = (self.geometry.step(), self.run());
        if self.geometry.ahead {
            self.fetch();
            self.line(format!("Step next = fetch(block * {step}u);"));
        }
        self.open(if self.kernel.folds.is_empty() {
            format!("const u32 start = block * {step}u; {{")
        } else {
            format!("for (u32 start = block * {step}u; start < {run}u; start += blocks * {step}u) {{")
        });
        if self.geometry.ahead {
            self.line(format!("auto [{}] = next;", self.names()));
            self.line(format!("next = fetch(start + blocks * {step}u);"));
        } else {
            self.arrays().iter().for_each(|array| self.line(array.declaration()));
            self.step();
        }
        self.declare_kept();
        let last = self.level.iter().copied().max().unwrap_or(0);
        for phase in 0..=last {
            self.row_values(phase);
            self.phase(phase);
        }
        self.row_stores();
        self.close();
    }

    fn class(&self, value: usize) -> Class {
        self.kernel.values[value].1
    }

    fn dtype(&self, value: usize) -> DType {
        self.kernel.values[value].0
    }
}

fn argument(access: &Access, buffers: &[Buffer]) -> Argument {
    let offset = access.offset * buffers[access.buffer].dtype.bytes();
    Argument::Buffer { buffer: access.buffer, offset }
}
