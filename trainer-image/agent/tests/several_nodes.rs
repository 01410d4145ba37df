//! Several agents on the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{Agent, address, nodes, outcomes, plan};
use pawl_agent::{AgentError, AttemptEnd, AttemptResult, Event, Node, Stop, finished_reports, run};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::AttemptPlan;
use pawl_rendezvous::{Client, ClientError, Token};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(2);

fn start(dir: &Path, plan: &AttemptPlan) -> Vec<Agent> {
    nodes(dir, plan.replicas).into_iter().map(|node| Agent::start(plan, node)).collect()
}

/// The results of all agents, which must tell the same.
async fn agreed(agents: Vec<Agent>) -> AttemptResult {
    let mut results = Vec::new();
    for agent in agents {
        results.push(agent.result().await);
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:#?}");
    results.remove(0)
}

#[tokio::test]
async fn a_gang_runs_its_launches_in_step() {
    let dir = tempdir().unwrap();
    // Each rank waits for all ranks of its launch: that ends only when the gang is whole.
    let script = r#"touch ../../$LAUNCH-$RANK
        until [ $(ls ../.. | grep -c "^$LAUNCH-") = 6 ]; do sleep 0.02; done
        echo "$MASTER_ADDR:$MASTER_PORT $PAWL_LOCAL_RANK" > port; done_well"#;
    let agents = start(dir.path(), &plan(3, 2, &["a", "b"], script));
    let events: Vec<_> = agents.iter().map(|agent| std::sync::Arc::clone(&agent.events)).collect();
    let result = agreed(agents).await;
    assert_eq!(
        (result.end, outcomes(&result)),
        (AttemptEnd::Complete, vec![("a", Outcome::Done), ("b", Outcome::Done)])
    );
    let when = |replica: usize, wanted: fn(&Event) -> bool| {
        events[replica].lock().unwrap().iter().filter(|(_, event)| wanted(event)).map(|(at, _)| *at).collect::<Vec<_>>()
    };
    let ended: Vec<_> = (0..3).map(|replica| when(replica, |e| matches!(e, Event::LaunchEnded(_)))[0]).collect();
    let started: Vec<_> =
        (0..3).map(|replica| when(replica, |e| matches!(e, Event::LaunchStarted { .. }))[1]).collect();
    assert!(ended.iter().max() < started.iter().min(), "the second launch began before the first had ended everywhere");
    let port = |node: u32| std::fs::read_to_string(dir.path().join(format!("node-{node}/a/port"))).unwrap();
    let whole = |node| port(node).split(' ').next().unwrap().to_owned();
    assert!(whole(0).starts_with("127.0.0.1:") && whole(0) == whole(1) && whole(1) == whole(2));
}

#[tokio::test]
async fn the_report_names_the_nodes_that_differ_from_the_first() {
    let dir = tempdir().unwrap();
    // The launch ends once each node knows what it has.
    let plan = plan(3, 1, &["a"], "until [ -e ../provenance.json ]; do sleep 0.02; done; done_well");
    let plan = AttemptPlan { gpus_per_replica: 1, ..plan };
    let path = |driver: &str| {
        let folder = dir.path().join(driver);
        std::fs::create_dir_all(&folder).unwrap();
        // By another process: a program that another thread starts meanwhile would hold the file open for writing.
        let write = r#"printf '#!/bin/sh\necho "L4, 23034, %s"\n' "$1" > "$0" && chmod +x "$0""#;
        let program = folder.join("nvidia-smi");
        assert!(Command::new("sh").args(["-c", write]).arg(program).arg(driver).status().unwrap().success());
        format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
    };
    let mut nodes = nodes(dir.path(), 3);
    for (node, driver) in nodes.iter_mut().zip(["580.1", "580.1", "570.1"]) {
        node.env.push(("PATH".to_owned(), path(driver)));
    }
    let agents = nodes.into_iter().map(|node| Agent::start(&plan, node)).collect();
    assert_eq!(outcomes(&agreed(agents).await), [("a", Outcome::Done)]);
    let reports = finished_reports(&dir.path().join("node-0")).unwrap();
    let found = &reports[0].provenance.as_ref().unwrap().other_pods;
    let differing: Vec<_> = found.iter().map(|kind| (&kind.pods[..], kind.provenance.driver.as_deref())).collect();
    assert_eq!(differing, [(&[2][..], Some("570.1"))]);
}

#[tokio::test]
async fn ranks_get_the_address_behind_the_name() {
    let dir = tempdir().unwrap();
    let plan = plan(2, 1, &["a"], r#"echo "$PAWL_RENDEZVOUS $MASTER_ADDR" > ../../met-$RANK; done_well"#);
    let mut nodes = nodes(dir.path(), 2);
    let port = address(&nodes[0]).rsplit_once(':').unwrap().1.to_owned();
    for node in &mut nodes {
        let (pawl_agent::Rendezvous::Listen { address, .. } | pawl_agent::Rendezvous::Join { address, .. }) =
            &mut node.rendezvous
        else {
            panic!("a gang of two")
        };
        *address = format!("localhost:{port}");
    }
    let agents = nodes.into_iter().map(|node| Agent::start(&plan, node)).collect();
    assert_eq!(outcomes(&agreed(agents).await), [("a", Outcome::Done)]);
    for rank in 0..2 {
        let met = std::fs::read_to_string(dir.path().join(format!("met-{rank}"))).unwrap();
        assert_eq!(met.trim(), format!("127.0.0.1:{port} 127.0.0.1"));
    }
}

#[tokio::test]
async fn a_rank_that_dies_on_any_node_ends_the_whole_gang_at_once() {
    for (failing, death, outcome) in [
        (0, r#"report OutOfMemory "too big"; exit 10"#, Outcome::OutOfMemory),
        (3, r#"report OutOfMemory "too big"; exit 10"#, Outcome::OutOfMemory),
        (4, "kill -9 $$", Outcome::Failed),
        (5, "exit 11", Outcome::HostOutOfMemory),
    ] {
        let dir = tempdir().unwrap();
        let script = format!(
            r#"touch ../../up-$LAUNCH-$RANK; [ $LAUNCH = a ] && [ $RANK = {failing} ] && {{
                until [ $(ls ../.. | grep -c "^up-a-") = 6 ]; do sleep 0.02; done
                date +%s.%N > ../../died; {death}; }}
            [ $LAUNCH = a ] && forever; done_well"#
        );
        let agents = start(dir.path(), &plan(3, 2, &["a", "b"], &script));
        let events = std::sync::Arc::clone(&agents[0].events);
        let result = agreed(agents).await;
        assert_eq!(outcomes(&result), [("a", outcome), ("b", Outcome::Done)]);
        for node in 0..3 {
            let report = &finished_reports(&dir.path().join(format!("node-{node}"))).unwrap()[0];
            assert_eq!(report.failure.as_ref().unwrap().rank, Some(failing), "{report:?}");
        }
        let events = events.lock().unwrap();
        let (_, Event::LaunchEnded(_)) = &events[1] else { panic!("{events:?}") };
        let died: f64 = std::fs::read_to_string(dir.path().join("died")).unwrap().trim().parse().unwrap();
        let written = std::fs::metadata(dir.path().join("node-0/a/report.json")).unwrap().modified().unwrap();
        let ended = written.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(ended - died < SOON.as_secs_f64(), "{} s", ended - died);
    }
}

#[tokio::test]
async fn a_stop_of_any_agent_stops_the_gang() {
    let dir = tempdir().unwrap();
    let script = r#"trap 'report Stopped ""; exit 30' TERM; touch ../../up-$RANK; forever"#;
    let agents = start(dir.path(), &plan(3, 1, &["a", "b"], script));
    for rank in 0..3 {
        gang::appears(&dir.path().join(format!("up-{rank}"))).await;
    }
    agents[2].stop.send(Stop::Gracefully).unwrap();
    let result = agreed(agents).await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("a", Outcome::Stopped)]));
}

