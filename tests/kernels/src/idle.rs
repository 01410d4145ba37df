//! Kernels that do nothing, for a GPU that is to be slow for another process: both share its time.

use std::{
    ffi::c_void,
    sync::Arc,
    time::{Duration, Instant},
};

use pawl_cuda::{Check as _, compile::Source, device::Device};

/// Waits for a number of nanoseconds.
const TEXT: &str = r#"
extern "C" __global__ void idle(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"#;
/// Duration of a kernel.
const KERNEL: Duration = Duration::from_millis(5);
/// Kernels that are queued at a time, so that the GPU never waits for this process.
const AHEAD: usize = 8;

/// Source of the kernel.
pub fn source() -> Source {
    Source { name: "idle".to_owned(), text: TEXT.to_owned(), options: Vec::new() }
}

/// Keeps a GPU busy with idle kernels for `seconds`.
///
/// # Errors
/// When the device fails.
pub fn run(device: &Arc<Device>, seconds: u64) -> anyhow::Result<()> {
    let module = device.load(&device.compiler().compile(&source())?)?;
    let idle = module.function("idle")?;
    let (start, stream) = (Instant::now(), device.stream());
    println!("{} is kept busy for {seconds} s", device.name());
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..AHEAD {
            let mut nanoseconds = KERNEL.as_nanos() as u64;
            let mut arguments = [std::ptr::from_mut(&mut nanoseconds).cast::<c_void>()];
            // SAFETY: the argument has the type that the kernel declares, and the kernel accesses no memory.
            unsafe { idle.launch(stream, [1; 3], 1, 0, &mut arguments) }?;
        }
        stream.synchronize().check()?;
    }
    Ok(())
}
