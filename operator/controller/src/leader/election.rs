//! The I/O of the election, and its result for the rest of the operator.

use super::{Act, LEASE, Seen, Timing, evaluate};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{self, Instant};

/// What this replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has not read the lease yet, or lost contact.
    Unknown,
    /// Another one holds the lease.
    Following {
        /// Who.
        holder: String,
        /// The lease is alive until then.
        until: Instant,
    },
    /// It acts.
    Leading {
        /// Its right to act ends then, unless it renews before; never, when there is no election.
        until: Option<Instant>,
    },
}

/// The result of the election. Clones share it.
#[derive(Clone, Debug)]
pub struct Leadership {
    role: watch::Receiver<Role>,
}

impl Leadership {
    /// A lone replica leads, always.
    pub fn alone() -> Self {
        Self { role: watch::channel(Role::Leading { until: None }).1 }
    }

    /// The result of something else than an election.
    pub fn of(role: watch::Receiver<Role>) -> Self {
        Self { role }
    }

    /// What this replica is.
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Whether this replica may write now.
    pub fn may_act(&self) -> bool {
        match *self.role.borrow() {
            Role::Leading { until } => until.is_none_or(|until| Instant::now() < until),
            Role::Unknown | Role::Following { .. } => false,
        }
    }

    /// Whether another replica holds a lease that is alive.
    pub fn follows(&self) -> bool {
        matches!(*self.role.borrow(), Role::Following { until, .. } if Instant::now() < until)
    }

    /// Returns when this replica leads; never, when the election has ended.
    pub async fn gained(&mut self) {
        if self.role.wait_for(|role| matches!(role, Role::Leading { .. })).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when this replica leads no more; at once when its right to act has run out.
    pub async fn lost(&mut self) {
        loop {
            let until = match *self.role.borrow_and_update() {
                Role::Leading { until } => until,
                Role::Unknown | Role::Following { .. } => return,
            };
            let expiry = async {
                match until {
                    Some(until) => time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expiry => return,
                changed = self.role.changed() => if changed.is_err() {
                    // Nobody renews any more: what was granted is good until it runs out.
                    match until {
                        Some(until) => time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                    return;
                },
            }
        }
    }
}

/// Takes part in the election.
pub struct Election {
    api: Api<Lease>,
    me: String,
    timing: Timing,
    role: watch::Sender<Role>,
    seen: Option<Seen>,
}

impl Election {
    /// Takes part as `me` in the election for the lease of `namespace`. `client` must not be fenced.
    pub fn new(client: Client, namespace: &str, me: String, timing: Timing) -> (Self, Leadership) {
        let (role, seen_role) = watch::channel(Role::Unknown);
        let api = Api::namespaced(client, namespace);
        (Self { api, me, timing, role, seen: None }, Leadership { role: seen_role })
    }

    /// Takes part until `stop` resolves, then releases the lease. Whatever acts must have ended before that.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            let step = async {
                let wait = self.step().await;
                time::sleep(wait).await;
            };
            tokio::select! {
                () = step => {}
                () = &mut stop => break,
            }
        }
        self.release().await;
    }

