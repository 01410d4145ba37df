//! A GPU as NVML reports it: the time in which a kernel ran, and what may slow it down.

use crate::gpu_reading::GpuReading;
use crate::straggler::gpu_uuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use parking_lot::Mutex;
use pawl_contract::measured::Disturbance;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The driver's library, as container runtimes mount it; the name without a version exists only beside development
/// files.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Time between samples of the utilization. The driver's own period is a sixth of a second to a second.
const PERIOD: Duration = Duration::from_millis(100);
/// Samples of the utilization for one of everything else.
const SAMPLES: u32 = 10;
/// Fewest looks that say something: one of fewer is chance.
const LOOKS: u32 = 5;

/// Watches a GPU in a dedicated thread. Ends when dropped.
#[derive(Debug)]
pub struct GpuWatch(Arc<Shared>);

/// Which processes belong to the launch.
#[derive(Clone, Copy, Debug, Default)]
enum Own {
    /// The one that watches, and no other.
    #[default]
    This,
    /// Those for which this is true.
    Those(fn(u32) -> bool),
}

#[derive(Debug, Default)]
struct Shared {
    own: Own,
    /// Whether the driver gives the utilization: not for a part of a GPU (MIG).
    utilization: bool,
    busy_nanoseconds: AtomicU64,
    reading: Mutex<Option<GpuReading>>,
    looks: Mutex<Looks>,
    stop: AtomicBool,
}

/// How often the GPU was looked at, and what was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    clocks: u32,
    slowed: u32,
    processes: u32,
    shared: u32,
}

impl GpuWatch {
    /// Watches the GPU with this UUID (16 bytes).
    ///
    /// # Errors
    /// When NVML is missing, or does not know the GPU.
    pub fn start(uuid: [u8; 16]) -> Result<Self, String> {
        Self::of(library()?, gpu_uuid(uuid), Own::This)
    }

    /// Watches a GPU as `CUDA_VISIBLE_DEVICES` names it: by its index among those of the driver, or by its UUID.
    ///
    /// # Errors
    /// As [`GpuWatch::start`].
    pub fn named(name: &str) -> Result<Self, String> {
        Self::with(name, Own::This)
    }

    /// As [`GpuWatch::named`], of a GPU that other processes use: for those of the launch, `is_own` is true.
    ///
    /// # Errors
    /// As [`GpuWatch::start`].
    pub fn beside(name: &str, is_own: fn(u32) -> bool) -> Result<Self, String> {
        Self::with(name, Own::Those(is_own))
    }

    fn with(name: &str, own: Own) -> Result<Self, String> {
        let nvml = library()?;
        let uuid = match name.parse() {
            Ok(index) => nvml.device_by_index(index).and_then(|device| device.uuid()),
            Err(_) => Ok(name.to_owned()),
        };
        let uuid = uuid.map_err(|e| format!("NVML, {name}: {e}"))?;
        Self::of(nvml, uuid, own)
    }

    fn of(nvml: Nvml, uuid: String, own: Own) -> Result<Self, String> {
        let device = nvml.device_by_uuid(uuid.as_str()).map_err(|e| format!("NVML, {uuid}: {e}"))?;
        let utilization = device.utilization_rates().is_ok();
        let shared = Arc::new(Shared { own, utilization, ..Shared::default() });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("nvml".into());
        thread.spawn(move || watch(&nvml, &uuid, &own)).map_err(|e| e.to_string())?;
        Ok(Self(shared))
    }

    /// Time so far in which a kernel ran on the GPU; `None` when the driver does not say.
    pub fn busy_time(&self) -> Option<Duration> {
        self.0.utilization.then(|| Duration::from_nanos(self.0.busy_nanoseconds.load(Ordering::Relaxed)))
    }

    /// Counts disturbances anew.
    pub fn restart(&self) {
        *self.0.looks.lock() = Looks::default();
    }

    /// What disturbed the GPU so far. Where the driver does not say, as of the processes within a container, or after a
    /// few looks only, there is nothing.
    pub fn disturbance(&self) -> Disturbance {
        let Looks { clocks, slowed, processes, shared } = *self.0.looks.lock();
        let share = |seen: u32, of: u32| (of >= LOOKS).then(|| (f64::from(seen) / f64::from(of) * 1e2).round() / 1e2);
        Disturbance {
            throttled_share: share(slowed, clocks),
            shared_gpu_share: share(shared, processes),
            ..Disturbance::default()
        }
    }

    /// The newest reading; `None` before the first one, or when the driver gives none.
    pub fn reading(&self) -> Option<GpuReading> {
        *self.0.reading.lock()
    }
}

