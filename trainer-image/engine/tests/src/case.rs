//! A program with its data, its results, and the distance between two results.

use pawl_graph::{
    array::{Array, Data, View},
    executor::{ExecError, ExecOptions, Executable, Executor, read_named},
    graph::{DType, GraphError, InputDecl, Output, Program},
    passes, random,
};

/// A program with data for its inputs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The program.
    pub program: Program,
    /// Data, in the order of the program's inputs.
    pub inputs: Vec<Array>,
}

/// Results of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Outputs of each run, by name.
    pub outputs: Vec<Vec<(String, Array)>>,
    /// States after the last run, by name.
    pub states: Vec<(String, Array)>,
}

impl Case {
    /// A case with inputs drawn from `seed`: floats uniform in [-1, 1), indices below 3.
    pub fn new(program: Program, seed: u64) -> Self {
        let draw = |decl: &InputDecl| {
            let stream = random::stream(seed, &decl.name);
            let values = (0..decl.meta.shape.elements() as u64).map(|i| match decl.meta.dtype {
                DType::U32 => (random::bits(stream, i) % 3) as f64,
                _ => 2.0 * random::uniform_f64(stream, i) - 1.0,
            });
            let data = Data::from_f64(decl.meta.dtype, values);
            Array::new(&decl.meta.shape, data).expect("as many values as elements")
        };
        let inputs = program.inputs.iter().map(draw).collect();
        Self { program, inputs }
    }

    /// The case in float64.
    ///
    /// # Errors
    /// When it has a collective.
    pub fn widened(&self) -> Result<Self, GraphError> {
        let program = passes::widen_all(&self.program)?;
        let widen = |(decl, array): (&InputDecl, &Array)| {
            Array::new(array.shape(), Data::from_f64(decl.meta.dtype, array.to_f64()))
        };
        let inputs = program.inputs.iter().zip(&self.inputs).map(widen).collect::<Result<_, _>>()?;
        Ok(Self { program, inputs })
    }

    /// Runs the case `runs` times.
    ///
    /// # Errors
    /// When the executor does not compile or run it.
    pub fn run(&self, executor: &dyn Executor, options: &ExecOptions, runs: usize) -> Result<Outcome, ExecError> {
        let mut exe = executor.compile(std::slice::from_ref(&self.program), options)?;
        let views: Vec<View<'_>> = self.inputs.iter().map(Array::view).collect();
        let mut outputs = Vec::new();
        for _ in 0..runs {
            exe.run(0, &views)?;
            outputs.push(read_outputs(exe.as_mut(), 0, &self.program)?);
        }
        Ok(Outcome { outputs, states: read_named(exe.as_mut())? })
    }
}

/// All outputs of the last run of a program, by name.
///
/// # Errors
/// When the program has not run.
pub fn read_outputs(
    exe: &mut dyn Executable,
    index: usize,
    program: &Program,
) -> Result<Vec<(String, Array)>, ExecError> {
    let read = |(i, output): (usize, &Output)| Ok((output.name.clone(), exe.output(index, i)?));
    program.outputs.iter().enumerate().map(read).collect()
}

impl Outcome {
    /// All arrays, with where they are from.
    pub fn arrays(&self) -> Vec<(String, &Array)> {
        let mut all = Vec::new();
        for (run, outputs) in self.outputs.iter().enumerate() {
            all.extend(outputs.iter().map(|(name, array)| (format!("output `{name}` of run {run}"), array)));
        }
        all.extend(self.states.iter().map(|(name, array)| (format!("state `{name}`"), array)));
        all
    }

    /// The largest difference from `other`, each array's in units of its own largest magnitude (at least 1), with its
    /// name. NaN differs from all but NaN.
    pub fn distance(&self, other: &Outcome) -> (f64, String) {
        let (mine, theirs) = (self.arrays(), other.arrays());
        assert_eq!(mine.len(), theirs.len(), "both have the same arrays");
        let mut worst = (0.0, String::from("nothing"));
        for ((name, a), (_, b)) in mine.iter().zip(&theirs) {
            let (a, b) = (a.to_f64(), b.to_f64());
            let scale = b.iter().fold(1.0f64, |m, x| m.max(x.abs()));
            for (x, y) in a.iter().zip(&b) {
                let both_nan = x.is_nan() && y.is_nan();
                let difference = if both_nan || x == y { 0.0 } else { (x - y).abs() / scale };
                if difference > worst.0 || difference.is_nan() {
                    worst = (if difference.is_nan() { f64::INFINITY } else { difference }, name.clone());
                }
            }
        }
        worst
    }
}
