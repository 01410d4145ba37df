//! `pawl tune`.

mod batch;
mod command;
mod fitting;
mod gpu;
mod lines;
mod outlook;
mod profile;
mod proposal;
mod start;
mod stored;

use super::{init, print, status};
use crate::args::{InitArgs, TuneArgs};
use crate::exit;
use batch::Larger;
use command::Tuned;
use lines::{Findings, Unseen};
use pawl_agent::Observed;
use pawl_display::shell::line;
use pawl_local::display::Style;
use pawl_local::evidence::displayed;
use pawl_local::interrupt::{Interrupts, Signal};
use pawl_local::machine::visible_gpus;
use pawl_local::state::document::Document;
use pawl_local::state::{StateDir, write_atomic};
use pawl_local::tuned::{Part, changed};
use pawl_local::{Options, RunOutcome};
use profile::{Evidence, Hook};
use proposal::Script;
use start::{Start, Workers};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stored::{Identity, Stored};

/// Why there is nothing to measure: what to say, and the exit code.
struct Refusal(u8, String);

/// What is tuned.
struct Request<'a> {
    arguments: &'a TuneArgs,
    /// Where it is started.
    here: PathBuf,
    start: Start,
    /// The script, and the shell script that starts it.
    source: Vec<u8>,
    init: InitArgs,
    state: StateDir,
}

impl<'a> Request<'a> {
    fn new(arguments: &'a TuneArgs) -> Result<Self, Refusal> {
        let here = std::env::current_dir().map_err(|error| Refusal(exit::INPUT, error.to_string()))?;
        let mut start = Start::of(&arguments.command, &here).map_err(|message| Refusal(exit::INPUT, message))?;
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| Refusal(exit::INPUT, format!("{}: {error}", path.display())))
        };
        let mut source = read(&start.script)?;
        let text = String::from_utf8_lossy(&source).into_owned();
        start.check_notebook(&text).map_err(|message| Refusal(exit::INPUT, message))?;
        if let Some(wrapper) = &start.wrapper {
            source.extend(read(&wrapper.path)?);
        }
        let stem = start.script.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("tune-{}", init::label(&stem));
        let state = arguments.state.as_ref().map_or_else(|| StateDir::default_for(&name), StateDir::new);
        let gpus = arguments.gpus.unwrap_or_else(|| {
            let visible = visible_gpus().len() as u32;
            match start.workers {
                Workers::These(count) => visible.min(count),
                Workers::OnePerGpu => visible,
            }
        });
        let init = InitArgs {
            script: start.script.clone(),
            framework: command::framework(&text, start.launcher),
            name: Some(name),
            gpus,
            batch: None,
            items: None,
            out: "-".into(),
        };
        Ok(Self { arguments, here, start, source, init, state })
    }

    fn name(&self) -> &str {
        self.init.name.as_deref().unwrap_or_default()
    }

    fn manifest(&self) -> PathBuf {
        self.state.root().join("job.yaml")
    }
}

/// Finds the steps of a script, proposes phases for it, and measures them.
pub fn tune(arguments: &TuneArgs) -> ExitCode {
    match tuned(arguments) {
        Ok(code) => code,
        Err(Refusal(code, message)) => exit::with_error(code, &message),
    }
}

