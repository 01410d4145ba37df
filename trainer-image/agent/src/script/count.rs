//! The steps of a script, as its output counts them: anew in each epoch, or among those of other progress bars.
//!
//! A step that is smaller than the one before begins a new count: the next epoch, or something that is no training,
//! such as a download, a tokenizer or an evaluation that draws a bar. A count is training
//! - once a loss was read in it, where the pattern has the group `loss`;
//! - where it has none, if it is the first one, or as long as the one before;
//! - if its lines name a later epoch.
//!
//! Until then its readings are kept. They are dropped when another count begins, or when the one before is continued.
//! The first count of a launch that is not measured counts at once, so that its progress is seen, and is withdrawn if
//! another one begins.

use std::time::Instant;

/// Maximum number of readings that are kept.
const KEPT: usize = 4096;

/// A point at which steps and time are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) step: u64,
    pub(super) items: u64,
    pub(super) at: Instant,
}

impl Mark {
    fn after(self, (step, items): (u64, u64)) -> Self {
        Self { step: self.step.saturating_add(step), items: self.items.saturating_add(items), at: self.at }
    }
}

/// What a reading adds to the training.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Placed {
    /// Points since the beginning of the training, in order.
    pub(super) marks: Vec<Mark>,
    /// Whether the reading is one of the training.
    pub(super) is_training: bool,
    /// Whether all that was counted before was no training.
    pub(super) withdraws: bool,
}

/// Where a launch resumed, of a script that counts anew in each epoch.
#[derive(Clone, Copy, Debug)]
struct Resumed {
    step: u64,
    items: u64,
    /// Steps of an epoch.
    length: u64,
}

impl Resumed {
    /// Steps and items before the count in which `first` is the first reading.
    fn base(self, first: u64) -> (u64, u64) {
        // A checkpoint without a number counts as one of the step after the newest reading.
        let within = Some(self.step % self.length).filter(|within| *within > 1).unwrap_or(0);
        let step = self.step - self.step % self.length + within;
        let base = if within == 0 || first > within { step - within } else { step - within + self.length };
        // As many items a step as before.
        let items = u128::from(self.items) * u128::from(base) / u128::from(self.step.max(1));
        (base, u64::try_from(items).unwrap_or(u64::MAX))
    }
}

/// The count of a launch.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// Whether lines of training may report a loss.
    has_losses: bool,
    /// Whether the first count counts before a loss was read.
    is_trusting: bool,
    /// Whether a loss was read.
    has_read_loss: bool,
    /// Steps and items before the present count.
    base: (u64, u64),
    /// The newest reading of the present count, as it was read.
    newest: Option<Mark>,
    epoch: Option<u64>,
    /// Steps of the count before.
    length: Option<u64>,
    resumed: Option<Resumed>,
    /// Readings of a later count, as they were read, while it may be something else than training.
    pending: Vec<Mark>,
    /// Largest number of steps between two of them.
    gap: u64,
    /// Whether a count began anew, and only its numbers say that it is training.
    pub(super) is_unproven: bool,
}

impl Count {
    /// `has_losses`: whether lines of training may report a loss. `is_trusting`: whether the first count counts before
    /// one was read.
    pub(super) fn new(has_losses: bool, is_trusting: bool) -> Self {
        Self { has_losses, is_trusting, ..Self::default() }
    }

    /// Notes where the launch resumes. `length`: steps of an epoch, if the script counts anew in each.
    pub(super) fn resumes(&mut self, (step, items): (u64, u64), length: Option<u64>) {
        let length = length.filter(|length| *length > 0);
        self.resumed = length.filter(|_| step > 0).map(|length| Resumed { step, items, length });
        self.length = length;
    }

    /// Steps of an epoch, if the script counts anew in each.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// The newest step that was read and may be something else than training.
    pub(super) fn pending(&self) -> Option<u64> {
        self.pending.last().map(|mark| mark.step)
    }

    /// Whether steps without a loss are no training.
    pub(super) fn has_losses(&self) -> bool {
        self.has_losses
    }

    /// The position of a line that reports steps or items of its own, such as one of validation: since the beginning of
    /// the epoch or of the training, whatever is nearer to `newest`.
    pub(super) fn absolute(&self, (step, items): (u64, u64), newest: u64) -> (u64, u64) {
        let later = (step.saturating_add(self.base.0), items.saturating_add(self.base.1));
        if later.0.abs_diff(newest) < step.abs_diff(newest) { later } else { (step, items) }
    }

    /// A loss without steps: it is that of the present count.
    pub(super) fn confirm(&mut self) -> Placed {
        self.has_read_loss = true;
        self.confirm_if(true)
    }

