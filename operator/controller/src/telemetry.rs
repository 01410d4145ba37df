//! Structured logs, and traces for a collector.
//!
//! A line is one event with the fields of the spans around it: `namespace`, `job`, `attempt` and `trace_id` say what it
//! is about. The trace id is that of the attempt ([`trace_id`]): every line and every span about one gang, of every
//! operator process that ever dealt with it, has the same.

use crate::key::Key;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use tracing::Span;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Subscriber;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The standard variables that name a collector (OTLP over HTTP); without one nothing is traced.
const COLLECTORS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// Default of OTEL_SERVICE_NAME.
const SERVICE: &str = "pawl-operator";

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// Human-readable.
    Text,
}

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log filter {filter:?}: {source}: write for example info,pawl_controller=debug")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The collector that is named cannot be one.
    #[error("OTEL_EXPORTER_OTLP_ENDPOINT: {0}: write for example http://collector.observability:4318")]
    Collector(#[from] ExporterBuildError),
    /// The process has a log already.
    #[error("the log was set up before")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends what is still on its way to the collector when it is dropped.
pub struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(SdkTracerProvider::shutdown) {
            tracing::debug!("the last spans did not reach the collector: {error}");
        }
    }
}

/// Sends the process's log to standard error, and spans to the collector that the environment names, if it does.
/// `filter` is a level, or levels by module: `info,kube=warn`; it is the log's alone.
///
/// # Errors
/// When the filter does not parse, the collector is malformed, or the process has a log already.
pub fn init(format: Format, filter: &str) -> Result<Telemetry, TelemetryError> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let named = COLLECTORS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    let provider = named.then(|| SpanExporter::builder().with_http().build().map(provider)).transpose()?;
    let registry = tracing_subscriber::registry().with(provider.as_ref().map(traces));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        Format::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false);
            registry.with(lines.with_filter(parsed)).try_init()?;
        }
        Format::Text => registry.with(lines.with_filter(parsed)).try_init()?,
    }
    Ok(Telemetry(provider))
}

/// Spans go to the exporter in batches, on a thread of its own: a collector that does not answer holds nothing up.
fn provider(exporter: SpanExporter) -> SdkTracerProvider {
    let resource = Resource::builder();
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => resource,
        None => resource.with_service_name(SERVICE),
    };
    SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build()
}

/// The operator's own spans.
fn traces<S: Subscriber + for<'s> LookupSpan<'s>>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S> {
    let own = Targets::new().with_target("pawl_controller", LevelFilter::INFO);
    tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE)).with_filter(own)
}

/// What a reconcile does for an attempt of a job.
pub fn span(key: &Key, job_uid: &str, attempt: Option<&str>) -> Span {
    let span = tracing::info_span!("reconcile", namespace = key.namespace, job = key.name, attempt, trace_id = Empty);
    if let Some(attempt) = attempt.filter(|_| !span.is_disabled()) {
        let id = trace_id(job_uid, attempt);
        span.record("trace_id", &id);
        if let (Ok(trace), Ok(parent)) = (TraceId::from_hex(&id), SpanId::from_hex(&id[..16])) {
            let attempt = SpanContext::new(trace, parent, TraceFlags::SAMPLED, true, TraceState::NONE);
            // There is no collector.
            let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(attempt));
        }
    }
    span
}

/// The trace id of an attempt: 32 hexadecimal digits, as W3C Trace Context writes them, from the job's UID and the
/// attempt's name. Nothing needs to be kept for two processes to agree on it.
pub fn trace_id(job_uid: &str, attempt: &str) -> String {
    let digest = Sha256::new().chain_update(job_uid).chain_update([0]).chain_update(attempt).finalize();
    digest.iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_otlp::WithExportConfig;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message;
    use std::io::{BufRead, BufReader, Read, Write as _};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};
    use tracing_subscriber::fmt::MakeWriter;

    #[test]
    fn a_trace_id_is_of_one_attempt_of_one_job() {
        let id = trace_id("5d8b", "ups-1");
        assert_eq!(id.len(), 32);
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(id, trace_id("5d8b", "ups-1"));
        assert_ne!(id, trace_id("5d8b", "ups-2"));
        assert_ne!(id, trace_id("5d8", "bups-1"), "the parts are distinguished");
    }

    /// What a collector is sent: the body of the first request to the address.
    fn collector() -> (String, std::thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let heard = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(&stream);
            let mut length = 0;
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            body
        });
        (address, heard)
    }

    fn exporting(endpoint: &str) -> SdkTracerProvider {
        provider(SpanExporter::builder().with_http().with_endpoint(endpoint).build().unwrap())
    }

    #[test]
    fn a_collector_hears_of_an_attempt_under_the_trace_id_of_the_log() {
        let (endpoint, heard) = collector();
        let provider = exporting(&endpoint);
        let lines = Lines::default();
        let log = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(lines.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(traces(&provider)).with(log), || {
            span(&Key::new("team-a", "ups"), "5d8b", Some("ups-1")).in_scope(|| tracing::info!("made"));
        });
        provider.force_flush().unwrap();
        let request = ExportTraceServiceRequest::decode(heard.join().unwrap().as_slice()).unwrap();
        let [resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
        let named = resource.resource.as_ref().unwrap().attributes.iter().find(|pair| pair.key == "service.name");
        assert!(format!("{named:?}").contains(SERVICE), "{named:?}");
        let [sent] = resource.scope_spans[0].spans.as_slice() else { panic!("{resource:?}") };
        let id = trace_id("5d8b", "ups-1");
        assert_eq!(
            (sent.name.as_str(), &sent.trace_id),
            ("reconcile", &TraceId::from_hex(&id).unwrap().to_bytes().to_vec())
        );
        let text = format!("{:?}", sent.attributes);
        assert!(["team-a", "ups", "ups-1"].iter().all(|value| text.contains(&format!("\"{value}\""))), "{text}");
        let line = lines.text();
        assert!(line.contains(&id) && line.contains("made"), "{line}");
    }

    #[test]
    fn a_collector_that_is_not_there_holds_nothing_up() {
        // Nobody listens where somebody just did.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let provider = exporting(&format!("http://{address}/v1/traces"));
        let spans = |count: usize| {
            tracing::subscriber::with_default(tracing_subscriber::registry().with(traces(&provider)), || {
                (0..count).for_each(|_| drop(span(&Key::new("team-a", "ups"), "5d8b", Some("ups-1")).entered()));
            });
        };
        // What was kept for a while sends itself, and a flush after that has nothing to tell.
        let told = |_| {
            spans(1);
            provider.force_flush().is_err()
        };
        assert!((0..3).any(told), "it is logged that they did not arrive");
        let began = Instant::now();
        spans(10_000);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    /// Lines of a log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }
}
