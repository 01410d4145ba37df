//! Attention by cuDNN, where its kernels are faster than the generated ones: long sequences of 16-bit floats.
//!
//! cuDNN describes attention as a graph of many operators, which its header-only C++ frontend builds; so it is used
//! through a small library of our own (`trainer-image/cudnn`), [`FILE`]. Without it, or without cuDNN, the generated
//! kernels do the work.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_char, c_void},
    path::PathBuf,
    ptr::null_mut,
    sync::Arc,
};

use libloading::Library;

use super::{attention::AttentionArgument, device::Device, error::Check as _};
use pawl_graph::{executor::ExecError, graph::DType};
use pawl_lower::{Access, Attention, AttentionGrad, Buffer};

/// The library that calls cuDNN: looked for in `$PAWL_CUDNN` (a path), beside the program, in `../lib` from there, and
/// on the loader's path.
pub const FILE: &str = "libpawl_cudnn.so";
/// cuDNN, on the loader's path.
const CUDNN: &CStr = c"libcudnn.so.9";
/// Tensors of the interface: queries, keys, values, output, statistics, its gradient, and the gradients of the first
/// three.
const TENSORS: usize = 9;
/// Room for a message.
const MESSAGE: usize = 1024;
/// Longest sequence for which the generated kernel, which holds all of it, is faster.
const SHORT: usize = 128;
/// Widest head that cuDNN supports.
const WIDEST: usize = 128;

/// `PawlAttention` of `attention.cpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Problem {
    batch: i64,
    heads: i64,
    groups: i64,
    queries: i64,
    keys: i64,
    width: i64,
    strides: [[i64; 3]; TENSORS],
    /// Bits of a float.
    scale: u32,
    causal: i32,
    half: i32,
    backward: i32,
    deterministic: i32,
}

type Open = unsafe extern "C" fn(*const c_char, *mut i64, *mut c_char, usize) -> i32;
type Create = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut c_char, usize) -> i32;
type Destroy = unsafe extern "C" fn(*mut c_void);
type MakePlan =
    unsafe extern "C" fn(*mut c_void, *const Problem, *mut *mut c_void, *mut i64, *mut c_char, usize) -> i32;
type RunPlan =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *const *mut c_void, *mut c_void, *mut c_char, usize) -> i32;
type FreePlan = unsafe extern "C" fn(*mut c_void);

/// cuDNN with a handle for the device's stream.
pub struct Cudnn {
    handle: *mut c_void,
    version: i64,
    make: MakePlan,
    run: RunPlan,
    free: FreePlan,
    destroy: Destroy,
    // The functions are its own; the device outlives the handle.
    _library: Library,
    _device: Arc<Device>,
}

// SAFETY: calls are made one at a time, by the one thread that has the executables.
unsafe impl Send for Cudnn {}
// SAFETY: as above.
unsafe impl Sync for Cudnn {}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once, after all plans, which hold it.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// An execution plan of cuDNN.
struct ExecutionPlan {
    plan: *mut c_void,
    workspace: usize,
    cudnn: Arc<Cudnn>,
}

// SAFETY: as for `Cudnn`.
unsafe impl Send for ExecutionPlan {}
// SAFETY: as for `Cudnn`.
unsafe impl Sync for ExecutionPlan {}

impl Drop for ExecutionPlan {
    fn drop(&mut self) {
        // SAFETY: made by `pawl_attention_plan`, freed once.
        unsafe { (self.cudnn.free)(self.plan) };
    }
}

/// An execution plan with its operands.
#[derive(Clone)]
pub struct CudnnPlan {
    execution: Arc<ExecutionPlan>,
    arguments: [AttentionArgument; TENSORS],
}

/// Execution plans by problem: layers of one shape share one.
#[derive(Default)]
pub struct CudnnPlans {
    cudnn: Option<Arc<Cudnn>>,
    deterministic: bool,
    made: HashMap<Problem, Option<Arc<ExecutionPlan>>>,
}

/// The first of the places of [`FILE`] where there is one, else its name, for the loader to find.
fn place() -> PathBuf {
    let mut places: Vec<PathBuf> = std::env::var_os("PAWL_CUDNN").map(PathBuf::from).into_iter().collect();
    if let Some(folder) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(PathBuf::from)) {
        places.extend([folder.join(FILE), folder.join("../lib").join(FILE)]);
    }
    places.into_iter().find(|place| place.exists()).unwrap_or_else(|| FILE.into())
}

