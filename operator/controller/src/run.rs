//! Runs the operator.

use crate::client;
use crate::clock::{Clock, Offset};
use crate::context::Context;
use crate::controller;
use crate::events::Events;
use crate::jobs::{Facts, Jobs};
use crate::key::Key;
use crate::leader::{Election, Leadership, Timing};
use crate::live::{Live, Pace};
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;
use crate::nodes::Nodes;
use crate::objects::{Images, PodDefaults, StorageConfig};
use crate::packed::Packed;
use crate::reading;
use crate::refusals::Refusals;
use crate::scopes::Scopes;
use crate::serve::{self, Readiness};
use crate::services::Services;
use crate::watch::{self, Watches};
use futures::channel::mpsc;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, stream};
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use pawl_api::Policy;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Configuration of the operator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespaces whose jobs it manages; empty: all.
    pub namespaces: Vec<String>,
    /// The images that pods run.
    pub images: Images,
    /// How checkpoints of jobs that name no storage are stored.
    pub storage: StorageConfig,
    /// What the administrator sets for all pods.
    pub pods: PodDefaults,
    /// What pod templates may refer to.
    pub policy: Policy,
    /// Number of concurrent reconciles.
    pub concurrency: u16,
    /// How running gangs are polled.
    pub pace: Pace,
    /// Where `/metrics`, `/healthz` and `/readyz` are served.
    pub listen: SocketAddr,
    /// Identity of this replica, such as the name of its pod.
    pub identity: String,
    /// The namespace of the lease; `None`: no election, this replica is alone.
    pub lease_namespace: Option<String>,
    /// Name of this operator among all of the cluster, which all of its replicas have; `None`: other operators are not
    /// noticed.
    pub operator: Option<String>,
    /// How long the steps of an election take.
    pub timing: Timing,
}

/// The operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The cluster's address or credentials cannot be used.
    #[error("cannot use the cluster's configuration: {0}")]
    Client(#[from] kube::Error),
    /// The port cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
}

/// Runs the operator until `stop` resolves, then finishes running reconciles and releases the lease.
///
/// # Errors
/// [`RunError`], before anything was done.
pub async fn run(
    config: Config,
    cluster: kube::Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), RunError> {
    let stop: Shared<BoxFuture<'static, ()>> = stop.boxed().shared();
    let offset = Offset::default();
    let clock = Clock::corrected(offset.clone());
    let jobs = Jobs::new(clock.clone());
    let metrics = Metrics::new(jobs.clone());
    let listener = TcpListener::bind(config.listen).await.map_err(|error| RunError::Listen(config.listen, error))?;
    // The lease is released once nothing acts any more.
    let (ended, release) = oneshot::channel::<()>();
    let (election, leadership) = match &config.lease_namespace {
        Some(namespace) => {
            let lease = client::connect_for_lease(cluster.clone(), &metrics, config.timing.renew_every)?;
            let (election, leadership) = Election::new(lease, namespace, config.identity.clone(), config.timing);
            let until = async move { drop(release.await) };
            (Some(tokio::spawn(election.run(until))), leadership)
        }
        None => (None, Leadership::alone()),
    };
    let client = client::connect(cluster, &metrics, &leadership, &offset)?;
    let readiness = Readiness::new(leadership.clone());
    let (live, reported) = Live::new(jobs.clone(), config.pace, metrics.clone());
    let context = Arc::new(Context {
        events: Events::new(client.clone(), config.identity.clone()),
        client,
        images: config.images.clone(),
        storage: config.storage.clone(),
        pods: config.pods.clone(),
        policy: config.policy.clone(),
        facts: Facts::new(jobs.clone()),
        jobs,
        live: live.clone(),
        metrics: metrics.clone(),
        leadership,
        clock,
        services: Services::default(),
        namespaces: Namespaces::new(config.operator.clone(), metrics.clone()),
        nodes: Nodes::default(),
        refusals: Refusals::default(),
    });

    let mut tasks = JoinSet::new();
    tasks.spawn(serve::serve(listener, metrics, readiness.clone(), stop.clone()).map(|served| {
        if let Err(error) = served {
            tracing::error!(%error, "cannot serve");
        }
    }));
    tasks.spawn(async move { live.run().await });
    let reported = stream::unfold(reported, |mut reported| async move { Some((reported.recv().await?, reported)) });
    operate(context, &config, readiness, reported, &mut tasks, stop).await;
    tasks.shutdown().await;
    drop(ended);
    if let Some(election) = election {
        // It ends on its own now.
        let _ = election.await;
    }
    Ok(())
}

/// Fills the caches, then reconciles until `stop` resolves.
async fn operate(
    context: Arc<Context>,
    config: &Config,
    readiness: Readiness,
    reported: impl futures::Stream<Item = Key> + Send + 'static,
    tasks: &mut JoinSet<()>,
    stop: Shared<BoxFuture<'static, ()>>,
) {
    let (changed, news) = mpsc::unbounded();
    let scopes = Scopes::new(&config.namespaces, context.metrics.clone());
    for task in watch::gangs(&context, &scopes, &changed) {
        tasks.spawn(task);
    }
    let (jobs, store) = watch::jobs(&context, &scopes);
    tasks.spawn(hold_namespaces(context.clone(), store.clone()));
    tasks.spawn(reading::report_unavailable(context.clone(), scopes.clone()));
    tasks.spawn(async move {
        scopes.settled().await;
        readiness.caches_filled(true);
        tracing::info!("caches are filled");
    });
    let watches = Watches { jobs, store, changed: news };
    controller::run(context, watches, reported, config.concurrency, stop).await;
}

/// Between rounds of renewals.
const ROUND: Duration = Duration::from_secs(20);
/// Renewals at the same time.
const AT_ONCE: usize = 8;

/// Holds the namespaces in which a job is under way, also while nothing happens to it.
async fn hold_namespaces(context: Arc<Context>, store: Store<Packed>) {
    loop {
        tokio::time::sleep(ROUND).await;
        if !context.leadership.may_act() {
            continue;
        }
        let namespaces_of = |jobs: Vec<Arc<Packed>>| jobs.iter().filter_map(|job| job.namespace()).collect();
        context.namespaces.retain(&namespaces_of(store.state()));
        let under_way: BTreeSet<String> = namespaces_of(store.state_filter(Packed::is_under_way));
        // One that does not answer holds up no other one.
        let renewed = stream::iter(under_way).for_each_concurrent(AT_ONCE, |namespace| {
            let context = context.clone();
            async move {
                context.namespaces.wait(&context.client, &namespace).await;
            }
        });
        renewed.await;
    }
}
