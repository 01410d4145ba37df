//! The headless Service of each namespace: what is known of it, and its repair when a gang needs it.

use crate::belief::is_older;
use crate::error::{Doing, Error, code};
use crate::jobs::{Listing, place};
use crate::names;
use crate::objects;
use crate::watched::WatchedService;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Cool-down before the Service of a namespace is applied again: another controller may keep changing it back.
const APPLY_EVERY: Duration = Duration::from_secs(5);

/// The headless Services, one a namespace: the newest that is known of each, by the watch or by an answer of the API
/// server.
#[derive(Default)]
pub struct Services {
    known: Mutex<HashMap<String, Known>>,
}

/// What is known of a Service: at first it counts as not right.
#[derive(Debug, Default)]
struct Known {
    /// The resource version that the other fields describe.
    version: String,
    /// It is as it should be.
    right: bool,
    /// When it was applied last.
    applied: Option<Instant>,
    /// Applying was refused: another owner has a Service of this name.
    taken: bool,
    /// Who looks holds it: of many gangs that start at once, one looks.
    look: Arc<tokio::sync::Mutex<()>>,
}

impl Known {
    /// The API server answered a request of this process: that is as right as the Service gets, also where the API
    /// server or an admission webhook makes something else of what was applied. The watch may know better by now.
    fn answered(&mut self, version: &str) {
        if !is_older(version, &self.version) {
            self.set(version, true);
        }
    }

    /// The watch sees it. The watch may lag behind this process, and has nothing new to say of what was answered.
    fn seen(&mut self, version: &str, right: bool) {
        let answered = self.right && self.version == version;
        if !answered && !is_older(version, &self.version) {
            self.set(version, right);
        }
    }

    /// The watch does not see it any more: it was deleted, or lost its label.
    fn gone(&mut self, version: &str) {
        if !is_older(version, &self.version) {
            self.set(version, false);
        }
    }

    fn set(&mut self, version: &str, right: bool) {
        version.clone_into(&mut self.version);
        (self.right, self.taken) = (right, false);
    }

    /// Cool-down before it is looked at again; `None` when it is as it should be.
    fn wait(&self) -> Option<Duration> {
        let left = || self.applied.map_or(Duration::ZERO, |applied| APPLY_EVERY.saturating_sub(applied.elapsed()));
        (!self.right).then(left)
    }
}

impl Services {
    /// Handles an event of the Service watch. Returns the namespaces whose Service is not as it should be.
    pub fn watched(&self, event: Event<WatchedService>, listing: &mut Listing) -> Vec<String> {
        match event {
            Event::Apply(service) => self.update(&service, |known, version| known.seen(version, right(&service))),
            Event::InitApply(service) => {
                listing.seen.extend(place(&service.metadata));
                self.update(&service, |known, version| known.seen(version, right(&service)))
            }
            Event::Delete(service) => self.update(&service, Known::gone),
            Event::Init => {
                listing.seen.clear();
                Vec::new()
            }
            Event::InitDone => self.sweep(listing),
        }
    }

    /// Ensures that the namespace has the Service: without any request while it is known to be right.
    /// Returns when to look again, if it was applied so recently that the cool-down has not passed. No gang waits for
    /// that: pods try for minutes to find each other.
    ///
    /// # Errors
    /// [`Error::Taken`] when another owner has a Service of this name that is not headless; [`Error::Api`].
    pub async fn ensure(&self, client: &Client, namespace: &str) -> Result<Option<Duration>, Error> {
        let look = self.of(namespace, |known| (!known.right).then(|| known.look.clone()));
        let Some(look) = look else { return Ok(None) };
        let _one = look.lock().await;
        // Meanwhile another one may have seen to it.
        match self.of(namespace, |known| (known.wait(), known.taken)) {
            (Some(Duration::ZERO), _) => self.look(client, namespace).await.map(|()| None),
            (Some(_), true) => Err(taken()),
            (wait, _) => Ok(wait),
        }
    }

