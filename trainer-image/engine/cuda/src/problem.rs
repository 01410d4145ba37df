//! Matrix products as cuBLASLt describes them.
//!
//! Row-major products are column-major ones of the transposed: `c^T = b^T a^T`. Which operand counts as transposed
//! follows from which of its strides is 1; views with no such stride, and repeated ones, are left to an own kernel.
//! Operands of 8-bit floats have the summed axis innermost, the only order that all GPUs take, and the library scales
//! the sums where it can.

use cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t as ScaleMode;
use pawl_graph::graph::DType;
use pawl_lower::{Access, Buffer, MatMul};

/// Most calls for the batch axes that one call cannot walk.
const CALLS: usize = 64;

/// One operand as a column-major matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Matrix {
    pub dtype: DType,
    pub transposed: bool,
    /// Extents as stored.
    pub rows: usize,
    pub cols: usize,
    /// Elements from one column to the next.
    pub leading: usize,
    /// Elements from one of the batch to the next.
    pub batch: usize,
}

/// A product as cuBLASLt describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Problem {
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// What the product is added to.
    pub add: Option<Matrix>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub count: usize,
    /// Bytes that every address is a multiple of: of a, b, the result and what is added.
    pub alignment: [usize; 4],
    pub tf32: bool,
    /// How the library scales the sums, if it does.
    pub scale: Option<ScaleMode>,
}

/// A product and the calls it takes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    pub problem: Problem,
    /// Buffers of the first, the second operand and the result.
    pub buffers: [usize; 3],
    /// Byte offsets into them, for each call.
    pub calls: Vec<[usize; 3]>,
    /// Buffer and byte offset of what the product is added to, and its factor before.
    pub add: Option<(usize, usize, f64)>,
    /// Buffers and byte offsets of the scales of the first and the second operand, if the library scales the sums.
    pub scales: Option<[(usize, usize); 2]>,
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
    /// `None` when the library has no way to say this. `by_vectors`: whether it multiplies sums by scales of rows and
    /// columns; if it does not, [`Product::scales`] is `None`, and they are the caller's.
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
    pub(super) fn flops(&self) -> u64 {
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
