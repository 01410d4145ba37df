//! Values that the ranks exchange after every step, so that all of them continue in the same way.

/// Vote of one rank, or the result of the gang.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote {
    /// Sum of the losses of the micro-steps.
    pub loss_sum: f64,
    /// A rank was requested to stop.
    pub stop: bool,
    /// Rank 0 wants to write a checkpoint.
    pub checkpoint: bool,
    /// Seconds of the step in which the rank did not wait for others.
    pub busy: f64,
}

impl Vote {
    /// Serializes the vote.
    pub fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[..8].copy_from_slice(&self.loss_sum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.busy.to_le_bytes());
        bytes[16] = u8::from(self.stop) | u8::from(self.checkpoint) << 1;
        bytes
    }

    /// Deserializes a vote; missing values count as zero.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let number = |at: usize| f64::from_le_bytes(std::array::from_fn(|i| byte(at + i)));
        Self { loss_sum: number(0), busy: number(8), stop: byte(16) & 1 != 0, checkpoint: byte(16) & 2 != 0 }
    }

    /// The result of the gang: sums in rank order, requests of any rank.
    pub fn of_all(votes: &[Self]) -> Self {
        Self {
            loss_sum: votes.iter().map(|vote| vote.loss_sum).sum(),
            stop: votes.iter().any(|vote| vote.stop),
            checkpoint: votes.iter().any(|vote| vote.checkpoint),
            busy: votes.iter().map(|vote| vote.busy).fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_survives_the_wire() {
        for (stop, checkpoint) in [(false, false), (true, false), (false, true), (true, true)] {
            let vote = Vote { loss_sum: 0.1 + 0.2, stop, checkpoint, busy: 1.5 };
            assert_eq!(Vote::from_bytes(&vote.to_bytes()), vote);
        }
    }
}
