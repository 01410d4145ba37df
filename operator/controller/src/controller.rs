//! The controller: when jobs are reconciled, how many at a time, and the handling of errors.

use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::leader::Role;
use crate::packed::Packed;
use crate::reading::{self, Guarded};
use crate::reconcile;
use crate::watch::Watches;
use futures::{FutureExt, Stream, StreamExt, stream};
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

/// Runs reconciles until `stop` resolves and those under way have ended. `reported` yields jobs whose agents reported
/// something new.
///
/// A job is reconciled by one task at a time, `concurrency` jobs are at once. A reconcile that panics fails alone.
pub async fn run(
    context: Arc<Context>,
    watches: Watches,
    reported: impl Stream<Item = Key> + Send + 'static,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let Watches { jobs, store, changed } = watches;
    let all = {
        let store = store.clone();
        move |()| stream::iter(store.state().iter().map(|job| ObjectRef::from_obj(&**job)).collect::<Vec<_>>())
    };
    let triggers = [
        jobs.boxed(),
        changed.map(|key| key.reference()).boxed(),
        reported.map(|key| key.reference()).boxed(),
        gained(context.clone()).flat_map(all).boxed(),
    ];
    let queue = stream::select_all(triggers).take_until(stop).map(Ok::<_, Infallible>);
    let newest = store.clone();
    let reconcile = move |object: Arc<Packed>, context: Arc<Context>| {
        let task = tokio::spawn(one(object, context, newest.clone()));
        async move {
            task.await.unwrap_or_else(|panic| Err(Error::Local { what: "a decision", why: panic.to_string() }))
        }
        .boxed()
    };
    applier(reconcile, failed, context, store, queue, Config::default().concurrency(concurrency))
        // A failed reconcile was logged where it failed; a job that is gone needs none.
        .for_each(|_| async {})
        .await;
}

/// Each time this replica becomes the leader: its state is stale, and every job is reconciled.
fn gained(context: Arc<Context>) -> impl Stream<Item = ()> + Send {
    stream::unfold((context, true), |(context, first)| async move {
        let mut leadership = context.leadership.clone();
        if !first {
            leadership.lost().await;
            context.metrics.leading(false);
            context.namespaces.clear();
        }
        leadership.gained().await;
        context.jobs.step_down();
        context.metrics.leading(matches!(leadership.role(), Role::Leading { .. }));
        Some(((), (context, false)))
    })
}

async fn one(object: Arc<Packed>, context: Arc<Context>, store: Store<Packed>) -> Result<Action, Error> {
    if !context.leadership.may_act() {
        return Ok(Action::await_change());
    }
    let started = Instant::now();
    let key = Key::of(&*object);
    let result = advance(&context, &key, &object).await;
    context.metrics.reconciled(started.elapsed(), result.as_ref().err().map(Error::kind));
    if result.is_ok() {
        context.jobs.succeeded(&key);
    }
    // The watch may have been faster than the answer to a write, also than the deletion of the job.
    match store.get(&key.reference()) {
        Some(job) if result.is_ok() => context.jobs.cached(&*job),
        Some(_) => {}
        None => context.jobs.forget(&key),
    }
    result
}

async fn advance(context: &Context, key: &Key, object: &Packed) -> Result<Action, Error> {
    let waits = async || context.namespaces.wait(&context.client, &key.namespace).await.map(Action::requeue);
    let opened = match object.open() {
        Some(opened) => Some(opened),
        // One that rests is read where this operator acts only.
        None => match waits().await {
            Some(again) => return Ok(again),
            None => reading::read(context, key).await?,
        },
    };
    match opened {
        Some(Guarded(Ok(job))) => reconcile::reconcile(context, &job).await,
        Some(guarded @ Guarded(Err(_))) => match waits().await {
            Some(again) => Ok(again),
            None => reading::report(context, &guarded).await.map(|()| Action::await_change()),
        },
        // It was deleted meanwhile.
        None => Ok(Action::await_change()),
    }
}

fn failed(object: Arc<Packed>, error: &Error, context: Arc<Context>) -> Action {
    let key = Key::of(&*object);
    if !context.leadership.may_act() {
        return Action::await_change();
    }
    let wait = context.jobs.failed(&key, error);
    match error {
        Error::Stale => {
            tracing::debug!(job = key.name, namespace = key.namespace, ?wait, "decided on stale data: retrying");
        }
        Error::Api { .. }
        | Error::Taken { .. }
        | Error::Leaving { .. }
        | Error::Elsewhere { .. }
        | Error::Local { .. } => {
            tracing::warn!(job = key.name, namespace = key.namespace, %error, ?wait, "reconcile failed");
        }
    }
    Action::requeue(wait)
}