    /// Reads the Service, and applies it if it is not as it should be.
    async fn look(&self, client: &Client, namespace: &str) -> Result<(), Error> {
        let services: Api<WatchedService> = Api::namespaced(client.clone(), namespace);
        let name = names::SERVICE;
        let there = services.get_opt(name).await.doing(|| format!("read Service {name}"))?;
        if let Some(there) = there.as_ref().filter(|there| right(there)) {
            self.of(namespace, |known| known.answered(version(&there.metadata)));
            return Ok(());
        }
        match there {
            Some(_) => tracing::warn!(namespace, "Service {name} was changed by another client: restored"),
            None => tracing::info!(namespace, "creating Service {name}"),
        }
        let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
        match services.patch(name, &parameters, &Patch::Apply(objects::service(namespace))).await {
            Ok(applied) => {
                self.of(namespace, |known| {
                    known.applied = Some(Instant::now());
                    known.answered(version(&applied.metadata));
                });
                Ok(())
            }
            // `clusterIP` is immutable: the Service has another owner.
            Err(error) if code(&error) == Some(422) => {
                self.of(namespace, |known| (known.applied, known.taken) = (Some(Instant::now()), true));
                Err(taken())
            }
            Err(error) => Err(error).doing(|| format!("apply Service {name}")),
        }
    }

    /// Records what the watch reports of a Service. Returns its namespace when it is not right.
    fn update(&self, service: &WatchedService, take: impl FnOnce(&mut Known, &str)) -> Vec<String> {
        let Some((namespace, name)) = place(&service.metadata) else { return Vec::new() };
        if name != names::SERVICE {
            return Vec::new();
        }
        let right = self.of(&namespace, |known| {
            take(known, version(&service.metadata));
            known.right
        });
        if right { Vec::new() } else { vec![namespace] }
    }

    /// A Service that is not in the list does not exist, unless it was created since: the next read decides.
    fn sweep(&self, listing: &mut Listing) -> Vec<String> {
        let seen = std::mem::take(&mut listing.seen);
        let unseen = |namespace: &str| !seen.contains(&(namespace.to_owned(), names::SERVICE.to_owned()));
        let mut gone = Vec::new();
        let mut all = self.lock();
        for (namespace, known) in all.iter_mut().filter(|(namespace, _)| listing.covers(namespace)) {
            if known.right && unseen(namespace) {
                known.right = false;
                gone.push(namespace.clone());
            }
        }
        gone
    }

