//! Steps: gradients of the gang, update, and what is measured at the edges of windows.

use super::*;

/// Seconds between two agreements of ranks on GPUs.
const VOTE_SECONDS: f64 = 1.0;
/// Maximum steps between them.
const MOST_STEPS: u64 = 1000;

/// Steps whose losses may still be on the device.
#[derive(Default)]
pub(super) struct Open {
    times: Vec<StepTime>,
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
    /// The losses are read at the edges of measurement windows: on the CPU after each step, on a GPU about once a second.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when the loss is NaN or infinite, [`Ending::LossSpike`]; when the device or a rank fails, or
    /// micro-steps are missing.
    pub fn step(&mut self) -> Result<()> {
        if self.at != At::Step || self.micro != self.accumulation {
            return Err(Error::invalid(format!(
                "training.step(): after {} of {} micro-steps: call training.backward() for each",
                self.micro, self.accumulation
            )));
        }
        self.update()?;
        let before = self.record.position.items;
        self.record.position.step += 1;
        self.record.position.items += self.record.step_items;
        self.record.learning_rate = self.optimizer.learning_rate();
        self.at = At::Between;
        if self.is_edge(before) {
            return self.end_window();
        }
        self.open.times.push(self.time());
        Ok(())
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
    fn is_edge(&self, before: u64) -> bool {
        let Record { position, budget, step_items, .. } = &*self.record;
        let steps = position.step;
        let begun = steps - self.open.times.len() as u64 - 1;
        !hardware::is_asynchronous(&self.core.device)
            || steps >= self.open.next_vote
            || steps == begun + budget.warmup
            || position.items >= budget.items
            || budget.evaluation_due(before, position.items)
            || steps == last_quarter(budget.items.div_ceil(*step_items))
    }

    fn time(&self) -> StepTime {
        self.clock.stop(self.loader, self.waited(), processor_time())
    }

    /// Reads the losses of the open steps, agrees with the other ranks, and records.
    fn end_window(&mut self) -> Result<()> {
        self.core.device.synchronize()?;
        self.open.times.push(self.time());
        let mut open = std::mem::take(&mut self.open);
        let losses: Vec<f64> =
            open.losses.iter().map(|loss| Ok(f64::from(loss.to_scalar::<f32>()?))).collect::<Result<_>>()?;
        self.record.gradient_norm = open
            .norm
            .map(|norm| norm.to_scalar::<f32>())
            .transpose()?
            .map(f64::from)
            .filter(|norm| norm.is_finite())
            .or(self.record.gradient_norm);
        let busy: f64 = open.times.iter().map(|time| time.wall.saturating_sub(time.collective).as_secs_f64()).sum();
        let rows = self.vote(&losses, busy)?;
        if let Some(last) = open.times.last_mut() {
            // The agreement is part of the step.
            *last = self.time();
        }
        let seconds: f64 = open.times.iter().map(|time| time.wall.as_secs_f64()).sum();
        let slowest = rows.iter().map(|row| row.seconds).fold(seconds, f64::max);
        let steps = open.times.len() as u64;
        let wait = if slowest > 0.0 { (VOTE_SECONDS * steps as f64 / slowest) as u64 } else { 1 };
        self.open.next_vote = self.record.position.step + wait.clamp(1, MOST_STEPS);
        self.record_steps(&open.times, &rows)
    }

    /// The votes of all ranks.
    fn vote(&mut self, losses: &[f64], busy: f64) -> Result<Vec<Row>> {
        let seconds = self.open.times.iter().map(|time| time.wall.as_secs_f64()).sum();
        let checkpoint = self.record.saver.as_ref().is_some_and(Saver::due);
        let mine = Row { stop: self.core.stop.is_set(), checkpoint, seconds, busy, losses: losses.to_vec() };
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
        self.record.ranks.add(rows.iter().map(|row| row.busy));
        Ok(rows)
    }

    /// Records the steps of a window, whose losses are the means of all ranks.
    fn record_steps(&mut self, times: &[StepTime], rows: &[Row]) -> Result<()> {
        let count = times.len() as u32;
        // On a GPU only the sum is exact: the host queues steps ahead of it.
        let mean = |part: fn(&StepTime) -> Duration| times.iter().map(part).sum::<Duration>() / count.max(1);
        let time = StepTime {
            wall: mean(|time| time.wall),
            loader: mean(|time| time.loader),
            collective: mean(|time| time.collective),
            busy: mean(|time| time.busy),
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
        self.record.curve.add(items, loss);
        match self.record.spikes.add(loss) {
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
    /// Seconds of the open steps.
    seconds: f64,
    /// Those in which the rank did not wait for others.
    busy: f64,
    losses: Vec<f64>,
}

impl Row {
    fn to_words(&self) -> Vec<f64> {
        let head = [f64::from(u8::from(self.stop)), f64::from(u8::from(self.checkpoint)), self.seconds, self.busy];
        head.into_iter().chain(self.losses.iter().copied()).collect()
    }

    /// Missing words count as zero.
    fn of(bytes: &[u8]) -> Self {
        let words: Vec<f64> =
            bytes.chunks_exact(8).map(|word| f64::from_ne_bytes(std::array::from_fn(|i| word[i]))).collect();
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        let losses = words.get(4..).unwrap_or_default().to_vec();
        Self { stop: word(0) != 0.0, checkpoint: word(1) != 0.0, seconds: word(2), busy: word(3), losses }
    }
}

/// Norm of all gradients together, on the device.
fn norm(gradients: &[Tensor], device: &Device) -> Result<Tensor> {
    let mut sum = Tensor::zeros((), DType::F32, device)?;
    for gradient in gradients {
        sum = (sum + gradient.to_dtype(DType::F32)?.sqr()?.sum_all()?)?;
    }
    Ok(sum.sqrt()?)
}

/// The step before the last quarter of the loss curve, whose mean is the loss of a launch of `steps` steps: an edge on all devices,
/// so that launches of different speeds are compared by the same steps.
fn last_quarter(steps: u64) -> u64 {
    let mut stride = 1;
    while steps / stride >= 64 {
        stride *= 2;
    }
    let points = steps.div_ceil(stride);
    (points - points.div_ceil(4)) * stride
}
