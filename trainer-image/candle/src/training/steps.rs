//! Steps: gradients of the gang, update, and what is measured at the edges of windows.

use super::*;
use pawl_contract::curve::ends_quarter;
use pawl_contract::plan::WindowLimit;

/// Seconds between two agreements of ranks on GPUs.
const VOTE_SECONDS: f64 = 1.0;
/// Maximum steps between them.
const MOST_STEPS: u64 = 1000;

/// The open window: steps whose losses may still be on the device.
#[derive(Default)]
pub(super) struct Open {
    pub steps: u32,
    losses: Vec<Tensor>,
    norm: Option<Tensor>,
    /// The step at which the ranks agree again.
    next_vote: u64,
}

/// What all ranks have agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreed {
    pub stop: bool,
    pub checkpoint: bool,
}

impl<O: Optimizer> Training<'_, O> {
    /// Ends a step: averages the gradients over micro-steps and ranks, clips them, and updates the variables.
    ///
    /// The losses are read at the edges of measurement windows: on the CPU after each step, on a GPU about once a
    /// second.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when the loss is NaN or infinite, [`Ending::LossSpike`]; when the device or a rank fails,
    /// or micro-steps are missing.
    pub fn step(&mut self) -> Result<()> {
        if self.at != At::Step || self.micro != self.accumulation {
            return Err(Error::invalid(format!(
                "training.step(): after {} of {} micro-steps: call training.backward() for each",
                self.micro, self.accumulation
            )));
        }
        self.update()?;
        self.record.position.step += 1;
        self.record.position.items += self.record.step_items;
        self.record.learning_rate = self.optimizer.learning_rate();
        self.at = At::Between;
        self.open.steps += 1;
        if self.is_edge() { self.end_window() } else { Ok(()) }
    }

    /// The update of a step.
    fn update(&mut self) -> Result<()> {
        let scale = 1.0 / f64::from(self.accumulation);
        let (places, gradients): (Vec<usize>, Vec<Tensor>) = self
            .gradients
            .iter_mut()
            .enumerate()
            .filter_map(|(place, gradient)| Some((place, gradient.take()?)))
            .map(|(place, gradient)| Ok((place, if scale == 1.0 { gradient } else { (gradient * scale)? })))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let mut gradients = self.core.average.of(gradients)?;
        if let Some(limit) = self.clip {
            let norm = norm(&gradients, &self.core.device)?;
            // As in PyTorch: a smaller gradient is unchanged.
            let factor = ((&norm + 1e-6)?.recip()? * limit)?.minimum(1.0)?;
            for gradient in &mut gradients {
                *gradient = gradient.broadcast_mul(&factor.to_dtype(gradient.dtype())?)?;
            }
            self.open.norm = Some(norm);
        }
        let Some(mut store) = self.store.take() else { return Ok(()) };
        for (place, gradient) in places.into_iter().zip(gradients) {
            store.insert(&self.vars[place].1, gradient);
        }
        self.optimizer.step(&store)?;
        if let Some(sum) = self.loss_sum.take() {
            self.open.losses.push((sum * scale)?);
        }
        Ok(())
    }

    /// Whether the ranks agree, and the device is synchronized, after this step: the same answer on all ranks.
    fn is_edge(&self) -> bool {
        let Record { position, budget, step_items, .. } = &*self.record;
        !hardware::is_asynchronous(&self.core.device)
            || position.step >= self.open.next_vote
            || must_end(budget, *step_items, self.first, (position.step, position.items))
    }

    fn time(&self) -> StepTime {
        self.clock.stop(self.totals())
    }

    pub(super) fn totals(&self) -> Totals {
        let (loader, collective, busy) = (self.loader, self.waited(), processor_time());
        Totals { loader, collective, busy, ..Totals::default() }
    }

    /// Reads the losses of the open steps, agrees with the other ranks, and records.
    fn end_window(&mut self) -> Result<()> {
        self.core.device.synchronize()?;
        let time = self.time();
        let open = std::mem::take(&mut self.open);
        let losses: Vec<f64> =
            open.losses.iter().map(|loss| Ok(f64::from(loss.to_scalar::<f32>()?))).collect::<Result<_>>()?;
        self.record.gradient_norm = open
            .norm
            .map(|norm| norm.to_scalar::<f32>())
            .transpose()?
            .map(f64::from)
            .filter(|norm| norm.is_finite())
            .or(self.record.gradient_norm);
        let rows = self.vote(Row {
            stop: self.core.stop.is_set(),
            checkpoint: self.record.saver.as_ref().is_some_and(Saver::due),
            // The steps of this window are not added yet.
            lasted: self.window_limit().is_some_and(|limit| self.record.throughput.has_lasted(&limit)),
            seconds: time.wall.as_secs_f64(),
            busy: time.wall.saturating_sub(time.collective).as_secs_f64(),
            gpu: self.core.gpu.reading(),
            losses,
        })?;
        self.open.next_vote = next_vote(&rows, self.record.position.step);
        // The agreement is part of the window.
        self.record_steps((open.steps, self.time()), &rows)?;
        if rows.first().is_some_and(|first| first.lasted) {
            self.end_by_time();
        }
        self.extend_window()
    }

    fn window_limit(&self) -> Option<WindowLimit> {
        self.core.launch.plan.window_limit(self.accumulation)
    }

    /// Ends the warm-up or the window of a measurement that has lasted long enough: it needs no more steps.
    fn end_by_time(&mut self) {
        let (limit, window) = (self.window_limit(), self.core.launch.plan.budget.window_steps);
        let ((Some(limit), Some(window)), record) = ((limit, window), &mut *self.record) else { return };
        if record.throughput.is_warming_up() {
            record.throughput.restart();
            record.budget.warmup = record.position.step;
            record.budget.items = record.position.items + window * record.step_items;
        } else if record.throughput.counted() >= limit.window_steps {
            record.budget.items = record.budget.items.min(record.position.items);
        }
    }

    /// Extends a measurement whose window is shorter than the plan says on some rank; by another window, which replaces
    /// the one so far, if that was not steady.
    fn extend_window(&mut self) -> Result<()> {
        let (plan, record) = (&self.core.launch.plan, &mut *self.record);
        let window = plan.budget.window_steps.filter(|_| plan.kind == LaunchKind::Measure);
        let Some(window) = window.filter(|_| record.position.items >= record.budget.items) else { return Ok(()) };
        // What a program has loaded in advance is not known here.
        let steady = record.throughput.is_steady(0) != Some(false);
        let mine = (steady, record.throughput.steps_short_of(plan.budget.min_window_seconds.unwrap_or_default()));
        let all = self.core.gang.gather(&mine)?;
        let short = all.iter().map(|(_, short)| *short).max().unwrap_or_default();
        if short > 0 {
            record.budget.items += short * record.step_items;
        } else if record.windows.extends(all.iter().all(|(steady, _)| *steady)) {
            record.throughput.restart();
            record.budget.items += window * record.step_items;
        }
        Ok(())
    }

    /// The votes of all ranks.
    fn vote(&mut self, mine: Row) -> Result<Vec<Row>> {
        let rows: Vec<Row> = match self.core.gang.world_size() {
            1 => vec![mine],
            _ => self
                .core
                .gang
                .gather_bytes(bytemuck::cast_slice(&mine.to_words()))?
                .iter()
                .map(|row| Row::of(row))
                .collect(),
        };
        self.agreed.stop |= rows.iter().any(|row| row.stop);
        self.agreed.checkpoint |= rows.iter().any(|row| row.checkpoint);
        let times = rows.iter().map(|row| RankTime { busy: row.busy, gpu: row.gpu });
        self.record.ranks.add(times.clone());
        if self.core.gang.rank() == 0 {
            self.core.publisher.metrics().ranks(self.record.ranks.seats(), times);
        }
        Ok(rows)
    }

    /// Records the steps of a window, at least one, whose losses are the means of all ranks.
    fn record_steps(&mut self, (count, window): (u32, StepTime), rows: &[Row]) -> Result<()> {
        // On a GPU only the sum is known: the host queues steps ahead of it.
        let time = StepTime {
            wall: window.wall / count,
            loader: window.loader / count,
            collective: window.collective / count,
            busy: window.busy / count,
            offload: window.offload / count,
        };
        for back in (0..count as usize).rev() {
            let index = count as usize - 1 - back;
            let step = self.record.position.step - back as u64;
            let items = self.record.position.items - back as u64 * self.record.step_items;
            let of_ranks = rows.iter().map(|row| row.losses.get(index).copied().unwrap_or(f64::NAN));
            let loss = of_ranks.sum::<f64>() / rows.len() as f64;
            self.record.loss = Some(loss).filter(|loss| loss.is_finite());
            self.record.longest_step = self.record.longest_step.max(time.wall);
            self.core.publisher.metrics().step(time);
            let (norm, rate) = (self.record.gradient_norm.unwrap_or_default(), self.record.learning_rate);
            self.core.publisher.metrics().update(norm, false, rate);
            if self.record.throughput.add(time) {
                self.record.straggler = self.record.ranks.window();
            }
            self.check(step, items, loss)?;
        }
        Ok(())
    }

    fn check(&mut self, step: u64, items: u64, loss: f64) -> Result<()> {
        if !loss.is_finite() {
            return Err(Ending::NonFinite(format!(
                "the training loss is {loss} at step {step}; lower settings.learningRate, set settings.gradientClip, or use a wider \
                 settings.precision"
            ))
            .into());
        }
        let record = &mut *self.record;
        // Launches are compared by the losses of the same steps.
        if items - record.step_items < record.budget.horizon {
            record.curve.add(items, loss);
        }
        let spike = record.position.losses.add(loss);
        if record.position.losses.is_healthy() {
            record.healthy = (step, items);
        }
        match spike {
            Some(bound) => Err(Ending::LossSpike(format!(
                "the training loss spiked at step {step}: {loss:.4}, three consecutive steps above {bound:.4}, far above its \
                 recent level; lower settings.learningRate, or set settings.gradientClip or warmupSteps"
            ))
            .into()),
            None => Ok(()),
        }
    }
}

