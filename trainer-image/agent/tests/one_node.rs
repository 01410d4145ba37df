//! One agent and the ranks of one node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{Agent, TRAINS, alone, appears, dies, launch, limits, lives, outcomes, plan, record_in, run_alone};
use pawl_agent::{AgentError, AttemptEnd, Event, Node, Stop, finished_launches, finished_reports, run};
use pawl_contract::exit::Outcome;
use pawl_contract::happened::Happened;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::record;
use pawl_contract::report::LaunchResult;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::sync::watch;

const SOON: Duration = Duration::from_secs(2);

#[tokio::test]
async fn launches_run_in_order_in_fresh_processes_with_the_environment_of_the_contract() {
    let dir = tempdir().unwrap();
    let mut plan = plan(
        1,
        3,
        &["z-first", "a-second"],
        r#"env > "env-$RANK"; echo $$ >> ../pids; grep -q '"launch": "'$LAUNCH'"' "$PAWL_PLAN" || exit 1; done_well"#,
    );
    plan.launches[0].settings.nccl = Some([("NCCL_NSOCKS_PERTHREAD".to_owned(), "4".to_owned())].into());
    let agent = alone(dir.path(), &plan);
    let events = std::sync::Arc::clone(&agent.events);
    let result = agent.result().await;
    assert_eq!((result.end, result.message.as_str()), (AttemptEnd::Complete, ""));
    assert_eq!(outcomes(&result), [("z-first", Outcome::Done), ("a-second", Outcome::Done)]);
    let told: Vec<String> = events
        .lock()
        .unwrap()
        .iter()
        .map(|(_, event)| match event {
            Event::LaunchStarted { launch, .. } => format!("+{launch}"),
            Event::LaunchEnded(report) => format!("-{}", report.launch),
            Event::Progress(_) => panic!("nobody wrote progress"),
            Event::Warning { message, .. } => panic!("{message}"),
        })
        .collect();
    assert_eq!(told, ["+z-first", "-z-first", "+a-second", "-a-second"]);
    assert_eq!(finished_launches(dir.path()).unwrap(), result.launches);

    let pids = std::fs::read_to_string(dir.path().join("pids")).unwrap();
    assert_eq!(pids.lines().collect::<std::collections::BTreeSet<_>>().len(), 6);
    let environment = std::fs::read_to_string(dir.path().join("z-first/env-2")).unwrap();
    for line in [
        "PAWL_RANK=2",
        "PAWL_LOCAL_RANK=2",
        "PAWL_WORLD_SIZE=3",
        "RANK=2",
        "LOCAL_RANK=2",
        "WORLD_SIZE=3",
        "MASTER_ADDR=127.0.0.1",
        "CUDA_VISIBLE_DEVICES=",
        "NCCL_NSOCKS_PERTHREAD=4",
        &format!("PAWL_CHECKPOINTS={}", dir.path().join("checkpoints").display()),
        &format!("PAWL_DATA={}", dir.path().join("data").display()),
    ] {
        assert!(environment.lines().any(|have| have == line), "{line} is not in\n{environment}");
    }
    for name in ["PAWL_RENDEZVOUS=127.0.0.1:", "PAWL_TOKEN_FILE=/", "MASTER_PORT=", "PAWL_REPORT=/", "PAWL_PROGRESS=/"]
    {
        assert!(environment.lines().any(|have| have.starts_with(name) && have.len() > name.len()), "{name}");
    }
}

