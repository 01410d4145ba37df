//! The operator's client of the API server: counted, with a deadline, fenced by the lease, and held back while the API
//! server is overloaded.

mod skew;
mod throttle;

use crate::clock::Offset;
use crate::layer::AroundLayer;
use crate::layer::deadline::Deadline;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use kube::client::ClientBuilder;
use kube::{Client, Config};
use skew::Skew;
use std::time::Duration;
use throttle::Throttle;

/// Longest time from a request to the head of its answer; watches are excluded, they answer when something happens.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A client for everything but the lease: it counts its requests, gives each [`DEADLINE`], writes only while
/// `leadership` holds, and learns the `offset` of the API server's clock.
///
/// It does not retry: a reconcile that failed is made again, with a backoff of its own, on newer facts. After a
/// rejection for load it sends nothing for a while. The fence is asked after that: what was held back may not be
/// written any more.
///
/// # Errors
/// When the configuration cannot be used, such as a certificate that does not parse.
pub fn connect(config: Config, metrics: &Metrics, leadership: &Leadership, offset: &Offset) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(without_retries(config))?;
    let skew = AroundLayer(Skew { offset: offset.clone(), metrics: metrics.clone() });
    let timed = builder.with_layer(&skew).with_layer(&AroundLayer(Deadline(DEADLINE)));
    let counted = timed.with_layer(&leadership.fence()).with_layer(&metrics.count_requests());
    Ok(counted.with_layer(&Throttle::default()).build())
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
