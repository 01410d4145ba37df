//! Matrix products by cuBLASLt.
//!
//! Row-major products are column-major ones of the transposed: `c^T = b^T a^T`. Which operand counts as transposed follows from which of its
//! strides is 1; views with no such stride, and repeated ones, are left to an own kernel. Operands of 8-bit floats have the summed axis innermost, the only
//! order that all GPUs take, and the library scales the sums where it can. Of the algorithms that the library's heuristic names, the fastest is found by
//! timing on the operands' own memory, after pauses, since a hot GPU runs at a lower clock; the choice is cached on disk.

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
};
use pawl_graph::{executor::ExecError, graph::DType};
use pawl_lower::{Access, Buffer, MatMul};

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
/// Most calls for the batch axes that one call cannot walk.
const CALLS: usize = 64;

/// One operand as a column-major matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Matrix {
    dtype: DType,
    transposed: bool,
    /// Extents as stored.
    rows: usize,
    cols: usize,
    /// Elements from one column to the next.
    leading: usize,
    /// Elements from one of the batch to the next.
    batch: usize,
}

/// A product as cuBLASLt describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Problem {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    /// What the product is added to.
    add: Option<Matrix>,
    m: usize,
    n: usize,
    k: usize,
    count: usize,
    /// Bytes that every address is a multiple of: of a, b, the result and what is added.
    alignment: [usize; 4],
    tf32: bool,
    /// How the library scales the sums, if it does.
    scale: Option<ScaleMode>,
}

/// A product and the calls it takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    problem: Problem,
    /// Buffers of the first, the second operand and the result.
    pub buffers: [usize; 3],
    /// Byte offsets into them, for each call.
    pub calls: Vec<[usize; 3]>,
    /// Buffer and byte offset of what the product is added to, and its factor before.
    pub add: Option<(usize, usize, f64)>,
    /// Buffers and byte offsets of the scales of the first and the second operand, if the library scales the sums.
    pub scales: Option<[(usize, usize); 2]>,
}

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

/// `rows x cols` elements with these strides as a column-major matrix; `None` when they are no such.
fn column_major(dtype: DType, rows: (usize, usize), cols: (usize, usize), batch: usize) -> Option<Matrix> {
    let plain = |rows: (usize, usize), cols: (usize, usize)| {
        let contiguous = rows.1 == 1 || rows.0 == 1;
        let leading = if cols.0 == 1 { rows.0 } else { cols.1 };
        (contiguous && leading >= rows.0).then_some(leading)
    };
    if let Some(leading) = plain(rows, cols) {
        return Some(Matrix { dtype, transposed: false, rows: rows.0, cols: cols.0, leading, batch });
    }
    let leading = plain(cols, rows)?;
    Some(Matrix { dtype, transposed: true, rows: cols.0, cols: rows.0, leading, batch })
}

/// Largest power of two that divides all offsets into buffers, and where buffers begin.
fn alignment(bytes: impl IntoIterator<Item = usize>) -> usize {
    let all = bytes.into_iter().fold(pawl_lower::ALIGNMENT, |all, bytes| all | bytes);
    1 << all.trailing_zeros()
}

