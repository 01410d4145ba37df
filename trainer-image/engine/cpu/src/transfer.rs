//! Moving elements between buffers and registers: conversion of dtypes, and views that are not contiguous.

use half::f16;

use super::{
    lanes::Lane,
    math::{bits_bf16, round_bf16},
};
use pawl_graph::{
    float8::{E4M3, E5M2},
    graph::DType,
};
use pawl_lower::{Access, Class, Nest};

/// Lanes in which a dtype is computed.
pub(super) fn lane(dtype: DType) -> Lane {
    match dtype {
        DType::F64 => Lane::F64,
        DType::F32 | DType::BF16 | DType::F16 | DType::E4M3 | DType::E5M2 => Lane::F32,
        DType::U32 | DType::Bool => Lane::U32,
    }
}

/// Bytes of a lane.
pub(super) fn lane_bytes(lane: Lane) -> usize {
    if lane == Lane::F64 { 8 } else { 4 }
}

/// A view prepared to be walked by rows and columns.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    pub buffer: usize,
    pub dtype: DType,
    pub class: Class,
    offset: usize,
    nest: Nest,
    /// The elements of all rows lie one after the other.
    pub contiguous: bool,
}

impl Walk {
    pub(super) fn new(access: &Access, dtype: DType, cols: usize) -> Self {
        let nest = access.nest(cols).expect("lowering chose columns that fit every view");
        let class = access.class(cols).expect("as above");
        Self { buffer: access.buffer, dtype, class, offset: access.offset, nest, contiguous: access.is_contiguous() }
    }

    /// Element number of the start of a row.
    fn row(&self, mut row: usize) -> usize {
        let mut at = self.offset;
        for &(extent, stride) in self.nest.outer.iter().rev() {
            at += row % extent * stride;
            row /= extent;
        }
        at
    }

    /// Whether these are all columns of a row.
    fn is_whole(&self, cols: &std::ops::Range<usize>) -> bool {
        self.nest.inner.iter().map(|&(extent, _)| extent).product::<usize>() == cols.len()
    }

    /// Calls `run(index, start, stride, count)` for runs of elements of `cols` of one row: `index` counts from the
    /// first column.
    #[inline(always)]
    fn runs(&self, row: usize, cols: std::ops::Range<usize>, mut run: impl FnMut(usize, usize, usize, usize)) {
        let base = self.row(row);
        let Some((&(extent, stride), slower)) = self.nest.inner.split_last() else {
            return run(0, base, 0, cols.len());
        };
        let mut col = cols.start;
        while col < cols.end {
            let (mut rest, within) = (col / extent, col % extent);
            let count = (extent - within).min(cols.end - col);
            let mut at = base + within * stride;
            for &(extent, stride) in slower.iter().rev() {
                at += rest % extent * stride;
                rest /= extent;
            }
            run(col - cols.start, at, stride, count);
            col += count;
        }
    }

    /// Where the lanes of a chunk lie in memory, if they lie there as a register would.
    pub(super) fn direct(&self, base: *mut u8, cols: usize, row: usize, col: usize) -> Option<*mut u8> {
        let plain = |loops: &[(usize, usize)]| matches!(loops, [] | [(_, 1)]);
        let at = match self.class {
            Class::Full if self.contiguous => self.offset + row * cols + col,
            Class::Row if plain(&self.nest.outer) => self.row(row),
            Class::Col if plain(&self.nest.inner) => self.offset + col,
            Class::Scalar => self.offset,
            _ => return None,
        };
        let lanes = matches!(self.dtype, DType::F32 | DType::F64 | DType::U32);
        lanes.then(|| base.wrapping_add(at * self.dtype.bytes()))
    }

    /// Whether [`Walk::direct`] gives a place.
    pub(super) fn is_direct(&self, cols: usize) -> bool {
        self.direct(std::ptr::null_mut(), cols, 0, 0).is_some()
    }

