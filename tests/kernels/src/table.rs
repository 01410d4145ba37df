//! Tables of kernels by time.

use std::collections::BTreeMap;

use pawl_lower::{KernelTime, Lowered};

/// One line: kernels of one kind in one kind of scope.
#[derive(Default)]
struct Line {
    count: usize,
    seconds: f64,
    bytes: usize,
    flops: u64,
    note: String,
}

/// A scope with numbers left out: `blocks.*`.
fn kind_of_scope(scope: &str) -> String {
    let part = |part: &str| match part.rsplit_once('.') {
        Some((name, number)) if number.parse::<u32>().is_ok() => format!("{name}.*"),
        _ => part.to_owned(),
    };
    scope.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn print(title: &str, lines: BTreeMap<String, Line>) {
    let total: f64 = lines.values().map(|line| line.seconds).sum();
    println!("{title}: {:.2} ms", total * 1e3);
    println!("{:>9} {:>6} {:>7} {:>8} {:>9}  kernels", "ms", "%", "GB/s", "TFLOP/s", "GB");
    let mut sorted: Vec<_> = lines.into_iter().collect();
    sorted.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    for (name, line) in sorted.iter().take(60) {
        println!(
            "{:>9.3} {:>6.1} {:>7.0} {:>8.1} {:>9.3}  {:>3} x {name} {}",
            line.seconds * 1e3,
            100.0 * line.seconds / total,
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
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for time in times {
        let per_run = time.seconds / time.runs.max(1) as f64;
        let name = name(lowered, time.kernel);
        let line = lines.entry(name).or_default();
        line.count += 1;
        line.seconds += per_run;
        line.bytes += time.bytes;
        line.flops += time.flops;
        line.note = note(time.kernel);
    }
    print("measured, kernels one by one", lines);
}

fn name(lowered: &Lowered, kernel: usize) -> String {
    use pawl_lower::Body;
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

/// Prints estimated times, for a memory bandwidth of 4.2 TB/s and 550 TFLOP/s of matrix products.
pub fn estimate(lowered: &Lowered) {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for (at, kernel) in lowered.kernels.iter().enumerate() {
        let (bytes, flops) = (lowered.traffic(&kernel.body), kernel.body.flops());
        let arithmetic = match kernel.body.name() {
            "matmul" | "attention" | "attention_grad" => flops as f64 / 550e12,
            _ => 0.0,
        };
        let line = lines.entry(name(lowered, at)).or_default();
        line.count += 1;
        line.seconds += (bytes as f64 / 4.2e12).max(arithmetic).max(2e-6);
        line.bytes += bytes;
        line.flops += flops;
    }
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    println!(
        "{} kernels, arena {:.2} GiB (floor {:.2})",
        lowered.kernels.len(),
        gib(lowered.plan.arena),
        gib(lowered.plan.floor)
    );
    print("estimated", lines);
}