impl Product {
    /// `None` when the library has no way to say this. `by_vectors`: whether it multiplies sums by scales of rows and columns; if it does not,
    /// [`Product::scales`] is `None`, and they are the caller's.
    pub(super) fn new(kernel: &MatMul, buffers: &[Buffer], tf32: bool, by_vectors: bool) -> Option<Self> {
        let views = [&kernel.a, &kernel.b, &kernel.c];
        let [da, db, dc] = views.map(|view| buffers[view.buffer].dtype);
        let (_, m, n, k) = kernel.extents();
        (m.max(n).max(k) <= i32::MAX as usize).then_some(())?;
        let (axes, outer) = batch_axes(views)?;
        let last = |view: &Access| {
            let rank = view.dims.len();
            (view.strides[rank - 2], view.strides[rank - 1])
        };
        let [(am, ak), (bk, bn), (cm, cn)] = views.map(last);
        let (count, [sa, sb, sc]) = axes;
        // The transposed product, so that a row-major result is a column-major one; or as it is.
        let swapped = column_major(dc, (n, cn), (m, cm), sc).filter(|c| !c.transposed);
        let (problem_a, problem_b, c, swap) = match swapped {
            Some(c) => (column_major(db, (n, bn), (k, bk), sb)?, column_major(da, (k, ak), (m, am), sa)?, c, true),
            None => {
                let c = column_major(dc, (m, cm), (n, cn), sc).filter(|c| !c.transposed)?;
                (column_major(da, (m, am), (k, ak), sa)?, column_major(db, (k, bk), (n, bn), sb)?, c, false)
            }
        };
        (!da.is_float8() || problem_a.transposed && !problem_b.transposed).then_some(())?;
        let added = match &kernel.add {
            Some((access, _)) => {
                let (row, col) = last(access);
                let (rows, cols) = if swap { ((n, col), (m, row)) } else { ((m, row), (n, col)) };
                Some(
                    column_major(dc, rows, cols, 0)
                        .filter(|added| !added.transposed && count == 1 && outer.is_empty())?,
                )
            }
            None => None,
        };
        let order: [usize; 3] = if swap { [1, 0, 2] } else { [0, 1, 2] };
        let scale = kernel.scales.as_ref().and_then(|scales| scale_mode(scales, by_vectors));
        let scales = kernel.scales.as_ref().filter(|_| scale.is_some()).map(|scales| {
            let place = |access: &Access| (access.buffer, access.offset * buffers[access.buffer].dtype.bytes());
            [order[0], order[1]].map(|x| place(&scales[x]))
        });
        let mut calls = vec![[0; 3]];
        for (extent, strides) in &outer {
            calls = calls
                .iter()
                .flat_map(|call| (0..*extent).map(move |i| [0, 1, 2].map(|x| call[x] + i * strides[x])))
                .collect();
        }
        (calls.len() <= CALLS).then_some(())?;
        let bytes = |x: usize, elements: usize| (views[x].offset + elements) * buffers[views[x].buffer].dtype.bytes();
        let calls: Vec<[usize; 3]> = calls.iter().map(|call| order.map(|x| bytes(x, call[x]))).collect();
        let add = kernel.add.as_ref().map(|(access, factor)| (access.buffer, access.offset * dc.bytes(), *factor));
        let [at_a, at_b, at_c] = [0, 1, 2].map(|x| alignment(calls.iter().map(|call| call[x])));
        let alignment = [at_a, at_b, at_c, add.map_or(at_c, |(_, offset, _)| alignment([offset]))];
        let (m, n) = if swap { (n, m) } else { (m, n) };
        let tf32 = tf32 && da == DType::F32;
        let problem = Problem { a: problem_a, b: problem_b, c, add: added, m, n, k, count, alignment, tf32, scale };
        Some(Self { problem, buffers: order.map(|x| views[x].buffer), calls, add, scales })
    }

    /// Operations of one call.
    fn flops(&self) -> u64 {
        let Problem { m, n, k, count, .. } = self.problem;
        2 * (m * n * k * count) as u64
    }
}

/// How the library applies these scales: one each, or a vector each; `None` when it does not.
fn scale_mode(scales: &[Access; 2], by_vectors: bool) -> Option<ScaleMode> {
    match [scales[0].strides[0], scales[1].strides[0]] {
        [0, 0] => Some(ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F),
        [1, 1] if by_vectors => Some(ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F),
        _ => None,
    }
}

/// A batch axis: extent, and strides of the operands and the result.
type BatchAxis = (usize, [usize; 3]);

