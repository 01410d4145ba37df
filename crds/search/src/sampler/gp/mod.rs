//! Gaussian process with a Matérn 5/2 kernel, a length scale for each parameter, and the logarithm of expected
//! improvement.
//!
//! - J. Snoek, H. Larochelle, R. Adams: Practical Bayesian Optimization of Machine Learning Algorithms. NeurIPS 2012.
//! - S. Ament et al.: Unexpected Improvements to Expected Improvement for Bayesian Optimization. NeurIPS 2023.
//!
//! The priors of length scales and noise are those of Optuna's sampler: on functions of two to six parameters they were
//! better than a prior that expects long scales (C. Hvarfner et al., ICML 2024), which `tests/search/compare gp` shows.
//!
//! An infeasible observation counts as the worst known loss, a running trial as the model's own prediction. Trials that
//! were ended early are ignored: their losses are not comparable with final ones.

mod acquisition;
mod linear;
mod minimize;
mod process;
mod surface;

use crate::history::{Loss, Observation};
use crate::random::Draws;
use crate::space::{Point, Space};
use process::Process;
use surface::Surface;

/// Observations before the first model.
const STARTUP: usize = 10;

/// The next point, or `None` with too few observations.
pub(super) fn propose(space: &Space, observed: &[Observation], draws: &mut Draws) -> Option<Point> {
    let surface = Surface::new(space);
    let worst = observed.iter().filter_map(final_loss).fold(f64::NEG_INFINITY, f64::max);
    let (mut inputs, mut scores) = (Vec::new(), Vec::new());
    for observation in observed {
        let loss = match observation.loss {
            Loss::Final(loss) => loss,
            Loss::Infeasible => worst,
            Loss::Partial { .. } | Loss::Pending => continue,
        };
        inputs.push(surface.coordinates(&observation.point));
        scores.push(-loss);
    }
    if inputs.len() < STARTUP || !worst.is_finite() {
        return None;
    }
    standardize(&mut scores);
    let mut process = Process::fit(surface.discrete(), inputs, scores)?;
    for observation in observed.iter().filter(|observation| observation.loss == Loss::Pending) {
        process = process.believe(surface.coordinates(&observation.point))?;
    }
    acquisition::best(space, &surface, &process, observed, draws)
}

fn final_loss(observation: &Observation) -> Option<f64> {
    match observation.loss {
        Loss::Final(loss) => Some(loss),
        Loss::Partial { .. } | Loss::Infeasible | Loss::Pending => None,
    }
}

/// Scales to mean 0 and standard deviation 1.
fn standardize(scores: &mut [f64]) {
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let deviation = libm::sqrt(scores.iter().map(|score| (score - mean) * (score - mean)).sum::<f64>() / count);
    for score in scores {
        *score = (*score - mean) / deviation.max(1e-12);
    }
}
