//! In which namespaces this operator acts: in each, the one that holds its Lease.
//!
//! The election ([`crate::leader`]) is among the replicas of one operator. Two operators with a lease each, such as two
//! releases of the chart or one that a person started, know nothing of each other; where their namespaces overlap, each
//! would start gangs with its own images and defaults, and undo what the other does. In every namespace with jobs, an
//! operator therefore holds a Lease as long as it acts there. Another one finds it, reports that, does nothing in this
//! namespace, and takes over once the Lease has not been renewed for [`Timing::duration`].
//!
//! The holder is the operator, not a replica: a rolling update or a new leader continues at once. As in the election,
//! no clock is compared with another one. A renewal in a minute costs less than the progress of a single job that
//! trains; namespaces in which no job is under way cost nothing.
//!
//! An operator that may not write the Lease, because its roles are from before it had one, acts as if it were alone.

use crate::leader::{Act, Seen, Timing, evaluate};
use crate::metrics::Metrics;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Name of the Lease in each namespace.
pub const LEASE: &str = "pawl-trainingjobs";
/// Its times.
pub const TIMING: Timing = Timing {
    duration: Duration::from_secs(180),
    act_for: Duration::from_secs(150),
    renew_every: Duration::from_secs(60),
    look_every: Duration::from_secs(30),
};
/// Before a request that failed is made again.
const AGAIN: Duration = Duration::from_secs(5);
/// Before a Lease that may not be written is tried again.
const UNHELD: Duration = Duration::from_secs(600);
/// Longest time of reading and renewing a Lease, of which a webhook may take any share.
const LONGEST: Duration = Duration::from_secs(10);
/// For how long a job waits for the answer to another one of its namespace, instead of coming again.
const BESIDE: Duration = Duration::from_millis(100);
/// Shortest time until a job that may not act comes again.
const SOON: Duration = Duration::from_secs(1);

/// In which namespaces this operator acts.
pub struct Namespaces {
    me: Option<String>,
    known: Mutex<HashMap<String, Arc<Known>>>,
    metrics: Metrics,
}

/// What is known of a namespace.
#[derive(Debug)]
struct Known {
    /// Somebody wanted to act there last.
    wanted: Mutex<Instant>,
    /// This operator acts until then.
    acts_until: Mutex<Option<Instant>>,
    /// Who reads or renews it holds this.
    lease: tokio::sync::Mutex<Asked>,
}

/// What is known of the Lease of a namespace.
#[derive(Debug, Default)]
struct Asked {
    seen: Option<Seen>,
    /// No request is made before.
    next: Option<Instant>,
    /// It was reported why this operator does not act, or acts without a Lease.
    reported: Option<String>,
}

impl Known {
    fn new(now: Instant) -> Self {
        Self { wanted: Mutex::new(now), acts_until: Mutex::default(), lease: tokio::sync::Mutex::default() }
    }

    fn may_act(&self) -> bool {
        self.acts_until.lock().is_some_and(|until| Instant::now() < until)
    }

    fn act_until(&self, until: Option<Instant>) {
        *self.acts_until.lock() = until;
    }
}

impl Asked {
    /// Whether `what` is news.
    fn is_new(&mut self, what: &str) -> bool {
        let new = self.reported.as_deref() != Some(what);
        self.reported = Some(what.to_owned());
        new
    }
}

impl Namespaces {
    /// Those in which `operator` acts, which is the name of all of its replicas; `None`: in all, whoever else does.
    pub fn new(operator: Option<String>, metrics: Metrics) -> Self {
        Self { me: operator, known: Mutex::default(), metrics }
    }

    /// `None` when this operator may act in `namespace`; else when to ask again.
    pub async fn wait(&self, client: &Client, namespace: &str) -> Option<Duration> {
        let me = self.me.as_deref()?;
        let now = Instant::now();
        let known = self.known.lock().entry(namespace.to_owned()).or_insert_with(|| Arc::new(Known::new(now))).clone();
        *known.wanted.lock() = now;
        // Of many jobs, one asks: a slow answer holds up no other one that may act without it.
        let patience = if known.may_act() { Duration::ZERO } else { BESIDE };
        let Ok(mut asked) = tokio::time::timeout(patience, known.lease.lock()).await else {
            return (!known.may_act()).then_some(SOON);
        };
        if asked.next.is_none_or(|next| next <= Instant::now()) {
            self.ask(&known, &mut asked, client, namespace, me).await;
        }
        let next = asked.next.map_or(AGAIN, |next| next.saturating_duration_since(Instant::now()));
        (!known.may_act()).then(|| next.max(SOON))
    }

    /// Forgets all but these, in which there are jobs, and those in which somebody wanted to act lately: a scope that
    /// cannot be watched has no jobs here.
    pub fn retain(&self, namespaces: &BTreeSet<String>) {
        self.retain_if(|namespace, known| {
            namespaces.contains(namespace) || known.wanted.lock().elapsed() < TIMING.duration
        });
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.retain_if(|_, _| false);
    }

