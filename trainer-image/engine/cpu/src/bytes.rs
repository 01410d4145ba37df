//! Memory of the executor: aligned, zeroed, counted.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use pawl_graph::{
    array::{Array, Data, View},
    executor::ExecError,
    graph::Meta,
};
use pawl_lower::{ALIGNMENT, aligned};

/// Bytes held now and at most.
#[derive(Debug, Default)]
pub(super) struct Meter {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Meter {
    /// Highest number of bytes held so far.
    pub(super) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

/// A zeroed allocation whose size the meter counts.
pub(super) struct Bytes {
    start: NonNull<u8>,
    len: usize,
    meter: Arc<Meter>,
}

// SAFETY: it owns its memory; access is through raw pointers whose users prevent data races.
unsafe impl Send for Bytes {}

impl Bytes {
    /// `len` zero bytes, rounded up to the alignment.
    pub(super) fn new(len: usize, meter: &Arc<Meter>) -> Self {
        let len = aligned(len);
        let start = if len == 0 {
            NonNull::dangling()
        } else {
            let layout = Self::layout(len);
            // SAFETY: the size is not 0.
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
        };
        let now = meter.now.fetch_add(len, Ordering::Relaxed) + len;
        meter.peak.fetch_max(now, Ordering::Relaxed);
        Self { start, len, meter: Arc::clone(meter) }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT).expect("sizes are below half the address space")
    }

    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.meter.now.fetch_sub(self.len, Ordering::Relaxed);
        if self.len > 0 {
            // SAFETY: allocated by `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) };
        }
    }
}

/// Copies elements to memory.
///
/// # Safety
/// `to` is valid for writes of the elements.
pub(super) unsafe fn write(to: *mut u8, view: View<'_>) {
    let bytes = view.bytes();
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// A copy of the elements at `from`.
///
/// # Safety
/// `from` is valid for reads of the elements of `meta`.
pub(super) unsafe fn read(from: *const u8, meta: &Meta) -> Result<Array, ExecError> {
    let mut data = Data::zeros(meta.dtype, meta.shape.elements());
    let bytes = data.bytes_mut();
    // SAFETY: the caller's promise.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, bytes.len()) };
    Ok(Array::new(&meta.shape, data)?)
}