fn tuned(arguments: &TuneArgs) -> Result<ExitCode, Refusal> {
    pawl_agent::adopt_orphans().map_err(|error| Refusal(exit::FAILED, error.to_string()))?;
    let mut request = Request::new(arguments)?;
    request.state = request.state.prepare().map_err(|error| Refusal(exit::STATE, error.to_string()))?;
    let mut tuned = Tuned::new(&request.init, &request.start, &request.here);
    let identity = Identity::of(&request.source, &arguments.command, request.init.gpus, &request.here, &tuned);
    let manifest = request.manifest();
    let mut budget = arguments.budget.get();
    let (stored, text) = match Stored::load(&request.state, &identity).zip(std::fs::read_to_string(&manifest).ok()) {
        Some((stored, text)) => {
            say(arguments, &format!("continued: the proposal of before is in {}\n", displayed(&manifest)));
            (stored, text)
        }
        None => {
            let seen = match observed(&request, &tuned)? {
                Ok(seen) => seen,
                Err(signal) => return Ok(ExitCode::from(signal.exit_status())),
            };
            let larger = match fitting::larger(&request, &script(&request, &tuned, &seen, None))? {
                Ok((larger, spent)) => {
                    budget = budget.saturating_sub(spent);
                    larger
                }
                Err(signal) => return Ok(ExitCode::from(signal.exit_status())),
            };
            if let Some(steps) = proposal::steps_given(&script(&request, &tuned, &seen, None)) {
                tuned.lengthen(steps);
            }
            proposed(&request, identity, &tuned, &seen, larger)?
        }
    };
    let job = pawl_manifest::parse(&text, &displayed(&manifest))
        .map_err(|error| Refusal(exit::INPUT, error.to_string().trim_end().to_owned()))?;
    if arguments.dry_run {
        return Ok(print(&text));
    }
    let program = std::env::current_exe().map_err(|error| Refusal(exit::FAILED, error.to_string()))?;
    let options = Options {
        state: request.state.clone(),
        gpus: None,
        trainer: vec![program.into_os_string(), "trainer".into()],
        features: crate::version::features(),
        style: Style { document: false, quiet: arguments.quiet },
        limit: Some(budget),
    };
    let finished = pawl_local::run(job, options);
    let (outcome, finished) = finished.map_err(|error| Refusal(exit::of_error(&error), error.to_string()))?;
    let ending = ending(&stored.parts, &finished, outcome, &manifest);
    let _ = print(&format!("\n{}{ending}", status::table(&request.state, &finished)));
    Ok(ExitCode::from(exit::of_outcome(outcome)))
}

/// What was seen of the script as it is.
struct Seen {
    findings: Findings,
    evidence: Evidence,
    /// Whether it has ended by itself.
    has_ended: bool,
}

