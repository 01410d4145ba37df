//! How much training the faults cost: items that were trained more than once.

use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use std::sync::Mutex;
use std::time::Instant;

/// The training of a job, as its agents report it.
#[derive(Debug, Default)]
pub struct Tracker {
    current: Option<Gang>,
    /// The losses so far.
    pub losses: Vec<Loss>,
}

/// What is known of the newest gang that trained.
#[derive(Debug)]
struct Gang {
    attempt: String,
    launch: String,
    items: u64,
    /// When it had these items.
    at: Instant,
    /// The highest speed seen, items per second.
    speed: f64,
    /// Items of a step.
    step: u64,
}

/// Items that a gang trained after the checkpoint from which the next one resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The gang that was lost.
    pub attempt: String,
    /// The items.
    pub items: u64,
    /// Items between two checkpoints, at the highest speed seen.
    pub interval: u64,
}

impl Gang {
    fn new(attempt: &str, progress: &Progress, at: Instant) -> Self {
        Self {
            attempt: attempt.to_owned(),
            launch: progress.launch.clone(),
            items: progress.items,
            at,
            speed: progress.items_per_second.unwrap_or(0.0),
            step: progress.items.checked_div(progress.step).unwrap_or(0),
        }
    }

    fn see(&mut self, progress: &Progress, at: Instant) {
        if progress.items <= self.items {
            return;
        }
        let seconds = at.saturating_duration_since(self.at).as_secs_f64();
        let observed = (progress.items - self.items) as f64 / seconds.max(1.0);
        self.speed = self.speed.max(observed).max(progress.items_per_second.unwrap_or(0.0));
        (self.items, self.at) = (progress.items, at);
    }
}

impl Tracker {
    /// Takes note of an attempt's progress at a time; `every` is the longest time between two checkpoints in seconds.
    /// Gives what was lost when this gang is another one.
    pub fn see(&mut self, attempt: &str, progress: &Progress, every: f64, at: Instant) -> Option<Loss> {
        // Before its first step, a trainer that resumes may not know where.
        if progress.kind != LaunchKind::Train || progress.items == 0 {
            return None;
        }
        if let Some(gang) = self.current.as_mut().filter(|gang| gang.attempt == attempt) {
            gang.see(progress, at);
            return None;
        }
        let mut gang = Gang::new(attempt, progress, at);
        if let Some(before) = self.current.as_ref().filter(|before| before.launch == gang.launch) {
            // A gang that is lost soon was seen in its first steps only.
            gang.speed = gang.speed.max(before.speed);
        }
        let lost = self.current.replace(gang)?;
        let checkpoint = progress.last_checkpoint.as_ref().map_or(u64::MAX, |checkpoint| checkpoint.items);
        let items = lost.items.saturating_sub(progress.items.min(checkpoint));
        let interval = (lost.speed * every).ceil() as u64 + 2 * lost.step;
        // With other settings it resumes where the job's guard wants it to.
        (lost.launch == progress.launch).then(|| {
            let loss = Loss { attempt: lost.attempt, items, interval };
            self.losses.push(loss.clone());
            loss
        })
    }
}

/// Useful and repeated training of all jobs.
#[derive(Debug, Default)]
pub struct Goodput(Mutex<[f64; 2]>);

impl Goodput {
    /// A training of `items` ended, of which `lost` were trained again. Trainings count alike, whatever an item is.
    pub fn ended(&self, items: u64, lost: u64) {
        if items > 0 {
            let mut totals = self.0.lock().unwrap();
            totals[0] += 1.0;
            totals[1] += lost as f64 / items as f64;
        }
    }

    /// Share of the training that was useful, 0 to 1; `None` before the first training.
    pub fn share(&self) -> Option<f64> {
        let [useful, lost] = *self.0.lock().unwrap();
        (useful > 0.0).then(|| useful / (useful + lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::checkpoint::CheckpointRef;
    use std::time::Duration;

    fn progress(launch: &str, items: u64, checkpoint: Option<u64>) -> Progress {
        let checkpoint = checkpoint.map(|items| CheckpointRef { name: items.to_string(), step: items / 8, items });
        Progress {
            step: items / 8,
            items,
            items_per_second: Some(100.0),
            last_checkpoint: checkpoint,
            ..Progress::at_start(launch, LaunchKind::Train)
        }
    }

    #[test]
    fn what_is_trained_again_is_lost() {
        let (mut tracker, began) = (Tracker::default(), Instant::now());
        let mut see = |attempt: &str, progress: Progress, second: u64| {
            tracker.see(attempt, &progress, 2.0, began + Duration::from_secs(second))
        };
        assert_eq!(see("toy-2", progress("train-a", 80, None), 1), None);
        assert_eq!(see("toy-2", progress("train-a", 480, Some(400)), 2), None);
        assert_eq!(see("toy-3", Progress::at_start("train-a", LaunchKind::Train), 3), None, "it does not train yet");
        let lost = see("toy-3", progress("train-a", 408, Some(400)), 4);
        // The speed that was observed, 400 items a second, for two seconds, and two steps.
        assert_eq!(lost, Some(Loss { attempt: "toy-2".to_owned(), items: 80, interval: 816 }));
        assert_eq!(see("toy-3", progress("train-a", 800, Some(800)), 5), None);
        let lost = see("toy-4", progress("train-a", 808, None), 6).unwrap();
        assert_eq!(lost.items, 0, "it resumed from the newest step");
        assert_eq!(see("toy-5", progress("train-b", 408, Some(400)), 7), None, "other settings, as the guard decided");
        assert_eq!(tracker.losses.len(), 2);
    }

    #[test]
    fn a_training_that_starts_again_lost_everything() {
        let (mut tracker, now) = (Tracker::default(), Instant::now());
        tracker.see("toy-2", &progress("train-a", 800, Some(400)), 1.0, now);
        let lost = tracker.see("toy-3", &progress("train-a", 8, None), 1.0, now).unwrap();
        assert_eq!(lost.items, 792);
        assert!(lost.items > lost.interval);
    }

    #[test]
    fn every_training_counts_alike() {
        let goodput = Goodput::default();
        assert_eq!(goodput.share(), None);
        goodput.ended(1_000_000, 0);
        goodput.ended(100, 50);
        assert_eq!(goodput.share(), Some(0.8));
    }
}
