//! The head of a generated source: every extent and stride as a constant, so that the compiler folds all addresses.

use std::fmt::Write as _;

use super::{AttentionArgument, AttentionLaunch, AttentionShape, CHUNK, Family};
use crate::compile::Source;
use pawl_graph::graph::DType;
use pawl_lower::{Access, Attention, AttentionGrad};

const PRELUDE: &str = include_str!("prelude.cu");
const TILE: &str = include_str!("tile.cu");
const FLASH: &str = include_str!("flash.cu");
const PLAIN: &str = include_str!("plain.cu");

/// Constants of one operator.
pub(super) struct Head {
    shape: AttentionShape,
    text: String,
}

impl Head {
    pub(super) fn new(shape: &AttentionShape, kernel: &Attention) -> Self {
        let AttentionShape { heads, groups, queries, keys, width, scale, .. } = *shape;
        let mut text = String::new();
        let mut define = |name: &str, value: String| {
            let _ = writeln!(text, "#define {name} {value}");
        };
        define("HEADS", heads.to_string());
        define("GROUPS", groups.to_string());
        define("T", queries.to_string());
        define("S", keys.to_string());
        define("D", width.to_string());
        let suffix = if shape.dtype == DType::F64 { "" } else { "f" };
        define("SCALE", format!("({scale:e}{suffix})"));
        define("CAUSAL", u8::from(kernel.spec.causal).to_string());
        define("KEEP", u8::from(kernel.lse.is_some()).to_string());
        define("NORMED", u8::from(kernel.norm.is_some()).to_string());
        if let Some(norm) = &kernel.norm {
            define("EPSILON", format!("({:e}f)", norm.epsilon));
        }
        let mut head = Self { shape: *shape, text };
        for (name, view) in [("Q", &kernel.q), ("K", &kernel.k), ("V", &kernel.v), ("O", &kernel.o)] {
            head.strides(name, view);
        }
        if let Some(lse) = &kernel.lse {
            head.strides("L", lse);
        }
        head
    }

    pub(super) fn with_gradients(mut self, kernel: &AttentionGrad) -> Self {
        let views = [("G", &kernel.grad), ("DQ", &kernel.dq), ("DK", &kernel.dk), ("DV", &kernel.dv)];
        for (name, view) in views {
            self.strides(name, view);
        }
        self
    }

    /// `Q_B`, `Q_H`, `Q_T`, `Q_D`: distances between neighbours along batch, head, row and element.
    fn strides(&mut self, name: &str, view: &Access) {
        for (axis, stride) in ["B", "H", "T", "D"].iter().zip(&view.strides) {
            let _ = writeln!(self.text, "#define {name}_{axis} {stride}LL");
        }
    }

    /// The launch of `entry`. The numbers are blocks of the grid, warps per block, resident blocks per multiprocessor
    /// that registers must leave room for, and bytes of shared memory; `part` is the index of the kernel in its family.
    pub(super) fn launch(
        &self,
        family: Family,
        entry: &'static str,
        (grid, warps, blocks, shared): (usize, usize, usize, usize),
        part: usize,
        arguments: Vec<AttentionArgument>,
    ) -> AttentionLaunch {
        let mut text = self.text.clone();
        let mut define = |name: &str, value: &str| {
            let _ = writeln!(text, "#define {name} {value}");
        };
        let (half, ptx) = if self.shape.dtype == DType::F16 { ("1", "\"f16\"") } else { ("0", "\"bf16\"") };
        match family {
            Family::Plain => {
                let element = match self.shape.dtype {
                    DType::F64 => "0",
                    DType::F16 => "2",
                    DType::BF16 => "3",
                    _ => "1",
                };
                define("ELEMENT", element);
                define("PART", &part.to_string());
                text.push_str(PLAIN);
            }
            Family::Tile | Family::Flash => {
                define("HALF", half);
                define("ELEMENT", ptx);
                define("WARPS", &warps.to_string());
                define("BLOCKS", &blocks.to_string());
                if family == Family::Tile {
                    define("FORWARD", if part == 0 { "1" } else { "0" });
                    // Queries that the backward pass takes at a time.
                    define(
                        "CHUNK",
                        if self.shape.queries.next_multiple_of(16).is_multiple_of(32) { "32" } else { "16" },
                    );
                } else {
                    define("PART", &part.to_string());
                    define("CHUNK", &CHUNK.to_string());
                }
                text.push_str(PRELUDE);
                text.push_str(if family == Family::Tile { TILE } else { FLASH });
            }
        }
        let source = Source { name: entry.to_owned(), text, options: Vec::new() };
        AttentionLaunch {
            source,
            entry,
            grid: grid as u32,
            threads: 32 * warps as u32,
            shared: shared as u32,
            arguments,
        }
    }
}
