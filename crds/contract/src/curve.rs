//! The loss curve of a launch in four numbers: what a decision compares between two launches.

/// Maximum points of the curve in a report.
const POINTS: u64 = 64;
/// Numbers that summarize a curve.
const QUARTERS: usize = 4;

/// Mean training loss of each quarter of the launch, from the losses of its curve: fewer numbers if there are fewer of
/// them.
///
/// ```
/// use pawl_contract::curve::quarters;
///
/// assert_eq!(quarters(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), [1.5, 3.5, 5.5, 7.5]);
/// ```
pub fn quarters(losses: &[f64]) -> Vec<f64> {
    let begin = |quarter: usize| losses.len() * quarter / QUARTERS;
    let parts = (0..QUARTERS).map(|quarter| &losses[begin(quarter)..begin(quarter + 1)]);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    parts.filter(|part| !part.is_empty()).map(mean).collect()
}

/// As [`quarters`], of the points (items and loss) of a launch that ended before all of its `planned_items`: those
/// quarters of the complete launch that it has trained. They are the same steps as in a launch that was complete, whose
/// curve may have half as many points.
///
/// ```
/// use pawl_contract::curve::complete_quarters;
///
/// let points: Vec<_> = (1..=18).map(|step| (8 * step, step as f64)).collect();
/// assert_eq!(complete_quarters(&points, 8 * 70), [8.5], "steps 1 to 16 of 70");
/// assert_eq!(complete_quarters(&points, 8 * 20).len(), 3);
/// ```
pub fn complete_quarters(points: &[(u64, f64)], planned_items: u64) -> Vec<f64> {
    let Some(spacing) = points.first().map(|(items, _)| *items).filter(|items| *items > 0) else { return Vec::new() };
    let ends = quarter_ends(planned_items.div_ceil(spacing));
    let begins = std::iter::once(0).chain(ends);
    let parts = begins.zip(ends).filter(|(begin, end)| begin < end);
    let mean = |part: &[(u64, f64)]| part.iter().map(|(_, loss)| loss).sum::<f64>() / part.len() as f64;
    parts.map_while(|(begin, end)| Some(mean(points.get(begin as usize..end as usize)?))).collect()
}

/// The steps of a launch of `steps` steps after which a quarter of its curve ends, all but the last quarter.
fn quarter_ends(steps: u64) -> [u64; QUARTERS - 1] {
    let mut stride = 1;
    while steps / stride >= POINTS {
        stride *= 2;
    }
    let points = steps.div_ceil(stride);
    std::array::from_fn(|index| points * (index as u64 + 1) / QUARTERS as u64 * stride)
}

/// Whether step number `step` of a launch of `steps` steps is the last one before a quarter of its curve. Trainers that
/// read losses at times read them after these steps too, so that launches of different speeds are compared by the same
/// steps.
///
/// ```
/// use pawl_contract::curve::ends_quarter;
///
/// let ends = |steps| (1..=steps).filter(|step| ends_quarter(*step, steps)).collect::<Vec<u64>>();
/// assert_eq!(ends(60), [15, 30, 45]);
/// assert_eq!(ends(100), [24, 50, 74], "of which every second point is kept");
/// ```
pub fn ends_quarter(step: u64, steps: u64) -> bool {
    quarter_ends(steps).contains(&step)
}
