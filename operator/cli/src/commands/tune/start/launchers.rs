//! Launchers and runners that come before a script, and their options that take no value: all others take one.

/// What starts the processes of a training by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, and `python -m torch.distributed.run`.
    Torchrun,
    /// `accelerate launch`.
    Accelerate,
    /// `deepspeed`.
    Deepspeed,
}

/// The processes that a launcher starts on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// This many.
    These(u32),
    /// One for each GPU.
    OnePerGpu,
}

impl Launcher {
    /// That of a Python module.
    pub fn of_module(module: &str) -> Option<Self> {
        match module {
            "torch.distributed.run" | "torch.distributed.launch" => Some(Self::Torchrun),
            "accelerate.commands.launch" => Some(Self::Accelerate),
            "deepspeed" | "deepspeed.launcher.runner" => Some(Self::Deepspeed),
            _ => None,
        }
    }

    /// Without an option for their number, and without a configuration.
    pub const fn workers(self) -> Workers {
        match self {
            Self::Torchrun => Workers::These(1),
            Self::Accelerate | Self::Deepspeed => Workers::OnePerGpu,
        }
    }

    /// Whether no value follows an option, which is written with `-` between its words.
    pub fn is_switch(self, option: &str) -> bool {
        let switches: &[&str] = match self {
            Self::Torchrun => &["--standalone", "--run-path", "--use-env", "--virtual-local-rank"],
            Self::Accelerate => &[
                "--cpu",
                "--multi-gpu",
                "--tpu",
                "--tpu-cluster",
                "--no-tpu-cluster",
                "--tpu-use-sudo",
                "--downcast-bf16",
                "--use-deepspeed",
                "--use-fsdp",
                "--use-megatron-lm",
                "--use-parallelism-config",
                "--dynamo-use-fullgraph",
                "--dynamo-use-dynamic",
                "--dynamo-use-regional-compilation",
                "--fp8-use-autocast-during-eval",
                "--same-network",
                "--enable-cpu-affinity",
                "--debug",
                "--quiet",
                "-q",
            ],
            Self::Deepspeed => &[
                "--force-multi",
                "--no-local-rank",
                "--no-ssh-check",
                "--no-ssh",
                "--elastic-training",
                "--save-pid",
                "--bind-cores-to-rank",
            ],
        };
        switches.contains(&option)
    }
}

/// The number of processes, by an option of a launcher that is written with `-` between its words.
pub fn workers(option: &str, value: &str) -> Option<Workers> {
    match option {
        "--nproc-per-node" | "--num-processes" | "--num-gpus" => {
            Some(value.parse().map_or(Workers::OnePerGpu, Workers::These))
        }
        _ => None,
    }
}

/// The number of processes in a configuration of Accelerate, which is YAML or JSON with a name in each line.
pub fn configured(text: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_number = name.trim_matches([' ', '"', '\'']) == "num_processes";
        let value = value.split('#').next().unwrap_or_default().trim_matches([' ', ',', '"', '\'']);
        value.parse().ok().filter(|_| is_number)
    })
}

/// The options of a runner of commands in an environment that take a value; `None`: it is none.
pub fn of_runner(program: &str) -> Option<&'static [&'static str]> {
    match program {
        "uv" => Some(&[
            "--with",
            "--with-editable",
            "--with-requirements",
            "-p",
            "--python",
            "--extra",
            "--no-extra",
            "--group",
            "--no-group",
            "--only-group",
            "--env-file",
            "--project",
            "--package",
            "--index",
            "--index-url",
            "--extra-index-url",
            "--config-file",
            "--cache-dir",
        ]),
        "conda" | "mamba" | "micromamba" => Some(&["-n", "--name", "-p", "--prefix"]),
        "pixi" => Some(&["-e", "--environment", "--manifest-path"]),
        "poetry" | "pipenv" | "pdm" | "rye" | "hatch" => Some(&[]),
        _ => None,
    }
}
