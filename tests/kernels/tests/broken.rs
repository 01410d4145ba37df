//! A kernel that does not compile ends the launch as `CompileFailed`, which a fallback answers: no GPU is needed.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_contract::exit::Outcome;
use pawl_cuda::compile::{Architecture, Compiler, Source};
use pawl_graph::executor::ExecError;
use pawl_trainer::ending::Ending;

#[test]
fn a_kernel_that_does_not_compile_is_evidence_about_the_settings() {
    let compiler = Compiler::new(Architecture::new(9, 0), None).unwrap();
    let text = "extern \"C\" __global__ void broken(float* x) { x[0] = undeclared; }".to_owned();
    let source = Source { name: "broken".to_owned(), text, options: Vec::new() };
    let error = compiler.compile(&source).unwrap_err();
    assert!(matches!(&error, ExecError::Compile { kernel, log } if kernel == "broken" && log.contains("undeclared")));
    let ending = Ending::from(error);
    assert_eq!(ending.outcome(), Outcome::CompileFailed);
    assert!(ending.to_string().contains("kernel broken does not compile"), "{ending}");
    assert!(ending.outcome().is_evidence() && ending.outcome().exit_code() == 22);
}