    fn of<T>(&self, namespace: &str, take: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.lock();
        match known.get_mut(namespace) {
            Some(known) => take(known),
            None => take(known.entry(namespace.to_owned()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock()
    }
}

/// Whether a Service is as it should be. Labels that others gave it besides are theirs.
fn right(there: &WatchedService) -> bool {
    let wanted = objects::service(there.metadata.namespace.as_deref().unwrap_or_default());
    let none = BTreeMap::new();
    let labels = there.metadata.labels.as_ref().unwrap_or(&none);
    let labelled = wanted.metadata.labels.iter().flatten().all(|(name, value)| labels.get(name) == Some(value));
    let spec = wanted.spec.unwrap_or_default();
    labelled
        && there.spec.selector == spec.selector
        && there.spec.publish_not_ready_addresses == spec.publish_not_ready_addresses
        && there.spec.cluster_ip == spec.cluster_ip
}

fn taken() -> Error {
    Error::Taken { kind: "Service", name: names::SERVICE.to_owned(), why: "it is not headless".to_owned() }
}

fn version(meta: &ObjectMeta) -> &str {
    meta.resource_version.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    /// The Service as the operator makes it, in a version, with a change.
    fn service(version: &str, change: impl FnOnce(&mut Value)) -> WatchedService {
        let mut service = serde_json::to_value(objects::service("n")).unwrap();
        service["metadata"]["resourceVersion"] = json!(version);
        change(&mut service);
        serde_json::from_value(service).unwrap()
    }

    fn unselecting(service: &mut Value) {
        service["spec"]["selector"] = json!({"app": "theirs"});
    }

    /// The Services, of which the watch has seen one that is right.
    fn one(version: &str) -> (Services, Listing) {
        let (services, mut listing) = (Services::default(), Listing::new(None));
        assert_eq!(services.watched(Event::Init, &mut listing), [""; 0]);
        assert_eq!(services.watched(Event::InitApply(service(version, |_| {})), &mut listing), [""; 0]);
        assert_eq!(services.watched(Event::InitDone, &mut listing), [""; 0]);
        assert!(is_right(&services));
        (services, listing)
    }

    fn is_right(services: &Services) -> bool {
        services.of("n", |known| known.wait()).is_none()
    }

    #[rstest]
    #[case::label(|service: &mut Value| service["metadata"]["labels"]["app.kubernetes.io/name"] = json!("theirs"))]
    #[case::labels(|service: &mut Value| service["metadata"]["labels"] = Value::Null)]
    #[case::selector(unselecting)]
    #[case::more_selected(|service: &mut Value| service["spec"]["selector"]["theirs"] = json!("x"))]
    #[case::ready_only(|service: &mut Value| service["spec"]["publishNotReadyAddresses"] = Value::Null)]
    #[case::address(|service: &mut Value| service["spec"]["clusterIP"] = json!("10.0.0.1"))]
    fn changes_by_other_clients_are_noticed(#[case] change: fn(&mut Value)) {
        let (services, mut listing) = one("1");
        assert_eq!(services.watched(Event::Apply(service("2", change)), &mut listing), ["n"]);
        assert!(!is_right(&services));
        assert_eq!(services.watched(Event::Apply(service("3", |_| {})), &mut listing), [""; 0]);
        assert!(is_right(&services));
    }

    #[test]
    fn fields_and_services_of_others_are_left_unchanged() {
        let (services, mut listing) = one("1");
        let labelled = service("2", |service| service["metadata"]["labels"]["team"] = json!("a"));
        assert_eq!(services.watched(Event::Apply(labelled), &mut listing), [""; 0]);
        let other = |version| service(version, |service| service["metadata"]["name"] = json!("other"));
        assert_eq!(services.watched(Event::Apply(other("3")), &mut listing), [""; 0]);
        assert_eq!(services.watched(Event::Delete(other("4")), &mut listing), [""; 0]);
        assert!(is_right(&services));
    }

    #[test]
    fn what_is_deleted_or_out_of_a_new_list_is_gone() {
        assert!(!is_right(&Services::default()), "what was never seen is not there");
        let (services, mut listing) = one("1");
        assert_eq!(services.watched(Event::Delete(service("2", |_| {})), &mut listing), ["n"]);
        assert!(!is_right(&services));
        services.watched(Event::Apply(service("3", |_| {})), &mut listing);
        assert!(is_right(&services));

        let mut elsewhere = Listing::new(Some("other".to_owned()));
        assert_eq!(services.watched(Event::InitDone, &mut elsewhere), [""; 0]);
        services.watched(Event::Init, &mut listing);
        assert_eq!(services.watched(Event::InitDone, &mut listing), ["n"]);
        assert!(!is_right(&services));
        // It was created during the list: the watch reports it again.
        services.watched(Event::Apply(service("3", |_| {})), &mut listing);
        assert!(is_right(&services));
    }

    #[test]
    fn a_watch_that_lags_is_passed_over_and_one_that_is_newer_is_believed() {
        let (services, mut listing) = one("9");
        services.of("n", |known| known.answered("12"));
        assert_eq!(services.watched(Event::Delete(service("10", |_| {})), &mut listing), [""; 0]);
        assert_eq!(services.watched(Event::Apply(service("11", unselecting)), &mut listing), [""; 0]);
        // Somebody makes something else of what is applied: nothing is gained by applying it again.
        assert_eq!(services.watched(Event::Apply(service("12", unselecting)), &mut listing), [""; 0]);
        assert!(is_right(&services));
        assert_eq!(services.watched(Event::Apply(service("13", unselecting)), &mut listing), ["n"]);
        // An answer that the watch overtook is old.
        services.of("n", |known| known.answered("12"));
        assert!(!is_right(&services));
        services.of("n", |known| known.answered("13"));
        assert!(is_right(&services));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_others_keep_otherwise_is_applied_only_so_often() {
        let (services, mut listing) = one("1");
        services.watched(Event::Apply(service("2", unselecting)), &mut listing);
        let wait = || services.of("n", |known| known.wait());
        assert_eq!(wait(), Some(Duration::ZERO), "the first time it is restored at once");
        services.of("n", |known| {
            known.applied = Some(Instant::now());
            known.answered("3");
        });
        assert_eq!(wait(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        services.watched(Event::Apply(service("4", unselecting)), &mut listing);
        assert_eq!(wait(), Some(APPLY_EVERY - Duration::from_secs(1)));
        tokio::time::advance(APPLY_EVERY).await;
        assert_eq!(wait(), Some(Duration::ZERO));
    }
}