/// A call's status and message as a result.
fn checked(status: i32, message: &[c_char; MESSAGE]) -> Result<(), ExecError> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the library ends its message with a zero, and there was one at the end before.
    let text = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy();
    Err(ExecError::Device(format!("cuDNN: {text}")))
}

impl Cudnn {
    /// Opens both libraries.
    ///
    /// # Errors
    /// When a library is missing, or cuDNN cannot be initialised.
    pub fn open(device: &Arc<Device>) -> Result<Arc<Self>, ExecError> {
        device.context().bind_to_thread().check()?;
        let missing = |error: libloading::Error| ExecError::Device(format!("{FILE}: {error}"));
        // SAFETY: loading runs constructors of a library of our own only.
        let library = unsafe { Library::new(place()) }.map_err(missing)?;
        macro_rules! symbol {
            ($kind:ty, $name:literal) => {{
                // SAFETY: the types are those of `attention.cpp`.
                *unsafe { library.get::<$kind>($name) }.map_err(missing)?
            }};
        }
        let (open, create) = (symbol!(Open, b"pawl_cudnn_open"), symbol!(Create, b"pawl_cudnn_create"));
        let (make, run) = (symbol!(MakePlan, b"pawl_attention_plan"), symbol!(RunPlan, b"pawl_attention_run"));
        let (free, destroy) = (symbol!(FreePlan, b"pawl_attention_free"), symbol!(Destroy, b"pawl_cudnn_destroy"));
        let mut message = [0; MESSAGE];
        let name = CString::from(CUDNN);
        let (mut version, mut handle) = (0, null_mut());
        // SAFETY: the arguments are what the functions declare.
        checked(unsafe { open(name.as_ptr(), &raw mut version, message.as_mut_ptr(), MESSAGE) }, &message)?;
        let stream = device.stream().cu_stream().cast();
        // SAFETY: as above; the stream lives as long as the device.
        checked(unsafe { create(stream, &raw mut handle, message.as_mut_ptr(), MESSAGE) }, &message)?;
        let _device = Arc::clone(device);
        Ok(Arc::new(Self { handle, version, make, run, free, destroy, _library: library, _device }))
    }

    /// Version of cuDNN: 91900.
    pub fn version(&self) -> i64 {
        self.version
    }
}

impl CudnnPlans {
    /// Plans for `cudnn`; without it, all plans are `None`. `deterministic`: backward passes are bit-reproducible from
    /// run to run.
    pub fn new(cudnn: Option<Arc<Cudnn>>, deterministic: bool) -> Self {
        Self { cudnn, deterministic, made: HashMap::new() }
    }

    /// The plan of a forward pass; `None` when the generated kernel is faster, or cuDNN does not support it.
    pub fn forward(&mut self, kernel: &Attention, buffers: &[Buffer]) -> Option<CudnnPlan> {
        let lse = kernel.lse.as_ref()?;
        let tensors = [Some(&kernel.q), Some(&kernel.k), Some(&kernel.v), Some(&kernel.o), Some(lse)];
        let mut all = [None; TENSORS];
        all[..tensors.len()].copy_from_slice(&tensors);
        self.plan(kernel, all, false, buffers)
    }

    /// The plan of a backward pass; `None` as for [`CudnnPlans::forward`].
    pub fn backward(&mut self, kernel: &AttentionGrad, buffers: &[Buffer]) -> Option<CudnnPlan> {
        let of = &kernel.forward;
        let lse = of.lse.as_ref()?;
        let tensors = [&of.q, &of.k, &of.v, &of.o, lse, &kernel.grad, &kernel.dq, &kernel.dk, &kernel.dv];
        self.plan(of, tensors.map(Some), true, buffers)
    }

    fn plan(
        &mut self,
        kernel: &Attention,
        tensors: [Option<&Access>; TENSORS],
        backward: bool,
        buffers: &[Buffer],
    ) -> Option<CudnnPlan> {
        let cudnn = self.cudnn.as_ref()?;
        let problem = Problem::new(kernel, tensors, backward, self.deterministic, buffers)?;
        let made = self.made.entry(problem).or_insert_with(|| make(cudnn, &problem).map(Arc::new));
        let arguments =
            tensors.map(|view| view.map_or(AttentionArgument::Null, |view| AttentionArgument::first(view, buffers)));
        Some(CudnnPlan { execution: Arc::clone(made.as_ref()?), arguments })
    }
}

