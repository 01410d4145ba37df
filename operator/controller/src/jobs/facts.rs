//! The facts of all jobs, fed by the watches.

use super::Jobs;
use super::attempts::JobFacts;
use crate::facts::{AttemptFacts, GangFacts, Hindrance, NodeSeen, PlanFacts, PodFacts};
use crate::key::Key;
use crate::names;
use crate::observe::signature;
use crate::watched::{WatchedJob, WatchedPod};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use pawl_contract::attempt::AttemptName;
use std::collections::HashSet;

/// The facts of all jobs. Cheap to read: a reconcile copies those of its own job.
#[derive(Clone, Debug)]
pub struct Facts {
    jobs: Jobs,
}

/// One watch being listed anew: what is not in the list any more is gone.
#[derive(Debug)]
pub struct Listing {
    /// The namespace that is watched; `None` for all.
    scope: Option<String>,
    /// Namespaces and names in the list so far.
    pub(crate) seen: HashSet<(String, String)>,
}

impl Listing {
    /// A watch on one namespace, or on all.
    pub fn new(scope: Option<String>) -> Self {
        Self { scope, seen: HashSet::new() }
    }

    /// Whether objects of `namespace` are in the list.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.scope.as_deref().is_none_or(|scope| scope == namespace)
    }
}

/// Namespace and name of an object.
pub(crate) fn place(meta: &ObjectMeta) -> Option<(String, String)> {
    Some((meta.namespace.clone()?, meta.name.clone()?))
}

/// The attempt of a pod: its batch Job's name, which cannot be changed without the Job controller noticing.
fn attempt_of(meta: &ObjectMeta) -> Option<(Key, String)> {
    let attempt = meta.labels.as_ref()?.get(names::BATCH_JOB)?;
    let job = AttemptName::parse(attempt)?.job;
    Some((Key::new(meta.namespace.clone()?, job), attempt.clone()))
}

/// The attempt that an object is named after.
fn attempt_named(meta: &ObjectMeta) -> Option<(Key, String)> {
    let name = meta.name.as_deref()?;
    let job = AttemptName::parse(name)?.job;
    Some((Key::new(meta.namespace.clone()?, job), name.to_owned()))
}

impl Facts {
    /// The facts part of the state of all jobs.
    pub fn new(jobs: Jobs) -> Self {
        Self { jobs }
    }

    /// Handles an event of the pod watch. Returns the jobs for which something changed that decisions depend on.
    pub fn pod(&self, event: Event<WatchedPod>, listing: &mut Listing) -> Vec<Key> {
        match event {
            Event::Apply(pod) => self.put_pod(&pod),
            Event::InitApply(pod) => {
                listing.seen.extend(place(&pod.metadata));
                self.put_pod(&pod)
            }
            Event::Delete(pod) => {
                let changed = self.put_pod(&pod);
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let Some((key, attempt)) = attempt_of(&pod.metadata) else { return changed };
                self.change(&key, &attempt, |facts| {
                    facts.pods.iter_mut().filter(|pod| pod.name == name).for_each(PodFacts::leave);
                })
            }
            Event::Init => {
                listing.seen.clear();
                Vec::new()
            }
            Event::InitDone => self.sweep(listing, |facts, namespace, seen| {
                let unseen = |pod: &&mut PodFacts| !seen.contains(&(namespace.to_owned(), pod.name.clone()));
                facts.pods.iter_mut().filter(unseen).for_each(PodFacts::leave);
            }),
        }
    }

    /// Handles an event of the batch Job watch. Returns the jobs for which something changed that decisions depend on.
    pub fn gang(&self, event: Event<WatchedJob>, listing: &mut Listing) -> Vec<Key> {
        match event {
            Event::Apply(job) => self.put_gang(&job),
            Event::InitApply(job) => {
                listing.seen.extend(place(&job.metadata));
                self.put_gang(&job)
            }
            Event::Delete(job) => {
                let Some((key, attempt)) = attempt_named(&job.metadata) else { return Vec::new() };
                let uid = job.metadata.uid.unwrap_or_default();
                self.gang_gone(&key, &attempt, &uid)
            }
            Event::Init => {
                listing.seen.clear();
                Vec::new()
            }
            Event::InitDone => self.sweep(listing, |facts, namespace, seen| {
                let there = seen.contains(&(namespace.to_owned(), facts.name.clone()));
                if let Some(gang) = &mut facts.gang {
                    gang.gone |= !there;
                }
            }),
        }
    }

