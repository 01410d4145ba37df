//! Rows of an array in memory-mapped shards.

use super::{ArraySpec, Element, StoreError, TENSOR};
use half::slice::HalfFloatSliceExt;
use memmap2::Mmap;
use safetensors::SafeTensors;
use std::fs::File;
use std::path::PathBuf;

/// A verified array: equal rows, read without copying the file into memory.
#[derive(Debug)]
pub struct Rows {
    element: Element,
    rows: usize,
    row_len: usize,
    shard_rows: usize,
    shards: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    map: Mmap,
    /// Offset of the tensor's bytes.
    offset: usize,
}

impl Rows {
    pub(super) fn open(spec: &ArraySpec, paths: &[PathBuf]) -> Result<Self, StoreError> {
        let shards = paths.iter().map(|path| Mapped::open(spec, path)).collect::<Result<_, _>>()?;
        let (row_len, shard_rows) = (spec.row_len(), spec.shard_rows);
        Ok(Self { element: spec.element, rows: spec.rows, row_len, shard_rows, shards })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Elements per row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Copies `out.len()` elements of row `row` from element `start` on, widened to f32.
    ///
    /// # Panics
    /// When they are outside of the row.
    pub fn read(&self, row: usize, start: usize, out: &mut [f32]) {
        assert!(row < self.rows && start + out.len() <= self.row_len, "row {row} + {start} is out of range");
        let bytes = self.bytes(row, start, out.len());
        match self.element {
            Element::F32 => out.copy_from_slice(bytemuck::cast_slice(bytes)),
            Element::F16 => bytemuck::cast_slice::<u8, half::f16>(bytes).convert_to_f32_slice(out),
        }
    }

    /// Copies the elements of row `row` at `start` + `indices`, widened to f32.
    ///
    /// # Panics
    /// When one is outside of the row, or `out` has another length.
    pub fn gather(&self, row: usize, start: usize, indices: &[u32], out: &mut [f32]) {
        assert!(row < self.rows && start <= self.row_len, "row {row} + {start} is out of range");
        assert_eq!(indices.len(), out.len(), "one place for each index");
        let bytes = self.bytes(row, start, self.row_len - start);
        match self.element {
            Element::F32 => {
                let values: &[f32] = bytemuck::cast_slice(bytes);
                out.iter_mut().zip(indices).for_each(|(out, &index)| *out = values[index as usize]);
            }
            Element::F16 => {
                let values: &[half::f16] = bytemuck::cast_slice(bytes);
                out.iter_mut().zip(indices).for_each(|(out, &index)| *out = values[index as usize].to_f32());
            }
        }
    }

    fn bytes(&self, row: usize, start: usize, len: usize) -> &[u8] {
        let Mapped { map, offset } = &self.shards[row / self.shard_rows];
        let first = offset + ((row % self.shard_rows) * self.row_len + start) * self.element.size();
        &map[first..first + len * self.element.size()]
    }
}

impl Mapped {
    fn open(spec: &ArraySpec, path: &PathBuf) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| StoreError::io(path, "cannot open", error))?;
        // SAFETY: shards are only ever replaced by rename, never written in place, so the mapped bytes do not change.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| StoreError::io(path, "cannot map", error))?;
        let foreign = |problem: String| StoreError::Damaged { path: path.clone(), problem };
        let tensors = SafeTensors::deserialize(&map).map_err(|error| foreign(error.to_string()))?;
        let view = tensors.tensor(TENSOR).map_err(|error| foreign(error.to_string()))?;
        if view.dtype() != spec.element.dtype() || view.shape().get(1..) != Some(&spec.row_shape) {
            return Err(foreign(format!("holds {:?} {:?}", view.dtype(), view.shape())));
        }
        let offset = view.data().as_ptr() as usize - map.as_ptr() as usize;
        Ok(Self { map, offset })
    }
}
