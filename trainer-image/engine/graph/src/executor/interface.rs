//! Inputs and outputs of a compiled program.

use crate::{
    array::View,
    graph::{GraphError, InputDecl, Meta, Output, Program},
};

/// Inputs and outputs of a compiled program, and whether it has run.
#[derive(Debug, Clone)]
pub struct Interface {
    program: String,
    inputs: Vec<InputDecl>,
    outputs: Vec<(String, Meta)>,
    ran: bool,
}

impl Interface {
    /// The interface of a program that has not run.
    pub fn new(program: &Program) -> Self {
        let output = |o: &Output| (o.name.clone(), program.graph.meta(o.node).clone());
        Self {
            program: program.name.clone(),
            inputs: program.inputs.clone(),
            outputs: program.outputs.iter().map(output).collect(),
            ran: false,
        }
    }

    /// Checks the dtypes and numbers of elements of all inputs. Allocates nothing when they are.
    ///
    /// # Errors
    /// [`GraphError::Mismatch`] naming the first input whose dtype or number of elements differs, that is missing, or
    /// that is not declared.
    pub fn check_inputs(&self, inputs: &[View<'_>]) -> Result<(), GraphError> {
        self.check(self.inputs.len().max(inputs.len()), inputs)
    }

    /// Checks the dtypes and numbers of elements of the program's first `inputs.len()` inputs. Allocates nothing when
    /// they are.
    ///
    /// # Errors
    /// As [`Interface::check_inputs`], except that inputs may be missing.
    pub fn check_first_inputs(&self, inputs: &[View<'_>]) -> Result<(), GraphError> {
        self.check(inputs.len(), inputs)
    }

    fn check(&self, count: usize, inputs: &[View<'_>]) -> Result<(), GraphError> {
        let fits = |decl: &InputDecl, view: &View<'_>| {
            decl.meta.dtype == view.dtype() && decl.meta.shape.elements() == view.len()
        };
        let pair = |i: usize| (self.inputs.get(i), inputs.get(i));
        match (0..count).map(pair).find(|pair| !matches!(pair, (Some(decl), Some(view)) if fits(decl, view))) {
            Some((decl, view)) => Err(self.mismatch(decl, view)),
            None => Ok(()),
        }
    }

    fn mismatch(&self, decl: Option<&InputDecl>, view: Option<&View<'_>>) -> GraphError {
        let given = view.unwrap_or(&View::Bool(&[]));
        let (name, wanted) = match decl {
            Some(decl) => (decl.name.as_str(), decl.meta.clone()),
            None => ("(none: there are fewer inputs)", Meta::new(given.dtype(), [0])),
        };
        GraphError::Mismatch {
            what: format!("input `{name}` of program {}", self.program),
            dtype: wanted.dtype,
            shape: wanted.shape,
            got_dtype: given.dtype(),
            got_shape: [given.len()].into(),
        }
    }

    /// Records the start of a run: until it ends, there are no outputs.
    pub fn begin(&mut self) {
        self.ran = false;
    }

    /// Records that a run has ended, or is queued completely.
    pub fn end(&mut self) {
        self.ran = true;
    }

    /// Dtype and shape of output `output` of the last run.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] when there is no such output, or the program has not run.
    pub fn output(&self, output: usize) -> Result<&Meta, GraphError> {
        match self.outputs.get(output).filter(|_| self.ran) {
            Some((_, meta)) => Ok(meta),
            None => Err(GraphError::Unknown {
                kind: "output",
                name: if self.ran { output.to_string() } else { format!("{output} (the program has not run)") },
                known: self.outputs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

/// The program `program` of an executable.
///
/// # Errors
/// [`GraphError::Unknown`] when the index is not below the number of programs.
pub fn find_program<P>(programs: &mut [P], program: usize) -> Result<&mut P, GraphError> {
    let count = programs.len();
    programs.get_mut(program).ok_or_else(|| GraphError::Unknown {
        kind: "program",
        name: program.to_string(),
        known: format!("0..{count}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, DType};

    fn interface() -> Interface {
        let b = Builder::new("sum");
        let (x, y) = (b.input("x", DType::F32, [2]), b.input("y", DType::F32, []));
        b.output("z", x + y);
        Interface::new(&b.finish().expect("it is well formed"))
    }

    #[test]
    fn first_inputs_may_be_fewer_but_must_fit() {
        let interface = interface();
        let (x, y) = (View::F32(&[1.0, 2.0]), View::F32(&[3.0]));
        assert_eq!(interface.check_inputs(&[x, y]), Ok(()));
        assert_eq!(interface.check_first_inputs(&[x]), Ok(()));
        let misfit = |result: Result<(), GraphError>| result.expect_err("it does not fit").to_string();
        assert!(misfit(interface.check_inputs(&[x])).contains("input `y`"));
        assert!(misfit(interface.check_first_inputs(&[y])).contains("input `x`"));
        assert!(misfit(interface.check_inputs(&[x, y, View::F32(&[])])).contains("fewer inputs"));
    }

    #[test]
    fn outputs_are_those_of_a_finished_run() {
        let mut interface = interface();
        assert!(interface.output(0).expect_err("no run").to_string().contains("has not run"));
        interface.end();
        assert_eq!(interface.output(0), Ok(&Meta::new(DType::F32, [2])));
        assert!(interface.output(1).is_err());
        interface.begin();
        assert!(interface.output(0).is_err(), "a run that has begun has no outputs yet");
    }
}