/// Vote of one rank at the edge of a window.
struct Row {
    stop: bool,
    checkpoint: bool,
    /// The warm-up or the window of a measurement has lasted long enough.
    lasted: bool,
    /// Seconds of the window.
    seconds: f64,
    /// Those in which the rank did not wait for others.
    busy: f64,
    /// The newest reading of the rank's GPU.
    gpu: Option<GpuReading>,
    /// One for each step of the window.
    losses: Vec<f64>,
}

impl Row {
    fn to_words(&self) -> Vec<f64> {
        let flags = [self.stop, self.checkpoint, self.lasted].map(|flag| f64::from(u8::from(flag)));
        flags
            .into_iter()
            .chain([self.seconds, self.busy])
            .chain(GpuReading::to_words(self.gpu))
            .chain(self.losses.iter().copied())
            .collect()
    }

    /// Missing words count as zero.
    fn of(bytes: &[u8]) -> Self {
        let words: Vec<f64> =
            bytes.chunks_exact(8).map(|word| f64::from_ne_bytes(std::array::from_fn(|i| word[i]))).collect();
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let (gpu, losses) = words.get(5..).unwrap_or_default().split_at_checked(GpuReading::WORDS).unwrap_or_default();
        Self {
            stop: word(0) != 0.0,
            checkpoint: word(1) != 0.0,
            lasted: word(2) != 0.0,
            seconds: word(3),
            busy: word(4),
            gpu: GpuReading::of_words(gpu),
            losses: losses.to_vec(),
        }
    }
}

