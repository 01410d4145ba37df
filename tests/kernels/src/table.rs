//! Tables of kernels by time.

use std::collections::BTreeMap;

use pawl_lower::{Body, KernelTime, Lowered};

/// An H200's memory bandwidth in bytes per second, of reading and writing together.
const BANDWIDTH: f64 = 4.2e12;
/// Its matrix products in bfloat16, FLOP/s; twice that over 8-bit floats.
const PRODUCTS: f64 = 790e12;
/// The least time of a kernel in a graph, s.
const KERNEL: f64 = 2e-6;
/// Most kinds of kernels that are printed.
const SHOWN: usize = 60;

/// What a kernel takes.
struct Cost {
    kernel: usize,
    seconds: f64,
    bytes: usize,
    flops: u64,
    note: String,
}

/// The sum of several kernels.
#[derive(Default)]
struct Line {
    count: usize,
    seconds: f64,
    /// The least time for bytes and arithmetic, s.
    bound: f64,
    bytes: usize,
    flops: u64,
    note: String,
}

impl Line {
    fn add(&mut self, cost: &Cost, bound: f64) {
        self.count += 1;
        self.seconds += cost.seconds;
        self.bound += bound;
        self.bytes += cost.bytes;
        self.flops += cost.flops;
        self.note.clone_from(&cost.note);
    }
}

/// The time for a kernel's bytes, or for its arithmetic if that is longer, s.
fn bound(lowered: &Lowered, kernel: usize, bytes: usize, flops: u64) -> f64 {
    let arithmetic = match &lowered.kernels[kernel].body {
        Body::MatMul(product) if product.scales.is_some() => flops as f64 / (2.0 * PRODUCTS),
        Body::MatMul(_) | Body::Attention(_) | Body::AttentionGrad(_) => flops as f64 / PRODUCTS,
        _ => 0.0,
    };
    (bytes as f64 / BANDWIDTH).max(arithmetic)
}

/// A scope with numbers left out: `blocks.*`.
fn kind_of_scope(scope: &str) -> String {
    let part = |part: &str| match part.rsplit_once('.') {
        Some((name, number)) if number.parse::<u32>().is_ok() => format!("{name}.*"),
        _ => part.to_owned(),
    };
    scope.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn name(lowered: &Lowered, kernel: usize) -> String {
    let of = &lowered.kernels[kernel];
    let size = match &of.body {
        Body::Fused(f) => {
            let (loads, stores, folds) = (f.loads.len(), f.stores.len(), f.folds.len());
            format!("{}x{} l{loads} c{} s{stores} f{folds}", f.rows, f.cols, f.code.len())
        }
        Body::MatMul(m) => {
            let (batch, m, n, k) = m.extents();
            format!("{batch} of {m}x{n}x{k}")
        }
        _ => String::new(),
    };
    format!("{} {size} {}", of.body.name(), kind_of_scope(&of.scope))
}

/// The sums by `key`, longest first.
fn sums(lowered: &Lowered, costs: &[Cost], key: impl Fn(usize) -> String) -> Vec<(String, Line)> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for cost in costs {
        let bound = bound(lowered, cost.kernel, cost.bytes, cost.flops);
        lines.entry(key(cost.kernel)).or_default().add(cost, bound);
    }
    let mut sorted: Vec<_> = lines.into_iter().collect();
    sorted.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    sorted
}

/// Prints the costs by part of the model, then by kind of kernel.
fn print(title: &str, lowered: &Lowered, costs: &[Cost]) {
    let total: f64 = costs.iter().map(|cost| cost.seconds).sum();
    let parts = sums(lowered, costs, |kernel| kind_of_scope(&lowered.kernels[kernel].scope));
    let bound: f64 = parts.iter().map(|(_, line)| line.bound).sum();
    println!("{title}: {:.2} ms; bytes and arithmetic alone: {:.2} ms", total * 1e3, bound * 1e3);
    println!("{:>9} {:>6} {:>9} {:>9} {:>7}  part", "ms", "%", "bound, ms", "GB", "kernels");
    for (part, line) in &parts {
        println!(
            "{:>9.3} {:>6.1} {:>9.3} {:>9.3} {:>7}  {part}",
            line.seconds * 1e3,
            100.0 * line.seconds / total,
            line.bound * 1e3,
            line.bytes as f64 / 1e9,
            line.count,
        );
    }
    println!("{:>9} {:>6} {:>9} {:>7} {:>8} {:>9}  kernels", "ms", "%", "bound, ms", "GB/s", "TFLOP/s", "GB");
    for (name, line) in sums(lowered, costs, |kernel| name(lowered, kernel)).iter().take(SHOWN) {
        println!(
            "{:>9.3} {:>6.1} {:>9.3} {:>7.0} {:>8.1} {:>9.3}  {:>3} x {name} {}",
            line.seconds * 1e3,
            100.0 * line.seconds / total,
            line.bound * 1e3,
            line.bytes as f64 / line.seconds / 1e9,
            line.flops as f64 / line.seconds / 1e12,
            line.bytes as f64 / 1e9,
            line.count,
            line.note,
        );
    }
}

/// Prints measured times; `note` adds a remark to a kernel.
pub fn measured(lowered: &Lowered, times: &[KernelTime], note: impl Fn(usize) -> String) {
    let cost = |time: &KernelTime| Cost {
        kernel: time.kernel,
        seconds: time.seconds / time.runs.max(1) as f64,
        bytes: time.bytes,
        flops: time.flops,
        note: note(time.kernel),
    };
    print("measured, kernels one by one", lowered, &times.iter().map(cost).collect::<Vec<_>>());
}

/// Prints estimated times, on an H200.
pub fn estimate(lowered: &Lowered) {
    let costs = lowered.kernels.iter().enumerate().map(|(kernel, of)| {
        let (bytes, flops) = (lowered.traffic(&of.body), of.body.flops());
        let seconds = bound(lowered, kernel, bytes, flops).max(KERNEL);
        Cost { kernel, seconds, bytes, flops, note: String::new() }
    });
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    println!(
        "{} kernels, arena {:.2} GiB (floor {:.2})",
        lowered.kernels.len(),
        gib(lowered.plan.arena),
        gib(lowered.plan.floor)
    );
    print("estimated", lowered, &costs.collect::<Vec<_>>());
}