/// Runs the script as it is, and finds its steps; or the signal that ended this.
fn observed(request: &Request<'_>, tuned: &Tuned) -> Result<Result<Seen, Signal>, Refusal> {
    let own = tuned.own();
    let (program, rest) = own.split_first().ok_or_else(|| Refusal(exit::INPUT, String::new()))?;
    let limit = &request.arguments.observe;
    say(request.arguments, &format!("observing for at most {}: {}\n", limit.as_str(), line(&own)));
    let failed = |error: std::io::Error| Refusal(exit::FAILED, format!("{program}: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let directory = request.state.root().join("observed");
    let hook = Hook::new(&directory.join("hook")).map_err(failed)?;
    let gpu = gpu::Watched::first(request.init.gpus);
    let mut received = None;
    let Observed { lines, exit, began, usage, .. } = runtime
        .block_on(async {
            let mut command = tokio::process::Command::new(program);
            command.args(rest).env("PYTHONUNBUFFERED", "1").envs(hook.variables(&request.start.script));
            let mut interrupts = Interrupts::listen()?;
            let stopped = async { received = Some(interrupts.next().await) };
            pawl_agent::observe(command, &directory, limit.get(), stopped).await
        })
        .map_err(failed)?;
    if let Some(signal) = received {
        return Ok(Err(signal));
    }
    let batch = tuned.settings.get(command::BATCH).copied().map(u64::from);
    let findings = lines::find(&lines, batch).map_err(|unseen| {
        let end = exit.filter(|exit| !exit.success()).map(|exit| format!("the script ended with {exit}"));
        let code = if end.is_some() { exit::FAILED } else { exit::INPUT };
        let is_refused = end.is_some() && !tuned.required.is_empty();
        let required = is_refused.then(|| format!("it requires {}", tuned.required.join(", ")));
        let all = [end, required, Some(explained(&unseen, &lines))];
        Refusal(code, all.into_iter().flatten().collect::<Vec<_>>().join("; "))
    })?;
    let between = (findings.pace.start, findings.pace.end);
    let evidence = profile::evidence(&hook.read(), began, &usage, &gpu.busy(), between);
    Ok(Ok(Seen { findings, evidence, has_ended: exit.is_some() }))
}

/// What was seen instead of steps, and what to do.
fn explained(unseen: &Unseen, lines: &[lines::Line]) -> String {
    const REMEDY: &str = "print the step and the training loss in one line, such as `step 120: loss 2.31`, or write a \
        manifest with pawl init and adapt its patterns";
    match unseen {
        Unseen::Nothing => format!("no output was seen: observe longer with --observe, or {REMEDY}"),
        Unseen::NoSteps(newest) => {
            let newest: String = newest.iter().map(|line| format!("\n  {line}")).collect();
            format!(
                "none of its {} lines has a step and a training loss: {REMEDY}; the newest lines:{newest}",
                lines.len()
            )
        }
        Unseen::Few { line, count } => format!(
            "only {count} lines have a step and a training loss, and 3 whose steps grow are needed: observe longer with \
             --observe, or {REMEDY}; the newest one:\n  {line}"
        ),
    }
}

fn script<'a>(request: &'a Request<'_>, tuned: &'a Tuned, seen: &'a Seen, larger: Option<Larger>) -> Script<'a> {
    Script {
        name: request.name(),
        framework: request.init.framework,
        gpus: request.init.gpus,
        tuned,
        findings: &seen.findings,
        evidence: &seen.evidence,
        larger,
        has_ended: seen.has_ended,
        budget: request.arguments.budget.get(),
    }
}

/// Writes the manifest.
fn proposed(
    request: &Request<'_>,
    identity: Identity,
    tuned: &Tuned,
    seen: &Seen,
    larger: Option<Larger>,
) -> Result<(Stored, String), Refusal> {
    let proposal = proposal::propose(&script(request, tuned, seen, larger));
    let Seen { findings, evidence, .. } = seen;
    let pace = &findings.pace;
    let mut text = format!("found: a step takes {}, a line comes every {} steps", duration(pace.step), pace.every);
    let _ = writeln!(text, "; {} validations", findings.validated.len());
    text.push_str(&evidence.explained());
    text.extend(proposal.notes.iter().map(|note| format!("note: {note}\n")));
    if proposal.phases.is_empty() {
        say(request.arguments, &text);
        return Err(Refusal(
            exit::INPUT,
            "there is no phase to measure: give the script options for what could make it faster, such as --compile, --bf16, \
             --workers or --batch-size"
                .to_owned(),
        ));
    }
    let manifest = request.manifest();
    for (phase, outlook) in &proposal.phases {
        let ground = outlook.ground().map(|ground| format!(": {ground}")).unwrap_or_default();
        let _ = writeln!(text, "phase {phase}{ground}");
    }
    let _ = writeln!(text, "written to {}", displayed(&manifest));
    say(request.arguments, &text);
    let stored = Stored { identity, parts: tuned.parts() };
    let written = write_atomic(&manifest, proposal.manifest.as_bytes()).and_then(|()| stored.save(&request.state));
    written.map_err(|error| Refusal(exit::STATE, error.to_string()))?;
    Ok((stored, proposal.manifest))
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

/// What follows the table: the changed command, the manifest, and what is left.
fn ending(parts: &[Part], finished: &Document, outcome: RunOutcome, manifest: &Path) -> String {
    let Document { job, status, .. } = finished;
    let accepted = status.effective_settings.as_ref().unwrap_or(&job.spec.settings);
    let command = match changed(parts, job, accepted) {
        Ok(words) if *accepted != job.spec.settings => line(&words),
        Ok(words) => format!("{} (unchanged)", line(&words)),
        Err(error) => error.to_string(),
    };
    let mut text = format!("manifest   {}\ncommand    {command}\n", displayed(manifest));
    let left: Vec<&str> =
        status.phases.iter().filter(|phase| !phase.state.is_final()).map(|phase| phase.name.as_str()).collect();
    if let RunOutcome::Interrupted(signal) = outcome {
        let left = left.join(", ");
        let _ = writeln!(text, "no verdict {left}: measuring was stopped by {signal}; the same command continues");
    }
    text
}

fn say(arguments: &TuneArgs, text: &str) {
    if !arguments.quiet {
        let _ = match arguments.dry_run {
            // Standard output is the manifest.
            true => {
                exit::say(&text.trim_end());
                ExitCode::SUCCESS
            }
            false => print(text),
        };
    }
}
