//! Matrix products by cuBLASLt.
//!
//! Of the algorithms that the library's heuristic names, the fastest is found by timing on the operands' own memory,
//! after pauses, since a hot GPU runs at a lower clock; the choice is cached on disk.

use std::{collections::HashMap, ffi::c_void, sync::Arc, time::Duration};

use cudarc::{
    cublaslt::{
        result,
        sys::{
            self, cublasLtMatmulDescAttributes_t as Desc, cublasLtMatmulMatrixScale_t as ScaleMode,
            cublasLtMatmulPreferenceAttributes_t as Preference,
        },
    },
    driver::CudaEvent,
};

use super::{
    device::{Device, Memory},
    error::{Check as _, missing},
    problem::{Matrix, Problem, Product},
};
use pawl_graph::{executor::ExecError, graph::DType};

/// Bytes of workspace that algorithms may use.
pub const WORKSPACE: usize = 64 << 20;
/// Number of algorithms requested from the heuristic.
const CANDIDATES: usize = 12;
/// Products with fewer operations are not worth timing.
const TUNED: u64 = 200_000_000;
/// Pause before each timing, at most.
const REST: Duration = Duration::from_millis(12);
/// A pause is this many times as long as what was timed before.
const LENGTHS: f32 = 20.0;

/// Addresses for a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    /// Of the first, the second operand and the result.
    pub matrices: [u64; 3],
    /// Of what the product is added to, and its factor before.
    pub add: Option<(u64, f64)>,
    /// Of the scales of the first and the second operand.
    pub scales: Option<[u64; 2]>,
}

/// The library, with the algorithms chosen so far.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    version: usize,
    workspace: Memory,
    device: Arc<Device>,
    chosen: HashMap<Problem, Arc<Ready>>,
}

// SAFETY: the handle may be used from any thread; calls are made one at a time, by the thread that has the executable.
unsafe impl Send for Blas {}

/// A problem with its descriptors and its algorithm.
pub(super) struct Ready {
    operation: sys::cublasLtMatmulDesc_t,
    /// Of a, b, what is added (c if nothing is), and c.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algorithm: sys::cublasLtMatmulAlgo_t,
    wide: bool,
}

// SAFETY: descriptors are used one call at a time, by the thread that has the executable.
unsafe impl Send for Ready {}
// SAFETY: as above.
unsafe impl Sync for Ready {}

impl Ready {
    /// Sets the addresses of scales, which the library reads from the descriptor when a call is queued.
    fn set_scales(&self, operands: Operands) -> Result<(), ExecError> {
        let pointers = [Desc::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Desc::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER];
        for (which, address) in pointers.into_iter().zip(operands.scales.into_iter().flatten()) {
            // SAFETY: the attribute is an address. Calls are made one at a time, by the thread that has the executable.
            unsafe { result::set_matmul_desc_attribute(self.operation, which, (&raw const address).cast(), 8) }
                .check()?;
        }
        Ok(())
    }
}

/// Sets how sums of products over 8-bit floats are made: by tensor cores alone, in their own precision, as PyTorch's
/// `use_fast_accum` does; and how they are scaled.
fn scaled_sums(operation: sys::cublasLtMatmulDesc_t, scale: Option<ScaleMode>) -> Result<(), ExecError> {
    let fast = 1i8;
    let which = Desc::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
    // SAFETY: the attributes are an 8-bit integer and 32-bit enumerations.
    unsafe {
        result::set_matmul_desc_attribute(operation, which, (&raw const fast).cast(), 1).check()?;
        for which in [Desc::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, Desc::CUBLASLT_MATMUL_DESC_B_SCALE_MODE] {
            if let Some(mode) = scale {
                result::set_matmul_desc_attribute(operation, which, (&raw const mode).cast(), 4).check()?;
            }
        }
    }
    Ok(())
}

