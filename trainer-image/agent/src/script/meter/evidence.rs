//! What the readings of a script are evidence of: whether its launch has all steps, and whether they are those of the
//! training.

use super::{Meter, Output, Verdict, WARMUP};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Validation;
use pawl_contract::plan::LaunchKind;
use std::time::Instant;

impl Meter {
    /// Ends the launch if the newest reading shows that it has all steps, or that they are not those that were asked
    /// for. `gap` and `before`: the largest number of steps between two readings, and the step, before it.
    pub(super) fn judge(&mut self, gap: u64, before: u64, at: Instant) {
        if self.verdict.is_some() {
            return;
        }
        let unsupported = |why: String| Some(Verdict::Failed(Outcome::Unsupported, format!("the script {why}")));
        if let Some(why) = self.unproven().or_else(|| self.exceeds(gap, before)) {
            self.verdict = unsupported(why);
        } else if self.measured_all() {
            match self.uncompared() {
                Some(why) => self.verdict = unsupported(why),
                None if self.may_count_micro_steps() => self.seen_all = self.seen_all.or(Some(at)),
                None => self.verdict = Some(Verdict::Complete),
            }
        }
    }

    /// Ends a measurement all of whose steps were seen, when no more of them have come for a while.
    pub(in crate::script) fn settle(&mut self, now: Instant) {
        let Some(since) = self.seen_all.filter(|_| self.verdict.is_none()) else { return };
        let step = self.step_seconds().map_or(0.0, |spread| spread.p90);
        // Twice the time until the next reading.
        let patience = 0.5 + 2.0 * step * (self.largest_gap + 1) as f64;
        if now.saturating_duration_since(since).as_secs_f64() >= patience {
            self.verdict = Some(Verdict::Complete);
        }
    }

    /// Whether its steps may be micro-steps, which are only as many as were asked for at first.
    fn may_count_micro_steps(&self) -> bool {
        self.is_given_steps && self.micro_steps > 1 && self.steps().is_some_and(|steps| self.step >= steps)
    }

    /// Why the steps are not those that the launch asked for: there are more.
    fn exceeds(&self, gap: u64, before: u64) -> Option<String> {
        let steps = self.steps().filter(|_| self.is_given_steps)?;
        let jumps = self.step - before > gap;
        let most = match self.kind {
            // It may be ended later than its last step, and does not end by itself.
            LaunchKind::Measure if self.micro_steps > 1 || jumps => steps + gap,
            LaunchKind::Quality | LaunchKind::Search => steps + steps / 2 + gap,
            _ => return None,
        };
        let step = self.step;
        (step > most).then(|| {
            let found = format!("reported step {step}, and $(launch.steps) is {steps}");
            match self.micro_steps {
                1 => format!(
                    "{found}: correct workload.monitor.training if it reads the steps of something else, such as another \
                     progress bar, and pass $(launch.steps) to the script as the number of its optimizer steps"
                ),
                micro => format!(
                    "{found}: an optimizer step has {micro} micro-steps (settings.accumulationSteps), and micro-steps are \
                     no steps: have the script print its optimizer steps, and pass $(launch.steps) as their number"
                ),
            }
        })
    }

    /// Why nobody knows whether the steps of a measurement are those of the training.
    fn unproven(&self) -> Option<String> {
        (self.kind == LaunchKind::Measure && self.count.is_unproven).then(|| {
            "counted its steps anew, and workload.monitor.training has neither a group `loss` nor a group `epoch`: add one, so \
             that the next epoch is not taken for another progress bar"
                .to_owned()
        })
    }

    /// Why the steps of a measurement are no evidence: no loss was read in them.
    fn uncompared(&self) -> Option<String> {
        let steps = self.steps().filter(|_| self.kind == LaunchKind::Measure && self.count.has_losses())?;
        (!self.has_compared).then(|| {
            format!(
                "reported no loss in {steps} steps, and workload.monitor.training has a group `loss`: print a loss more \
                 often, or raise analysis.windowSteps"
            )
        })
    }

