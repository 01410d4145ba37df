//! What the peer exported: first weights, data, and which data each micro-step is made of.

use anyhow::Context;
use memmap2::Mmap;
use pawl_engine::array::{Array, Data as Elements};
use pawl_engine::graph::Program;
use pawl_workloads::{At, Batch, Data, WorkloadError};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Elements of a file of tensors, read where they lie.
struct Tensors {
    bytes: Mmap,
    /// Name, shape, and the place of the first byte.
    index: BTreeMap<String, (Vec<usize>, usize)>,
}

impl Tensors {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        // SAFETY: the export is written before it is read, and by nobody since.
        let bytes = unsafe { Mmap::map(&file) }.with_context(|| path.display().to_string())?;
        let tensors = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        let start = bytes.as_ptr() as usize;
        let place = |view: &safetensors::tensor::TensorView<'_>| view.data().as_ptr() as usize - start;
        let index =
            tensors.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), place(&view)))).collect();
        Ok(Self { bytes, index })
    }

    fn of(&self, name: &str) -> anyhow::Result<&(Vec<usize>, usize)> {
        self.index.get(name).with_context(|| format!("the export has no tensor {name}"))
    }

    /// `out.len()` float32 elements from element `first` of the tensor that begins at byte `start`.
    fn floats(&self, start: usize, first: usize, out: &mut [f32]) {
        let from = start + 4 * first;
        let bytes = &self.bytes[from..from + 4 * out.len()];
        for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *out = f32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        }
    }

    fn integers(&self, name: &str) -> anyhow::Result<Vec<usize>> {
        let (shape, start) = self.of(name)?;
        let bytes = &self.bytes[*start..*start + 8 * shape.iter().product::<usize>()];
        let number = |bytes: &[u8]| i64::from_le_bytes(std::array::from_fn(|i| bytes[i])) as usize;
        Ok(bytes.chunks_exact(8).map(number).collect())
    }
}

/// The first weights, by their names here.
pub fn weights(file: &Path) -> anyhow::Result<Vec<(String, Array)>> {
    let tensors = Tensors::open(file)?;
    let array = |(name, (shape, start)): (&String, &(Vec<usize>, usize))| {
        let mut values = vec![0.0; shape.iter().product()];
        tensors.floats(*start, 0, &mut values);
        Ok((name.clone(), Array::new(shape.clone(), Elements::F32(values))?))
    };
    tensors.index.iter().map(array).collect()
}

/// The peer's batches, in its order.
pub struct Batches {
    data: Tensors,
    program: Program,
    trajectories: Vec<usize>,
    frames: Vec<usize>,
    darcy: Vec<usize>,
    items: usize,
    pairs: usize,
    accumulation: usize,
}

impl Batches {
    /// Reads the plan of an export; batches are for `program`.
    pub fn open(folder: &Path, program: &Program, shape: &crate::ups::Shape) -> anyhow::Result<Self> {
        let plan = Tensors::open(&folder.join("plan.safetensors"))?;
        Ok(Self {
            data: Tensors::open(&folder.join("data.safetensors"))?,
            program: program.clone(),
            trajectories: plan.integers("traj")?,
            frames: plan.integers("frame")?,
            darcy: plan.integers("darcy")?,
            items: shape.items,
            pairs: shape.pairs,
            accumulation: shape.accumulation,
        })
    }

    /// Latents of micro-step `micro`: first states (`next` = 0) or those that follow (1). The first half of the items is advection.
    fn latents(&self, micro: usize, next: usize, out: &mut [f32]) -> anyhow::Result<()> {
        let (advection, darcy) = (self.items - self.items / 2, self.items / 2);
        let rows = (advection + darcy) * self.pairs;
        let state = out.len() / rows;
        let (shape, start) = self.data.of("z_adv")?;
        let (_, darcy_start) = self.data.of(if next == 0 { "z_darcy_in" } else { "z_darcy_out" })?;
        for (row, out) in out.chunks_exact_mut(state).enumerate() {
            if row < advection * self.pairs {
                let trajectory = self.trajectories[micro * advection + row / self.pairs];
                let frame = self.frames[micro * advection * self.pairs + row] + next;
                self.data.floats(*start, (trajectory * shape[1] + frame) * state, out);
            } else {
                let sample = self.darcy[micro * darcy * self.pairs + row - advection * self.pairs];
                self.data.floats(*darcy_start, sample * state, out);
            }
        }
        Ok(())
    }
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let step = at.items as usize / (self.items * self.accumulation);
        // What is prepared ahead of the last step is not used.
        let micro = (step * self.accumulation + at.micro as usize)
            .min(self.trajectories.len() / (self.items - self.items / 2) - 1);
        if batch.inputs.is_empty() {
            let zeros = |decl: &pawl_engine::graph::InputDecl| {
                let shape = decl.meta.shape.clone();
                let elements = Elements::zeros(decl.meta.dtype, shape.elements());
                Array::new(shape, elements)
            };
            batch.inputs = self.program.inputs.iter().map(zeros).collect::<Result<_, _>>()?;
        }
        for (array, decl) in batch.inputs.iter_mut().zip(&self.program.inputs) {
            if let Elements::F32(out) = array.data_mut() {
                let next = usize::from(decl.name == "z1");
                self.latents(micro, next, out).unwrap_or_else(|e| panic!("{e:#}"));
            }
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        0
    }

    fn evaluation(&self, _index: usize) -> Result<Batch, WorkloadError> {
        Ok(Batch::default())
    }

    fn sums(&self) -> usize {
        0
    }

    fn add(&self, _index: usize, _outputs: &[Array], _sums: &mut [f64]) {}

    fn metrics(&self, _sums: &[f64]) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}
