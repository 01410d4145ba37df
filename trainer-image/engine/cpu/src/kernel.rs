//! Lowered kernels, prepared for the CPU.

use super::{
    attention::CpuAttention,
    fused::{CpuFused, Memory},
    gemm::{Finish, Matrix, Product, Scale},
    lanes::Features,
    pool::Pool,
    segments::CpuSegments,
};
use pawl_graph::{executor::ExecError, graph::DType};
use pawl_lower::{Access, Attention, Body, Buffer, Collect, Lookup, Lowered, MatMul};

/// A kernel, prepared for execution.
pub(super) enum CpuKernel {
    Fused(Box<CpuFused>),
    MatMul(Box<CpuMatMul>),
    Attention(Box<CpuAttention>),
    Gather(CpuLookup),
    ScatterAdd(CpuLookup),
    Segments(CpuSegments),
    Collective(Collect),
}

/// Batched products.
pub(super) struct CpuMatMul {
    product: Product,
    a: Batched,
    b: Batched,
    c: Batched,
    scales: Option<[Access; 2]>,
    add: Option<(Batched, f64)>,
    output: DType,
}

struct Batched {
    access: Access,
    dtype: DType,
}

impl Batched {
    fn new(access: &Access, buffers: &[Buffer]) -> Self {
        Self { access: access.clone(), dtype: buffers[access.buffer].dtype }
    }

    fn matrix(&self, memory: &Memory<'_>, mut index: usize) -> Matrix {
        let rank = self.access.dims.len();
        let mut at = self.access.offset;
        for axis in (0..rank - 2).rev() {
            at += index % self.access.dims[axis] * self.access.strides[axis];
            index /= self.access.dims[axis];
        }
        Matrix {
            start: memory.bases[self.access.buffer].wrapping_add(at * self.dtype.bytes()),
            dtype: self.dtype,
            row: self.access.strides[rank - 2],
            col: self.access.strides[rank - 1],
        }
    }
}

impl CpuMatMul {
    fn new(kernel: &MatMul, buffers: &[Buffer]) -> Self {
        let [a, b, c] = [&kernel.a, &kernel.b, &kernel.c].map(|access| Batched::new(access, buffers));
        let (batch, m, n, k) = kernel.extents();
        let scales = kernel.scales.clone();
        let add = kernel.add.as_ref().map(|(access, factor)| (Batched::new(access, buffers), *factor));
        let product = Product::new((m, n, k), batch, a.dtype.accumulator(), scales.is_some() || add.is_some());
        Self { product, scales, add, output: c.dtype, a, b, c }
    }

    fn run(&self, features: Features, pool: &Pool, memory: Memory<'_>) {
        let scale = |access: &Access| {
            let start = memory.bases[access.buffer].cast::<f32>().wrapping_add(access.offset);
            Scale { start, stride: access.strides[0] }
        };
        let scales = self.scales.as_ref().map(|scales| Finish::Scale(scales.each_ref().map(scale)));
        let add = self.add.as_ref().map(|(to, factor)| Finish::Add(to.matrix(&memory, 0), *factor as f32));
        let matrices = |index| [&self.a, &self.b, &self.c].map(|matrix| matrix.matrix(&memory, index));
        self.product.run(features, pool, memory, &matrices, scales.or(add));
    }
}

/// A gather or scatter of contiguous rows.
pub(super) struct CpuLookup {
    kernel: Lookup,
    op: String,
    dtype: DType,
}

impl CpuKernel {
    pub(super) fn new(body: &Body, buffers: &[Buffer]) -> Result<Self, ExecError> {
        let unsupported = |what: &str| ExecError::Unsupported { executor: "graph-cpu", what: what.to_owned() };
        let lookup = |kernel: &Lookup, op: &str| CpuLookup {
            kernel: kernel.clone(),
            op: op.to_owned(),
            dtype: buffers[kernel.to.buffer].dtype,
        };
        Ok(match body {
            Body::Fused(kernel) => CpuKernel::Fused(Box::new(CpuFused::new(kernel, buffers))),
            Body::MatMul(kernel)
                if kernel.scales.iter().flatten().any(|scale| buffers[scale.buffer].dtype == DType::F64) =>
            {
                return Err(unsupported("scaled products in float64 (use the eager executor)"));
            }
            Body::MatMul(MatMul { add: Some(_), a, .. }) if buffers[a.buffer].dtype == DType::F64 => {
                return Err(unsupported("sums with products in float64 (use the eager executor)"));
            }
            Body::MatMul(kernel) => CpuKernel::MatMul(Box::new(CpuMatMul::new(kernel, buffers))),
            Body::Attention(Attention { norm: Some(_), .. }) => {
                return Err(unsupported("normalisation within attention (expand it first)"));
            }
            Body::Attention(kernel) if buffers[kernel.q.buffer].dtype == DType::F64 => {
                return Err(unsupported("attention in float64 (use the eager executor)"));
            }
            Body::AttentionGrad(kernel) if buffers[kernel.grad.buffer].dtype == DType::F64 => {
                return Err(unsupported("attention in float64 (use the eager executor)"));
            }
            Body::Attention(kernel) => CpuKernel::Attention(Box::new(CpuAttention::forward(kernel, buffers))),
            Body::AttentionGrad(kernel) => CpuKernel::Attention(Box::new(CpuAttention::backward(kernel, buffers))),
            Body::Gather(kernel) => CpuKernel::Gather(lookup(kernel, "gather")),
            Body::ScatterAdd(kernel) => CpuKernel::ScatterAdd(lookup(kernel, "scatter_add")),
            Body::Segments(kernel) => CpuKernel::Segments(CpuSegments::new(kernel, buffers)),
            Body::Collective(kernel) => {
                if buffers[kernel.from.buffer].dtype != DType::F32 {
                    return Err(unsupported("collectives of anything but float32"));
                }
                CpuKernel::Collective(kernel.clone())
            }
        })
    }

