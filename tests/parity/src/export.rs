//! What the peer exported: first weights, data, and which data each micro-step is made of.

use anyhow::Context;
use memmap2::Mmap;
use pawl_graph::array::{Array, Data as Elements};
use pawl_graph::graph::Program;
use pawl_workloads::{At, Batch, Data, Programs, WorkloadError};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Elements of a file of tensors, read where they lie.
pub struct Tensors {
    bytes: Mmap,
    /// Name, shape, and the place of the first byte.
    index: BTreeMap<String, (Vec<usize>, usize)>,
}

impl Tensors {
    /// Opens a file of tensors.
    ///
    /// # Errors
    /// When it is not a readable safetensors file.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        // SAFETY: the export is complete before it is read, and not written again.
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

    /// All elements of the float64 tensor `name`.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn doubles(&self, name: &str) -> anyhow::Result<Vec<f64>> {
        let (shape, _) = self.of(name)?;
        let bytes = self.raw(name, 0, 8 * shape.iter().product::<usize>())?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
    }

    /// All elements of the float32 tensor `name`.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn singles(&self, name: &str) -> anyhow::Result<Vec<f32>> {
        let (shape, start) = self.of(name)?;
        let mut values = vec![0.0; shape.iter().product()];
        self.floats(*start, 0, &mut values);
        Ok(values)
    }

    /// `count` bytes from byte `first` of tensor `name`.
    ///
    /// # Errors
    /// When there is no such tensor, or it is shorter.
    pub fn raw(&self, name: &str, first: usize, count: usize) -> anyhow::Result<&[u8]> {
        let (_, start) = self.of(name)?;
        self.bytes.get(start + first..start + first + count).with_context(|| format!("tensor {name} is too short"))
    }

    /// All elements of the int64 tensor `name`, which are not negative.
    ///
    /// # Errors
    /// When there is no such tensor.
    pub fn integers(&self, name: &str) -> anyhow::Result<Vec<usize>> {
        let (shape, start) = self.of(name)?;
        let bytes = &self.bytes[*start..*start + 8 * shape.iter().product::<usize>()];
        let number = |bytes: &[u8]| i64::from_le_bytes(std::array::from_fn(|i| bytes[i])) as usize;
        Ok(bytes.chunks_exact(8).map(number).collect())
    }
}

/// The first weights, by their names here.
///
/// # Errors
/// When the file is not a readable safetensors file.
pub fn weights(file: &Path) -> anyhow::Result<Vec<(String, Array)>> {
    let tensors = Tensors::open(file)?;
    let array = |(name, (shape, start)): (&String, &(Vec<usize>, usize))| {
        let mut values = vec![0.0; shape.iter().product()];
        tensors.floats(*start, 0, &mut values);
        Ok((name.clone(), Array::new(shape.clone(), Elements::F32(values))?))
    };
    tensors.index.iter().map(array).collect()
}

/// The peer's batches, in its order, and what it holds out.
pub struct Batches {
    data: Tensors,
    program: Program,
    evaluation: Option<Program>,
    /// Pairs that are held out: the first element of either state.
    held_out: Vec<[Place; 2]>,
    trajectories: Vec<usize>,
    frames: Vec<usize>,
    darcy: Vec<usize>,
    extent: Extent,
}

/// Size of a step.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Items of a micro-step.
    pub items: usize,
    /// Latent pairs of an item.
    pub pairs: usize,
    /// Micro-steps of a step.
    pub accumulation: usize,
}

/// Byte where a tensor begins, and an element of it.
type Place = (usize, usize);

impl Batches {
    /// Reads the plan of an export; batches are for `programs`.
    ///
    /// # Errors
    /// When a file cannot be read, or lacks a tensor.
    pub fn open(folder: &Path, programs: &Programs, extent: Extent) -> anyhow::Result<Self> {
        let plan = Tensors::open(&folder.join("plan.safetensors"))?;
        let data = Tensors::open(&folder.join("data.safetensors"))?;
        Ok(Self {
            held_out: held_out(&data)?,
            data,
            program: programs.train[0].clone(),
            evaluation: programs.evaluation.first().cloned(),
            trajectories: plan.integers("traj")?,
            frames: plan.integers("frame")?,
            darcy: plan.integers("darcy")?,
            extent,
        })
    }

