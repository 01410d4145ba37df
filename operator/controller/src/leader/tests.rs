//! The election against an API server in memory that orders writes as the real one does.

use super::*;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use kube::Client;
use kube::client::Body;
use rstest::rstest;
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time;

/// The one lease of the server.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Lease>>>,
    writes: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// A client; while `down` it gets no answers.
    fn client(&self, down: Arc<Mutex<bool>>) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, down) = (server.clone(), down.clone());
            async move {
                if *down.lock().unwrap() {
                    std::future::pending::<()>().await;
                }
                time::sleep(Duration::from_millis(5)).await;
                Ok::<_, std::convert::Infallible>(server.answer(request).await)
            }
        });
        Client::new(service, "pawl")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut lease = self.lease.lock().unwrap();
        if method == Method::GET {
            return match &*lease {
                Some(lease) => reply(StatusCode::OK, lease),
                None => failure(StatusCode::NOT_FOUND),
            };
        }
        let mut new: Lease = serde_json::from_slice(&body).unwrap();
        let version = lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if new.metadata.resource_version != version {
            return failure(StatusCode::CONFLICT);
        }
        let next = version.map_or(1, |version| version.parse::<u64>().unwrap() + 1);
        new.metadata.resource_version = Some(next.to_string());
        let holder = new.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        self.writes.lock().unwrap().push(holder);
        *lease = Some(new.clone());
        reply(StatusCode::OK, &new)
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().unwrap().as_ref().and_then(|lease| lease.spec.as_ref()?.holder_identity.clone())
    }

    fn transitions(&self) -> Option<i32> {
        self.lease.lock().unwrap().as_ref().and_then(|lease| lease.spec.as_ref()?.lease_transitions)
    }
}

fn reply(code: StatusCode, body: &impl serde::Serialize) -> Response<Body> {
    Response::builder().status(code).body(Body::from(serde_json::to_vec(body).unwrap())).unwrap()
}

fn failure(code: StatusCode) -> Response<Body> {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                        "reason": reason, "message": reason});
    reply(code, &status)
}

/// A replica of the operator.
struct Replica {
    leadership: Leadership,
    down: Arc<Mutex<bool>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(server: &Server, name: &str) -> Self {
        let down = Arc::new(Mutex::new(false));
        let (election, leadership) =
            Election::new(server.client(down.clone()), "pawl", name.to_owned(), Timing::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(election.run(async {
            let _ = stopped.await;
        }));
        Self { leadership, down, stop: Some(stop), task }
    }

    /// SIGKILL: nothing is released.
    fn kill(&self) {
        self.task.abort();
    }

    /// SIGTERM.
    async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        self.task.await.unwrap();
    }
}

async fn until(what: &str, limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        time::sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

fn lease(holder: Option<&str>, version: &str, seconds: Option<i32>) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.resource_version = Some(version.to_owned());
    let holder_identity = holder.map(str::to_owned);
    lease.spec = Some(LeaseSpec { holder_identity, lease_duration_seconds: seconds, ..LeaseSpec::default() });
    lease
}