    /// Handles an event of the watch on the plans' ConfigMaps.
    pub fn plan(&self, event: Event<PartialObjectMeta<ConfigMap>>, listing: &mut Listing) -> Vec<Key> {
        let put = |meta: &ObjectMeta, plan: Option<PlanFacts>| {
            let Some((key, attempt)) = attempt_named(meta) else { return Vec::new() };
            self.change(&key, &attempt, |facts| facts.plan = plan)
        };
        match event {
            Event::Apply(map) => put(&map.metadata, Some(PlanFacts::new(&map.metadata))),
            Event::InitApply(map) => {
                listing.seen.extend(place(&map.metadata));
                put(&map.metadata, Some(PlanFacts::new(&map.metadata)))
            }
            Event::Delete(map) => put(&map.metadata, None),
            Event::Init => {
                listing.seen.clear();
                Vec::new()
            }
            Event::InitDone => self.sweep(listing, |facts, namespace, seen| {
                if !seen.contains(&(namespace.to_owned(), facts.name.clone())) {
                    facts.plan = None;
                }
            }),
        }
    }

    /// Records a batch Job that was just created, before the watch reports it.
    pub fn assume(&self, key: &Key, attempt: &str, gang: GangFacts) {
        self.change(key, attempt, |facts| set_gang(facts, gang));
    }

    /// Records a ConfigMap that was just created.
    pub fn assume_plan(&self, key: &Key, attempt: &str, plan: PlanFacts) {
        self.change(key, attempt, |facts| facts.plan = Some(plan));
    }

    /// Records a batch Job that was just deleted: it creates no more pods.
    pub fn assume_deleting(&self, key: &Key, attempt: &str, uid: &str) {
        self.change(key, attempt, |facts| {
            if let Some(gang) = facts.gang.as_mut().filter(|gang| gang.uid == uid) {
                gang.deleting = true;
            }
        });
    }

    /// The batch Job with this uid is no longer there.
    pub fn gang_gone(&self, key: &Key, attempt: &str, uid: &str) -> Vec<Key> {
        self.change(key, attempt, |facts| {
            if let Some(gang) = facts.gang.as_mut().filter(|gang| gang.uid == uid) {
                gang.gone = true;
            }
        })
    }

    /// The pod was deleted and its node is not ready: its end will not be reported.
    pub fn lose(&self, key: &Key, attempt: &str, uid: &str) {
        self.change(key, attempt, |facts| {
            facts.pods.iter_mut().filter(|pod| pod.uid == uid).for_each(|pod| pod.lost = true);
        });
    }

    /// What was read of the node of a pod that does not end.
    pub fn node_seen(&self, key: &Key, attempt: &str, uid: &str, seen: &NodeSeen) {
        self.change(key, attempt, |facts| {
            facts.pods.iter_mut().filter(|pod| pod.uid == uid).for_each(|pod| pod.node_seen.clone_from(seen));
        });
    }

    /// Why pods of the batch Job with this uid are refused, as far as that is known.
    pub fn refused(&self, key: &Key, attempt: &str, uid: &str, refusal: Option<Hindrance>) {
        self.change(key, attempt, |facts| {
            if facts.gang.as_ref().is_some_and(|gang| gang.uid == uid) {
                facts.refusal = refusal;
            }
        });
    }

    /// A pod that the watch does not see was looked for: what it is now, if it is there.
    pub fn looked_for(&self, key: &Key, attempt: &str, uid: &str, there: Option<&WatchedPod>) {
        self.change(key, attempt, |facts| {
            for pod in facts.pods.iter_mut().filter(|pod| pod.uid == uid && pod.hidden) {
                match there {
                    None => pod.gone = true,
                    // Without the labels that say whose it is, only that it is there is known.
                    Some(there) => {
                        if let Some(new) = PodFacts::new(there) {
                            *pod = PodFacts { hidden: true, lost: pod.lost && new.deleting.is_some(), ..new };
                        }
                    }
                }
            }
        });
    }

    /// What is known of a job's attempts, oldest first.
    pub fn of(&self, key: &Key) -> Vec<AttemptFacts> {
        self.jobs.lock().get(key).map(|state| state.facts.attempts.clone()).unwrap_or_default()
    }

    /// The jobs of a namespace that have a gang of more than one pod at work: its pods meet by name.
    pub fn meeting(&self, namespace: &str) -> Vec<Key> {
        let meets = |facts: &AttemptFacts| facts.working_gang().is_some_and(|gang| gang.replicas > 1);
        let jobs = self.jobs.lock();
        let there = jobs.iter().filter(|(key, job)| key.namespace == namespace && job.facts.attempts.iter().any(meets));
        there.map(|(key, _)| key.clone()).collect()
    }

