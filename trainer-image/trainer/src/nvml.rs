//! GPU utilization from NVML: the fraction of time in which a kernel ran.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between samples. The driver's own period is a sixth of a second to a second.
const PERIOD: Duration = Duration::from_millis(100);

/// `nvmlUtilization_t`: percent of the last period.
#[repr(C)]
#[derive(Default)]
struct Rates {
    gpu: c_uint,
    memory: c_uint,
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Utilization = unsafe extern "C" fn(*mut c_void, *mut Rates) -> c_int;

/// Accumulates the busy time of a GPU in a dedicated thread. Ends when dropped.
#[derive(Debug)]
pub struct BusyTime {
    nanoseconds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl BusyTime {
    /// Samples the GPU with this UUID (16 bytes). `None` when NVML is missing, or does not know the GPU.
    pub fn watch(uuid: [u8; 16]) -> Option<Self> {
        let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = |range: std::ops::Range<usize>| hex[range].concat();
        let name = format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16));
        let name = CString::new(name).ok()?;
        // SAFETY: the library is NVIDIA's, its functions have these types, and it stays open as long as they are used.
        let (library, device) = unsafe {
            let library = Library::new("libnvidia-ml.so.1").ok()?;
            let init: Symbol<'_, Init> = library.get(b"nvmlInit_v2\0").ok()?;
            let by_uuid: Symbol<'_, ByUuid> = library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
            let mut device = std::ptr::null_mut();
            if init() != 0 || by_uuid(name.as_ptr(), &mut device) != 0 {
                return None;
            }
            (library, device as usize)
        };
        let busy = Self { nanoseconds: Arc::default(), stop: Arc::default() };
        let (nanoseconds, stop) = (Arc::clone(&busy.nanoseconds), Arc::clone(&busy.stop));
        let sample = move || {
            // SAFETY: as above.
            let Ok(utilization) = (unsafe { library.get::<Utilization>(b"nvmlDeviceGetUtilizationRates\0") }) else {
                return;
            };
            let mut last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD);
                let mut rates = Rates::default();
                // SAFETY: the handle is NVML's own, `rates` a valid place.
                if unsafe { utilization(device as *mut c_void, &mut rates) } == 0 {
                    let busy = last.elapsed().mul_f64(f64::from(rates.gpu.min(100)) / 100.0);
                    nanoseconds.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
                }
                last = Instant::now();
            }
        };
        std::thread::Builder::new().name("nvml".into()).spawn(sample).ok()?;
        Some(busy)
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