#[tokio::test]
async fn nothing_is_measured_while_checkpoints_could_not_be_written() {
    let dir = tempdir().unwrap();
    let storage = dir.path().join("checkpoints");
    // As root may write everywhere: a storage that is no directory.
    std::fs::write(&storage, "").unwrap();
    let plan = plan(1, 2, &["measured", "also-measured"], "touch ../started; done_well");
    let proves = |place: &str| Node { proves_storage: true, ..Node::local(dir.path().join(place), Vec::new()) };
    let result = Agent::start(&plan, proves("")).result().await;
    let unreadable = Outcome::CheckpointUnreadable;
    assert_eq!(outcomes(&result), [("measured", unreadable), ("also-measured", unreadable)]);
    assert!(!dir.path().join("started").exists());
    let (message, named) = (&result.launches[0].message, storage.display().to_string());
    assert!(message.contains(&named) && message.contains("mount it writable"), "{message}");

    // A training is tried again: its checkpoints are not lost.
    let mut training = plan.clone();
    training.launches.truncate(1);
    training.launches[0].kind = LaunchKind::Train;
    std::fs::create_dir(dir.path().join("training")).unwrap();
    std::fs::write(dir.path().join("training/checkpoints"), "").unwrap();
    let result = Agent::start(&training, proves("training")).result().await;
    assert_eq!(outcomes(&result), [("measured", Outcome::Failed)]);

    // Mended, the attempt that follows measures, and leaves nothing there. What a proof has left that did not end is no
    // checkpoint.
    for place in ["empty", "proven-in-part"] {
        let storage = dir.path().join(place).join("checkpoints");
        std::fs::create_dir_all(&storage).unwrap();
        let left = if place == "empty" { 0 } else { 1 };
        (0..left).for_each(|_| std::fs::write(storage.join(".pawl-probe-1"), "").unwrap());
        let result = Agent::start(&plan, proves(place)).result().await;
        assert_eq!(outcomes(&result), [("measured", Outcome::Done), ("also-measured", Outcome::Done)]);
        // The records of the job are there, too.
        let names = std::fs::read_dir(&storage).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name != ".pawl").count(), left);
    }
}

/// The outcome, message and failing rank of a launch of three ranks that runs `script`.
async fn verdict(script: &str) -> (Outcome, String, Option<u32>) {
    let dir = tempdir().unwrap();
    let begun = Instant::now();
    let result = run_alone(dir.path(), &plan(1, 3, &["l"], script)).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let reports = finished_reports(dir.path()).unwrap();
    assert_eq!(result.launches, [LaunchResult::from(&reports[0])]);
    let failure = reports[0].failure.clone();
    (reports[0].outcome, reports[0].message.clone(), failure.and_then(|failure| failure.rank))
}

