//! The command line by which a user starts a script: an interpreter, a launcher, a shell script or an environment comes
//! before it. Nothing of it is run to find the script.

mod expansion;
mod launchers;
mod wrapper;

pub use launchers::{Launcher, Workers};

use crate::commands::init::options::plain;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const STYLES: &str = "python, python -m, torchrun, accelerate launch, deepspeed, sh, env, uv run or conda run";

/// What comes before the script, and the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// `env` and its options; empty without it.
    pub env: Vec<String>,
    /// What `env` sets.
    pub variables: Vec<(String, String)>,
    /// The program up to the script, with it.
    pub program: Program,
    /// The script whose options are read.
    pub script: PathBuf,
    /// The shell script that starts it.
    pub wrapper: Option<Wrapper>,
    /// Its arguments.
    pub given: Vec<String>,
    /// What starts its processes.
    pub launcher: Option<Launcher>,
    /// How many these are.
    pub workers: Workers,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Words up to the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// As launches run them.
    pub launch: Vec<String>,
    /// As the user wrote them.
    pub own: Vec<String>,
    /// How many of both come before the options of the launcher.
    pub options: Option<(usize, usize)>,
    /// The options of the launcher that are given, with `-` between their words.
    pub given: BTreeSet<String>,
}

/// A shell script that starts the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// The shell script.
    pub path: PathBuf,
    /// The arguments that it passes to the script itself.
    pub arguments: Vec<String>,
    /// Whether it passes on its own arguments after these.
    pub passes: bool,
    /// Variables whose values it sets.
    pub set: BTreeSet<String>,
    /// Whether it reads another file, which may set any variable.
    pub reads_file: bool,
}

impl Start {
    /// Reads the command line of a user whose directory is `here`.
    ///
    /// # Errors
    /// What the script is is not known; the message says what to do.
    pub fn of(words: &[String], here: &Path) -> Result<Self, String> {
        let mut reader = Reader { rest: words, here, is_wrapped: false, start: Self::new() };
        reader.program()?;
        let Reader { rest, mut start, .. } = reader;
        start.given = rest.to_vec();
        Ok(start)
    }

    /// `python3 SCRIPT GIVEN...`, where the user has written `word` for the script.
    #[cfg(test)]
    pub fn plain(script: &Path, word: &str, given: Vec<String>) -> Self {
        let words = |script: &str| vec!["python3".to_owned(), script.to_owned()];
        let program = Program { launch: words(&script.to_string_lossy()), own: words(word), ..Program::default() };
        Self { program, script: script.to_owned(), given, ..Self::new() }
    }

    /// Notes that a script which was a notebook has constants, where other scripts have options.
    ///
    /// # Errors
    /// The script contains what only a notebook can run.
    pub fn check_notebook(&mut self, source: &str) -> Result<(), String> {
        if !source.lines().any(|line| line.starts_with("# In[")) {
            return Ok(());
        }
        let named = self.script.display();
        if let Some(at) = source.lines().position(|line| line.starts_with("get_ipython()")) {
            return Err(format!(
                "{named}:{}: get_ipython() is there only in a notebook: delete the line, and do before what it does, such as an \
                 installation",
                at + 1
            ));
        }
        self.notes.push(format!(
            "{named} was a notebook: constants cannot be varied; read them as in BATCH_SIZE = int(os.environ.get(\"BATCH_SIZE\", 32))"
        ));
        Ok(())
    }

    /// The arguments of the script: those of its shell script first.
    pub fn arguments(&self) -> Vec<String> {
        [self.wrapped(), &self.given].concat()
    }

    /// The arguments that its shell script passes to it.
    pub fn wrapped(&self) -> &[String] {
        self.wrapper.as_ref().map_or(&[], |wrapper| &wrapper.arguments)
    }

    const fn new() -> Self {
        Self {
            env: Vec::new(),
            variables: Vec::new(),
            program: Program { launch: Vec::new(), own: Vec::new(), options: None, given: BTreeSet::new() },
            script: PathBuf::new(),
            wrapper: None,
            given: Vec::new(),
            launcher: None,
            workers: Workers::These(1),
            notes: Vec::new(),
        }
    }
}

