//! Prometheus metrics of an agent.
//!
//! Only agent 0 exports the metrics of the gang, so that sums over its pods are correct. Series have no labels for job,
//! attempt or rank: these are target labels of the pod.

use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use prometheus::core::Collector;
use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Opts, Registry, TextEncoder};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of validation metrics exported as series over all launches, and maximum length of their names in
/// bytes.
const MAX_METRICS: usize = 64;

/// The metrics of an agent.
#[derive(Debug)]
pub(crate) struct Gauges {
    registry: Registry,
    ranks: Gauge,
    items: Counter,
    step: GaugeVec,
    items_per_second: GaugeVec,
    loss: GaugeVec,
    eta: GaugeVec,
    validation: GaugeVec,
    straggler: GaugeVec,
    running: GaugeVec,
    launches: CounterVec,
    checkpoint_step: GaugeVec,
    checkpoint_time: GaugeVec,
    /// Names of the validation metrics that were exported.
    names: BTreeSet<String>,
    /// Launch and items of the last progress.
    last: Option<(String, u64)>,
    /// Launch and step of the newest checkpoint.
    saved: Option<(String, u64)>,
}

impl Gauges {
    /// Creates all metrics; those of the gang only on the agent that coordinates it.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub(crate) fn new(leads: bool) -> prometheus::Result<Self> {
        // A family without labels, so that the series is absent until its first value.
        let of_gang = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        let gauges = Self {
            registry: Registry::new(),
            ranks: Gauge::new("pawl_agent_ranks", "Number of running ranks on this node.")?,
            items: Counter::new("pawl_train_items_total", "Items processed by the gang, over all launches.")?,
            step: of_gang("pawl_train_step", "Optimizer steps done by the launch.", &[])?,
            items_per_second: of_gang("pawl_train_items_per_second", "Items per second over the newest window.", &[])?,
            loss: of_gang("pawl_train_loss", "Newest training loss.", &[])?,
            eta: of_gang("pawl_train_eta_seconds", "Estimated time until the launch is done, in seconds.", &[])?,
            validation: of_gang("pawl_validation", "Validation metrics of the newest evaluation.", &["metric"])?,
            straggler: of_gang("pawl_train_straggler", "1 while one rank is slower than the others.", &[])?,
            running: of_gang("pawl_launch_running", "1 for the kind of the running launch.", &["kind"])?,
            launches: CounterVec::new(Opts::new("pawl_launches_total", "Finished launches."), &["kind", "outcome"])?,
            checkpoint_step: of_gang("pawl_checkpoint_last_step", "Step of the newest complete checkpoint.", &[])?,
            checkpoint_time: of_gang(
                "pawl_checkpoint_last_timestamp_seconds",
                "Time at which the newest complete checkpoint was reported, in seconds since 1970.",
                &[],
            )?,
            names: BTreeSet::new(),
            last: None,
            saved: None,
        };
        gauges.registry.register(Box::new(gauges.ranks.clone()))?;
        let of_gang: [Box<dyn Collector>; 11] = [
            Box::new(gauges.items.clone()),
            Box::new(gauges.step.clone()),
            Box::new(gauges.items_per_second.clone()),
            Box::new(gauges.loss.clone()),
            Box::new(gauges.eta.clone()),
            Box::new(gauges.validation.clone()),
            Box::new(gauges.straggler.clone()),
            Box::new(gauges.running.clone()),
            Box::new(gauges.launches.clone()),
            Box::new(gauges.checkpoint_step.clone()),
            Box::new(gauges.checkpoint_time.clone()),
        ];
        if leads {
            of_gang.into_iter().try_for_each(|collector| gauges.registry.register(collector))?;
        }
        Ok(gauges)
    }

    /// Records the start of a launch, with its number of local ranks.
    pub(crate) fn started(&mut self, kind: LaunchKind, ranks: u32) {
        self.ranks.set(f64::from(ranks));
        for of_launch in [
            &self.step,
            &self.items_per_second,
            &self.loss,
            &self.eta,
            &self.validation,
            &self.straggler,
            &self.running,
        ] {
            of_launch.reset();
        }
        self.running.with_label_values(&[&name(kind)]).set(1.0);
    }

    /// Records the end of a launch.
    pub(crate) fn ended(&self, kind: LaunchKind, outcome: Outcome) {
        self.ranks.set(0.0);
        self.running.reset();
        self.launches.with_label_values(&[name(kind), name(outcome)]).inc();
    }

    /// Records progress of rank 0.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        let set = |gauge: &GaugeVec, value: f64| gauge.with_label_values::<&str>(&[]).set(value);
        // Items at the start of a launch were processed by earlier launches.
        let before = match &self.last {
            Some((launch, items)) if *launch == progress.launch => *items,
            _ => progress.items,
        };
        self.items.inc_by(progress.items.saturating_sub(before) as f64);
        self.last = Some((progress.launch.clone(), progress.items));
        set(&self.step, progress.step as f64);
        set(&self.straggler, f64::from(u8::from(progress.straggler.is_some())));
        for (gauge, value) in [
            (&self.items_per_second, progress.items_per_second),
            (&self.loss, progress.loss),
            (&self.eta, progress.eta_seconds),
        ] {
            if let Some(value) = value {
                set(gauge, value);
            }
        }
        let metrics = progress.validation.iter().flat_map(|validation| &validation.metrics);
        for (name, value) in metrics.filter(|(name, _)| name.len() <= MAX_METRICS) {
            // A trainer that renames its metrics must not add series without end.
            if self.names.contains(name) || (self.names.len() < MAX_METRICS && self.names.insert(name.clone())) {
                self.validation.with_label_values(&[name]).set(*value);
            }
        }
        if let Some(checkpoint) = &progress.last_checkpoint {
            let newest = (progress.launch.clone(), checkpoint.step);
            if self.saved.as_ref() != Some(&newest) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                set(&self.checkpoint_step, checkpoint.step as f64);
                set(&self.checkpoint_time, now.as_secs_f64());
                self.saved = Some(newest);
            }
        }
    }

    /// All metrics in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather());
        text.unwrap_or_else(|error| {
            tracing::error!(%error, "metrics cannot be written");
            String::new()
        })
    }
}

/// The contract's name of an outcome or a kind.
fn name(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}
