//! How busy the GPU is while a script is observed.

use pawl_local::machine::visible_gpus;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The time in which a kernel ran on a GPU so far, in seconds, at a time in seconds since 1970.
type Look = (f64, f64);

/// Watches a GPU until it is dropped.
#[derive(Debug)]
pub struct Watched(Receiver<Look>);

impl Watched {
    /// Watches the first of the visible GPUs, where the script has one and the driver reports it.
    pub fn first(gpus: u32) -> Self {
        let (looks, received) = channel();
        if let Some(name) = visible_gpus().into_iter().next().filter(|_| gpus > 0) {
            watch(&name, looks);
        }
        Self(received)
    }

    /// What was seen since it was last asked.
    pub fn busy(&self) -> Vec<Look> {
        self.0.try_iter().collect()
    }
}

#[cfg(feature = "cuda")]
fn watch(name: &str, looks: Sender<Look>) {
    use pawl_launch::nvml::GpuWatch;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    const PERIOD: Duration = Duration::from_millis(100);

    let Ok(gpu) = GpuWatch::named(name) else { return };
    let look = move || {
        let Some(busy) = gpu.busy_time() else { return };
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        while looks.send((now(), gpu.busy_time().unwrap_or(busy).as_secs_f64())).is_ok() {
            std::thread::sleep(PERIOD);
        }
    };
    // Without the thread nothing is known, as without a GPU.
    let _ = std::thread::Builder::new().name("pawl-gpu".into()).spawn(look);
}

/// This build does not use the driver.
#[cfg(not(feature = "cuda"))]
fn watch(_: &str, _: Sender<Look>) {}