impl Drop for Ready {
    fn drop(&mut self) {
        // SAFETY: made by `Blas::describe`, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.operation);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

fn cuda_type(dtype: DType) -> sys::cudaDataType_t {
    match dtype {
        DType::F64 => sys::cudaDataType_t::CUDA_R_64F,
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::E4M3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
        DType::E5M2 => sys::cudaDataType_t::CUDA_R_8F_E5M2,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

impl Blas {
    /// Opens the library.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, ExecError> {
        // SAFETY: only opens and closes the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(missing("libcublasLt.so.13", "pip install nvidia-cublas==13.1.0.3"));
        }
        device.context().bind_to_thread().check()?;
        let workspace = device.allocate(WORKSPACE)?;
        let handle = result::create_handle().check()?;
        // SAFETY: the library is loaded.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Self { handle, version, workspace, device: Arc::clone(device), chosen: HashMap::new() })
    }

    /// The library's version: 130100.
    pub(super) fn version(&self) -> usize {
        self.version
    }

    /// The problem with an algorithm, chosen by timing at `operands` if `tune` and it was not before; `None` when the
    /// library has none.
    pub(super) fn ready(
        &mut self,
        product: &Product,
        operands: Operands,
        tune: bool,
    ) -> Result<Option<Arc<Ready>>, ExecError> {
        if let Some(ready) = self.chosen.get(&product.problem) {
            return Ok(Some(Arc::clone(ready)));
        }
        let described = self.describe(&product.problem, operands)?;
        let Some((mut ready, candidates)) = described else { return Ok(None) };
        if tune && candidates.len() > 1 && product.flops() >= TUNED {
            let name = self.file(&product.problem);
            let device = Arc::clone(&self.device);
            let cache = device.compiler().cache();
            let known = cache.and_then(|cache| String::from_utf8(cache.read(&name)?).ok());
            let known = known.and_then(|text| text.trim().parse::<usize>().ok()).filter(|&at| at < candidates.len());
            let best = match known {
                Some(best) => best,
                None => self.fastest(&mut ready, &candidates, operands)?,
            };
            if let Some(cache) = cache.filter(|_| known.is_none()) {
                cache.keep(&name, best.to_string().as_bytes());
            }
            ready.algorithm = candidates[best];
        }
        let ready = Arc::new(ready);
        self.chosen.insert(product.problem.clone(), Arc::clone(&ready));
        Ok(Some(ready))
    }

    /// Name of the cached choice.
    fn file(&self, problem: &Problem) -> String {
        let compiler = self.device.compiler();
        let key = compiler.key(&[&format!("{problem:?}"), self.device.name(), &self.version.to_string()]);
        format!("{key}.matmul")
    }

    fn describe(
        &self,
        problem: &Problem,
        operands: Operands,
    ) -> Result<Option<(Ready, Vec<sys::cublasLtMatmulAlgo_t>)>, ExecError> {
        use sys::cublasComputeType_t as Compute;
        let wide = problem.a.dtype == DType::F64;
        let (compute, scale) = match problem.a.dtype {
            DType::F64 => (Compute::CUBLAS_COMPUTE_64F, DType::F64),
            _ if problem.tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DType::F32),
            _ => (Compute::CUBLAS_COMPUTE_32F, DType::F32),
        };
        let operation = result::create_matmul_desc(compute, cuda_type(scale)).check()?;
        let layout = |matrix: &Matrix| -> Result<_, ExecError> {
            let Matrix { rows, cols, leading, batch, .. } = *matrix;
            let layout =
                result::create_matrix_layout(cuda_type(matrix.dtype), rows as u64, cols as u64, leading as i64)
                    .check()?;
            if problem.count > 1 {
                let (count, batch) = (problem.count as i32, batch as i64);
                use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
                // SAFETY: the attributes have these types.
                unsafe {
                    let at = (&raw const count).cast::<c_void>();
                    result::set_matrix_layout_attribute(layout, Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, at, 4)
                        .check()?;
                    let (at, which) =
                        ((&raw const batch).cast(), Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
                    result::set_matrix_layout_attribute(layout, which, at, 8).check()?;
                }
            }
            Ok(layout)
        };
        let added = problem.add.as_ref().unwrap_or(&problem.c);
        let layouts = [layout(&problem.a)?, layout(&problem.b)?, layout(added)?, layout(&problem.c)?];
        // SAFETY: an algorithm is plain numbers, replaced below before it is used.
        let mut ready = Ready { operation, layouts, algorithm: unsafe { std::mem::zeroed() }, wide };
        for (which, matrix) in
            [(Desc::CUBLASLT_MATMUL_DESC_TRANSA, &problem.a), (Desc::CUBLASLT_MATMUL_DESC_TRANSB, &problem.b)]
        {
            let transposed = i32::from(matrix.transposed);
            // SAFETY: the attribute is a 32-bit enumeration.
            unsafe { result::set_matmul_desc_attribute(operation, which, (&raw const transposed).cast(), 4) }
                .check()?;
        }
        if problem.a.dtype.is_float8() {
            scaled_sums(operation, problem.scale)?;
            // The library looks at them when it is asked for algorithms.
            ready.set_scales(operands)?;
        }
        let candidates = self.candidates(&ready, problem)?;
        let Some(&first) = candidates.first() else { return Ok(None) };
        ready.algorithm = first;
        Ok(Some((ready, candidates)))
    }

    fn candidates(&self, ready: &Ready, problem: &Problem) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, ExecError> {
        let preference = result::create_matmul_pref().check()?;
        let [a, b, result, added] = problem.alignment.map(|bytes| bytes as u32);
        let alignments = [
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, added),
            (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result),
        ];
        let workspace = WORKSPACE as u64;
        let mut found = 0;
        // SAFETY: attributes have these types; there is room for the requested number of results.
        let found = unsafe {
            let which = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            result::set_matmul_pref_attribute(preference, which, (&raw const workspace).cast(), 8).check()?;
            for (which, bytes) in alignments {
                result::set_matmul_pref_attribute(preference, which, (&raw const bytes).cast(), 4).check()?;
            }
            let mut results: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![std::mem::zeroed(); CANDIDATES];
            let [a, b, c, d] = ready.layouts;
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                ready.operation,
                a,
                b,
                c,
                d,
                preference,
                CANDIDATES as i32,
                results.as_mut_ptr(),
                &mut found,
            );
            let _ = result::destroy_matmul_pref(preference);
            // No algorithm is no error: an own kernel takes the product.
            if status != sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                return Ok(Vec::new());
            }
            results.truncate(found.max(0) as usize);
            results
        };
        let good = |r: &sys::cublasLtMatmulHeuristicResult_t| {
            r.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && r.workspaceSize <= WORKSPACE
        };
        Ok(found.iter().filter(|r| good(r)).map(|r| r.algo).collect())
    }

    /// Index of the fastest candidate: median of three rounds of two calls, each after a rest, which is shorter where
    /// calls are too short to heat the GPU.
    fn fastest(
        &self,
        ready: &mut Ready,
        candidates: &[sys::cublasLtMatmulAlgo_t],
        operands: Operands,
    ) -> Result<usize, ExecError> {
        let (start, end): (CudaEvent, CudaEvent) = (self.device.event()?, self.device.event()?);
        let stream = self.device.stream();
        let mut times = vec![Vec::new(); candidates.len()];
        let mut rests = vec![Duration::ZERO; candidates.len()];
        for round in 0..4 {
            for (at, candidate) in candidates.iter().enumerate() {
                ready.algorithm = *candidate;
                std::thread::sleep(rests[at]);
                start.record(stream).check()?;
                let mut failed = self.enqueue(ready, operands).is_err();
                failed |= self.enqueue(ready, operands).is_err();
                end.record(stream).check()?;
                stream.synchronize().check()?;
                let milliseconds = if failed { f32::INFINITY } else { start.elapsed_ms(&end).check()? };
                rests[at] = REST.min(Duration::try_from_secs_f32(milliseconds * LENGTHS / 1e3).unwrap_or(REST));
                // The first round loads code.
                if round > 0 {
                    times[at].push(milliseconds);
                }
            }
        }
        let median = |at: &usize| {
            let mut sorted = times[*at].clone();
            sorted.sort_by(f32::total_cmp);
            sorted[1]
        };
        Ok((0..candidates.len()).min_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or(0))
    }

    /// Queues a call.
    pub(super) fn enqueue(&self, ready: &Ready, operands: Operands) -> Result<(), ExecError> {
        ready.set_scales(operands)?;
        let [a, b, c] = operands.matrices;
        // The library's C is what is added, and its D the result.
        let (added, wide_factor) = operands.add.unwrap_or((c, 1.0));
        let wide_share = if operands.add.is_some() { 1f64 } else { 0f64 };
        let (factor, share) = (wide_factor as f32, wide_share as f32);
        let (alpha, beta) = if ready.wide {
            ((&raw const wide_factor).cast(), (&raw const wide_share).cast())
        } else {
            ((&raw const factor).cast(), (&raw const share).cast())
        };
        let [la, lb, lc, ld] = ready.layouts;
        // SAFETY: descriptors are live; addresses hold what the layouts say; the workspace is as large as was promised.
        unsafe {
            result::matmul(
                self.handle,
                ready.operation,
                alpha,
                beta,
                a as *const c_void,
                la,
                b as *const c_void,
                lb,
                added as *const c_void,
                lc,
                c as *mut c_void,
                ld,
                &raw const ready.algorithm,
                self.workspace.address() as *mut c_void,
                WORKSPACE,
                self.device.stream().cu_stream().cast(),
            )
        }
        .check()?;
        Ok(())
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.device.context().bind_to_thread().is_ok() {
            // SAFETY: made by `new`.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}
