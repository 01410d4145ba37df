//! Training steps, timed.

use std::time::Instant;

use pawl_graph::{
    array::{Array, View},
    executor::{ExecOptions, Executable},
    graph::Program,
};

use crate::{Timing, device, executor, table};

/// Times steps of `items` items each on `data`, run without a pause after warm-up steps, and prints items/s; the loss
/// is read at the end.
///
/// # Errors
/// When there is no GPU, or the program does not compile or run on it.
pub fn step(program: &Program, data: &[Array], items: u32, timing: &Timing) -> anyhow::Result<()> {
    let Timing { steps, mode, profile } = timing;
    let views: Vec<View<'_>> = data.iter().map(Array::view).collect();
    let device = device()?;
    println!(
        "{}, {} multiprocessors, NVRTC {:?}",
        device.name(),
        device.multiprocessors(),
        device.compiler().version()
    );
    let start = Instant::now();
    let mut exe = executor(&device, mode).build(std::slice::from_ref(program), &ExecOptions::default())?;
    println!("built in {:.1} s; cuBLASLt {}", start.elapsed().as_secs_f64(), exe.blas_version());
    let start = Instant::now();
    for _ in 0..3 {
        exe.run(0, &views)?;
    }
    let loss = exe.output(0, 0)?.item();
    println!("three steps in {:.2} s, loss {loss}", start.elapsed().as_secs_f64());
    let mut times = Vec::new();
    for _ in 0..2 {
        let start = Instant::now();
        for _ in 0..*steps {
            exe.run(0, &views)?;
        }
        let loss = exe.output(0, 0)?.item();
        times.push((start.elapsed().as_secs_f64() / *steps as f64, loss));
    }
    for (seconds, loss) in &times {
        println!("{mode}: {:.2} ms a step, {:.1} items/s, loss {loss:.6}", seconds * 1e3, f64::from(items) / seconds);
    }
    let memory = exe.memory();
    println!(
        "memory: planned {:.3} GiB, measured {:.3} GiB",
        memory.planned as f64 / f64::from(1 << 30),
        memory.peak as f64 / f64::from(1 << 30)
    );
    if *profile {
        let times = exe.profile(0, &views, 10)?;
        let lowered = exe.lowered().next().cloned();
        if let Some(lowered) = lowered {
            table::measured(&lowered, &times, |kernel| match exe.registers(0, kernel) {
                Some((registers, 0)) => format!("[{registers} registers]"),
                Some((registers, local)) => format!("[{registers} registers, {local} bytes spilled]"),
                None => String::new(),
            });
        }
    }
    Ok(())
}
