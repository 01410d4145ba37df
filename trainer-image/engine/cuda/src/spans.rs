//! Time of parts of a program, measured on the device by events around each part: in which its kernels wait for
//! collectives, and in which they access optimizer state in host memory.
//!
//! A collective runs beside the kernels, and the kernels wait where they need its result. That wait is the part of the
//! collective that no computation hides: what the transfer takes longer, and the time until the slowest rank takes
//! part. The slowest rank itself waits for the transfer only.
//!
//! Kernels that access host memory do so over the bus, which takes nearly all of their time: on an H100, what they
//! compute and access in device memory takes a fiftieth of it.

use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaStream, sys};

use super::{device::Device, error::Check as _};
use pawl_graph::executor::ExecError;

/// What of a run is timed.
#[derive(Default)]
pub(super) struct Timed {
    /// Waits for collectives.
    pub(super) waits: Spans,
    /// Kernels that access host memory.
    pub(super) offload: Spans,
}

impl Timed {
    /// Starts to queue a run, or with `captured` to capture it.
    pub(super) fn begin(&mut self, captured: bool) {
        self.waits.begin(captured);
        self.offload.begin(captured);
    }

    /// Records that the run was queued.
    pub(super) fn queued(&mut self) {
        self.waits.queued();
        self.offload.queued();
    }

    /// Whether the events of a run must be read before they are recorded again.
    pub(super) fn is_open(&self) -> bool {
        self.waits.open || self.offload.open
    }
}

/// Parts of one run: a captured run records the same events whenever it is replayed.
#[derive(Default)]
pub(super) struct Spans {
    /// Events before and after each part.
    pairs: Vec<(CudaEvent, CudaEvent)>,
    /// Number of parts of the program, once it was queued.
    used: usize,
    /// Whether the run is captured rather than executed.
    captured: bool,
    /// Whether the events were recorded since they were last read.
    open: bool,
}

impl Spans {
    fn begin(&mut self, captured: bool) {
        (self.used, self.captured) = (0, captured);
    }

    fn queued(&mut self) {
        self.open = self.used > 0;
    }

    /// Queues a wait of `stream` for all `collectives`.
    pub(super) fn wait(
        &mut self,
        device: &Device,
        stream: &CudaStream,
        collectives: &[CudaEvent],
    ) -> Result<(), ExecError> {
        if collectives.is_empty() {
            return Ok(());
        }
        self.start(device, stream)?;
        collectives.iter().try_for_each(|done| stream.wait(done).check())?;
        self.end(stream)
    }

    /// Begins a part, which lasts until [`Spans::end`].
    pub(super) fn start(&mut self, device: &Device, stream: &CudaStream) -> Result<(), ExecError> {
        if self.used == self.pairs.len() {
            self.pairs.push((device.event()?, device.event()?));
        }
        self.used += 1;
        self.record(&self.pairs[self.used - 1].0, stream)
    }

    /// Ends the part that has begun.
    pub(super) fn end(&self, stream: &CudaStream) -> Result<(), ExecError> {
        self.record(&self.pairs[self.used - 1].1, stream)
    }

    /// An event that is recorded while a graph is captured is a dependency only, unless it is declared to be external.
    fn record(&self, event: &CudaEvent, stream: &CudaStream) -> Result<(), ExecError> {
        let flags = match self.captured {
            true => sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32,
            false => sys::CUevent_record_flags_enum::CU_EVENT_RECORD_DEFAULT as u32,
        };
        // SAFETY: event and stream are live and of one context, which is current.
        unsafe { sys::cuEventRecordWithFlags(event.cu_event(), stream.cu_stream(), flags) }.result().check()
    }

    /// Time of all parts of the newest run, if it has not been read yet. The run must be complete.
    pub(super) fn read(&mut self) -> Result<Duration, ExecError> {
        if !std::mem::take(&mut self.open) {
            return Ok(Duration::ZERO);
        }
        let mut sum = Duration::ZERO;
        for (before, after) in &self.pairs[..self.used] {
            sum += Duration::from_secs_f32(before.elapsed_ms(after).check()?.max(0.0) / 1e3);
        }
        Ok(sum)
    }
}