#[rstest]
#[case::none(None, 0, Act::Create)]
#[case::ours(Some(Some("me")), 3600, Act::Renew)]
#[case::released(Some(None), 0, Act::Take)]
#[case::released_as_client_go_does(Some(Some("")), 0, Act::Take)]
#[case::expired(Some(Some("other")), 15, Act::Take)]
#[tokio::test(start_paused = true)]
async fn what_to_do_about_a_lease(#[case] holder: Option<Option<&str>>, #[case] seconds: u64, #[case] expected: Act) {
    let at = Instant::now();
    let seen = holder.map(|holder| Seen { lease: lease(holder, "1", Some(15)), at });
    let now = at + Duration::from_secs(seconds);
    assert_eq!(evaluate(seen.as_ref(), "me", now, &Timing::default()), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_changes_is_alive_whatever_its_clock_says() {
    let timing = Timing::default();
    let start = Instant::now();
    let mut seen = None;
    // A leader whose clock stands still renews every 10 s: the version changes, the times in it do not.
    for (look, version) in [(0, "1"), (10, "2"), (20, "3"), (30, "4")] {
        let now = start + Duration::from_secs(look);
        seen = Some(Seen::look(seen, lease(Some("other"), version, Some(15)), now));
        assert!(matches!(evaluate(seen.as_ref(), "me", now, &timing), Act::Follow { .. }));
    }
    // It stops: 15 s after the last change was seen the lease is free, not before.
    let last = start + Duration::from_secs(30);
    for (later, expected) in [(14, Act::Follow { until: last + timing.duration }), (15, Act::Take)] {
        let now = last + Duration::from_secs(later);
        seen = Some(Seen::look(seen, lease(Some("other"), "4", Some(15)), now));
        assert_eq!(evaluate(seen.as_ref(), "me", now, &timing), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_other_follows() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    until("b follows", Duration::from_secs(1), || second.leadership.follows()).await;
    time::sleep(Duration::from_secs(600)).await;
    assert!(first.leadership.may_act() && !second.leadership.may_act() && second.leadership.follows());
    let writes = server.writes.lock().unwrap();
    assert!(writes.iter().all(|holder| holder == "a"), "a follower writes nothing");
    assert!((190..=210).contains(&writes.len()), "one renewal in 3 s, not {} in 600 s", writes.len());
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_within_twenty_seconds() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    time::sleep(Duration::from_millis(30_001)).await;
    first.kill();
    let took = until("b leads", Duration::from_secs(20), || second.leadership.may_act()).await;
    assert!(took > Duration::from_secs(10), "not before the killed one's right to act is over: {took:?}");
    assert_eq!(server.transitions(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_leader_releases_the_lease() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    time::sleep(Duration::from_secs(10)).await;
    first.stop().await;
    assert_eq!(server.holder(), None);
    until("b leads", Duration::from_secs(3), || second.leadership.may_act()).await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_stops_leaves_the_lease_alone() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    time::sleep(Duration::from_secs(10)).await;
    second.stop().await;
    assert_eq!(server.holder().as_deref(), Some("a"));
    time::sleep(Duration::from_secs(60)).await;
    assert!(first.leadership.may_act());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_stops_acting_and_leads_again_when_it_is_back() {
    let server = Server::default();
    let replica = Replica::start(&server, "a");
    until("it leads", Duration::from_secs(1), || replica.leadership.may_act()).await;
    time::sleep(Duration::from_secs(20)).await;
    *replica.down.lock().unwrap() = true;
    let mut leadership = replica.leadership.clone();
    let began = Instant::now();
    leadership.lost().await;
    assert!(began.elapsed() <= Timing::default().act_for, "{:?}", began.elapsed());
    assert!(!replica.leadership.may_act());
    time::sleep(Duration::from_secs(60)).await;
    assert!(!replica.leadership.may_act());
    *replica.down.lock().unwrap() = false;
    time::timeout(Duration::from_secs(8), leadership.gained()).await.expect("it leads again");
    assert_eq!(server.transitions(), Some(0), "nobody else had it meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_follower_asks_no_more_often_while_the_api_server_refuses() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let refusals = Arc::new(Mutex::new(None));
    let (answers, refused) = (server.clone(), refusals.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let refuses = refused.lock().unwrap().as_mut().map(|count| *count += 1).is_some();
        let server = answers.clone();
        async move { if refuses { Err(std::io::Error::other("refused")) } else { Ok(server.answer(request).await) } }
    });
    let (election, second) = Election::new(Client::new(service, "pawl"), "pawl", "b".to_owned(), Timing::default());
    let task = tokio::spawn(election.run(std::future::pending()));
    until("b follows", Duration::from_secs(1), || second.follows()).await;
    *refusals.lock().unwrap() = Some(0);
    time::sleep(Duration::from_secs(60)).await;
    let asked = refusals.lock().unwrap().unwrap();
    assert!((20..=32).contains(&asked), "{asked} times in 60 s, every 2 s");
    first.kill();
    time::sleep(Duration::from_secs(60)).await;
    *refusals.lock().unwrap() = None;
    until("b leads", Duration::from_secs(18), || second.may_act()).await;
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_a_person_deleted_is_made_again() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    time::sleep(Duration::from_secs(10)).await;
    for _ in 0..20 {
        *server.lease.lock().unwrap() = None;
        for _ in 0..30 {
            time::sleep(Duration::from_millis(310)).await;
            assert!(!second.leadership.may_act(), "its holder makes it again before another one may take it");
        }
    }
    assert!(first.leadership.may_act());
    *first.down.lock().unwrap() = true;
    *server.lease.lock().unwrap() = None;
    let took = until("b leads", Duration::from_secs(20), || second.leadership.may_act()).await;
    assert!(took > Duration::from_secs(10), "not while a may still act: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_right_whose_election_died_runs_out() {
    let server = Server::default();
    let replica = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || replica.leadership.may_act()).await;
    replica.kill();
    let mut leadership = replica.leadership.clone();
    time::timeout(Timing::default().act_for, leadership.lost()).await.expect("it is lost in time");
    assert!(!replica.leadership.may_act());
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_same_pod_goes_on_at_once() {
    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    first.kill();
    let again = Replica::start(&server, "a");
    until("a leads again", Duration::from_secs(1), || again.leadership.may_act()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lone_replica_leads_for_ever() {
    let mut alone = Leadership::alone();
    alone.gained().await;
    assert!(alone.may_act());
    assert!(time::timeout(Duration::from_secs(86_400), alone.lost()).await.is_err());
}

/// Kills, partitions and restarts in every order: never do two act at once, and always one does in the end.
#[tokio::test(start_paused = true)]
async fn never_do_two_act_at_once() {
    for seed in 0..40_u64 {
        let server = Server::default();
        let mut random = seed;
        let mut draw = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut replicas: Vec<Replica> = (0..3).map(|n| Replica::start(&server, &format!("r{n}"))).collect();
        for step in 0..600 {
            time::sleep(Duration::from_millis(200 + draw(300))).await;
            let acting = replicas.iter().filter(|replica| replica.leadership.may_act()).count();
            assert!(acting <= 1, "seed {seed}, step {step}: {acting} act");
            let which = draw(3) as usize;
            match draw(20) {
                0 | 1 => {
                    let mut down = replicas[which].down.lock().unwrap();
                    *down = !*down;
                }
                2 => {
                    replicas[which].kill();
                    replicas[which] = Replica::start(&server, &format!("r{which}-{step}"));
                }
                _ => {}
            }
        }
        for replica in &replicas {
            *replica.down.lock().unwrap() = false;
        }
        until("one leads", Duration::from_secs(25), || replicas.iter().any(|replica| replica.leadership.may_act()))
            .await;
        replicas.iter().for_each(Replica::kill);
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_reads_but_cannot_write() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::PostParams;
    use tower::Layer;

    let server = Server::default();
    let first = Replica::start(&server, "a");
    until("a leads", Duration::from_secs(1), || first.leadership.may_act()).await;
    let second = Replica::start(&server, "b");
    until("b follows", Duration::from_secs(1), || second.leadership.follows()).await;
    let answered = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, std::convert::Infallible>(reply(StatusCode::OK, &ConfigMap::default()))
    });
    let client = |leadership: &Leadership| Client::new(leadership.fence().layer(answered), "pawl");
    let write = async |leadership: &Leadership| {
        let api: Api<ConfigMap> = Api::namespaced(client(leadership), "pawl");
        api.create(&PostParams::default(), &ConfigMap::default()).await
    };
    write(&first.leadership).await.expect("a leader writes");
    let refused = write(&second.leadership).await.expect_err("a follower does not");
    assert!(matches!(&refused, kube::Error::Service(error) if error.is::<Fenced>()), "{refused:?}");
    let api: Api<ConfigMap> = Api::namespaced(client(&second.leadership), "pawl");
    api.get("any").await.expect("a follower reads");
}