    /// Reads `rows` x `cols` into a register of this view's class.
    ///
    /// # Safety
    /// `base` is the buffer's first byte, and `register` has room for its lanes.
    #[inline(always)]
    pub(super) unsafe fn load(
        &self,
        base: *const u8,
        register: *mut u8,
        rows: std::ops::Range<usize>,
        cols: std::ops::Range<usize>,
    ) {
        let size = lane_bytes(lane(self.dtype));
        let rows = if matches!(self.class, Class::Col | Class::Scalar) { rows.start..rows.start + 1 } else { rows };
        let cols = if matches!(self.class, Class::Row | Class::Scalar) { cols.start..cols.start + 1 } else { cols };
        if self.contiguous && self.class == Class::Full && (rows.len() == 1 || self.is_whole(&cols)) {
            let start = self.row(rows.start) + cols.start;
            // SAFETY: the caller's promise.
            unsafe { read(self.dtype, base.add(start * self.dtype.bytes()), 1, register, rows.len() * cols.len()) };
            return;
        }
        for (index, row) in rows.clone().enumerate() {
            self.runs(row, cols.clone(), |at, start, stride, count| {
                // SAFETY: the caller's promise.
                unsafe {
                    let to = register.add((index * cols.len() + at) * size);
                    read(self.dtype, base.add(start * self.dtype.bytes()), stride, to, count);
                }
            });
        }
    }

    /// Writes a [`Class::Full`] register (or one element a row: `per_row`).
    ///
    /// # Safety
    /// `base` is the buffer's first byte, and `register` holds the lanes.
    #[inline(always)]
    pub(super) unsafe fn store(
        &self,
        base: *mut u8,
        register: *const u8,
        rows: std::ops::Range<usize>,
        cols: std::ops::Range<usize>,
        per_row: bool,
    ) {
        let size = lane_bytes(lane(self.dtype));
        let cols = if per_row { 0..1 } else { cols };
        if self.contiguous && !per_row && (rows.len() == 1 || self.is_whole(&cols)) {
            let start = self.row(rows.start) + cols.start;
            // SAFETY: the caller's promise.
            unsafe { write(self.dtype, base.add(start * self.dtype.bytes()), 1, register, rows.len() * cols.len()) };
            return;
        }
        for (index, row) in rows.enumerate() {
            self.runs(row, cols.clone(), |at, start, stride, count| {
                // SAFETY: the caller's promise.
                unsafe {
                    let from = register.add((index * cols.len() + at) * size);
                    write(self.dtype, base.add(start * self.dtype.bytes()), stride, from, count);
                }
            });
        }
    }
}

/// Reads `count` elements `stride` apart as lanes.
///
/// # Safety
/// Both sides are as large as that.
#[inline(always)]
unsafe fn read(dtype: DType, from: *const u8, stride: usize, to: *mut u8, count: usize) {
    // SAFETY: the caller's promise, in each line.
    unsafe {
        match dtype {
            DType::F32 => gather(from.cast::<f32>(), stride, to.cast::<f32>(), count, |x| x),
            DType::U32 => gather(from.cast::<u32>(), stride, to.cast::<u32>(), count, |x| x),
            DType::F64 => gather(from.cast::<f64>(), stride, to.cast::<f64>(), count, |x| x),
            DType::BF16 => {
                gather(from.cast::<u16>(), stride, to.cast::<f32>(), count, |x| f32::from_bits(u32::from(x) << 16));
            }
            DType::F16 => gather(from.cast::<u16>(), stride, to.cast::<f32>(), count, |x| f16::from_bits(x).to_f32()),
            DType::E4M3 => gather(from.cast::<E4M3>(), stride, to.cast::<f32>(), count, E4M3::to_f32),
            DType::E5M2 => gather(from.cast::<E5M2>(), stride, to.cast::<f32>(), count, E5M2::to_f32),
            DType::Bool => gather(from, stride, to.cast::<u32>(), count, |x| u32::from(x != 0)),
        }
    }
}