    /// Adds a reading, as it was read. `has_loss`: whether the line reports a loss.
    pub(super) fn add(&mut self, read: Mark, epoch: Option<u64>, has_loss: bool) -> Placed {
        let later = match (self.epoch, epoch) {
            (Some(old), Some(new)) if new < old => return Placed::default(),
            (Some(old), Some(new)) => Some(new > old),
            _ => None,
        };
        self.epoch = epoch.or(self.epoch);
        let had_loss = self.has_read_loss;
        self.has_read_loss |= has_loss;
        let Some(newest) = self.newest else {
            if self.pending.last().is_some_and(|last| read.step < last.step) {
                self.pending.clear();
            }
            self.keep(read);
            return self.confirm_if(has_loss || !self.has_losses || self.is_trusting);
        };
        if self.has_losses && !had_loss && read.step < newest.step {
            (self.newest, self.base) = (None, (0, 0));
            self.keep(read);
            return Placed { withdraws: true, ..self.confirm_if(true) };
        }
        if self.pending.is_empty() {
            return match later {
                _ if read.step > newest.step => self.proceed(read),
                // Of an epoch of one step.
                Some(true) => {
                    self.keep(read);
                    self.confirm_if(true)
                }
                _ if read.step == newest.step => self.proceed(read),
                // Not a new count: the epoch is the same.
                Some(false) => Placed::default(),
                None => {
                    self.keep(read);
                    self.confirm_if(has_loss)
                }
            };
        }
        let last = self.pending.last().map_or(0, |last| last.step);
        let fits = read.step >= last && read.step - last <= self.gap;
        // Something else, such as an evaluation, had a bar of its own.
        if read.step > newest.step && (read.step < last || (last <= newest.step && !fits)) {
            self.pending.clear();
            return self.proceed(read);
        }
        if read.step < last {
            self.pending.clear();
        }
        self.keep(read);
        self.confirm_if(has_loss || later == Some(true) || (!self.has_losses && read.step >= newest.step))
    }

    fn proceed(&mut self, read: Mark) -> Placed {
        self.newest = Some(read);
        Placed { marks: vec![read.after(self.base)], is_training: true, withdraws: false }
    }

