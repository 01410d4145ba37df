//! Sums over the ranks of a gang of threads.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_graph::{
    collective::{Collective, CollectiveError, threads},
    random,
};
use proptest::prelude::*;

#[test]
fn ranks_that_leave_or_disagree_are_found_out() {
    let mut ranks = threads(2);
    drop(ranks.pop());
    assert_eq!(ranks[0].all_reduce(&mut [1.0]), Err(CollectiveError::PeerLost { rank: 1 }));
    let errors: Vec<_> = threads(2)
        .into_iter()
        .map(|rank| std::thread::spawn(move || rank.all_reduce(&mut vec![1.0; 2 + rank.rank()])))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join())
        .collect();
    assert!(errors.iter().any(|e| matches!(e, Ok(Err(_)))), "{errors:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn collectives_sum_in_rank_order(world in 1usize..5, len in 1usize..6, seed in 0u64..1000) {
        let value = move |rank: usize, i: usize| {
            random::uniform_f32(seed, (rank * 100 + i) as u64) * 10f32.powi((rank as i32 * 3 + i as i32) % 7)
        };
        let len = len * world;
        let expected: Vec<f32> =
            (0..len).map(|i| (1..world).fold(value(0, i), |sum, rank| sum + value(rank, i))).collect();
        let results: Vec<_> = threads(world)
            .into_iter()
            .map(|seat| std::thread::spawn(move || {
                let mine: Vec<f32> = (0..len).map(|i| value(seat.rank(), i)).collect();
                let mut sum = mine.clone();
                seat.all_reduce(&mut sum)?;
                let mut part = vec![0.0; len / world];
                seat.reduce_scatter(&mine, &mut part)?;
                let mut all = vec![0.0; len];
                seat.all_gather(&part, &mut all)?;
                Ok::<_, CollectiveError>((sum, all))
            }))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .collect();
        for (sum, all) in results {
            prop_assert_eq!(&sum, &expected);
            prop_assert_eq!(&all, &expected);
        }
    }
}