/// Writes `count` lanes as elements `stride` apart.
///
/// # Safety
/// Both sides are as large as that.
#[inline(always)]
unsafe fn write(dtype: DType, to: *mut u8, stride: usize, from: *const u8, count: usize) {
    // SAFETY: the caller's promise, in each line.
    unsafe {
        match dtype {
            DType::F32 => scatter(from.cast::<f32>(), to.cast::<f32>(), stride, count, |x| x),
            DType::U32 => scatter(from.cast::<u32>(), to.cast::<u32>(), stride, count, |x| x),
            DType::F64 => scatter(from.cast::<f64>(), to.cast::<f64>(), stride, count, |x| x),
            DType::BF16 => scatter(from.cast::<f32>(), to.cast::<u16>(), stride, count, bits_bf16),
            DType::F16 => scatter(from.cast::<f32>(), to.cast::<u16>(), stride, count, |x| f16::from_f32(x).to_bits()),
            DType::E4M3 => scatter(from.cast::<f32>(), to.cast::<E4M3>(), stride, count, E4M3::from_f32),
            DType::E5M2 => scatter(from.cast::<f32>(), to.cast::<E5M2>(), stride, count, E5M2::from_f32),
            DType::Bool => scatter(from.cast::<u32>(), to, stride, count, |x| u8::from(x != 0)),
        }
    }
}

/// # Safety
/// `from` has `count` elements `stride` apart, `to` has room for them; they do not overlap.
#[inline(always)]
unsafe fn gather<T: Copy, U>(from: *const T, stride: usize, to: *mut U, count: usize, f: impl Fn(T) -> U) {
    // SAFETY: the caller's promise.
    unsafe {
        let to = std::slice::from_raw_parts_mut(to, count);
        match stride {
            1 => {
                let from = std::slice::from_raw_parts(from, count);
                to.iter_mut().zip(from).for_each(|(to, &x)| *to = f(x));
            }
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = f(*from.add(i * stride))),
        }
    }
}

/// # Safety
/// `from` has `count` elements, `to` has room for them `stride` apart; they do not overlap.
#[inline(always)]
unsafe fn scatter<T: Copy, U>(from: *const T, to: *mut U, stride: usize, count: usize, f: impl Fn(T) -> U) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = std::slice::from_raw_parts(from, count);
        match stride {
            1 => {
                let to = std::slice::from_raw_parts_mut(to, count);
                to.iter_mut().zip(from).for_each(|(to, &x)| *to = f(x));
            }
            _ => from.iter().enumerate().for_each(|(i, &x)| *to.add(i * stride) = f(x)),
        }
    }
}

/// One element as float64.
///
/// # Safety
/// `at` points to an element of `dtype`.
pub(super) unsafe fn element(dtype: DType, at: *const u8) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => *at.cast::<f64>(),
            DType::F32 => f64::from(*at.cast::<f32>()),
            DType::BF16 => f64::from(f32::from_bits(u32::from(*at.cast::<u16>()) << 16)),
            DType::F16 => f16::from_bits(*at.cast::<u16>()).to_f64(),
            DType::E4M3 => (*at.cast::<E4M3>()).to_f64(),
            DType::E5M2 => (*at.cast::<E5M2>()).to_f64(),
            DType::U32 => f64::from(*at.cast::<u32>()),
            DType::Bool => f64::from(*at),
        }
    }
}

/// A number as a lane of its dtype.
///
/// # Safety
/// `to` has room for a lane.
pub(super) unsafe fn immediate(dtype: DType, number: f64, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => *to.cast::<f64>() = number,
            DType::F32 => *to.cast::<f32>() = number as f32,
            DType::BF16 => *to.cast::<f32>() = round_bf16(number as f32),
            DType::F16 => *to.cast::<f32>() = f16::from_f64(number).to_f32(),
            DType::E4M3 => *to.cast::<f32>() = E4M3::from_f64(number).to_f32(),
            DType::E5M2 => *to.cast::<f32>() = E5M2::from_f64(number).to_f32(),
            DType::U32 => *to.cast::<u32>() = number as u32,
            DType::Bool => *to.cast::<u32>() = u32::from(number != 0.0),
        }
    }
}