    /// An attempt's results are in the status: what is gone of it need not be remembered.
    pub fn release(&self, key: &Key, attempt: &str) {
        self.jobs.change(key, |state| {
            if let Some(facts) = state.facts.attempts.iter_mut().find(|facts| facts.name == attempt) {
                facts.released = true;
                facts.drop_gone();
            }
            state.facts.drop_empty();
        });
    }

    /// A `TrainingJob` exists.
    pub fn adopt(&self, key: &Key) {
        self.jobs.change(key, |state| state.facts.orphaned = false);
    }

    /// Orphans all jobs of the namespace (or of all) that are not `there`.
    pub fn orphan_others(&self, scope: Option<&str>, there: &HashSet<Key>) {
        let known: Vec<Key> = self.jobs.lock().keys().cloned().collect();
        let others = known.iter().filter(|key| scope.is_none_or(|scope| scope == key.namespace));
        others.filter(|key| !there.contains(key)).for_each(|key| self.jobs.forget(key));
    }

    fn put_pod(&self, pod: &WatchedPod) -> Vec<Key> {
        let Some((key, attempt)) = attempt_of(&pod.metadata) else { return Vec::new() };
        let Some(mut new) = PodFacts::new(pod) else { return Vec::new() };
        self.change(&key, &attempt, |facts| match facts.pods.iter_mut().find(|old| old.uid == new.uid) {
            Some(old) => {
                new.lost = old.lost && new.deleting.is_some();
                if new.deleting.is_some() {
                    new.node_seen.clone_from(&old.node_seen);
                }
                new.explained_by(&old.stand);
                *old = new;
            }
            None => {
                let at = facts.pods.partition_point(|old| old.index <= new.index);
                facts.pods.insert(at, new);
            }
        })
    }

    fn put_gang(&self, job: &WatchedJob) -> Vec<Key> {
        let Some((key, attempt)) = attempt_named(&job.metadata) else { return Vec::new() };
        let Some(gang) = GangFacts::new(job) else { return Vec::new() };
        self.change(&key, &attempt, |facts| set_gang(facts, gang))
    }

    /// Changes what is known of an attempt. Returns the job when that matters to decisions.
    fn change(&self, key: &Key, attempt: &str, change: impl FnOnce(&mut AttemptFacts)) -> Vec<Key> {
        let now = self.jobs.now();
        let changed = self.jobs.entry(key, |state| state.facts.change(attempt, now, change));
        if changed { vec![key.clone()] } else { Vec::new() }
    }

    fn sweep(
        &self,
        listing: &mut Listing,
        forget: impl Fn(&mut AttemptFacts, &str, &HashSet<(String, String)>),
    ) -> Vec<Key> {
        let seen = std::mem::take(&mut listing.seen);
        let (mut changed, now) = (Vec::new(), self.jobs.now());
        let mut jobs = self.jobs.lock();
        for (key, state) in jobs.iter_mut().filter(|(key, _)| listing.covers(&key.namespace)) {
            let JobFacts { attempts, orphaned } = &mut state.facts;
            for facts in attempts {
                let before = signature(facts);
                forget(facts, &key.namespace, &seen);
                if signature(facts) != before {
                    facts.changed = Some(now);
                    changed.push(key.clone());
                }
                if *orphaned || facts.released {
                    facts.drop_gone();
                }
            }
            state.facts.drop_empty();
        }
        jobs.retain(|_, state| !state.is_empty());
        changed.dedup();
        changed
    }
}

/// A batch Job of a new uid takes the place of one of the same name; pods of the old one that are gone say nothing.
fn set_gang(facts: &mut AttemptFacts, mut gang: GangFacts) {
    let same = facts.gang.as_ref().filter(|old| old.uid == gang.uid);
    // A deletion cannot be taken back, so news from before it is old.
    gang.deleting |= same.is_some_and(|old| old.deleting);
    // Its queue may take it and let it go again between two looks: then it has another start.
    let again = |old: &GangFacts| old.started.is_some_and(|first| gang.started.is_some_and(|last| last != first));
    let taken = |old: &GangFacts| old.taken || gang.suspended && !old.suspended || again(old);
    gang.taken |= same.is_some_and(taken);
    // Of a released attempt, or of a deleted `TrainingJob` of this name, pods may be left whose node does not answer.
    if same.is_none() {
        facts.pods.retain(|pod| !pod.gone || pod.gang_uid == gang.uid);
        facts.refusal = None;
        facts.released = false;
    }
    facts.gang = Some(gang);
}