/// The batch axis for the library, and those that take a call for each index; `None` when results overlap.
fn batch_axes(views: [&Access; 3]) -> Option<(BatchAxis, Vec<BatchAxis>)> {
    let rank = views[2].dims.len();
    let mut axes: Vec<BatchAxis> = Vec::new();
    for axis in (0..rank - 2).filter(|&axis| views[2].dims[axis] > 1) {
        let (extent, strides) = (views[2].dims[axis], views.map(|view| view.strides[axis]));
        (strides[2] > 0).then_some(())?;
        match axes.last_mut() {
            Some(last) if (0..3).all(|x| last.1[x] == extent * strides[x]) => *last = (last.0 * extent, strides),
            _ => axes.push((extent, strides)),
        }
    }
    let Some(widest) = (0..axes.len()).max_by_key(|&at| axes[at].0) else { return Some(((1, [0; 3]), Vec::new())) };
    let inner = axes.remove(widest);
    Some((inner, axes))
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

/// Sets how sums of products over 8-bit floats are made: by tensor cores alone, in their own precision, as PyTorch's `use_fast_accum` does; and how they
/// are scaled.
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

    /// The problem with an algorithm, chosen by timing at `operands` if `tune` and it was not before; `None` when the library has none.
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

    /// Index of the fastest candidate: median of three rounds of two calls, each after a rest, which is shorter where calls are too short to heat the GPU.
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

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_lower::Storage;

    fn product(a: Access, b: Access, c: Access) -> Option<Product> {
        let buffer = Buffer { dtype: DType::BF16, elements: 1 << 20, storage: Storage::Arena, life: (0, 0) };
        Product::new(&MatMul { a, b, c, add: None, scales: None }, &vec![buffer; 3], false, true)
    }

    #[test]
    fn a_row_major_product_is_the_transposed_one_with_flags_from_strides() {
        // x [rows, in] W^T with W [out, in].
        let (x, w, y) = (
            Access::contiguous(0, &[100, 32]),
            Access::contiguous(1, &[64, 32]).permute(&[1, 0]),
            Access::contiguous(2, &[100, 64]),
        );
        let forward = product(x, w, y).expect("the library can");
        let Problem { a, b, c, m, n, k, .. } = &forward.problem;
        assert_eq!(forward.buffers, [1, 0, 2], "the weight is the library's first operand");
        assert_eq!((a.transposed, b.transposed, c.transposed), (true, false, false));
        assert_eq!((*m, *n, *k), (64, 100, 32));
        assert_eq!((a.leading, b.leading, c.leading), (32, 32, 64));
    }

    #[test]
    fn batch_axes_that_do_not_merge_take_a_call_each() {
        // Heads of a packed row: [b, t, h, d] seen as [b, h, t, d].
        let heads = |buffer| Access::contiguous(buffer, &[5, 7, 3, 8]).permute(&[0, 2, 1, 3]);
        let scores = Access::contiguous(2, &[5, 3, 7, 7]);
        let keys = heads(1).permute(&[0, 1, 3, 2]);
        let product = product(heads(0), keys, scores).expect("the library can");
        assert_eq!((product.problem.count, product.calls.len()), (5, 3));
        assert_eq!(product.calls[1], [16, 16, 98], "bytes to the second head");
        assert_eq!(product.problem.alignment, [16, 16, 2, 2]);
    }

    #[test]
    fn repeated_and_scattered_operands_are_left_to_another_kernel() {
        let y = Access::contiguous(2, &[4, 6]);
        let repeated = Access::contiguous(0, &[1, 5]).broadcast(&[4, 5]);
        assert!(product(repeated, Access::contiguous(1, &[5, 6]), y.clone()).is_none());
        let scattered = Access::contiguous(0, &[4, 5, 2]).slice(2, 0, 1).reshape(&[4, 5]).expect("one axis goes away");
        assert!(product(scattered, Access::contiguous(1, &[5, 6]), y).is_none());
    }

    /// The library's C: another matrix than the result, with a leading dimension and an alignment of its own.
    #[test]
    fn what_is_added_lies_where_it_lies() {
        let added = |access: Access| {
            let (x, w) = (Access::contiguous(0, &[96, 32]), Access::contiguous(1, &[64, 32]).permute(&[1, 0]));
            let buffer = Buffer { dtype: DType::BF16, elements: 1 << 20, storage: Storage::Arena, life: (0, 0) };
            let (c, add) = (Access::contiguous(2, &[96, 64]), Some((access, 0.3)));
            Product::new(&MatMul { a: x, b: w, c, add, scales: None }, &vec![buffer; 4], false, true)
        };
        let part = added(Access::contiguous(3, &[96, 80]).slice(1, 4, 64)).expect("the library can");
        let of = part.problem.add.as_ref().expect("it is added");
        assert_eq!((of.rows, of.cols, of.leading, part.problem.c.leading), (64, 96, 80, 64));
        assert_eq!(part.add, Some((3, 8, 0.3)), "bytes to the first element");
        assert_eq!(part.problem.alignment[3], 8);
        assert!(added(Access::contiguous(3, &[64, 96]).permute(&[1, 0])).is_none(), "it would be transposed");
        assert!(added(Access::contiguous(3, &[1, 64]).broadcast(&[96, 64])).is_none(), "rows would overlap");
    }

    /// x [100, 32] W^T with W [64, 32], as 8-bit floats, with these strides of scales.
    fn scaled(strides: [usize; 2], by_vectors: bool, transpose: bool) -> Option<Product> {
        let buffer = |dtype| Buffer { dtype, elements: 1 << 20, storage: Storage::Arena, life: (0, 0) };
        let buffers = [DType::E4M3, DType::E4M3, DType::BF16, DType::F32, DType::F32].map(buffer);
        let scale = |buffer, extent, stride| Access { buffer, offset: 4, dims: vec![extent], strides: vec![stride] };
        let w = if transpose {
            Access::contiguous(1, &[32, 64])
        } else {
            Access::contiguous(1, &[64, 32]).permute(&[1, 0])
        };
        let kernel = MatMul {
            a: Access::contiguous(0, &[100, 32]),
            b: w,
            c: Access::contiguous(2, &[100, 64]),
            add: None,
            scales: Some([scale(3, 100, strides[0]), scale(4, 64, strides[1])]),
        };
        Product::new(&kernel, &buffers, false, by_vectors)
    }

    #[test]
    fn scales_follow_their_operands_and_are_left_to_the_caller_where_the_library_lacks_them() {
        let vectors = scaled([1, 1], true, false).expect("the library can");
        assert_eq!(vectors.problem.scale, Some(ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
        assert_eq!((vectors.buffers, vectors.scales), ([1, 0, 2], Some([(4, 16), (3, 16)])), "the weight comes first");
        assert_eq!((vectors.problem.a.transposed, vectors.problem.b.transposed), (true, false));
        let single = scaled([0, 0], false, false).expect("the library can");
        assert_eq!(single.problem.scale, Some(ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F));
        let left = scaled([1, 1], false, false).expect("without scales, the library can");
        assert_eq!((left.problem.scale, left.scales), (None, None));
        assert!(scaled([1, 1], true, true).is_none(), "the summed axis of the weight is not innermost");
    }
}