fn library() -> Result<Nvml, String> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|e| format!("{LIBRARY}: {e}"))
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(nvml: &Nvml, uuid: &str, shared: &Shared) {
    let Ok(device) = nvml.device_by_uuid(uuid) else { return };
    let errors = nvml.create_event_set().ok();
    let errors = errors.and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
    let (mut last, mut xid) = (Instant::now(), 0);
    for sample in 0u32.. {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        if sample.is_multiple_of(SAMPLES) {
            let reading = reading(&device, xid);
            shared.looks.lock().add(reading, has_others(&device, shared.own));
            *shared.reading.lock() = reading;
        }
        xid = next_xid(errors.as_ref()).unwrap_or(xid);
        if let Ok(rates) = device.utilization_rates() {
            let busy = last.elapsed().mul_f64(f64::from(rates.gpu.min(100)) / 100.0);
            shared.busy_nanoseconds.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
        }
        last = Instant::now();
    }
}

impl Looks {
    /// Adds a look: a reading, and whether other processes use the GPU.
    fn add(&mut self, reading: Option<GpuReading>, has_others: Option<bool>) {
        if let Some(reading) = reading {
            self.clocks += 1;
            self.slowed += u32::from(reading.is_slowed());
        }
        if let Some(has_others) = has_others {
            self.processes += 1;
            self.shared += u32::from(has_others);
        }
    }
}

/// Whether processes that are not of the launch use the GPU; `None` when the driver names none: it does not see into
/// this container.
fn has_others(device: &Device<'_>, own: Own) -> Option<bool> {
    match own {
        // This one is among them.
        Own::This => device.running_compute_processes_count().ok().filter(|count| *count > 0).map(|count| count > 1),
        Own::Those(is_own) => {
            let processes = device.running_compute_processes().ok()?;
            others(&processes.iter().map(|process| process.pid).collect::<Vec<_>>(), is_own)
        }
    }
}

/// Whether a process is not of the launch; `None` when none is: they are numbered as outside of this container, or the
/// launch does not use the GPU now.
fn others(pids: &[u32], is_own: fn(u32) -> bool) -> Option<bool> {
    let own = pids.iter().filter(|pid| is_own(**pid)).count();
    (own > 0).then_some(own < pids.len())
}

/// Waits for the time between two samples; returns the number of an Xid that occurs meanwhile.
fn next_xid(errors: Option<&EventSet<'_>>) -> Option<u32> {
    let start = Instant::now();
    let event = errors.map(|errors| errors.wait(PERIOD.as_millis() as u32));
    if !matches!(event, Some(Err(NvmlError::Timeout))) {
        std::thread::sleep(PERIOD.saturating_sub(start.elapsed()));
    }
    match event?.ok()?.event_data? {
        XidError::Value(number) => u32::try_from(number).ok(),
        // As in NVML.
        XidError::Unknown => Some(999),
    }
}

/// What GPUs of a kind do not report, such as the power of some, is zero.
fn reading(device: &Device<'_>, xid: u32) -> Option<GpuReading> {
    Some(GpuReading {
        sm_clock: device.clock_info(Clock::SM).ok()?,
        max_sm_clock: device.max_clock_info(Clock::SM).ok()?,
        throttled: device.current_throttle_reasons().ok()?.bits() as u32,
        temperature: device.temperature(TemperatureSensor::Gpu).unwrap_or_default(),
        power: device.power_usage().unwrap_or_default(),
        power_limit: device.enforced_power_limit().unwrap_or_default(),
        xid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_count_what_was_seen() {
        let mut looks = Looks::default();
        let reading = |throttled| Some(GpuReading { sm_clock: 1000, throttled, ..GpuReading::default() });
        for (reading, has_others) in
            [(reading(0x4), Some(false)), (reading(0x40), Some(true)), (None, None), (reading(0), Some(false))]
        {
            looks.add(reading, has_others);
        }
        let watch = GpuWatch(Arc::new(Shared { looks: Mutex::new(looks), ..Shared::default() }));
        assert_eq!(watch.disturbance(), Disturbance::default(), "three looks say nothing");
        for _ in 0..2 {
            watch.0.looks.lock().add(reading(0), Some(true));
        }
        let found = watch.disturbance();
        assert_eq!((found.throttled_share, found.shared_gpu_share), (Some(0.2), Some(0.6)));
        watch.restart();
        assert_eq!(watch.disturbance(), Disturbance::default());
    }

    #[test]
    fn processes_are_others_only_beside_one_of_the_launch() {
        let is_own = |pid: u32| pid < 10;
        assert_eq!(others(&[], is_own), None);
        assert_eq!(others(&[77, 78], is_own), None, "numbers of another namespace");
        assert_eq!(others(&[3, 4], is_own), Some(false), "ranks that share a GPU");
        assert_eq!(others(&[3, 77], is_own), Some(true));
    }

    #[test]
    fn without_the_library_or_the_gpu_the_message_says_which() {
        let message = GpuWatch::start([0; 16]).unwrap_err();
        assert!(message.contains(LIBRARY) || message.contains("GPU-00000000"), "{message}");
        let message = GpuWatch::named("4000000000").unwrap_err();
        assert!(message.contains(LIBRARY) || message.contains("4000000000"), "{message}");
    }
}
