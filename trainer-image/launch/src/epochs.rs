//! Duration of epochs.

use std::time::{Duration, Instant};

/// Times epochs from end to end; the end of an epoch is noticed at the first position beyond it.
#[derive(Clone, Copy, Debug)]
pub struct EpochClock {
    /// Items of an epoch.
    items: u64,
    /// Number of the current epoch.
    epoch: u64,
    /// When it began; `None` when it began before this launch, as after resuming within an epoch.
    began: Option<Instant>,
    newest: Option<Duration>,
}

impl EpochClock {
    /// Starts at `position` seen items, for epochs of `items` items.
    pub fn start(items: u64, position: u64) -> Self {
        let items = items.max(1);
        let began = position.is_multiple_of(items).then(Instant::now);
        Self { items, epoch: position / items, began, newest: None }
    }

    /// Continues to `position` seen items. Returns the duration of an epoch if one that was timed from its start has
    /// ended: the mean, if several have.
    pub fn reached(&mut self, position: u64) -> Option<Duration> {
        let ended = (position / self.items).saturating_sub(self.epoch);
        if ended == 0 {
            return None;
        }
        let began = self.began.replace(Instant::now());
        self.epoch += ended;
        let took = began?.elapsed().div_f64(ended as f64);
        self.newest = Some(took);
        self.newest
    }

    /// Duration of the newest complete epoch.
    pub fn newest(&self) -> Option<Duration> {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    #[test]
    fn an_epoch_is_timed_from_its_first_step_to_its_last() {
        let mut clock = EpochClock::start(100, 0);
        std::thread::sleep(PAUSE);
        assert_eq!((clock.reached(99), clock.newest()), (None, None));
        std::thread::sleep(PAUSE);
        // Batches need not divide an epoch.
        let first = clock.reached(104).unwrap();
        assert!(first >= 2 * PAUSE);
        assert_eq!((clock.reached(104), clock.newest()), (None, Some(first)), "once");
        std::thread::sleep(PAUSE);
        let second = clock.reached(200).unwrap();
        assert!(second >= PAUSE && clock.newest() == Some(second));
    }

    #[test]
    fn a_step_of_several_epochs_counts_as_each_of_them() {
        let mut clock = EpochClock::start(10, 0);
        let before = Instant::now();
        std::thread::sleep(4 * PAUSE);
        let each = clock.reached(40).unwrap();
        assert!(each >= PAUSE && each <= before.elapsed() / 4);
    }

    #[test]
    fn an_epoch_that_began_before_the_launch_is_not_timed() {
        let mut clock = EpochClock::start(100, 150);
        assert_eq!((clock.reached(200), clock.newest()), (None, None));
        assert!(clock.reached(300).is_some());
    }
}