/// The command line, from its first word that is not read yet.
struct Reader<'a> {
    rest: &'a [String],
    here: &'a Path,
    /// Whether it is a line of a shell script.
    is_wrapped: bool,
    start: Start,
}

impl Reader<'_> {
    fn peek(&self) -> &str {
        self.rest.first().map_or("", String::as_str)
    }

    fn skip(&mut self) -> String {
        let (word, rest) =
            self.rest.split_first().map_or((String::new(), self.rest), |(word, rest)| (word.clone(), rest));
        self.rest = rest;
        word
    }

    fn take(&mut self) -> String {
        let word = self.skip();
        self.start.program.launch.push(word.clone());
        self.start.program.own.push(word.clone());
        word
    }

    fn program(&mut self) -> Result<(), String> {
        let name = Path::new(self.peek()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let next = self.rest.get(1).map_or("", String::as_str);
        match name.as_str() {
            "env" => self.env(),
            "torchrun" => self.launcher(Launcher::Torchrun),
            "deepspeed" => self.launcher(Launcher::Deepspeed),
            "accelerate-launch" => self.launcher(Launcher::Accelerate),
            "accelerate" if next == "launch" => {
                self.take();
                self.launcher(Launcher::Accelerate)
            }
            "sh" | "bash" | "dash" | "zsh" => self.shell(),
            _ if is_python(&name) => self.python(),
            _ if next == "run" && launchers::of_runner(&name).is_some() => self.runner(&name),
            _ => self.file(),
        }
    }

    /// `env [-u NAME] [NAME=VALUE]... COMMAND`.
    fn env(&mut self) -> Result<(), String> {
        if !self.start.program.own.is_empty() {
            return Err("env: write it before everything else: env NAME=VALUE uv run python SCRIPT".to_owned());
        }
        let program = self.skip();
        self.start.env.push(program);
        loop {
            let word = self.peek().to_owned();
            if let Some((name, value)) = wrapper::assignment(&word) {
                self.start.variables.push((name.to_owned(), value.to_owned()));
                self.skip();
            } else if ["-u", "--unset"].contains(&word.as_str()) {
                let option = [self.skip(), self.skip()];
                self.start.env.extend(option);
            } else if word.starts_with("--unset=") {
                self.skip();
                self.start.env.push(word);
            } else if ["-i", "-", "--ignore-environment"].contains(&word.as_str()) {
                return Err(format!(
                    "env {word}: launches have variables that the script needs: remove others by -u NAME instead"
                ));
            } else if word.starts_with('-') {
                return Err(format!("env {word}: only -u is known here: change the directory before `pawl tune`"));
            } else {
                return self.program();
            }
        }
    }

    /// `python [OPTIONS] SCRIPT` or `python [OPTIONS] -m MODULE`.
    fn python(&mut self) -> Result<(), String> {
        self.take();
        loop {
            match self.peek() {
                "-m" => {
                    self.take();
                    return match Launcher::of_module(self.peek()) {
                        Some(launcher) => self.launcher(launcher),
                        None => self.module(),
                    };
                }
                "-c" => return Err("python -c: write the program into a file, and give its path".to_owned()),
                "-W" | "-X" => drop((self.take(), self.take())),
                word if word.starts_with('-') => drop(self.take()),
                _ => return self.script(),
            }
        }
    }

    fn launcher(&mut self, launcher: Launcher) -> Result<(), String> {
        self.take();
        self.start.launcher = Some(launcher);
        self.start.program.options = Some((self.start.program.launch.len(), self.start.program.own.len()));
        let (mut is_module, mut workers, mut config) = (false, None, None);
        loop {
            let word = self.peek().to_owned();
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let option = plain(name);
            let is_last = option == "--no-python" || !option.starts_with('-');
            if is_last {
                self.start.workers = match workers {
                    Some(workers) => workers,
                    None if launcher == Launcher::Accelerate => self.accelerated(config.as_deref())?,
                    None => launcher.workers(),
                };
            }
            match option.as_str() {
                "-m" | "--module" => is_module = true,
                "--no-python" => {
                    self.take();
                    return self.program();
                }
                _ if is_last && is_module => return self.module(),
                _ if is_last => return self.script(),
                _ => {}
            }
            self.take();
            let follows =
                value.is_none() && !launcher.is_switch(&option) && !["-m", "--module"].contains(&option.as_str());
            let value = if follows { Some(self.take()) } else { value.map(str::to_owned) };
            workers = value.as_deref().and_then(|value| launchers::workers(&option, value)).or(workers);
            config = value.filter(|_| option == "--config-file").or(config);
            self.start.program.given.insert(option);
        }
    }

    /// How many processes `accelerate launch` starts without an option for their number: as many as the configuration
    /// says that is given, or the one that `accelerate config` has written; without one, one for each GPU.
    fn accelerated(&self, config: Option<&str>) -> Result<Workers, String> {
        let Some(path) = config.map(|path| self.here.join(path)).or_else(|| self.default_config()) else {
            let is_cpu = self.start.program.given.contains("--cpu");
            return Ok(if is_cpu { Workers::These(1) } else { Launcher::Accelerate.workers() });
        };
        let named = path.display();
        let text = std::fs::read_to_string(&path).map_err(|error| format!("--config_file {named}: {error}"))?;
        let count = launchers::configured(&text).ok_or_else(|| {
            format!("{named}: there is no num_processes: give accelerate launch --num_processes, the number of GPUs")
        })?;
        Ok(Workers::These(count))
    }

    /// What `accelerate config` has written.
    fn default_config(&self) -> Option<PathBuf> {
        let set = |name: &str| self.start.variables.iter().rev().find(|(known, _)| known == name);
        let variable = |name: &str| {
            let value = set(name).map(|(_, value)| value.clone()).or_else(|| std::env::var(name).ok());
            value.filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let home = variable("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))?;
        let folder = self.here.join(home).join("accelerate");
        let mut files = ["yaml", "json"].into_iter().map(|end| folder.join(format!("default_config.{end}")));
        files.find(|path| path.is_file())
    }

    /// `uv run [OPTIONS] COMMAND`, `conda run -n NAME COMMAND`.
    fn runner(&mut self, name: &str) -> Result<(), String> {
        let valued = launchers::of_runner(name).unwrap_or_default();
        let mut is_shown = name != "conda" && name != "mamba";
        drop((self.take(), self.take()));
        while self.peek().starts_with('-') {
            let word = self.take();
            if word == "-m" || word == "--module" {
                return self.module();
            }
            if word.starts_with("--cwd") || word.starts_with("--directory") {
                return Err(format!("{name} run {word}: change the directory before `pawl tune` instead"));
            }
            is_shown |= ["--no-capture-output", "--live-stream", "-s"].contains(&word.as_str());
            if valued.contains(&word.as_str()) {
                self.take();
            }
        }
        if !is_shown {
            let Program { launch, own, .. } = &mut self.start.program;
            [launch, own].into_iter().for_each(|words| words.push("--no-capture-output".to_owned()));
            self.start
                .notes
                .push(format!("{name} run keeps the output until the end, unless it has --no-capture-output"));
        }
        self.program()
    }

    /// `sh [OPTIONS] FILE`.
    fn shell(&mut self) -> Result<(), String> {
        self.take();
        while self.peek().starts_with('-') {
            let word = self.take();
            if !word.starts_with("--") && word.ends_with('c') {
                return Err("sh -c: give the command that it runs, or write it into a file".to_owned());
            }
            if word.ends_with('o') {
                self.take();
            }
        }
        let path = self.existing(self.peek())?;
        self.take();
        self.wrapper(path)
    }

    /// A file without a program before it.
    fn file(&mut self) -> Result<(), String> {
        let path = self.existing(self.peek())?;
        let text = std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let first = text.lines().next().filter(|line| line.starts_with("#!")).unwrap_or_default();
        let is_shell = path.extension().is_some_and(|end| end == "sh" || end == "bash") || first.ends_with("sh");
        if !is_shell {
            if self.start.program.own.is_empty() {
                let Program { launch, own, .. } = &mut self.start.program;
                launch.push("python3".to_owned());
                own.push("python3".to_owned());
            }
            return self.script();
        }
        let word = self.skip();
        let shell = if first.ends_with("bash") { "bash" } else { "sh" };
        let Program { launch, own, .. } = &mut self.start.program;
        launch.extend([shell.to_owned(), word.clone()]);
        // One that has its directory before it can be started by its name.
        own.extend(Some(shell.to_owned()).filter(|_| !word.contains('/')));
        own.push(word);
        self.wrapper(path)
    }

    fn script(&mut self) -> Result<(), String> {
        self.start.script = self.existing(self.peek())?;
        let word = self.skip();
        self.start.program.launch.push(self.start.script.to_string_lossy().into_owned());
        self.start.program.own.push(word);
        Ok(())
    }

    fn module(&mut self) -> Result<(), String> {
        let name = self.take();
        let place = name.replace('.', "/");
        let paths = std::env::var_os("PYTHONPATH").unwrap_or_default();
        let roots = [self.here.to_owned(), self.here.join("src")].into_iter();
        let files = [format!("{place}.py"), format!("{place}/__main__.py")];
        let mut all =
            roots.chain(std::env::split_paths(&paths)).flat_map(|root| files.clone().map(|file| root.join(file)));
        let found = all.find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
        self.start.script = found.ok_or_else(|| {
            format!(
                "-m {name}: there is no {} here, in src or in PYTHONPATH: start it from where it is",
                files.join(" or ")
            )
        })?;
        Ok(())
    }

    fn existing(&self, word: &str) -> Result<PathBuf, String> {
        let path =
            self.here.join(word).canonicalize().and_then(|path| path.metadata().map(|data| (path, data.is_file())));
        let (path, is_file) = path.map_err(|error| {
            format!(
                "{word}: {error}: give the path of the training script, then its arguments, after {STYLES} or nothing; set its \
                 variables before `pawl tune`"
            )
        })?;
        if !is_file {
            return Err(format!("{word}: it is no file: give the path of the training script, then its arguments"));
        }
        if path.extension().is_some_and(|end| end == "ipynb") {
            return Err(format!(
                "{word}: a notebook is no script: export it with `jupyter nbconvert --to script {word}`, and read \
                 what is to be varied as in BATCH_SIZE = int(os.environ.get(\"BATCH_SIZE\", 32))"
            ));
        }
        Ok(path)
    }

    /// Finds the script in the commands of a shell script.
    fn wrapper(&mut self, path: PathBuf) -> Result<(), String> {
        let named = path.display().to_string();
        if self.is_wrapped {
            return Err(format!("{named}: one shell script starts another one: give the command of the inner one"));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{named}: {error}"))?;
        let (lines, set) = wrapper::read(&text);
        let beside = path.parent().unwrap_or(self.here);
        let read = |words: &[String]| {
            [self.here, beside].into_iter().find_map(|here| {
                let mut reader = Reader { rest: words, here, is_wrapped: true, start: Start::new() };
                reader.program().ok().filter(|()| reader.start.env.is_empty())?;
                Some((reader.start, reader.rest.to_vec()))
            })
        };
        let started = lines.iter().filter_map(|line| {
            if let Some((start, arguments)) = read(&line.words) {
                return Some((line.passes, start, arguments, 0));
            }
            // As in `exec python "$@"`, the script is the first of the arguments.
            let (start, given) = read(&[&line.words[..], self.rest].concat()).filter(|_| line.passes)?;
            Some((true, start, Vec::new(), self.rest.len().checked_sub(given.len())?))
        });
        // Of several, the one that passes on the arguments; else the last one.
        let (passes, inner, arguments, taken) = started.max_by_key(|(passes, ..)| *passes).ok_or_else(|| {
            format!(
                "{named}: none of its commands starts a script that is found: give the command itself, such as python3 SCRIPT"
            )
        })?;
        if !passes {
            self.start.notes.push(format!(
                "{named} does not pass on its arguments: end its line that starts {} with \"$@\", so that launches can vary them",
                inner.script.display()
            ));
        }
        (0..taken).for_each(|_| drop(self.take()));
        (self.start.script, self.start.launcher, self.start.workers) = (inner.script, inner.launcher, inner.workers);
        let reads_file = lines.iter().any(wrapper::Line::reads_file);
        if reads_file {
            self.start
                .notes
                .push(format!("{named} reads another file, which may set variables: none of them is varied"));
        }
        self.start.wrapper = Some(Wrapper { path, arguments, passes, set, reads_file });
        Ok(())
    }
}

/// Whether a program is an interpreter of Python: `python`, `python3`, `python3.12`, `pypy3`.
fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

#[cfg(test)]
mod tests;