    /// What may have to be corrected if the script has written output, and nothing was found in it.
    pub(in crate::script) fn unmatched(&self) -> Option<String> {
        let read = self.count.pending().is_some();
        let written = |output: &&Output| self.first.is_none() && (output.lines > 0 || read);
        let Output { pattern, lines, newest } = self.output.as_ref().filter(written)?;
        let lines = if *lines == 1 { "line".to_owned() } else { format!("{lines} lines") };
        if let Some(step) = self.count.pending() {
            return Some(format!(
                "monitor.training `{pattern}` has found steps up to {step}, and no loss, so that they may be those of another \
                 progress bar: correct the pattern, or print a loss more often"
            ));
        }
        Some(format!(
            "monitor.training `{pattern}` has found no step in the {lines} of its output: correct the pattern if a line reports \
             one; the last line: `{newest}`"
        ))
    }

    /// Whether the launch needs nothing more of the script: all its steps were seen, and what it was for is there.
    /// Whatever the script does from now on, such as a test or an upload, is not part of the launch.
    pub(in crate::script) fn has_all(&self) -> bool {
        let Some(steps) = self.steps().filter(|steps| self.step >= *steps) else { return false };
        match self.kind {
            LaunchKind::Preflight => false,
            LaunchKind::Measure => self.incomplete().is_none(),
            LaunchKind::Quality | LaunchKind::Search => self.incomplete().is_none() && self.is_validated_at_end(),
            LaunchKind::Train => self.incomplete().is_none() && (!self.saves || self.whole_until >= steps),
        }
    }

    /// Whether the newest validation is from after the last step.
    fn is_validated_at_end(&self) -> bool {
        let at_end = |validation: &Validation| self.validated_since || validation.items >= self.items;
        self.validation.as_ref().is_some_and(at_end)
    }

    /// Why the launch of a script that has ended without an error is not done. Steps that may have followed the last
    /// reading are not missing.
    pub(in crate::script) fn incomplete(&self) -> Option<String> {
        if self.first.is_none() && !self.has_nothing_left() {
            let silent = || match &self.output {
                Some(_) => "it has written no line: print the steps, without buffering".to_owned(),
                None => "no update of a KubeflowCallback came: check report_to of its TrainingArguments".to_owned(),
            };
            return Some(format!("reported no step: {}", self.unmatched().unwrap_or_else(silent)));
        }
        let step = self.step;
        let is_short = |steps: &u64| step + self.largest_gap < *steps && !self.is_over();
        if let Some(steps) = self.steps().filter(is_short) {
            return Some(format!(
                "ended at step {step} of {steps}: pass $(launch.steps), $(launch.items) or $(launch.epochs) to the script, and \
                 report the steps more often"
            ));
        }
        if self.kind == LaunchKind::Measure && self.rate().is_none() && self.validations_between > 1 {
            return Some(
                "validates after each report of its steps, so that no time is that of steps alone: have it validate less often in \
                 launches that measure speed, with its option for the interval, or report the steps more often"
                    .to_owned(),
            );
        }
        if self.kind == LaunchKind::Measure && self.rate().is_none() {
            let warmup = self.budget.warmup_steps.unwrap_or(WARMUP);
            return Some(format!(
                "reported steps only once after the {warmup} steps of warm-up: at least two reports at different times are \
                 needed; report the steps more often, or raise analysis.windowSteps"
            ));
        }
        if let Some(why) = self.unproven().or_else(|| self.uncompared()) {
            return Some(why);
        }
        let unvalidated = self.kind == LaunchKind::Quality && self.validation.is_none();
        unvalidated.then(|| {
            "reported no validation: set monitor.validation, and let the script validate at its end".to_owned()
        })
    }

    /// Whether a measurement needs nothing more of the script. One that reports only some of the losses tells their
    /// mean at its end, and may end by itself after the last step.
    fn measured_all(&self) -> bool {
        let tells_more = self.sampled && self.mean_loss.is_none();
        let all = || self.steps().is_some_and(|steps| self.step > steps || (self.step == steps && !tells_more));
        // A script that ends by itself is not asked for more.
        self.kind == LaunchKind::Measure
            && self.rate().is_some()
            && !self.measured.is_extended()
            && (all() || self.is_over())
    }
}
