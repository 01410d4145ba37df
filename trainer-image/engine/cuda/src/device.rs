//! A GPU: its context, streams, memory and loaded code.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::{
    card::Card,
    compile::{Architecture, Compiler},
    error::{Check as _, NAME, missing},
};
use pawl_graph::executor::ExecError;

/// Alignment of what the driver allocates, in bytes.
pub const ALLOCATION: usize = 256;

/// The CUDA version of the libraries, as the driver counts: 13.0.
pub const CUDA: i32 = 13_000;

/// A GPU with a stream for kernels and one for copies, both of its own (the default stream cannot be captured).
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    compiler: Compiler,
    name: String,
    capability: (i32, i32),
    multiprocessors: usize,
    memory: usize,
}

impl Device {
    /// Opens GPU `ordinal` of the visible ones. Compiled kernels are cached in the directory `cache`.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] naming a library that is missing, or a GPU that is too old; [`ExecError::Device`]
    /// when there is no such GPU.
    pub fn open(ordinal: usize, cache: Option<&std::path::Path>) -> Result<Arc<Self>, ExecError> {
        // SAFETY: only opens and closes the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing("libcuda.so", "it comes with NVIDIA's driver"));
        }
        let mut version = 0;
        // SAFETY: a valid place; needs no context.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().check()?;
        if version < CUDA {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            let what =
                format!("on a driver for CUDA {major}.{minor}: install driver 580 or newer, which is for CUDA 13.0");
            return Err(ExecError::Unsupported { executor: NAME, what });
        }
        let context = CudaContext::new(ordinal).check()?;
        // SAFETY: no slices of cudarc's own are used; order between streams is kept by events here.
        unsafe { context.disable_event_tracking() };
        let (major, minor) = context.compute_capability().check()?;
        if (major, minor) < Card::OLDEST {
            return Err(ExecError::Unsupported {
                executor: NAME,
                what: format!(
                    "{} (compute capability {major}.{minor}): 7.5 or newer is needed",
                    context.name().check()?
                ),
            });
        }
        let compiler = Compiler::new(Architecture::new(major, minor), cache)?;
        let stream = context.new_stream().check()?;
        let copies = context.new_stream().check()?;
        let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).check()?;
        let (name, memory) = (context.name().check()?, context.total_mem().check()?);
        let (capability, multiprocessors) = ((major, minor), count.max(1) as usize);
        Ok(Arc::new(Self { context, stream, copies, compiler, name, capability, multiprocessors, memory }))
    }

    /// The driver's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The stream of kernels.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The stream of copies of inputs.
    pub fn copies(&self) -> &Arc<CudaStream> {
        &self.copies
    }

    /// The compiler of kernels for this GPU.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Name of the GPU, as reported by the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// What kernels are planned for.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn card(&self) -> Result<Card, ExecError> {
        let which = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = self.context.attribute(which).check()?.max(0) as usize;
        Ok(Card { capability: self.capability, multiprocessors: self.multiprocessors, shared })
    }

    /// Total device memory in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Free device memory in bytes.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn free_memory(&self) -> Result<usize, ExecError> {
        Ok(self.context.mem_get_info().check()?.0)
    }

    /// Waits until both streams are idle.
    ///
    /// # Errors
    /// When something that was queued failed.
    pub fn synchronize(&self) -> Result<(), ExecError> {
        self.copies.synchronize().check()?;
        self.stream.synchronize().check()
    }

    /// An event that can be timed.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn event(&self) -> Result<CudaEvent, ExecError> {
        self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).check()
    }

    /// Loads machine code.
    ///
    /// # Errors
    /// When the driver rejects it.
    pub fn load(self: &Arc<Self>, code: &[u8]) -> Result<Arc<Module>, ExecError> {
        self.context.bind_to_thread().check()?;
        // SAFETY: the driver reads a whole image, whose size is in its header.
        let raw = unsafe { result::module::load_data(code.as_ptr().cast()) }.check()?;
        Ok(Arc::new(Module { raw, device: Arc::clone(self) }))
    }

    /// Allocates `len` bytes of device memory, uninitialised.
    ///
    /// # Errors
    /// [`ExecError::OutOfMemory`] with the number of free bytes.
    pub fn allocate(self: &Arc<Self>, len: usize) -> Result<Memory, ExecError> {
        self.context.bind_to_thread().check()?;
        if len == 0 {
            return Ok(Memory { address: 0, len, device: Arc::clone(self) });
        }
        // SAFETY: freed once, by `Drop`.
        let allocated = unsafe { result::malloc_sync(len) };
        if let Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) = allocated {
            return Err(ExecError::OutOfMemory { needed: len, limit: self.free_memory()? });
        }
        Ok(Memory { address: allocated.check()?, len, device: Arc::clone(self) })
    }

    /// Allocates `len` bytes of page-locked host memory, from which copies are asynchronous.
    ///
    /// # Errors
    /// When the host has too little memory.
    pub fn pinned(self: &Arc<Self>, len: usize) -> Result<Pinned, ExecError> {
        self.context.bind_to_thread().check()?;
        // SAFETY: freed once, by `Drop`.
        let start = unsafe { result::malloc_host(len.max(1), 0) }.map_err(|DriverError(error)| {
            let remedy = "give the pod more memory, or do without what keeps arrays on the host";
            ExecError::Device(format!("{error:?}: no {len} bytes of page-locked host memory: {remedy}"))
        })?;
        Ok(Pinned { start: start.cast(), len, device: Arc::clone(self) })
    }
}