    fn keep(&mut self, read: Mark) {
        self.gap = match self.pending.last() {
            Some(last) => self.gap.max(read.step.saturating_sub(last.step)),
            None => read.step.max(1),
        };
        if self.pending.len() >= KEPT {
            let mut index = 0;
            self.pending.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        self.pending.push(read);
    }

    fn confirm_if(&mut self, is_training: bool) -> Placed {
        if !is_training {
            return Placed::default();
        }
        Placed { marks: self.accept(), is_training, withdraws: false }
    }

    /// The readings that are kept are those of the training.
    fn accept(&mut self) -> Vec<Mark> {
        let (Some(first), Some(last)) = (self.pending.first().copied(), self.pending.last().copied()) else {
            return Vec::new();
        };
        match (self.newest, self.resumed) {
            // Longer than an epoch: something else was as long as the training so far.
            (Some(newest), _) if self.has_losses && last.step > newest.step => {
                self.pending.clear();
                return self.proceed(last).marks;
            }
            (Some(newest), _) => {
                self.base = (self.base.0.saturating_add(newest.step), self.base.1.saturating_add(newest.items));
                self.length = Some(newest.step);
                self.is_unproven |= !self.has_losses && self.epoch.is_none();
            }
            (None, Some(resumed)) if first.step <= resumed.step => self.base = resumed.base(first.step),
            (None, _) => {}
        }
        self.newest = Some(last);
        let base = self.base;
        self.pending.drain(..).map(|mark| mark.after(base)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps since the beginning after each line: its step, its epoch, whether it has a loss. `None`: it is not (yet)
    /// training.
    fn counted(count: &mut Count, lines: &[(u64, Option<u64>, bool)]) -> Vec<Option<u64>> {
        let at = Instant::now();
        let mut added = |&(step, epoch, has_loss): &(u64, Option<u64>, bool)| {
            count.add(Mark { step, items: 8 * step, at }, epoch, has_loss)
        };
        lines.iter().map(|line| added(line).marks.last().map(|mark| mark.step)).collect()
    }

    fn plain(steps: &[u64], has_loss: bool) -> Vec<(u64, Option<u64>, bool)> {
        steps.iter().map(|step| (*step, None, has_loss)).collect()
    }

    #[test]
    fn a_smaller_step_with_a_loss_is_the_next_epoch() {
        let mut count = Count::new(true, false);
        assert_eq!(counted(&mut count, &plain(&[1, 2, 3, 1, 2, 3, 1], true)), [1, 2, 3, 4, 5, 6, 7].map(Some));
        assert_eq!(count.length(), Some(3));
        // Losses every other step; a bar of its own for each epoch.
        let mut rare = Count::new(true, false);
        let lines = [(1, None, false), (2, None, true), (3, None, false), (1, None, false), (2, None, true)];
        assert_eq!(counted(&mut rare, &lines), [None, Some(2), Some(3), None, Some(5)]);
    }

    #[test]
    fn bars_of_other_things_are_no_training() {
        let mut count = Count::new(true, false);
        // Weights, a tokenizer, and then the training.
        assert_eq!(counted(&mut count, &plain(&[28, 1000, 2000, 0, 1], false)), [None; 5]);
        assert_eq!(counted(&mut count, &plain(&[2, 3], true)), [Some(2), Some(3)]);
        assert_eq!(count.pending(), None);
        // Evaluations, shorter and longer than the training so far, or as long.
        for (bar, next) in [(vec![0, 1, 2], 4), (vec![0, 2, 4, 6, 8], 5), (vec![1, 2, 3, 4, 5], 6)] {
            assert_eq!(counted(&mut count, &plain(&bar, false)).last(), Some(&None), "{bar:?}");
            assert_eq!(counted(&mut count, &plain(&[next], true)), [Some(next)], "{bar:?}");
        }
    }

    #[test]
    fn a_first_count_that_is_trusted_is_withdrawn_when_another_begins() {
        let mut count = Count::new(true, true);
        assert_eq!(counted(&mut count, &plain(&[28, 1000, 2000], false)), [28, 1000, 2000].map(Some));
        let mark = Mark { step: 1, items: 8, at: Instant::now() };
        let placed = count.add(mark, None, false);
        assert!(placed.withdraws && placed.marks == [mark], "{placed:?}");
        assert_eq!(counted(&mut count, &plain(&[2, 3], true)), [2, 3].map(Some));
        assert!(!count.add(mark, None, true).withdraws, "the next epoch");
    }

    #[test]
    fn without_losses_a_count_as_long_as_the_one_before_is_an_epoch() {
        let mut count = Count::new(false, false);
        assert_eq!(
            counted(&mut count, &plain(&[1, 2, 3, 1, 2, 3, 1], false)),
            [Some(1), Some(2), Some(3), None, None, Some(6), None]
        );
        assert!(count.is_unproven);
        let mut evaluated = Count::new(false, false);
        assert_eq!(
            counted(&mut evaluated, &plain(&[8, 9, 0, 1, 10, 11], false)),
            [Some(8), Some(9), None, None, Some(10), Some(11)]
        );
        assert!(!evaluated.is_unproven);
    }

    #[test]
    fn a_later_epoch_begins_a_new_count_and_an_earlier_one_does_not() {
        let mut count = Count::new(false, false);
        let lines =
            [(1, 0), (2, 0), (1, 1), (2, 1), (1, 1), (2, 2), (9, 1)].map(|(step, epoch)| (step, Some(epoch), false));
        assert_eq!(
            counted(&mut count, &lines),
            [Some(1), Some(2), Some(3), Some(4), None, Some(6), None],
            "the epoch is named"
        );
        assert!(!count.is_unproven);
        // Steps that go on over the epochs.
        let mut global = Count::new(true, false);
        let lines = [(1, 0), (2, 0), (3, 1), (4, 1)].map(|(step, epoch)| (step, Some(epoch), true));
        assert_eq!(counted(&mut global, &lines), [1, 2, 3, 4].map(Some));
    }

    #[test]
    fn a_resumed_script_that_counts_anew_is_where_its_checkpoint_was() {
        for (step, first, expected) in
            [(150, 1, 151), (151, 1, 151), (150, 10, 160), (175, 26, 176), (175, 1, 201), (150, 151, 151)]
        {
            let mut count = Count::new(true, false);
            count.resumes((step, 8 * step), Some(50));
            assert_eq!(counted(&mut count, &plain(&[first], true)), [Some(expected)], "{step} {first}");
        }
        // One of which that is not known has begun from nothing.
        let mut count = Count::new(true, false);
        count.resumes((150, 1200), None);
        assert_eq!(counted(&mut count, &plain(&[1], true)), [Some(1)]);
    }

    #[test]
    fn the_position_of_a_validation_is_the_nearer_one() {
        let mut count = Count::new(true, false);
        counted(&mut count, &plain(&[1, 50, 1, 50], true));
        assert_eq!(count.absolute((50, 400), 100), (100, 800));
        assert_eq!(count.absolute((100, 800), 100), (100, 800));
        assert_eq!(count.absolute((10, 80), 100).0, 60);
    }
}
