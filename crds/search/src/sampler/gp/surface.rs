//! Points of a space as vectors of the model.

use crate::space::{Axis, Domain, Parameter, Point, Space, Value};

/// What the model knows of the parameters.
pub(super) struct Surface {
    axes: Vec<(Parameter, Option<Axis>)>,
}

impl Surface {
    pub(super) fn new(space: &Space) -> Self {
        Self { axes: space.parameters.iter().map(|p| (p.clone(), Axis::of(&p.domain))).collect() }
    }

    /// One coordinate for each parameter: from 0 to 1 of a number, the index of a choice. A parameter without a value,
    /// of a point of an earlier search, is in the middle.
    pub(super) fn coordinates(&self, point: &Point) -> Vec<f64> {
        let coordinate = |(parameter, axis): &(Parameter, Option<Axis>)| match (point.get(&parameter.name), axis) {
            (None, _) => 0.5,
            (Some(value), Some(axis)) => value.number().map_or(0.5, |number| axis.share(number)),
            (Some(value), None) => parameter.domain.choice(value).map_or(0.5, |index| index as f64),
        };
        self.axes.iter().map(coordinate).collect()
    }

    /// Which parameters are lists: their values are equal or not, without distance.
    pub(super) fn discrete(&self) -> Vec<bool> {
        self.axes.iter().map(|(_, axis)| axis.is_none()).collect()
    }

    /// Which parameters are continuous.
    pub(super) fn continuous(&self) -> Vec<bool> {
        self.axes.iter().map(|(parameter, _)| parameter.domain.size().is_none()).collect()
    }

    /// The point nearest to `coordinates`.
    pub(super) fn point(&self, coordinates: &[f64]) -> Point {
        let value = |(parameter, axis): &(Parameter, Option<Axis>), at: f64| match axis {
            Some(axis) => axis.at(at),
            None => parameter.domain.nth(at as usize).unwrap_or_else(|| parameter.domain.at(0.0)),
        };
        self.axes.iter().zip(coordinates).map(|(axis, at)| (axis.0.name.clone(), value(axis, *at))).collect()
    }

    /// Other values of parameter `index` to try from `coordinates`: all of a list, the nearest of a range.
    pub(super) fn neighbours(&self, coordinates: &[f64], index: usize) -> Vec<f64> {
        let (parameter, axis) = &self.axes[index];
        let Some(size) = parameter.domain.size() else { return Vec::new() };
        let others = |value: Value| match (&parameter.domain, axis) {
            (Domain::Categorical { .. }, _) | (_, None) => parameter.domain.choice(&value).map(|index| index as f64),
            (_, Some(axis)) => value.number().map(|number| axis.share(number)),
        };
        let all = |range: std::ops::Range<usize>| range.filter_map(|i| parameter.domain.nth(i).and_then(others));
        let mut values: Vec<f64> = if size <= 16 || axis.is_none() {
            all(0..size).collect()
        } else {
            // By distances of 1, 2, 4, ... values on both sides.
            let shares =
                |distance: usize| [-1.0, 1.0].map(|sign| coordinates[index] + sign * distance as f64 / size as f64);
            let near = (0..usize::BITS).map(|power| 1usize << power).take_while(|distance| *distance < size);
            near.flat_map(shares).filter(|share| (0.0..=1.0).contains(share)).collect()
        };
        values.retain(|value| *value != coordinates[index]);
        values
    }
}
