//! All points of a discrete space, in lexicographic order, and those that are left.

use crate::random::Draws;
use crate::space::{Point, Space};
use std::ops::ControlFlow;

/// The point with this index, of those that satisfy the constraints and are not `taken`.
pub(super) fn nth(space: &Space, taken: impl Fn(&Point) -> bool, index: u32) -> Option<Point> {
    let mut left = index;
    let found = visit(space, 0, &mut Point::new(), &mut |point| {
        if !space.permits(point) || taken(point) {
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

/// One of the points that satisfy the constraints and are not `taken`, each as likely; `None` if there is none.
pub(super) fn remaining(space: &Space, taken: impl Fn(&Point) -> bool, draws: &mut Draws) -> Option<Point> {
    let (mut chosen, mut count) = (None, 0.0);
    let _ = visit(space, 0, &mut Point::new(), &mut |point| {
        if space.permits(point) && !taken(point) {
            count += 1.0;
            if draws.uniform() * count < 1.0 {
                chosen = Some(point.clone());
            }
        }
        ControlFlow::<Point>::Continue(())
    });
    chosen
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