    /// Latents of micro-step `micro`: first states (`next` = 0) or those that follow (1). The first half of the items
    /// is advection.
    fn latents(&self, micro: usize, next: usize, out: &mut [f32]) -> anyhow::Result<()> {
        let Extent { items, pairs, .. } = self.extent;
        let (advection, darcy) = (items - items / 2, items / 2);
        let rows = (advection + darcy) * pairs;
        let state = out.len() / rows;
        let (shape, start) = self.data.of("z_adv")?;
        let (_, darcy_start) = self.data.of(if next == 0 { "z_darcy_in" } else { "z_darcy_out" })?;
        for (row, out) in out.chunks_exact_mut(state).enumerate() {
            if row < advection * pairs {
                let trajectory = self.trajectories[micro * advection + row / pairs];
                let frame = self.frames[micro * advection * pairs + row] + next;
                self.data.floats(*start, (trajectory * shape[1] + frame) * state, out);
            } else {
                let sample = self.darcy[micro * darcy * pairs + row - advection * pairs];
                self.data.floats(*darcy_start, sample * state, out);
            }
        }
        Ok(())
    }
}

/// The pairs on which the peer evaluates: a ninth of the trajectories and of the samples, at least two, the last ones.
fn held_out(data: &Tensors) -> anyhow::Result<Vec<[Place; 2]>> {
    let (shape, advection) = data.of("z_adv")?;
    let (samples, from) = data.of("z_darcy_in")?;
    let (_, to) = data.of("z_darcy_out")?;
    let (frames, state) = (shape[1], shape[2] * shape[3]);
    let last = |count: usize| count - (count / 9).max(2)..count;
    let moves = last(shape[0]).flat_map(|trajectory| {
        (0..frames - 1).map(move |frame| [0, 1].map(|next| (*advection, (trajectory * frames + frame + next) * state)))
    });
    let flows = last(samples[0]).map(|sample| [from, to].map(|start| (*start, sample * state)));
    Ok(moves.chain(flows).collect())
}

/// Rows of a batch of `program`.
fn rows(program: &Program) -> usize {
    program.inputs[0].meta.shape[0]
}

impl Data for Batches {
    fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
        let Extent { items, accumulation, .. } = self.extent;
        let step = at.items as usize / (items * accumulation);
        // What is prepared ahead of the last step is not used.
        let micro = (step * accumulation + at.micro as usize).min(self.trajectories.len() / (items - items / 2) - 1);
        batch.fit(0, &self.program)?;
        for (array, decl) in batch.inputs.iter_mut().zip(&self.program.inputs) {
            if let Elements::F32(out) = array.data_mut() {
                let next = usize::from(decl.name == "z1");
                self.latents(micro, next, out).unwrap_or_else(|e| panic!("{e:#}"));
            }
        }
        Ok(())
    }

    fn evaluations(&self) -> usize {
        self.evaluation.as_ref().map_or(0, |program| self.held_out.len().div_ceil(rows(program)))
    }

    fn evaluation(&self, index: usize) -> Result<Batch, WorkloadError> {
        let Some(program) = &self.evaluation else { return Ok(Batch::default()) };
        let (first, last) = (index * rows(program), self.held_out.len() - 1);
        let mut batch = Batch::default();
        batch.fit(0, program)?;
        for (array, decl) in batch.inputs.iter_mut().zip(&program.inputs) {
            if let Elements::F32(out) = array.data_mut() {
                let state = out.len() / rows(program);
                for (row, out) in out.chunks_exact_mut(state).enumerate() {
                    // What fills up the last batch is not counted.
                    let (start, element) = self.held_out[(first + row).min(last)][usize::from(decl.name == "z1")];
                    self.data.floats(start, element, out);
                }
            }
        }
        Ok(batch)
    }

    /// Squared error and square of the target.
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, index: usize, outputs: &[Array], sums: &mut [f64]) {
        let per_batch = self.evaluation.as_ref().map_or(0, rows);
        let counted = (self.held_out.len() - index * per_batch).min(per_batch);
        for (sum, output) in sums.iter_mut().zip(outputs) {
            *sum += output.to_f64().iter().take(counted).sum::<f64>();
        }
    }

    fn metrics(&self, sums: &[f64]) -> BTreeMap<String, f64> {
        BTreeMap::from([("nrmse".to_owned(), (sums[0] / sums[1]).sqrt())])
    }
}
