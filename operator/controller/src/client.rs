//! The operator's client of the API server: counted, with a deadline, and fenced by the lease.

use crate::layer::AroundLayer;
use crate::layer::deadline::Deadline;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use kube::client::ClientBuilder;
use kube::{Client, Config};
use std::time::Duration;

/// Longest time from a request to the head of its answer; watches are excluded, they answer when something happens.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A client for everything but the lease: it counts its requests, gives each [`DEADLINE`], and writes only while
/// `leadership` holds.
///
/// It does not retry: a reconcile that failed is made again, with a backoff of its own, on newer facts.
///
/// # Errors
/// When the configuration cannot be used, such as a certificate that does not parse.
pub fn connect(config: Config, metrics: &Metrics, leadership: &Leadership) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(without_retries(config))?;
    let layered = builder.with_layer(&AroundLayer(Deadline(DEADLINE))).with_layer(&leadership.fence());
    Ok(layered.with_layer(&metrics.count_requests()).build())
}

/// A client for the lease alone, which must be written by those who do not lead. `deadline` bounds each request.
///
/// # Errors
/// See [`connect`].
pub fn connect_for_lease(config: Config, metrics: &Metrics, deadline: Duration) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(without_retries(config))?;
    Ok(builder.with_layer(&AroundLayer(Deadline(deadline))).with_layer(&metrics.count_requests()).build())
}

fn without_retries(mut config: Config) -> Config {
    config.default_retry = false;
    config
}
