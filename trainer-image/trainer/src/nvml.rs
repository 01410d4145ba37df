//! GPU utilization from NVML: the fraction of time in which a kernel ran.

use nvml_wrapper::Nvml;
use pawl_launch::straggler::gpu_uuid;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The driver's library, as container runtimes mount it; the name without a version exists only beside development files.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Time between samples. The driver's own period is a sixth of a second to a second.
const PERIOD: Duration = Duration::from_millis(100);

/// Accumulates the busy time of a GPU in a dedicated thread. Ends when dropped.
#[derive(Debug)]
pub struct BusyTime {
    nanoseconds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl BusyTime {
    /// Samples the GPU with this UUID (16 bytes).
    ///
    /// # Errors
    /// When NVML is missing, or does not know the GPU.
    pub fn watch(uuid: [u8; 16]) -> Result<Self, String> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|e| format!("{LIBRARY}: {e}"))?;
        let uuid = gpu_uuid(uuid);
        nvml.device_by_uuid(uuid.as_str()).map_err(|e| format!("NVML, {uuid}: {e}"))?;
        let busy = Self { nanoseconds: Arc::default(), stop: Arc::default() };
        let (nanoseconds, stop) = (Arc::clone(&busy.nanoseconds), Arc::clone(&busy.stop));
        let thread = std::thread::Builder::new().name("nvml".into());
        thread.spawn(move || sample(&nvml, &uuid, &nanoseconds, &stop)).map_err(|e| e.to_string())?;
        Ok(busy)
    }

    /// Busy time of the GPU so far.
    pub fn so_far(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

impl Drop for BusyTime {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn sample(nvml: &Nvml, uuid: &str, nanoseconds: &AtomicU64, stop: &AtomicBool) {
    let Ok(device) = nvml.device_by_uuid(uuid) else { return };
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PERIOD);
        if let Ok(rates) = device.utilization_rates() {
            let busy = last.elapsed().mul_f64(f64::from(rates.gpu.min(100)) / 100.0);
            nanoseconds.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
        }
        last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_or_the_gpu_the_message_says_which() {
        let message = BusyTime::watch([0; 16]).unwrap_err();
        assert!(message.contains(LIBRARY) || message.contains("GPU-00000000"), "{message}");
    }
}
