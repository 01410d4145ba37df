//! What Prometheus sees of a running launch, and the small server that shows it: `/metrics`, `/progress`, `/healthz`.

use crate::throughput::StepTime;
use pawl_contract::progress::Progress;
use prometheus::{
    Counter, CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, Opts, Registry, TextEncoder,
};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest request that is read.
const REQUEST_LIMIT: usize = 8 << 10;
/// How long a client may take.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);

/// The metrics of a launch.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    step_seconds: Histogram,
    items: Counter,
    items_per_second: Gauge,
    loss: Gauge,
    validation: GaugeVec,
    memory: GaugeVec,
    loader_wait: Counter,
    collective: CounterVec,
    checkpoint_seconds: Histogram,
    checkpoint_failures: Counter,
    checkpoint_step: Gauge,
    progress: Arc<Mutex<Vec<u8>>>,
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 16)?;
        let metrics = Self {
            step_seconds: Histogram::with_opts(
                HistogramOpts::new("pawl_train_step_seconds", "Seconds per optimizer step, data loading included.")
                    .buckets(buckets.clone()),
            )?,
            items: Counter::new("pawl_train_items_total", "Items trained on by the whole gang in this process.")?,
            items_per_second: Gauge::new("pawl_train_items_per_second", "Items per second of the newest window.")?,
            loss: Gauge::new("pawl_train_loss", "Newest training loss.")?,
            validation: GaugeVec::new(Opts::new("pawl_validation", "Newest evaluation."), &["metric"])?,
            memory: GaugeVec::new(Opts::new("pawl_gpu_memory_bytes", "Device memory of this rank."), &["kind"])?,
            loader_wait: Counter::new("pawl_loader_wait_seconds_total", "Seconds that steps waited for data.")?,
            collective: CounterVec::new(
                Opts::new("pawl_collective_seconds_total", "Seconds in collectives."),
                &["exposed"],
            )?,
            checkpoint_seconds: Histogram::with_opts(
                HistogramOpts::new("pawl_checkpoint_seconds", "Seconds to write a checkpoint.").buckets(buckets),
            )?,
            checkpoint_failures: Counter::new("pawl_checkpoint_failures_total", "Checkpoints that were not written.")?,
            checkpoint_step: Gauge::new("pawl_checkpoint_last_step", "Step of the newest complete checkpoint.")?,
            progress: Arc::default(),
            registry,
        };
        let all: [Box<dyn prometheus::core::Collector>; 11] = [
            Box::new(metrics.step_seconds.clone()),
            Box::new(metrics.items.clone()),
            Box::new(metrics.items_per_second.clone()),
            Box::new(metrics.loss.clone()),
            Box::new(metrics.validation.clone()),
            Box::new(metrics.memory.clone()),
            Box::new(metrics.loader_wait.clone()),
            Box::new(metrics.collective.clone()),
            Box::new(metrics.checkpoint_seconds.clone()),
            Box::new(metrics.checkpoint_failures.clone()),
            Box::new(metrics.checkpoint_step.clone()),
        ];
        all.into_iter().try_for_each(|collector| metrics.registry.register(collector))?;
        Ok(metrics)
    }

    /// A step of `items` items is done.
    pub fn step(&self, items: u64, time: StepTime) {
        self.step_seconds.observe(time.wall.as_secs_f64());
        self.items.inc_by(items as f64);
        self.loader_wait.inc_by(time.loader.as_secs_f64());
        self.collective.with_label_values(&["true"]).inc_by(time.collective.as_secs_f64());
    }

    /// Bytes of device memory.
    pub fn memory(&self, predicted: usize, peak: usize) {
        self.memory.with_label_values(&["predicted"]).set(predicted as f64);
        self.memory.with_label_values(&["peak"]).set(peak as f64);
    }

    /// A checkpoint was written, or was not.
    pub fn checkpoint(&self, took: Duration, step: Option<u64>) {
        match step {
            Some(step) => {
                self.checkpoint_seconds.observe(took.as_secs_f64());
                self.checkpoint_step.set(step as f64);
            }
            None => self.checkpoint_failures.inc(),
        }
    }

    /// The launch as of now.
    pub fn progress(&self, progress: &Progress) {
        self.items_per_second.set(progress.items_per_second.unwrap_or(0.0));
        if let Some(loss) = progress.loss {
            self.loss.set(loss);
        }
        for (name, value) in progress.validation.iter().flat_map(|v| &v.metrics) {
            self.validation.with_label_values(&[name]).set(*value);
        }
        let json = serde_json::to_vec(progress).unwrap_or_default();
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = json;
    }

    /// Serves on `port` in a thread of its own, for as long as the process lives.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub fn serve(&self, port: u16) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
        let metrics = self.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if let Err(error) = metrics.answer(stream) {
                    tracing::debug!("metrics client: {error}");
                }
            }
        };
        std::thread::Builder::new().name("metrics".into()).spawn(serve).map(drop)
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(CLIENT_LIMIT))?;
        stream.set_write_timeout(Some(CLIENT_LIMIT))?;
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_LIMIT {
            match stream.read(&mut chunk)? {
                0 => break,
                count => request.extend_from_slice(&chunk[..count]),
            }
        }
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let (status, kind, body) = match line {
            [b'G', b'E', b'T', b' ', rest @ ..] => self.page(rest.split(|b| *b == b' ').next().unwrap_or_default()),
            _ => ("405 Method Not Allowed", "text/plain", b"GET only\n".to_vec()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())?;
        stream.write_all(&body)
    }

    fn page(&self, path: &[u8]) -> (&'static str, &'static str, Vec<u8>) {
        match path {
            b"/metrics" => {
                let mut text = Vec::new();
                match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
                    Ok(()) => ("200 OK", prometheus::TEXT_FORMAT, text),
                    Err(error) => ("500 Internal Server Error", "text/plain", error.to_string().into_bytes()),
                }
            }
            b"/progress" => {
                let json = self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
                ("200 OK", "application/json", json)
            }
            b"/healthz" => ("200 OK", "text/plain", b"ok\n".to_vec()),
            _ => ("404 Not Found", "text/plain", b"there are /metrics, /progress and /healthz\n".to_vec()),
        }
    }
}