impl Problem {
    /// `None` when the generated kernels are faster, or cuDNN does not support the operands.
    fn new(
        kernel: &Attention,
        tensors: [Option<&Access>; TENSORS],
        backward: bool,
        deterministic: bool,
        buffers: &[Buffer],
    ) -> Option<Self> {
        let dtype = buffers[kernel.q.buffer].dtype;
        let (q, k) = (&kernel.q.dims, &kernel.k.dims);
        let (queries, keys, width) = (q[2], k[2], q[3]);
        let lies_well = |(which, view): (usize, &Access)| {
            // Statistics have one element a row, of 4 bytes.
            which == STATS
                || view.strides[3] == 1
                    && view.offset.is_multiple_of(8)
                    && (0..3).all(|axis| view.dims[axis] == 1 || view.strides[axis].is_multiple_of(8))
        };
        let fits = matches!(dtype, DType::BF16 | DType::F16)
            && width.is_multiple_of(8)
            && width <= WIDEST
            && queries.max(keys) > SHORT
            && kernel.norm.is_none()
            // cuDNN's mask begins at the first key, ours ends at the last.
            && (!kernel.spec.causal || queries == keys)
            && tensors.iter().enumerate().filter_map(|(which, view)| Some((which, (*view)?))).all(lies_well);
        fits.then(|| Self {
            batch: q[0] as i64,
            heads: q[1] as i64,
            groups: k[1] as i64,
            queries: queries as i64,
            keys: keys as i64,
            width: width as i64,
            strides: tensors
                .map(|view| view.map_or([0; 3], |view| std::array::from_fn(|axis| view.strides[axis] as i64))),
            scale: (kernel.spec.scale as f32).to_bits(),
            causal: i32::from(kernel.spec.causal),
            half: i32::from(dtype == DType::F16),
            backward: i32::from(backward),
            deterministic: i32::from(deterministic),
        })
    }
}

/// Place of the statistics among the tensors.
const STATS: usize = 4;

/// The plan that cuDNN's heuristic prefers; `None` when it has none.
fn make(cudnn: &Arc<Cudnn>, problem: &Problem) -> Option<ExecutionPlan> {
    let (mut plan, mut workspace, mut message) = (null_mut(), 0, [0; MESSAGE]);
    // SAFETY: the problem is laid out as the library declares it.
    let status = unsafe {
        (cudnn.make)(cudnn.handle, problem, &raw mut plan, &raw mut workspace, message.as_mut_ptr(), MESSAGE)
    };
    // Not an error: generated kernels are the fallback.
    checked(status, &message).ok()?;
    Some(ExecutionPlan { plan, workspace: usize::try_from(workspace).ok()?, cudnn: Arc::clone(cudnn) })
}

impl CudnnPlan {
    /// Bytes of scratch memory; at least 16, since cuDNN rejects a null workspace.
    pub fn workspace(&self) -> usize {
        self.execution.workspace.max(16)
    }

    /// Queues the operator on the device's stream, given the addresses of buffers and of [`CudnnPlan::workspace`] bytes
    /// of scratch memory.
    ///
    /// # Errors
    /// When cuDNN fails.
    ///
    /// # Safety
    /// Buffers and scratch memory are valid for the plan's views until the stream is done.
    pub unsafe fn enqueue(&self, buffers: &[u64], workspace: u64) -> Result<(), ExecError> {
        let address = |argument: &AttentionArgument| match *argument {
            AttentionArgument::Buffer { buffer, offset } => (buffers[buffer] + offset as u64) as *mut c_void,
            AttentionArgument::Workspace | AttentionArgument::Null => null_mut(),
        };
        let addresses = self.arguments.each_ref().map(address);
        let (cudnn, mut message) = (&self.execution.cudnn, [0; MESSAGE]);
        // SAFETY: the caller's promise; the plan was made with this handle.
        let status = unsafe {
            (cudnn.run)(
                cudnn.handle,
                self.execution.plan,
                addresses.as_ptr(),
                workspace as *mut c_void,
                message.as_mut_ptr(),
                MESSAGE,
            )
        };
        checked(status, &message)
    }
}