    /// All kernels of a program.
    pub(super) fn all(lowered: &Lowered) -> Result<Vec<Self>, ExecError> {
        lowered.kernels.iter().map(|kernel| Self::new(&kernel.body, &lowered.buffers)).collect()
    }

    /// Bytes of scratch each worker needs.
    pub(super) fn scratch(&self, features: Features) -> usize {
        match self {
            CpuKernel::Fused(kernel) => kernel.scratch(),
            CpuKernel::MatMul(kernel) => kernel.product.scratch(features),
            CpuKernel::Attention(kernel) => kernel.scratch(features),
            CpuKernel::Gather(_) | CpuKernel::ScatterAdd(_) | CpuKernel::Segments(_) | CpuKernel::Collective(_) => 0,
        }
    }

    /// Bytes of memory all workers share.
    pub(super) fn workspace(&self, features: Features) -> usize {
        match self {
            CpuKernel::Fused(kernel) => kernel.workspace(),
            CpuKernel::MatMul(kernel) => kernel.product.workspace(features, kernel.output),
            _ => 0,
        }
    }

    /// Runs a kernel (anything but a collective).
    pub(super) fn run(&self, features: Features, pool: &Pool, memory: Memory<'_>) -> Result<(), ExecError> {
        match self {
            CpuKernel::Fused(kernel) => kernel.run(features, pool, memory),
            CpuKernel::MatMul(kernel) => kernel.run(features, pool, memory),
            CpuKernel::Attention(kernel) => kernel.run(features, pool, memory),
            CpuKernel::Gather(kernel) => kernel.gather(memory)?,
            CpuKernel::ScatterAdd(kernel) => kernel.scatter_add(memory)?,
            CpuKernel::Segments(kernel) => kernel.run(pool, memory)?,
            CpuKernel::Collective(_) => {}
        }
        Ok(())
    }
}

impl CpuLookup {
    fn at(&self, memory: &Memory<'_>, access: &Access, bytes: usize) -> *mut u8 {
        memory.bases[access.buffer].wrapping_add(access.offset * bytes)
    }

    fn indices<'m>(&self, memory: &Memory<'m>, extent: usize) -> Result<&'m [u32], ExecError> {
        let start = self.at(memory, &self.kernel.indices, 4).cast::<u32>();
        // SAFETY: the view lies in its buffer, which is not written during the kernel.
        let indices = unsafe { std::slice::from_raw_parts(start, self.kernel.indices.elements()) };
        match indices.iter().find(|&&index| index as usize >= extent) {
            Some(&index) => Err(ExecError::Index { op: self.op.clone(), index, extent }),
            None => Ok(indices),
        }
    }

    fn gather(&self, memory: Memory<'_>) -> Result<(), ExecError> {
        let size = self.dtype.bytes();
        let [outer, extent, inner] = self.kernel.from.dims[..] else { return Ok(()) };
        let (from, to) = (self.at(&memory, &self.kernel.from, size), self.at(&memory, &self.kernel.to, size));
        let indices = self.indices(&memory, extent)?;
        let row = inner * size;
        for block in 0..outer {
            for (at, &index) in indices.iter().enumerate() {
                // SAFETY: indices are below the extent; the buffers do not overlap.
                unsafe {
                    let from = from.add((block * extent + index as usize) * row);
                    to.add((block * indices.len() + at) * row).copy_from_nonoverlapping(from, row);
                }
            }
        }
        Ok(())
    }

    fn scatter_add(&self, memory: Memory<'_>) -> Result<(), ExecError> {
        let size = self.dtype.bytes();
        let [outer, extent, inner] = self.kernel.to.dims[..] else { return Ok(()) };
        let (from, to) = (self.at(&memory, &self.kernel.from, size), self.at(&memory, &self.kernel.to, size));
        let indices = self.indices(&memory, extent)?;
        // SAFETY: the result is that large; indices are below the extent; the buffers do not overlap.
        unsafe {
            to.write_bytes(0, outer * extent * inner * size);
            for block in 0..outer {
                for (at, &index) in indices.iter().enumerate() {
                    let from = from.add((block * indices.len() + at) * inner * size);
                    let to = to.add((block * extent + index as usize) * inner * size);
                    add_rows(self.dtype, from, to, inner);
                }
            }
        }
        Ok(())
    }
}

/// `to += from`, each sum rounded to the dtype.
///
/// # Safety
/// Both have `count` elements and do not overlap.
unsafe fn add_rows(dtype: DType, from: *const u8, to: *mut u8, count: usize) {
    use half::{bf16, f16};
    macro_rules! add {
        ($ty:ty, $sum:expr) => {{
            // SAFETY: the caller's promise.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(from.cast::<$ty>(), count),
                    std::slice::from_raw_parts_mut(to.cast::<$ty>(), count),
                )
            };
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = $sum(*to, x));
        }};
    }
    match dtype {
        DType::F32 => add!(f32, |a: f32, b: f32| a + b),
        DType::F64 => add!(f64, |a: f64, b: f64| a + b),
        DType::BF16 => add!(bf16, |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32())),
        DType::F16 => add!(f16, |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32())),
        DType::U32 => add!(u32, u32::wrapping_add),
        DType::Bool => add!(u8, |a: u8, b: u8| a | b),
        DType::E4M3 | DType::E5M2 => unreachable!("no operator adds 8-bit floats"),
    }
}
