//! All points of a discrete space, in lexicographic order.

use crate::space::{Point, Space};
use std::ops::ControlFlow;

/// The point of trial `number`: of those that satisfy the constraints, without `accepted`, which trial 0 had.
pub(super) fn nth(space: &Space, accepted: Option<&Point>, number: u32) -> Option<Point> {
    let mut left = number - u32::from(accepted.is_some());
    let found = visit(space, 0, &mut Point::new(), &mut |point| {
        if accepted == Some(point) || !space.permits(point) {
            return ControlFlow::Continue(());
        }
        if left == 0 {
            return ControlFlow::Break(point.clone());
        }
        left -= 1;
        ControlFlow::Continue(())
    });
    match found {
        ControlFlow::Break(point) => Some(point),
        ControlFlow::Continue(()) => None,
    }
}

/// Calls `visitor` with every combination of the parameters from `index` on.
fn visit(
    space: &Space,
    index: usize,
    point: &mut Point,
    visitor: &mut impl FnMut(&Point) -> ControlFlow<Point>,
) -> ControlFlow<Point> {
    let Some(parameter) = space.parameters.get(index) else { return visitor(point) };
    if !parameter.active(point) {
        return visit(space, index + 1, point, visitor);
    }
    for value in (0..parameter.domain.size().unwrap_or(0)).filter_map(|value| parameter.domain.nth(value)) {
        point.insert(parameter.name.clone(), value);
        visit(space, index + 1, point, visitor)?;
    }
    point.remove(&parameter.name);
    ControlFlow::Continue(())
}