#[tokio::test]
async fn the_first_rank_that_fails_decides_and_the_others_are_ended_at_once() {
    let oom = verdict(r#"[ $RANK = 1 ] && { report OutOfMemory "48 GiB asked, 40 free: use a smaller batchPerGpu"; exit 10; }; forever"#).await;
    assert_eq!(oom, (Outcome::OutOfMemory, "rank 1: 48 GiB asked, 40 free: use a smaller batchPerGpu".into(), Some(1)));

    // Rank 0 notices first that a peer is gone, and says so before the agent knows why.
    let peers = verdict(
        r#"[ $RANK = 0 ] && { report LostPeer "rank 2 closed its connection"; exit 40; }
        [ $RANK = 2 ] && { sleep 0.1; report NonFinite "loss is NaN at step 3"; exit 12; }; forever"#,
    )
    .await;
    assert_eq!(peers, (Outcome::NonFinite, "rank 2: loss is NaN at step 3".into(), Some(2)));

    let (outcome, message, rank) = verdict("[ $RANK = 2 ] && { echo 'cannot go on' >&2; kill -9 $$; }; forever").await;
    assert_eq!((outcome, rank), (Outcome::Failed, Some(2)));
    assert_eq!(message, "rank 2: killed by signal 9 (SIGKILL); its last output: cannot go on");

    let (outcome, message, _) = verdict("[ $RANK = 1 ] && { echo 'Traceback: boom'; exit 3; }; forever").await;
    assert_eq!(outcome, Outcome::Failed);
    assert_eq!(message, "rank 1: exit code 3 (Failed); it left no report.json; its last output: Traceback: boom");

    let lost = verdict(r#"[ $RANK = 1 ] && { report LostPeer "the fabric is down"; exit 40; }; forever"#).await;
    assert_eq!(lost, (Outcome::LostPeer, "rank 1: the fabric is down".into(), Some(1)));
}

#[tokio::test]
async fn exit_code_and_report_must_agree() {
    let rules = verdict(r#"[ $RANK = 0 ] && { report Done ""; exit 12; }; forever"#).await;
    assert_eq!(rules.0, Outcome::NonFinite);
    assert!(rules.1.contains("exit code 12 (NonFinite), but its report says Done"), "{}", rules.1);
    for (script, part) in [
        (r#"report OutOfMemory "no"; exit 0"#, "but its report says OutOfMemory"),
        ("exit 0", "left no report.json"),
        (r#"echo '{"contract":1' > $PAWL_REPORT; exit 0"#, "cannot be read"),
        (r#"LAUNCH=other; report Done ""; exit 0"#, "of launch `other`"),
        // A terabyte of report is not read.
        ("truncate -s 1T $PAWL_REPORT; exit 0", "cannot be read (1099511627776 bytes"),
        ("mkfifo $PAWL_REPORT; exit 0", "not a regular file"),
    ] {
        let (outcome, message, rank) = verdict(script).await;
        assert_eq!((outcome, rank), (Outcome::Failed, Some(0)), "{script}");
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn output_without_end_is_kept_only_in_part() {
    let dir = tempdir().unwrap();
    let result = run_alone(dir.path(), &plan(1, 1, &["l"], "seq 1 300000; echo the end; done_well")).await;
    assert_eq!(outcomes(&result), [("l", Outcome::Done)]);
    let size = |name: &str| std::fs::metadata(dir.path().join("l").join(name)).unwrap().len();
    assert!(size("rank-0.log") + size("rank-0.log.1") <= 128 << 10);
    assert!(std::fs::read_to_string(dir.path().join("l/rank-0.log")).unwrap().ends_with("the end\n"));
}

#[tokio::test]
async fn a_rank_that_makes_no_progress_is_a_hang() {
    let dir = tempdir().unwrap();
    let mut plan = plan(
        1,
        2,
        &["l"],
        "[ $RANK = 0 ] && { progress 0; for s in 1 2 3 4; do progress $s; sleep 0.2; done; }; forever",
    );
    plan.launches[0].hang_timeout_seconds = 1.0;
    let agent = alone(dir.path(), &plan);
    let events = std::sync::Arc::clone(&agent.events);
    let begun = Instant::now();
    let result = agent.result().await;
    assert!((Duration::from_millis(1500)..Duration::from_secs(4)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let hang = &result.launches[0];
    assert_eq!(
        (hang.outcome, hang.measured.steps, hang.measured.items, hang.failed_at_items),
        (Outcome::Hang, 4, 40, Some(40))
    );
    assert!(hang.message.starts_with("no progress for 1 s; the last step was 4; rank 0: pid "), "{}", hang.message);
    let stuck = std::fs::read_to_string(dir.path().join("l/stuck.txt")).unwrap();
    assert!(
        stuck.contains("rank 0:\npid") && stuck.contains("rank 1:\npid") && stuck.contains("sh: 1 thread(s)"),
        "{stuck}"
    );
    let steps = |(_, event): &(Instant, Event)| if let Event::Progress(p) = event { Some(p.step) } else { None };
    assert_eq!(events.lock().unwrap().iter().filter_map(steps).max(), Some(4));
}

#[tokio::test]
async fn slow_work_outside_of_training_is_no_hang_while_it_advances() {
    let dir = tempdir().unwrap();
    let run = async |name: &str, script: &str| {
        let mut plan = plan(1, 1, &["l"], script);
        plan.launches[0].hang_timeout_seconds = 0.4;
        run_alone(&dir.path().join(name), &plan).await.launches[0].clone()
    };
    // A foreign trainer: its save takes several times as long as the timeout and the allowance together.
    let saves = "progress 1; progress 2; for i in 1 2 3 4 5 6 7 8; do at 2 Saving $i; sleep 0.3; done; done_well";
    let result = run("saves", saves).await;
    assert_eq!(result.outcome, Outcome::Done, "{}", result.message);
    for (name, script, expected) in [
        ("stuck", "progress 1; progress 2; at 2 Saving 7; forever", "; the phase is Saving, the last step was 2; "),
        ("dead", "progress 1; progress 2; at 2 Training 3; forever", "; the last step was 2; "),
        ("early", "at 0 Compiling 7; forever", "; the phase is Compiling, no step was completed; "),
        // Heartbeats are no steps.
        (
            "busy",
            "progress 1; progress 2; for i in $(seq 40); do at 2 Training $i; sleep 0.1; done; done_well",
            "; the last step was 2; ",
        ),
    ] {
        let result = run(name, script).await;
        assert_eq!(result.outcome, Outcome::Hang, "{name}");
        assert!(result.message.contains(expected), "{name}: {}", result.message);
    }
}

#[tokio::test]
async fn a_phase_that_does_not_end_is_a_hang_although_it_has_heartbeats() {
    let dir = tempdir().unwrap();
    let script = "progress 1; progress 2; i=0; while :; do i=$((i+1)); at 2 Validating $i; sleep 0.1; done";
    let mut node = Node::local(dir.path(), Vec::new());
    node.limits = limits();
    node.limits.longest_phase = |_| Some(Duration::from_millis(1500));
    let agent = Agent::start(&plan(1, 1, &["l"], script), node);
    let result = agent.result().await.launches[0].clone();
    assert_eq!(result.outcome, Outcome::Hang, "{}", result.message);
    assert!(result.message.contains("although work goes on"), "{}", result.message);
}

#[tokio::test]
async fn a_launch_may_start_slowly_and_end_one_by_one() {
    let dir = tempdir().unwrap();
    // Slower than the timeout before the first step, but within the allowance.
    let mut slow = plan(1, 1, &["slow"], "progress 0; sleep 0.5; progress 1; done_well");
    slow.launches[0].hang_timeout_seconds = 0.3;
    assert_eq!(outcomes(&run_alone(&dir.path().join("a"), &slow).await), [("slow", Outcome::Done)]);
    // Rank 0 is done, and rank 1 never exits.
    let mut half = plan(1, 2, &["half"], "[ $RANK = 0 ] && done_well; forever");
    half.launches[0].hang_timeout_seconds = 0.5;
    let result = run_alone(&dir.path().join("b"), &half).await;
    assert_eq!(outcomes(&result), [("half", Outcome::Hang)]);
    assert!(result.launches[0].message.contains("a rank did not exit within 0.5 s after another was done"));
}

#[tokio::test]
async fn a_stop_is_passed_on_and_ends_the_attempt_after_the_checkpoint() {
    let dir = tempdir().unwrap();
    let agent = alone(dir.path(), &plan(1, 2, &["one", "two"], TRAINS));
    agent.sees("one/up-0").await;
    agent.sees("one/up-1").await;
    agent.stop.send(Stop::Gracefully).unwrap();
    let result = agent.result().await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("one", Outcome::Stopped)]));
    assert_eq!(result.launches[0].measured.steps, 7);
    assert!(result.launches[0].message.contains("checkpoint at step 7"), "{}", result.launches[0].message);
    assert!(!dir.path().join("two").exists());
}

#[tokio::test]
async fn a_stop_that_comes_while_a_launch_is_prepared_reaches_it() {
    let dir = tempdir().unwrap();
    let script = r#"[ $LAUNCH = one ] && done_well; trap 'report Stopped ""; exit 30' TERM; forever"#;
    let (request, stop) = watch::channel(Stop::No);
    let node = Node { limits: limits(), ..Node::local(dir.path(), Vec::new()) };
    // As a shell decides it from the result of the first launch.
    let listen = move |event: Event| {
        if let Event::LaunchEnded(_) = event {
            let request = request.clone();
            tokio::spawn(async move { request.send(Stop::Gracefully) });
        }
    };
    let plan = plan(1, 1, &["one", "two"], script);
    let result = tokio::time::timeout(10 * SOON, run(&plan, node, stop, listen)).await.expect("it stops").unwrap();
    assert_eq!(result.end, AttemptEnd::Stopped);
}

/// `sh -c 'python train.py | tee log'` dies of SIGTERM at once, and its trainer has heard nothing.
#[tokio::test]
async fn what_a_shell_has_started_is_told_to_stop_and_has_time_for_its_checkpoint() {
    let dir = tempdir().unwrap();
    let trainer = r#"trap "sleep 0.5; touch ../saved; exit 30" TERM; touch up; while :; do sleep 0.05; done"#;
    let agent = alone(dir.path(), &plan(1, 1, &["one", "two"], &format!("sh -c '{trainer}'; true")));
    agent.sees("one/up").await;
    agent.stop.send(Stop::Gracefully).unwrap();
    let result = agent.result().await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("one", Outcome::Stopped)]));
    assert!(dir.path().join("saved").exists());
}

#[tokio::test]
async fn a_stop_leaves_time_for_the_checkpoint_even_when_a_peer_misses_another() {
    let dir = tempdir().unwrap();
    let script = r#"[ $RANK = 0 ] && trap 'sleep 1; touch ../checkpoint; report Stopped ""; exit 30' TERM
        [ $RANK = 1 ] && trap 'report Stopped ""; exit 30' TERM
        [ $RANK = 2 ] && trap 'sleep 0.1; report LostPeer "rank 1 is gone"; exit 40' TERM
        touch up-$RANK; forever"#;
    let agent = alone(dir.path(), &plan(1, 3, &["one"], script));
    for rank in 0..3 {
        agent.sees(&format!("one/up-{rank}")).await;
    }
    agent.stop.send(Stop::Gracefully).unwrap();
    let result = agent.result().await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("one", Outcome::Stopped)]));
    assert!(dir.path().join("checkpoint").exists());
}

#[tokio::test]
async fn a_report_that_cannot_be_kept_is_an_error_that_names_it_and_loses_nothing_else() {
    let dir = tempdir().unwrap();
    let plan = plan(1, 1, &["a", "b"], "[ $LAUNCH = b ] && mkdir -p report.json; echo $LAUNCH >> ../ran; done_well");
    let (_stop, stopped) = watch::channel(Stop::No);
    let node = Node { limits: limits(), ..Node::local(dir.path(), Vec::new()) };
    let error = run(&plan, node, stopped, |_| {}).await.unwrap_err().to_string();
    assert!(error.contains("b/report.json: "), "{error}");
    let finished: Vec<_> = finished_launches(dir.path()).unwrap().into_iter().map(|launch| launch.launch).collect();
    assert_eq!(finished, ["a"]);
}

#[tokio::test]
async fn ranks_that_do_not_stop_are_killed() {
    let deaf = "trap '' TERM; touch up-$RANK; forever";
    for (stop, grace) in [(Stop::Gracefully, Duration::from_millis(700)), (Stop::Now, Duration::ZERO)] {
        let dir = tempdir().unwrap();
        let mut node = Node { limits: limits(), ..Node::local(dir.path(), Vec::new()) };
        node.limits.stop_grace = Duration::from_millis(700);
        let agent = Agent::start(&plan(1, 2, &["one", "two"], deaf), node);
        agent.sees("one/up-0").await;
        agent.sees("one/up-1").await;
        let begun = Instant::now();
        agent.stop.send(stop).unwrap();
        let result = agent.result().await;
        assert!(begun.elapsed() >= grace && begun.elapsed() < grace + SOON, "{:?}", begun.elapsed());
        assert_eq!((result.end, outcomes(&result)), (AttemptEnd::Stopped, vec![("one", Outcome::Stopped)]));
    }
}

#[tokio::test]
async fn evidence_is_not_gathered_twice() {
    let dir = tempdir().unwrap();
    let script = r#"echo $LAUNCH >> ../ran; [ $LAUNCH = b ] && [ ! -e ../again ] && { touch ../again; exit 1; }
        [ $LAUNCH = c ] && { report OutOfMemory no; exit 10; }; done_well"#;
    let plan = plan(1, 1, &["a", "b", "c"], script);
    let first = run_alone(dir.path(), &plan).await;
    let second = run_alone(dir.path(), &plan).await;
    assert_eq!(outcomes(&first), [("a", Outcome::Done), ("b", Outcome::Failed), ("c", Outcome::OutOfMemory)]);
    assert_eq!(outcomes(&second), [("a", Outcome::Done), ("b", Outcome::Done), ("c", Outcome::OutOfMemory)]);
    assert_eq!(std::fs::read_to_string(dir.path().join("ran")).unwrap(), "a\nb\nc\nb\n");
    assert_eq!(finished_launches(dir.path()).unwrap(), second.launches);
    // A torn report does not count: the launch runs again.
    std::fs::write(dir.path().join("a/report.json"), "{").unwrap();
    assert_eq!(finished_launches(dir.path()).unwrap().len(), 2);
    assert_eq!(run_alone(dir.path(), &plan).await.launches.len(), 3);
}

#[tokio::test]
async fn a_failure_ends_the_attempt_when_the_plan_says_so() {
    let dir = tempdir().unwrap();
    let mut plan = plan(1, 1, &["a", "b"], r#"report NonFinite "loss is NaN"; exit 12"#);
    plan.stop_on_failure = true;
    let result = run_alone(dir.path(), &plan).await;
    assert_eq!((result.end, outcomes(&result)), (AttemptEnd::LaunchFailed, vec![("a", Outcome::NonFinite)]));
    assert_eq!(result.message, "rank 0: loss is NaN");
}

#[tokio::test]
async fn a_program_that_is_not_there_fails_the_launch_and_says_so() {
    let dir = tempdir().unwrap();
    let mut plan = plan(1, 2, &["a"], "");
    plan.command = vec!["/no/such/trainer".into()];
    let result = run_alone(dir.path(), &plan).await;
    assert_eq!(outcomes(&result), [("a", Outcome::Failed)]);
    assert!(result.launches[0].message.contains("cannot start `/no/such/trainer`"), "{}", result.launches[0].message);
}

#[tokio::test]
async fn bad_plans_and_directories_in_use_are_refused() {
    let dir = tempdir().unwrap();
    let good = plan(1, 1, &["a"], TRAINS);
    let first = alone(dir.path(), &good);
    first.sees("a/up-0").await;
    let refused = async |plan: &AttemptPlan| {
        let (_stop, stopped) = watch::channel(Stop::No);
        run(plan, Node::local(dir.path(), Vec::new()), stopped, |_| {}).await.unwrap_err()
    };
    assert!(matches!(refused(&good).await, AgentError::Busy(_)));
    for name in ["", "..", "a/b", ".hidden", "a b", &"x".repeat(129)] {
        let bad = AttemptPlan { launches: vec![launch(name)], ..good.clone() };
        assert!(refused(&bad).await.to_string().contains("a name has"), "{name}");
    }
    let twice = AttemptPlan { launches: vec![launch("a"), launch("a")], ..good.clone() };
    assert!(refused(&twice).await.to_string().contains("launch `a` is duplicated"));
    let future = AttemptPlan { contract: 2, ..good.clone() };
    assert!(refused(&future).await.to_string().contains("contract 2"));
    first.stop.send(Stop::Now).unwrap();
    first.result().await;
    let other = AttemptPlan { attempt: "job-2".into(), ..good };
    assert!(refused(&other).await.to_string().contains("holds attempt `job-1`"));
}

#[tokio::test]
async fn helpers_that_leave_their_group_end_with_the_launch() {
    let dir = tempdir().unwrap();
    let script =
        "setsid sh -c 'echo $$ > ../helper; exec sleep 60' & until [ -s ../helper ]; do sleep 0.01; done; done_well";
    let result = run_alone(dir.path(), &plan(1, 1, &["a"], script)).await;
    assert_eq!(outcomes(&result), [("a", Outcome::Done)]);
    assert!(!lives(&std::fs::read_to_string(dir.path().join("helper")).unwrap()));
}

#[tokio::test]
async fn dropping_the_future_ends_the_ranks() {
    let dir = tempdir().unwrap();
    let agent = alone(dir.path(), &plan(1, 2, &["a"], "echo $$ > pid-$RANK.new; mv pid-$RANK.new pid-$RANK; forever"));
    agent.sees("a/pid-0").await;
    agent.sees("a/pid-1").await;
    agent.task.abort();
    for rank in 0..2 {
        dies(&std::fs::read_to_string(dir.path().join(format!("a/pid-{rank}"))).unwrap(), SOON).await;
    }
}

/// This test runs itself once more as a process of its own, which it kills.
#[tokio::test]
async fn a_killed_agent_takes_its_ranks_along_and_the_next_ends_what_is_left() {
    const DIR: &str = "PAWL_TEST_KILLED_AGENT";
    let name = "a_killed_agent_takes_its_ranks_along_and_the_next_ends_what_is_left";
    // The first launch is done; in the second a helper outlives even its rank.
    let script = r#"echo $LAUNCH >> ../ran; [ $LAUNCH = b ] && [ ! -e ../helper ] && {
        setsid sh -c 'echo $$ > ../helper; exec sleep 60' & until [ -s ../helper ]; do sleep 0.01; done
        echo $$ > ../rank.new; mv ../rank.new ../rank; forever; }; done_well"#;
    let plan = plan(1, 1, &["a", "b"], script);
    if let Ok(dir) = std::env::var(DIR) {
        run_alone(dir.as_ref(), &plan).await;
        panic!("was not killed");
    }
    let dir = tempdir().unwrap();
    let mut agent =
        Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(DIR, dir.path()).spawn().unwrap();
    appears(&dir.path().join("rank")).await;
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (rank, helper) = (read("rank"), read("helper"));
    assert!(lives(&rank) && lives(&helper));
    agent.kill().unwrap();
    agent.wait().unwrap();
    dies(&rank, SOON).await;
    assert!(lives(&helper));

    let result = run_alone(dir.path(), &plan).await;
    assert!(!lives(&helper));
    assert_eq!(outcomes(&result), [("a", Outcome::Done), ("b", Outcome::Done)]);
    assert_eq!(read("ran"), "a\nb\nb\n");
}

#[tokio::test]
async fn the_record_of_an_attempt_is_in_the_storage() {
    let dir = tempdir().unwrap();
    let (storage, status) = (dir.path().join("storage"), dir.path().join("status.json"));
    std::fs::write(&status, "{\"format\":1}").unwrap();
    let plan = plan(1, 1, &["a", "b"], r#"progress 1; sleep 0.4; [ $LAUNCH = b ] && exit 3; done_well"#);
    let (reason, message) = ("Paused".to_owned(), "by hand".to_owned());
    let events = vec![Happened { time: 7, warning: false, reason, message, phase: None }];
    let carrying = AttemptPlan { events: events.clone(), ..plan.clone() };
    let node = || Node {
        checkpoints: storage.to_string_lossy().into_owned(),
        status: Some(status.clone()),
        limits: limits(),
        ..Node::local(dir.path().join("node"), Vec::new())
    };
    let result = Agent::start(&carrying, node()).result().await;
    assert_eq!(result.end, AttemptEnd::Complete);
    let copied = storage.join(record::FOLDER).join(record::STATUS);
    assert_eq!(std::fs::read_to_string(copied).unwrap(), "{\"format\":1}");
    let found = record_in(&storage);
    assert_eq!((found.begun.plan.as_ref(), found.end.unwrap().end), (Some(&plan), AttemptEnd::Complete));
    let launches: Vec<_> = found.launches.iter().map(|launch| LaunchResult::from(&launch.report)).collect();
    assert_eq!(launches, result.launches);
    let provenance = found.begun.provenance.unwrap();
    assert!(provenance.cpu.as_ref().and_then(|cpu| cpu.cores) >= Some(1) && provenance.gpu.is_none(), "{provenance:?}");
    assert_eq!(pawl_agent::provenance(&dir.path().join("node")), Some(provenance), "it is beside the plan, too");

    assert_eq!(found.happened, events);

    // The agent is started again: what failed runs again, and the record goes on.
    let again = Agent::start(&carrying, node()).result().await;
    let found = record_in(&storage);
    assert_eq!(found.happened, events, "each once");
    let launches: Vec<_> = found.launches.iter().map(|launch| launch.report.launch.as_str()).collect();
    assert_eq!((launches, found.end.unwrap().end), (vec!["a", "b"], again.end));
}

#[tokio::test]
async fn the_record_of_an_attempt_ends_when_all_has_run_in_an_earlier_life() {
    let dir = tempdir().unwrap();
    let plan = plan(1, 1, &["a"], "done_well");
    run_alone(dir.path(), &plan).await;
    let storage = dir.path().join("checkpoints");
    std::fs::remove_dir_all(storage.join(record::FOLDER)).unwrap();
    run_alone(dir.path(), &plan).await;
    assert_eq!(record_in(&storage).end.unwrap().end, AttemptEnd::Complete);
}

/// Whoever opens a pipe to which nobody writes waits, as at a mount whose server is gone.
#[tokio::test]
async fn what_was_stopped_is_reported_soon_though_its_storage_does_not_answer() {
    let dir = tempdir().unwrap();
    let folder = dir.path().join("checkpoints").join(record::FOLDER).join(record::ATTEMPTS);
    std::fs::create_dir_all(&folder).unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("job-1.jsonl")).status().unwrap().success());
    let agent = alone(dir.path(), &plan(1, 1, &["a"], TRAINS));
    agent.sees("a/up-0").await;
    let events = std::sync::Arc::clone(&agent.events);
    let asked = Instant::now();
    agent.stop.send(Stop::Gracefully).unwrap();
    assert_eq!(agent.result().await.end, AttemptEnd::Stopped);
    let waited = asked.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let late = |message: &str| message.contains("no answer within 1 s");
    let events = events.lock().unwrap();
    let warned = |event: &Event| matches!(event, Event::Warning { message, .. } if late(message));
    assert!(events.iter().any(|(_, event)| warned(event)), "{events:?}");
}

#[tokio::test]
async fn a_record_that_cannot_be_kept_is_one_warning() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let plan = plan(1, 1, &["a", "b", "c"], "done_well");
    let checkpoints = file.to_string_lossy().into_owned();
    let node = Node { checkpoints, limits: limits(), ..Node::local(dir.path().join("node"), Vec::new()) };
    let agent = Agent::start(&plan, node);
    let events = std::sync::Arc::clone(&agent.events);
    let result = agent.result().await;
    assert_eq!((result.end, result.launches.len()), (AttemptEnd::Complete, 3));
    let events = events.lock().unwrap();
    let warnings = events.iter().filter_map(|(_, event)| match event {
        Event::Warning { message, .. } => Some(message.as_str()),
        Event::LaunchStarted { .. } | Event::Progress(_) | Event::LaunchEnded(_) => None,
    });
    let warnings: Vec<&str> = warnings.collect();
    assert!(warnings.len() == 1 && warnings[0].contains("record") && warnings[0].contains("file"), "{warnings:?}");
}