    /// Reads the lease and acts on it. Returns when to do so again.
    async fn step(&mut self) -> Duration {
        let before = Instant::now();
        let answered = match time::timeout(self.timing.renew_every, self.look_and_act()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) if conflict(&error) => {
                tracing::debug!("the lease was written or deleted by another client: reading it again");
                self.seen = None;
                return Duration::from_millis(100);
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "lease {LEASE}: cannot be read or renewed");
                false
            }
            Err(_) => {
                tracing::warn!("lease {LEASE}: the API server did not answer in time");
                false
            }
        };
        self.expire();
        let pause = match *self.role.borrow() {
            Role::Leading { .. } => self.timing.renew_every,
            // At once when the lease runs out, but not again and again while the API server refuses connections.
            Role::Following { until, .. } if answered => self
                .timing
                .look_every
                .min(until.saturating_duration_since(Instant::now()))
                .max(Duration::from_millis(10)),
            Role::Following { .. } | Role::Unknown => self.timing.look_every,
        };
        pause.saturating_sub(before.elapsed()).max(Duration::from_millis(10))
    }

    async fn look_and_act(&mut self) -> kube::Result<()> {
        // A leader knows the lease: no other client writes it, and if one does, the renewal is refused.
        if !matches!(*self.role.borrow(), Role::Leading { .. }) || self.seen.is_none() {
            let lease = self.api.get_opt(LEASE).await?;
            let now = Instant::now();
            let last = self.seen.take();
            self.seen = match lease {
                Some(lease) => Some(Seen::look(last, lease, now)),
                // Deleted by a person, under a leader that may act for a while yet.
                None => last.filter(|last| last.binds(&self.me, now, &self.timing)),
            };
        }
        // The right to act counts from before the request.
        let now = Instant::now();
        match evaluate(self.seen.as_ref(), &self.me, now, &self.timing) {
            Act::Create => self.write(now, None).await,
            Act::Renew | Act::Take => self.write(now, self.seen.as_ref().map(|seen| seen.lease.clone())).await,
            Act::Follow { until } => {
                let holder = self.seen.as_ref().and_then(Seen::holder).unwrap_or_default().to_owned();
                self.become_role(Role::Following { holder, until });
                Ok(())
            }
        }
    }

    /// Writes the lease as ours; refused by the API server when it is not the version that was seen.
    async fn write(&mut self, now: Instant, old: Option<Lease>) -> kube::Result<()> {
        let lease = self.ours(old, Timestamp::now());
        let written = if lease.metadata.resource_version.is_none() {
            self.api.create(&parameters(), &lease).await?
        } else {
            self.api.replace(LEASE, &parameters(), &lease).await?
        };
        self.seen = Some(Seen { lease: written, at: now });
        self.become_role(Role::Leading { until: Some(now + self.timing.act_for) });
        Ok(())
    }

    /// The lease with us as its holder.
    fn ours(&self, old: Option<Lease>, now: Timestamp) -> Lease {
        let mut lease = old.unwrap_or_default();
        lease.metadata.name = Some(LEASE.to_owned());
        lease.metadata.managed_fields = None;
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        let mine = spec.holder_identity.as_deref() == Some(&self.me);
        if !mine {
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
            spec.acquire_time = Some(MicroTime(now));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.timing.duration.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(MicroTime(now));
        lease
    }

    /// A right to act that has run out is given up; so is a lease that was not renewed.
    fn expire(&mut self) {
        let now = Instant::now();
        let over = match *self.role.borrow() {
            Role::Leading { until } => until.is_some_and(|until| until <= now),
            Role::Following { until, .. } => until + self.timing.look_every <= now,
            Role::Unknown => false,
        };
        if over {
            self.become_role(Role::Unknown);
        }
    }

    fn become_role(&self, role: Role) {
        let was = self.role.send_replace(role.clone());
        match (&was, &role) {
            (Role::Leading { .. }, Role::Leading { .. }) => {}
            (_, Role::Leading { .. }) => tracing::info!(identity = self.me, "leading"),
            (Role::Leading { .. }, _) => tracing::warn!(identity = self.me, "leading no more"),
            (Role::Following { holder: was, .. }, Role::Following { holder, .. }) if was == holder => {}
            (_, Role::Following { holder, .. }) => tracing::info!(identity = self.me, holder, "following"),
            (_, Role::Unknown) => tracing::warn!(identity = self.me, "the lease cannot be read"),
        }
    }

    /// Gives the lease back, if it is ours, so that the next one need not wait for it to expire.
    async fn release(mut self) {
        let held = matches!(self.role.send_replace(Role::Unknown), Role::Leading { .. });
        let Some(seen) = self.seen.take().filter(|_| held) else { return };
        let mut lease = seen.lease;
        lease.metadata.managed_fields = None;
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        let parameters = parameters();
        let released = self.api.replace(LEASE, &parameters, &lease);
        match time::timeout(self.timing.renew_every, released).await {
            Ok(Ok(_)) => tracing::info!(identity = self.me, "released the lease"),
            Ok(Err(error)) => tracing::warn!(%error, "lease {LEASE}: cannot be released, it will expire"),
            Err(_) => tracing::warn!("lease {LEASE}: cannot be released in time, it will expire"),
        }
    }
}

fn parameters() -> PostParams {
    PostParams { field_manager: Some("pawl".to_owned()), ..PostParams::default() }
}

/// The lease is not the one that was seen: it was written, made or deleted meanwhile.
fn conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}