    fn retain_if(&self, keep: impl Fn(&str, &Known) -> bool) {
        self.known.lock().retain(|namespace, known| {
            let kept = keep(namespace, known);
            if !kept {
                self.metrics.of_another(namespace, false);
            }
            kept
        });
    }

    /// Reads or renews the Lease, and says when to do so again.
    async fn ask(&self, known: &Known, asked: &mut Asked, client: &Client, namespace: &str, me: &str) {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let answer = tokio::time::timeout(LONGEST, look_again(asked, &leases, me)).await;
        let now = Instant::now();
        let Ok(answer) = answer else {
            asked.next = Some(now + AGAIN);
            tracing::warn!(namespace, "Lease {LEASE} was neither read nor renewed within {LONGEST:?}");
            return;
        };
        match answer {
            Ok(Found::Own { until }) => {
                known.act_until(Some(until));
                asked.next = Some(now + TIMING.renew_every);
                if asked.reported.take().is_some() {
                    tracing::info!(namespace, "this operator acts in the namespace");
                }
                self.metrics.of_another(namespace, false);
            }
            Ok(Found::Another { holder, until }) => {
                known.act_until(None);
                asked.next = Some(until.min(now + TIMING.look_every));
                self.metrics.of_another(namespace, true);
                if asked.is_new(&holder) {
                    tracing::warn!(
                        namespace,
                        "operator {holder} acts in this namespace, so that this one does nothing there: uninstall one of them, \
                         or set the namespaces of both so that they do not overlap (Lease {LEASE} names who acts)"
                    );
                }
            }
            Err(kube::Error::Api(status)) if is_final(status.code) => {
                known.act_until(Some(now + UNHELD + TIMING.act_for));
                asked.next = Some(now + UNHELD);
                self.metrics.of_another(namespace, false);
                if asked.is_new(&status.message) {
                    tracing::warn!(
                        namespace,
                        error = status.message,
                        "Lease {LEASE} cannot be written: another operator in this namespace would not be noticed; helm upgrade \
                         restores the roles"
                    );
                }
            }
            Err(error) => {
                asked.next = Some(now + AGAIN);
                tracing::warn!(namespace, %error, "Lease {LEASE} cannot be read or renewed");
            }
        }
    }
}

/// Whether a refusal will be the same the next time: a missing right, or a webhook that rejects Leases.
const fn is_final(code: u16) -> bool {
    matches!(code, 400..=499) && !matches!(code, 401 | 408 | 409 | 429)
}

/// Whose a Lease is.
enum Found {
    Own { until: Instant },
    Another { holder: String, until: Instant },
}

/// Looks again where another client wrote or deleted the Lease meanwhile.
async fn look_again(asked: &mut Asked, leases: &Api<Lease>, me: &str) -> kube::Result<Found> {
    match look_and_act(asked, leases, me).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            asked.seen = None;
            look_and_act(asked, leases, me).await
        }
        answer => answer,
    }
}

async fn look_and_act(asked: &mut Asked, leases: &Api<Lease>, me: &str) -> kube::Result<Found> {
    // The holder knows it: when another client writes it, the renewal is refused.
    let holds = asked.seen.as_ref().is_some_and(|seen| seen.holder() == Some(me));
    if !holds {
        let there = leases.get_opt(LEASE).await?;
        let last = asked.seen.take();
        asked.seen = there.map(|lease| Seen::look(last, lease, Instant::now()));
    }
    // The right to act counts from before the request.
    let now = Instant::now();
    let act = evaluate(asked.seen.as_ref(), me, now, &TIMING);
    let old = asked.seen.as_ref().map(|seen| seen.lease.clone());
    let parameters = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let written = match act {
        Act::Create => leases.create(&parameters, &ours(None, me, Timestamp::now())).await?,
        Act::Renew | Act::Take => leases.replace(LEASE, &parameters, &ours(old, me, Timestamp::now())).await?,
        Act::Follow { until } => {
            let holder = asked.seen.as_ref().and_then(Seen::holder).unwrap_or_default().to_owned();
            return Ok(Found::Another { holder, until });
        }
    };
    asked.seen = Some(Seen { lease: written, at: now });
    Ok(Found::Own { until: now + TIMING.act_for })
}

/// The Lease with `me` as its holder. Its times are for people.
fn ours(old: Option<Lease>, me: &str, now: Timestamp) -> Lease {
    let mut lease = old.unwrap_or_default();
    lease.metadata.name = Some(LEASE.to_owned());
    lease.metadata.managed_fields = None;
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if spec.holder_identity.as_deref() != Some(me) {
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        spec.acquire_time = Some(MicroTime(now));
    }
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = i32::try_from(TIMING.duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}