/// Device memory.
pub struct Memory {
    address: u64,
    len: usize,
    device: Arc<Device>,
}

impl Memory {
    /// Address of the first byte, a multiple of [`ALLOCATION`]; 0 when there are none.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len > 0 && self.device.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `Device::allocate`. The driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Page-locked host memory.
pub struct Pinned {
    start: *mut u8,
    len: usize,
    device: Arc<Device>,
}

// SAFETY: it owns its memory; access is through `&mut`.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Address of the first byte, for kernels too.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes. The caller must not write bytes that a copy still reads.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: that many bytes were allocated.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `Device::pinned`.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// Loaded code.
pub struct Module {
    raw: sys::CUmodule,
    device: Arc<Device>,
}

// SAFETY: the driver's handles may be used from any thread that has the context.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// The kernel `name`.
    ///
    /// # Errors
    /// When the code has no such kernel.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, ExecError> {
        let text = std::ffi::CString::new(name).map_err(|e| ExecError::Device(e.to_string()))?;
        // SAFETY: the module is loaded.
        let raw = unsafe { result::module::get_function(self.raw, text) }.check()?;
        Ok(Function { raw, module: Arc::clone(self) })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.context.bind_to_thread().is_ok() {
            // SAFETY: loaded by `Device::load`; functions hold the module.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// A kernel.
#[derive(Clone)]
pub struct Function {
    raw: sys::CUfunction,
    module: Arc<Module>,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// An attribute of the kernel: registers, spilled bytes, ..
    ///
    /// # Errors
    /// When the driver fails.
    pub fn attribute(&self, which: sys::CUfunction_attribute) -> Result<i32, ExecError> {
        // SAFETY: the function is loaded.
        unsafe { result::function::get_function_attribute(self.raw, which) }.check()
    }

    /// Allows `bytes` of dynamic shared memory: needed above 48 KiB.
    ///
    /// # Errors
    /// When the GPU has less.
    pub fn allow_shared(&self, bytes: usize) -> Result<(), ExecError> {
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(self.raw, which, bytes as i32) }.check()
    }

    /// Number of blocks of `threads` threads, with `shared` bytes of dynamic shared memory, that one multiprocessor
    /// runs at once.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn resident(&self, threads: usize, shared: usize) -> Result<usize, ExecError> {
        // SAFETY: the function is loaded.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(self.raw, threads as i32, shared) }
                .check()?;
        Ok(blocks.max(1) as usize)
    }

    /// Queues a launch of `grid` blocks: `arguments` point at the values of the kernel's parameters, in order; they are
    /// read before this returns.
    ///
    /// # Safety
    /// Arguments have the types that the kernel declares, and memory that they point to is valid for its reads and
    /// writes until it has run.
    ///
    /// # Errors
    /// When the driver rejects the launch. Failures inside the kernel are reported by a later call.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), ExecError> {
        let (grid, block) = ((grid[0], grid[1], grid[2]), (block, 1, 1));
        // SAFETY: the caller's promise; the module is held.
        unsafe { result::launch_kernel(self.raw, grid, block, shared, stream.cu_stream(), arguments) }.check()
    }

    /// The module that contains it.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }
}
