//! Lowered programs as text: kernels and memory.

use std::fmt::Write;

use super::{Body, Class, Fused, Instruction, Lowered, Storage};

impl Lowered {
    /// One line per kernel: index, kind, loops, bytes moved, floating point operations, scope; followed by its views
    /// and the code of fused kernels.
    pub fn dump_kernels(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "program {}: {} kernels", self.name, self.kernels.len());
        for (index, kernel) in self.kernels.iter().enumerate() {
            let loops = match &kernel.body {
                Body::Fused(f) if f.segments > 1 => format!("{}x{} in {}", f.rows, f.cols, f.segments),
                Body::Fused(f) => format!("{}x{}", f.rows, f.cols),
                Body::MatMul(m) => {
                    let (batch, rows, cols, depth) = m.extents();
                    let added = m.add.as_ref().map(|(_, factor)| format!(" * {factor} +")).unwrap_or_default();
                    format!("{batch} of {rows}x{cols}x{depth}{added}")
                }
                Body::Attention(a) => format!("{:?} over {}", a.q.dims, a.k.dims[2]),
                Body::AttentionGrad(g) => format!("{:?} over {}", g.forward.q.dims, g.forward.k.dims[2]),
                Body::Gather(l) | Body::ScatterAdd(l) => format!("{:?} -> {:?}", l.from.dims, l.to.dims),
                Body::Segments(s) => format!("{:?} -> {:?} of {}", s.from.dims, s.to.dims, s.count()),
                Body::Collective(c) => format!("{:?} {}", c.op, c.from.elements()),
            };
            let _ = writeln!(
                text,
                "{index:5} {:<14} {loops:<24} {:>10} {:>12} flop  {}",
                kernel.body.name(),
                bytes(self.traffic(&kernel.body)),
                kernel.body.flops(),
                kernel.scope
            );
            let list = |accesses: Vec<&super::Access>| {
                let named = accesses.iter().map(|a| format!("{a}:{}", self.buffers[a.buffer].dtype));
                named.collect::<Vec<_>>().join(" ")
            };
            let _ = writeln!(text, "        {} -> {}", list(kernel.body.reads()), list(kernel.body.writes()));
            if let Body::Fused(fused) = &kernel.body {
                code(&mut text, fused);
            }
        }
        text
    }

    /// The buffers of the arena by offset, with size in bytes and lifetime, and the totals per storage.
    pub fn dump_memory(&self) -> String {
        let mut text = String::new();
        let sum = |kind: fn(&Storage) -> bool| -> usize {
            self.buffers.iter().filter(|b| kind(&b.storage)).map(|b| b.bytes()).sum()
        };
        let _ = writeln!(
            text,
            "program {}: arena {} (floor {}), states touched {}, inputs {}, outputs {}",
            self.name,
            bytes(self.plan.arena),
            bytes(self.plan.floor),
            bytes(sum(|s| matches!(s, Storage::State(_)))),
            bytes(sum(|s| matches!(s, Storage::Input(_)))),
            bytes(sum(|s| matches!(s, Storage::Output(_)))),
        );
        let mut placed: Vec<_> = self.plan.offsets.iter().enumerate().filter_map(|(i, o)| o.map(|o| (o, i))).collect();
        placed.sort_unstable();
        for (offset, index) in placed {
            let buffer = &self.buffers[index];
            let _ = writeln!(
                text,
                "{offset:>14} +{:<12} @{index:<5} {:<5} kernels {}..={}",
                buffer.bytes(),
                buffer.dtype.to_string(),
                buffer.life.0,
                buffer.life.1
            );
        }
        text
    }

    /// Bytes that a kernel reads and writes, each element counted once.
    pub fn traffic(&self, body: &Body) -> usize {
        let size = |access: &super::Access| {
            let distinct: usize =
                access.dims.iter().zip(&access.strides).filter(|&(_, &s)| s > 0).map(|(&d, _)| d).product();
            distinct * self.buffers[access.buffer].dtype.bytes()
        };
        body.reads().into_iter().chain(body.writes()).map(size).sum()
    }
}

fn code(text: &mut String, fused: &Fused) {
    let class = |value: usize| match fused.values[value].1 {
        Class::Full => "",
        Class::Row => " row",
        Class::Col => " col",
        Class::Scalar => " scalar",
    };
    for (value, load) in fused.loads.iter().enumerate() {
        let _ = writeln!(text, "          v{value} = {}{}", load.from, class(value));
    }
    for (index, instruction) in fused.code.iter().enumerate() {
        let value = fused.loads.len() + index;
        let operands: Vec<String> = instruction.operands().map(|v| format!("v{v}")).collect();
        let name = match instruction {
            Instruction::Immediate(number) => format!("{number}"),
            Instruction::Iota { inner, extent } => format!("iota /{inner} %{extent}"),
            Instruction::Random { key, .. } => format!("random {key:#x}"),
            Instruction::Unary(op, _) => format!("{op:?}").to_lowercase(),
            Instruction::Binary(op, ..) => format!("{op:?}").to_lowercase(),
            Instruction::Compare(op, ..) => format!("{op:?}").to_lowercase(),
            Instruction::Select(..) => "select".to_owned(),
            Instruction::Cast(_) => format!("cast {}", fused.values[value].0),
            Instruction::Reduce(op, _) => format!("row {}", format!("{op:?}").to_lowercase()),
        };
        let _ = writeln!(text, "          v{value} = {name} {}{}", operands.join(" "), class(value));
    }
    for store in &fused.stores {
        let _ = writeln!(text, "          {} <- v{}", store.to, store.value);
    }
    for fold in &fused.folds {
        let over = if fold.per_column { "columns" } else { "all" };
        let _ = writeln!(text, "          {} <- {:?} over {over} of v{}", fold.to, fold.op, fold.value);
    }
}

fn bytes(count: usize) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} KB", count as f64 / 1e3),
        10_000_000..=9_999_999_999 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
