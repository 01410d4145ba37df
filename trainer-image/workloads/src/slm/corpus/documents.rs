//! Positions of the documents of a split, and of the prompts in them.

use std::ops::Range;

/// Consecutive positions of a split, each of which predicts the token after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first position.
    pub start: usize,
    /// Number of positions.
    pub len: usize,
}

impl Window {
    /// Positions of the tokens that are predicted.
    pub fn targets(self) -> Range<usize> {
        self.start + 1..self.start + 1 + self.len
    }
}

/// Documents one after the other, from the first token of a split to its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Documents {
    /// One past the last token of each.
    ends: Vec<usize>,
    /// Tokens of each that follow its prompt; none: there are no prompts.
    answer: Option<usize>,
}

impl Documents {
    /// Documents with these numbers of tokens, the last `answer` of which follow a prompt.
    pub fn of_lengths(lengths: impl IntoIterator<Item = usize>, answer: Option<usize>) -> Self {
        let add = |sum: &mut usize, length| {
            *sum += length;
            Some(*sum)
        };
        Self { ends: lengths.into_iter().scan(0, add).collect(), answer }
    }

    /// Documents without prompts that end at these positions, ascending. The rest of `tokens` tokens after them is a
    /// document, too.
    pub fn ended_at(positions: impl IntoIterator<Item = usize>, tokens: usize) -> Self {
        let mut ends: Vec<usize> = positions.into_iter().map(|position| position + 1).collect();
        if ends.last().copied().unwrap_or(0) < tokens {
            ends.push(tokens);
        }
        Self { ends, answer: None }
    }

    /// Number of documents.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Positions of the tokens of document `number`.
    pub fn range(&self, number: usize) -> Range<usize> {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[number]
    }

    /// Positions of the tokens of document `number` after its prompt: empty without prompts.
    pub fn answer(&self, number: usize) -> Range<usize> {
        let end = self.ends[number];
        end - self.answer.unwrap_or(0)..end
    }

    /// Document `number`, truncated to `sequence` positions: at the beginning with a prompt, since the answer matters
    /// most, else at the end.
    pub fn window(&self, number: usize, sequence: usize) -> Window {
        let Range { start, end } = self.range(number);
        let len = (end - start).saturating_sub(1).min(sequence);
        Window { start: if self.answer.is_some() { end - 1 - len } else { start }, len }
    }

    /// The parts of `positions` inside prompts, in order.
    pub fn prompts(&self, positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = self.ends.partition_point(|&end| end <= positions.start);
        let last = if self.answer.is_some() { self.ends.len() } else { first };
        let prompt = |number| self.range(number).start..self.answer(number).start;
        (first..last)
            .map(prompt)
            .take_while(move |prompt| prompt.start < positions.end)
            .map(move |prompt| prompt.start.max(positions.start)..prompt.end.min(positions.end))
            .filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prompts_are_what_no_answer_is(lengths in prop::collection::vec(3usize..20, 1..30), start in 0usize..300, len in 0usize..90) {
            let documents = Documents::of_lengths(lengths.iter().copied(), Some(2));
            let all: Vec<bool> = lengths.iter().flat_map(|&length| (0..length).map(move |at| at + 2 < length)).collect();
            let positions = start.min(all.len())..(start + len).min(all.len());
            let mut found = vec![false; all.len()];
            for part in documents.prompts(positions.clone()) {
                found[part].fill(true);
            }
            for (at, found) in found.into_iter().enumerate() {
                prop_assert_eq!(found, all[at] && positions.contains(&at));
            }
        }

        #[test]
        fn windows_stay_in_their_document(lengths in prop::collection::vec(1usize..20, 1..30), sequence in 1usize..25) {
            for answer in [None, Some(1)] {
                let documents = Documents::of_lengths(lengths.iter().copied(), answer);
                prop_assert_eq!(documents.count(), lengths.len());
                for (number, &length) in lengths.iter().enumerate() {
                    let (range, window) = (documents.range(number), documents.window(number, sequence));
                    prop_assert_eq!((range.len(), window.len), (length, sequence.min(length - 1)));
                    prop_assert!(range.start <= window.start && window.targets().end <= range.end);
                    let kept = if answer.is_some() { window.targets().end == range.end } else { window.start == range.start };
                    prop_assert!(kept);
                }
            }
        }
    }

    #[test]
    fn ends_are_part_of_their_document() {
        let documents = Documents::ended_at([2, 3, 5], 7);
        assert_eq!(documents, Documents::of_lengths([3, 1, 2, 1], None));
        assert_eq!(Documents::ended_at([2, 3], 4), Documents::of_lengths([3, 1], None));
        assert_eq!(Documents::ended_at([], 0).count(), 0);
        assert_eq!(documents.prompts(0..7).count(), 0);
    }
}
