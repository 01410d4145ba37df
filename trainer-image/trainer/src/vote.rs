//! Values that the ranks exchange after every step, so that all of them continue in the same way.

use pawl_launch::gpu_reading::GpuReading;

/// Vote of one rank, or the result of the gang.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote {
    /// Sum of the losses of the micro-steps.
    pub loss_sum: f64,
    /// A rank was requested to stop.
    pub stop: bool,
    /// Rank 0 wants to write a checkpoint.
    pub checkpoint: bool,
    /// The warm-up or the window of a measurement has lasted long enough on rank 0.
    pub lasted: bool,
    /// Seconds of the step in which the rank did not wait for others.
    pub busy: f64,
    /// The newest reading of its GPU.
    pub gpu: Option<GpuReading>,
}

/// Size of a vote in bytes.
const BYTES: usize = 8 * (3 + GpuReading::WORDS);

impl Vote {
    /// Serializes the vote.
    pub fn to_bytes(self) -> [u8; BYTES] {
        let flags = u8::from(self.stop) | u8::from(self.checkpoint) << 1 | u8::from(self.lasted) << 2;
        let words = [self.loss_sum, self.busy, f64::from(flags)].into_iter().chain(GpuReading::to_words(self.gpu));
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Deserializes a vote; missing values count as zero.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| f64::from_le_bytes(std::array::from_fn(|i| bytes.get(8 * at + i).copied().unwrap_or(0)));
        let flags = word(2) as u8;
        let gpu: [f64; GpuReading::WORDS] = std::array::from_fn(|i| word(3 + i));
        Self {
            loss_sum: word(0),
            busy: word(1),
            stop: flags & 1 != 0,
            checkpoint: flags & 2 != 0,
            lasted: flags & 4 != 0,
            gpu: GpuReading::of_words(&gpu),
        }
    }

    /// The result of the gang: sums in rank order, requests of any rank.
    pub fn of_all(votes: &[Self]) -> Self {
        Self {
            loss_sum: votes.iter().map(|vote| vote.loss_sum).sum(),
            stop: votes.iter().any(|vote| vote.stop),
            checkpoint: votes.iter().any(|vote| vote.checkpoint),
            lasted: votes.first().is_some_and(|vote| vote.lasted),
            busy: votes.iter().map(|vote| vote.busy).fold(0.0, f64::max),
            gpu: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_survives_the_wire() {
        for (stop, checkpoint) in [(false, false), (true, false), (false, true), (true, true)] {
            let gpu = checkpoint.then_some(GpuReading { sm_clock: 1980, xid: 63, ..GpuReading::default() });
            let vote = Vote { loss_sum: 0.1 + 0.2, stop, checkpoint, lasted: stop != checkpoint, busy: 1.5, gpu };
            assert_eq!(Vote::from_bytes(&vote.to_bytes()), vote);
        }
    }
}
