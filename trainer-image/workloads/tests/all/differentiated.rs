//! Programs with their gradients as outputs.

use pawl_graph::autodiff::gradients;
use pawl_graph::graph::{Builder, Program, Role, StateDecl};

/// `program` with the gradient of its output `loss` by every parameter, as output `gradient.<parameter>`.
pub fn differentiated(program: Program) -> Program {
    let b = Builder::extend(program);
    let parameters: Vec<StateDecl> =
        b.peek(|p| p.states.iter().filter(|s| s.role == Role::Parameter).cloned().collect());
    let loss = b.peek(|p| p.output("loss")).unwrap();
    let reads: Vec<_> = parameters.iter().map(|decl| b.state(decl.clone())).collect();
    for (decl, gradient) in parameters.iter().zip(gradients(b.var(loss), &reads)) {
        b.output(&format!("gradient.{}", decl.name), gradient.expect("every parameter learns"));
    }
    b.finish().unwrap()
}