/// The step at which the ranks agree again, after a window that ended with `step`. All ranks have the same `rows`, thus
/// the same answer: it must depend on nothing else, or ranks would wait for each other in different collectives.
fn next_vote(rows: &[Row], step: u64) -> u64 {
    let slowest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    let steps = rows.iter().map(|row| row.losses.len()).max().unwrap_or_default();
    let wait = if slowest > 0.0 { (VOTE_SECONDS * steps as f64 / slowest) as u64 } else { 1 };
    step + wait.clamp(1, MOST_STEPS)
}

/// Whether a window must end with the step that led to this position (step and items), in a launch that began after
/// `first` steps: the warm-up or the launch ends, an evaluation is due, or the next quarter of the losses begins:
/// launches of different speeds are compared by the same steps.
fn must_end(budget: &Budget, step_items: u64, first: u64, (step, items): (u64, u64)) -> bool {
    step == first + budget.warmup
        || ends_block(budget, step_items, step)
        || items >= budget.items
        || budget.evaluation_due(items - step_items, items)
        || ends_quarter(step, budget.horizon.div_ceil(step_items))
}

/// Whether a block of a measurement ends with this step: the times of at least as many spans are needed to see that
/// they are steady.
fn ends_block(budget: &Budget, step_items: u64, step: u64) -> bool {
    // A training or a search is not divided.
    let measures = !budget.evaluates && step > budget.warmup;
    let window = (budget.horizon / step_items).saturating_sub(budget.warmup);
    measures && (step - budget.warmup).is_multiple_of((window / BLOCKS as u64).max(1))
}