/// A second SIGTERM ends a trainer without a checkpoint; on a cluster every pod of a gang is told to stop at the same
/// time.
#[tokio::test]
async fn a_gang_whose_agents_are_all_told_to_stop_gets_one_sigterm() {
    let dir = tempdir().unwrap();
    let script = r#"trap 'echo >> ../../terms-$RANK' TERM; touch ../../up-$RANK
        until [ -e ../../leave ]; do sleep 0.02 & wait $!; done; report Stopped ""; exit 30"#;
    let agents = start(dir.path(), &plan(3, 1, &["a"], script));
    for rank in 0..3 {
        gang::appears(&dir.path().join(format!("up-{rank}"))).await;
    }
    for _ in 0..2 {
        for agent in &agents {
            agent.stop.send(Stop::Gracefully).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    std::fs::write(dir.path().join("leave"), "").unwrap();
    let result = agreed(agents).await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("a", Outcome::Stopped)]));
    for rank in 0..3 {
        assert_eq!(std::fs::read_to_string(dir.path().join(format!("terms-{rank}"))).unwrap(), "\n", "rank {rank}");
    }
}

#[tokio::test]
async fn a_lost_agent_is_a_lost_peer_on_every_side() {
    for lost in [0_usize, 2] {
        let dir = tempdir().unwrap();
        let mut agents = start(dir.path(), &plan(3, 1, &["a", "b"], "touch ../../up-$RANK; forever"));
        for rank in 0..3 {
            gang::appears(&dir.path().join(format!("up-{rank}"))).await;
        }
        let begun = Instant::now();
        agents.remove(lost).task.abort();
        for agent in agents {
            let result = agent.result().await;
            assert_eq!((result.end, outcomes(&result)), (AttemptEnd::LostPeer, vec![("a", Outcome::LostPeer)]));
            assert!(result.message.contains(&format!("agent {lost} was lost")), "{}", result.message);
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn an_agent_that_falls_silent_is_lost() {
    let dir = tempdir().unwrap();
    let mut node = nodes(dir.path(), 2).remove(0);
    node.limits.lost_after = Duration::from_millis(600);
    let address = address(&node);
    let agent = Agent::start(&plan(2, 1, &["a"], "done_well"), node);
    let token = Token::read(&dir.path().join("token")).unwrap();
    // It holds the token and its connection stays open, as with a node that freezes.
    let silent = move || pawl_rendezvous::connect(&address, &token, pawl_rendezvous::wire::Who::Agent { replica: 1 });
    let silent = tokio::task::spawn_blocking(silent).await.unwrap().unwrap();
    let begun = Instant::now();
    let result = agent.result().await;
    assert!((Duration::from_millis(400)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!((result.end, result.launches.len()), (AttemptEnd::LostPeer, 0));
    assert_eq!(result.message, "agent 1 was lost: no line received in time");
    drop(silent);
}

#[tokio::test]
async fn agents_may_come_late_and_in_any_order() {
    let dir = tempdir().unwrap();
    let plan = plan(3, 1, &["a"], "done_well");
    let mut nodes = nodes(dir.path(), 3);
    let mut agents = Vec::new();
    for index in [2, 0, 0] {
        agents.push(Agent::start(&plan, nodes.remove(index)));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(outcomes(&agreed(agents).await), [("a", Outcome::Done)]);
}

#[tokio::test]
async fn a_gang_that_is_never_whole_gives_up() {
    let dir = tempdir().unwrap();
    let plan = plan(3, 1, &["a"], "done_well");
    let agents: Vec<_> = nodes(dir.path(), 3)
        .into_iter()
        .take(2)
        .map(|mut node| {
            node.limits.gather = Duration::from_millis(500);
            Agent::start(&plan, node)
        })
        .collect();
    let result = agreed(agents).await;
    assert_eq!((result.end, result.launches.len()), (AttemptEnd::LostPeer, 0));
    assert_eq!(result.message, "no connection from agent 2 within 0.5 s");
}

#[tokio::test]
async fn strangers_are_refused_and_harmless() {
    let dir = tempdir().unwrap();
    let script = "touch ../../up-$RANK; until [ -e ../../go ]; do sleep 0.02; done; done_well";
    let plan = plan(2, 1, &["a"], script);
    let mut nodes = nodes(dir.path(), 2);
    let address = address(&nodes[0]);
    let joins = nodes.remove(1);
    let mut agents = vec![Agent::start(&plan, nodes.remove(0))];

    // Before the gang is whole: slow callers, garbage, a line without end, silence.
    let mut strangers: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        // The other side may hang up in the middle: that is what it should do.
        let _ = match index % 4 {
            0 => stranger.write_all(b"{\"ver"),
            1 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            2 => stranger.write_all(&vec![b'x'; 1 << 20]),
            _ => Ok(()),
        };
    }
    let other = dir.path().join("other-token");
    std::fs::write(&other, "f".repeat(64)).unwrap();
    let impostor = pawl_agent::Rendezvous::Join { address: address.clone(), token_file: other.clone() };
    let impostor = Node {
        replica: 1,
        rendezvous: impostor,
        limits: gang::limits(),
        ..Node::local(dir.path().join("impostor"), Vec::new())
    };
    let (_stop, stopped) = watch::channel(Stop::No);
    let error = run(&plan, impostor, stopped, |_| {}).await.unwrap_err();
    assert!(matches!(error, AgentError::Refused { source: ClientError::WrongToken, .. }), "{error}");

    agents.push(Agent::start(&plan, joins));
    gang::appears(&dir.path().join("up-1")).await;
    // While the launch runs: ranks with a wrong token, of another launch, out of range.
    let token = Token::read(&dir.path().join("token")).unwrap();
    let wrong = Token::read(&other).unwrap();
    let refused = tokio::task::spawn_blocking(move || {
        assert!(matches!(Client::connect(&address, &wrong, 0, "a"), Err(ClientError::WrongToken)));
        for (rank, launch) in [(0, "b"), (2, "a")] {
            let mut client = Client::connect(&address, &token, rank, launch).unwrap();
            assert!(client.put("key", b"value").is_err());
        }
        let mut client = Client::connect(&address, &token, 1, "a").unwrap();
        assert!(matches!(client.get("none", Duration::from_millis(50)), Err(ClientError::Timeout { .. })));
        client.put("key", b"value").unwrap();
        assert!(matches!(client.put("key", b"other"), Err(ClientError::Refused(_))));
        assert!(matches!(client.put("big", &vec![0; (64 << 10) + 1]), Err(ClientError::Refused(_))));
        assert_eq!(client.get("key", Duration::ZERO).unwrap(), b"value");
    });
    refused.await.unwrap();
    // The gang's agent is not let in twice.
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(outcomes(&agreed(agents).await), [("a", Outcome::Done)]);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut answer = Vec::new();
        // Closed or reset, and never told more than a nonce.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}

/// The ranks of this test are this test, started once more.
#[tokio::test]
async fn ranks_of_different_nodes_meet_through_the_rendezvous() {
    let name = "ranks_of_different_nodes_meet_through_the_rendezvous";
    if let Ok(rank) = std::env::var("PAWL_RANK") {
        let met = tokio::task::spawn_blocking(|| {
            let launch = std::env::current_dir().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
            let mut client = Client::from_env(&launch).unwrap();
            let rank = std::env::var("PAWL_RANK").unwrap();
            client.put(&format!("from-{rank}"), format!("{launch} {rank}").as_bytes()).unwrap();
            let said = |peer: u32| client.get(&format!("from-{peer}"), Duration::from_secs(20)).unwrap();
            let all: Vec<String> = (0..4).map(said).map(|value| String::from_utf8(value).unwrap()).collect();
            assert_eq!(all, (0..4).map(|peer| format!("{launch} {peer}")).collect::<Vec<_>>());
            launch
        });
        let launch = met.await.unwrap();
        let report = format!(r#"{{"contract":1,"launch":"{launch}","kind":"Measure","rank":{rank},"outcome":"Done"}}"#);
        std::fs::write(std::env::var("PAWL_REPORT").unwrap(), report).unwrap();
        return;
    }
    let dir = tempdir().unwrap();
    let mut plan = plan(2, 2, &["a", "b"], "");
    plan.command = vec![std::env::current_exe().unwrap().to_str().unwrap().to_owned(), "--exact".into(), name.into()];
    let result = agreed(start(dir.path(), &plan)).await;
    assert_eq!(outcomes(&result), [("a", Outcome::Done), ("b", Outcome::Done)], "{result:?}");
}
