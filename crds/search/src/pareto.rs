//! Several objectives, as losses: dominance, fronts, hypervolume.

/// Whether `a` is at least as good as `b` in every loss and better in one.
pub fn dominates(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b) && a.iter().zip(b).any(|(a, b)| a < b)
}

/// Indices of the non-dominated points, ascending. Equal points do not dominate each other.
pub fn front(losses: &[Vec<f64>]) -> Vec<usize> {
    (0..losses.len()).filter(|&i| !losses.iter().any(|other| dominates(other, &losses[i]))).collect()
}

/// The number of each point's front: 0 for the non-dominated points, 1 for those that are non-dominated without them,
/// ...
pub fn ranks(losses: &[Vec<f64>]) -> Vec<usize> {
    let mut ranks = vec![usize::MAX; losses.len()];
    let mut left: Vec<usize> = (0..losses.len()).collect();
    for rank in 0.. {
        if left.is_empty() {
            break;
        }
        let remaining: Vec<_> = left.iter().map(|&index| losses[index].clone()).collect();
        for index in front(&remaining) {
            ranks[left[index]] = rank;
        }
        left.retain(|&index| ranks[index] == usize::MAX);
    }
    ranks
}

/// Area that two losses dominate up to `reference`, the worst value of each. Points beyond it count as nothing.
pub fn hypervolume(losses: &[[f64; 2]], reference: [f64; 2]) -> f64 {
    let mut inside: Vec<_> = losses.iter().filter(|l| l[0] < reference[0] && l[1] < reference[1]).collect();
    inside.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let mut area = 0.0;
    let mut height = reference[1];
    for point in inside {
        if point[1] < height {
            area += (reference[0] - point[0]) * (height - point[1]);
            height = point[1];
        }
    }
    area
}

/// A total preorder of points, smaller is better: the front's number plus a share below 1 that grows with the crowding
/// in the front (Deb's crowding distance).
pub(crate) fn order(losses: &[Vec<f64>]) -> Vec<f64> {
    let ranks = ranks(losses);
    let mut order: Vec<f64> = ranks.iter().map(|&rank| rank as f64).collect();
    for rank in 0..=ranks.iter().copied().max().unwrap_or(0) {
        let members: Vec<usize> = (0..losses.len()).filter(|&index| ranks[index] == rank).collect();
        for (&index, distance) in members.iter().zip(crowding(losses, &members)) {
            order[index] += 0.5 / (1.0 + distance);
        }
    }
    order
}

/// Crowding distance of each member: infinite at the ends of a front.
fn crowding(losses: &[Vec<f64>], members: &[usize]) -> Vec<f64> {
    let mut distances = vec![0.0; members.len()];
    let objectives = losses.first().map_or(0, Vec::len);
    for values in (0..objectives).map(|objective| members.iter().map(|&m| losses[m][objective]).collect::<Vec<_>>()) {
        let mut sorted: Vec<usize> = (0..members.len()).collect();
        sorted.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { continue };
        let width = values[last] - values[first];
        distances[first] = f64::INFINITY;
        distances[last] = f64::INFINITY;
        for three in sorted.windows(3) {
            if width > 0.0 {
                distances[three[1]] += (values[three[2]] - values[three[0]]) / width;
            }
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fronts_of_a_small_set() {
        let losses = [[1.0, 5.0], [2.0, 2.0], [5.0, 1.0], [3.0, 3.0], [6.0, 6.0], [2.0, 2.0]].map(Vec::from);
        assert_eq!(front(&losses), [0, 1, 2, 5]);
        assert_eq!(ranks(&losses), [0, 0, 0, 1, 2, 0]);
        let order = order(&losses);
        assert!(order[0] < order[1] && order[1] < order[3] && order[3] < order[4], "{order:?}");
    }

    #[test]
    fn hypervolume_of_a_staircase() {
        let points = [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [2.5, 2.5], [9.0, 0.0]];
        assert_eq!(hypervolume(&points, [4.0, 4.0]), 3.0 + 2.0 + 1.0);
        assert_eq!(hypervolume(&[], [4.0, 4.0]), 0.0);
    }

    proptest! {
        #[test]
        fn every_point_outside_of_the_front_is_dominated_by_one_in_it(
            points in prop::collection::vec(prop::collection::vec(0u8..6, 3), 1..30),
        ) {
            let losses: Vec<Vec<f64>> = points.iter().map(|p| p.iter().map(|&v| f64::from(v)).collect()).collect();
            let front = front(&losses);
            for index in 0..losses.len() {
                let dominated = front.iter().any(|&better| dominates(&losses[better], &losses[index]));
                prop_assert_eq!(dominated, !front.contains(&index));
            }
        }

        #[test]
        fn a_further_point_never_lowers_the_hypervolume(points in prop::collection::vec((0u8..9, 0u8..9), 1..12)) {
            let losses: Vec<[f64; 2]> = points.iter().map(|&(a, b)| [f64::from(a), f64::from(b)]).collect();
            let areas: Vec<f64> = (0..=losses.len()).map(|n| hypervolume(&losses[..n], [8.0, 8.0])).collect();
            prop_assert!(areas.is_sorted());
            // The cells of the unit grid that a point dominates, counted one by one.
            let cells = (0..64).filter(|cell| losses.iter().any(|l| l[0] <= f64::from(cell / 8) && l[1] <= f64::from(cell % 8)));
            prop_assert_eq!(*areas.last().unwrap(), cells.count() as f64);
        }
    }
}
