//! Points of a Sobol sequence with Owen scrambling.

use super::Study;
use crate::random::key;
use crate::space::Point;

/// Length of the sequence.
const POINTS: u32 = 1 << 16;
/// Dimensions of the sequence.
const DIMENSIONS: usize = 256;

/// The point of trial `number`: that with this index among the points of the sequence that satisfy the constraints.
pub(super) fn sobol(study: &Study, number: u32) -> Option<Point> {
    let seed = (key(study.seed, &[u64::from(study.stage)]) >> 32) as u32;
    let points = (0..POINTS).map(|index| {
        study.space.assemble(|dimension, parameter| {
            let share = sobol_burley::sample(index, (dimension % DIMENSIONS) as u32, seed);
            parameter.domain.at(f64::from(share))
        })
    });
    points.filter(|point| study.space.permits(point)).nth(number as usize)
}