/// Norm of all gradients together, on the device.
fn norm(gradients: &[Tensor], device: &Device) -> Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, device)?;
    for gradient in gradients {
        sum = (sum + gradient.to_dtype(DType::F32)?.sqr()?.sum_all()?)?;
    }
    Ok(sum.sqrt()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seconds: f64, steps: usize) -> Row {
        Row {
            stop: false,
            checkpoint: true,
            lasted: true,
            seconds,
            busy: seconds / 2.0,
            gpu: None,
            losses: vec![0.5; steps],
        }
    }

    #[test]
    fn all_ranks_agree_on_the_step_of_the_next_vote() {
        // Each rank has its own row from the gang, too, and rows have the times of whole windows.
        let sent = [row(0.1, 20), row(0.4, 20), row(0.2, 20)];
        let received: Vec<Row> = sent.iter().map(|row| Row::of(bytemuck::cast_slice(&row.to_words()))).collect();
        assert_eq!((next_vote(&sent, 100), next_vote(&received, 100)), (150, 150), "20 steps in 0.4 s by the slowest");
        assert_eq!((received[1].seconds, received[1].losses.len(), received[1].gpu), (0.4, 20, None));
        assert_eq!((received[1].stop, received[1].checkpoint, received[1].lasted), (false, true, true));
        assert_eq!(next_vote(&[row(30.0, 1)], 7), 8, "at least one step");
        assert_eq!(next_vote(&[row(1e-6, 1)], 7), 7 + MOST_STEPS);
        assert_eq!(next_vote(&[row(0.0, 1)], 7), 8);
    }

    #[test]
    fn windows_end_with_the_warm_up_wherever_the_launch_began() {
        let budget = Budget { items: 4000, horizon: 4000, warmup: 10, eval_every: Some(1000), evaluates: true };
        let ends = |first: u64| -> Vec<u64> {
            (first + 1..=100).filter(|step| must_end(&budget, 40, first, (*step, 40 * step))).collect()
        };
        // After steps 24, 50 and 74: quarters of the losses, of which every second one is kept.
        assert_eq!(ends(0), [10, 24, 25, 50, 74, 75, 100]);
        assert_eq!(ends(30), [40, 50, 74, 75, 100]);
    }
}
