//! Requests to an API server that may be away.

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

/// Patience with it: when it is stopped, requests hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer of the API server; `None` when it is away.
pub async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Option<kube::Result<T>> {
    let answer = tokio::time::timeout(PATIENCE, request).await.ok()?;
    // Errors other than its own answers are errors of the connection.
    matches!(answer, Ok(_) | Err(kube::Error::Api(_))).then_some(answer)
}

/// The names of the objects of a kind; `None` when the API server does not answer.
pub async fn names<K>(api: Api<K>, of: &ListParams) -> Option<Vec<String>>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug,
{
    let list = answer(api.list(of)).await?.ok()?;
    Some(list.items.iter().filter_map(|object| object.meta().name.clone()).collect())
}
