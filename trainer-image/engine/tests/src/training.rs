//! Training steps of a small transformer under different settings.

use pawl_graph::{
    array::Array,
    graph::GraphError,
    optim::{AdamW, Muon, Optimizer, OptimizerKernel},
    passes::Pattern,
    recipe::{AttentionKernel, Recipe},
};

use crate::{Case, transformer};

/// A step of [`transformer`] at learning rate 1e-3.
///
/// # Errors
/// When the recipe does not fit the model.
pub fn training(recipe: &Recipe, batch: usize) -> Result<Case, GraphError> {
    let mut case = Case::new(recipe.step(&transformer(batch))?, 3);
    for (decl, array) in case.program.inputs.iter().zip(&mut case.inputs) {
        if decl.name == "learning_rate" {
            *array = Array::scalar(1e-3);
        }
    }
    Ok(case)
}

/// Recipes in float32: Muon with clipping and averages, AdamW, AdamW with fused kernels, AdamW with recomputation.
pub fn recipes() -> [Recipe; 4] {
    let muon = Muon { weight_decay: 0.03, ..Muon::default() };
    let base = Recipe::new(Optimizer { matrices: None, others: AdamW::default() });
    [
        Recipe {
            clip: Some(1.0),
            average: Some(0.99),
            ..Recipe::new(Optimizer { matrices: Some(muon), others: AdamW::default() })
        },
        base.clone(),
        Recipe { attention: AttentionKernel::Flash, kernel: OptimizerKernel::Fused, ..base.clone() },
        Recipe { recompute: vec![Pattern::new("blocks.*")], ..base },
    ]
}
