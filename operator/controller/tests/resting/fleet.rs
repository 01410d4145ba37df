//! The operator with a fleet of jobs, until all rest.

use crate::counting;
use crate::jobs::Job;
use crate::server::Server;
use axum::body::Body;
use futures::channel::mpsc;
use futures::stream;
use http::Request;
use http_body_util::BodyExt;
use pawl_api::Policy;
use pawl_controller::clock::Clock;
use pawl_controller::context::Context;
use pawl_controller::events::Events;
use pawl_controller::jobs::{Facts, Jobs};
use pawl_controller::leader::Leadership;
use pawl_controller::live::{Live, Pace};
use pawl_controller::metrics::Metrics;
use pawl_controller::namespaces::Namespaces;
use pawl_controller::nodes::Nodes;
use pawl_controller::objects::{Images, PodDefaults, StorageConfig};
use pawl_controller::refusals::Refusals;
use pawl_controller::scopes::Scopes;
use pawl_controller::serve::{Readiness, routes};
use pawl_controller::services::Services;
use pawl_controller::watch::{self, Watches};
use pawl_controller::{controller, key::Key};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tower::Service;

/// All jobs rest when nothing was allocated for so long, several times.
const QUIET: Duration = Duration::from_millis(300);

/// What a fleet takes, bytes.
pub struct Fleet {
    /// Once all jobs rest.
    pub held: usize,
    /// At most until then.
    pub filling: usize,
    /// At most while Prometheus reads the metrics.
    pub scrape: usize,
    /// Text of the metrics.
    pub exposition: usize,
    /// Resident when all jobs rest.
    pub resident: usize,
    /// Time until all rest.
    pub took: Duration,
    /// The status that was written last; empty: none was.
    pub written: String,
}

impl Fleet {
    /// Runs the operator with `count` jobs like this one.
    pub fn measure(job: &Arc<Job>, count: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let fleet = runtime.block_on(Self::rest(job, count));
        runtime.shutdown_timeout(Duration::from_secs(5));
        fleet
    }

    async fn rest(job: &Arc<Job>, count: usize) -> Self {
        let before = counting::held();
        counting::peak();
        let began = Instant::now();
        let (client, server) = Server::client(job, count);
        let context = context(client);
        let metrics = context.metrics.clone();
        let operator = tokio::spawn(operate(context));
        settle(&metrics, count).await;
        let took = began.elapsed();
        let filling = counting::peak();
        let (held, resident) = (counting::held(), counting::resident());
        let exposition = scrape(metrics, count).await;
        let scrape = counting::peak();
        operator.abort();
        let _ = operator.await;
        let [held, filling, scrape] = [held, filling, scrape].map(|bytes| bytes - before);
        Self { held, filling, scrape, exposition, resident, took, written: server.written() }
    }
}

/// Waits until every job was decided on, and nothing happens any more.
async fn settle(metrics: &Metrics, count: usize) {
    let decided = || {
        let page = metrics.pages().next().unwrap_or_default();
        let stages = page.lines().filter_map(|line| line.strip_prefix("pawl_trainingjobs{")?.rsplit_once(' '));
        stages.map(|(_, count)| count.parse::<usize>().unwrap()).sum::<usize>()
    };
    while decided() < count {
        tokio::time::sleep(QUIET).await;
    }
    let mut quiet = 0;
    while quiet < 5 {
        let calls = counting::calls();
        tokio::time::sleep(QUIET).await;
        // On a busy machine, whatever is to be done takes its turn before this.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        quiet = if counting::calls() - calls < 10 { quiet + 1 } else { 0 };
    }
}

async fn operate(context: Arc<Context>) {
    let (changed, news) = mpsc::unbounded();
    let scopes = Scopes::new(&[], context.metrics.clone());
    let gangs = watch::gangs(&context, &scopes, &changed);
    let (jobs, store) = watch::jobs(&context, &scopes);
    let watches = Watches { jobs, store, changed: news };
    let controller = controller::run(context, watches, stream::pending::<Key>(), 32, std::future::pending());
    futures::future::join(futures::future::join_all(gangs), controller).await;
}

/// Reads the metrics as Prometheus does. Returns the length of their text.
async fn scrape(metrics: Metrics, count: usize) -> usize {
    let mut routes = routes(metrics, Readiness::new(Leadership::alone()));
    let Ok(response) = routes.call(Request::get("/metrics").body(Body::empty()).unwrap()).await;
    let mut body = response.into_body();
    let (mut length, mut series) = (0, 0);
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        length += data.len();
        let lines = String::from_utf8_lossy(&data);
        series += lines.lines().filter(|line| line.starts_with("pawl_job_attempts_total{")).count();
    }
    assert_eq!(series, count, "every job rests, and has its metrics");
    length
}

fn context(client: kube::Client) -> Arc<Context> {
    let jobs = Jobs::default();
    let metrics = Metrics::new(jobs.clone());
    let (live, _) = Live::new(jobs.clone(), Pace::default(), metrics.clone());
    Arc::new(Context {
        events: Events::new(client.clone(), "test"),
        client,
        images: Images { trainer: "trainer:1".to_owned(), agent: "agent:1".to_owned() },
        storage: StorageConfig::default(),
        pods: PodDefaults::default(),
        policy: Policy::default(),
        facts: Facts::new(jobs.clone()),
        jobs,
        live,
        metrics: metrics.clone(),
        leadership: Leadership::alone(),
        clock: Clock::system(),
        services: Services::default(),
        namespaces: Namespaces::new(None, metrics),
        nodes: Nodes::default(),
        refusals: Refusals::default(),
    })
}
