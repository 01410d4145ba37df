//! A language model as a directory that Hugging Face libraries load.

use super::source::Source;
use super::{CONFIG, Options, WEIGHTS, failed, of_file, stream, write};
use crate::ending::Ending;
use crate::workload::ending;
use pawl_workloads::Request;
use pawl_workloads::model_file::{FloatFormat, ModelFile};
use pawl_workloads::slm::SlmJob;
use pawl_workloads::slm::architecture::Method;
use pawl_workloads::slm::config::Config;
use pawl_workloads::slm::export::{adapter_description, adapters, description, merged};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// What trained the model: `config.json` is that of Transformers.
pub const RECORD: &str = "pawl.json";

/// Adapters, and their description, in the naming of PEFT.
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
const ADAPTER_CONFIG: &str = "adapter_config.json";

const TOKENIZER: &str = "tokenizer.json";
/// Files beside the tokenizer or the initial weights of a run, which are copied too.
const COMPANIONS: [&str; 9] = [
    TOKENIZER,
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
];

/// Exports the model of `request` to the directory `to`: adapters are merged, unless they are to be written alone.
/// Returns the number of averages.
///
/// # Errors
/// As [`super::export`].
pub fn export(request: &Request, source: &Source<'_>, options: &Options, to: &Path) -> Result<usize, Ending> {
    let job = SlmJob::new(request).map_err(ending)?;
    let averaged = if options.adapter {
        adapter(&job, source, options, to)?
    } else {
        let file = to.join(WEIGHTS);
        let description = description(job.config(), options.format).map_err(ending)?;
        write(&to.join(CONFIG), &description)?;
        match job.config().method {
            Method::Full => stream(&job, &job.weights().all(), source, options.format, &file)?,
            Method::Lora => merge(&job, request.seed, source, options.format, &file)?,
        }
    };
    companions(job.config(), to)?;
    Ok(averaged)
}

/// Writes the weights with adapters merged to `file`: the adapters, and one weight at a time, are in memory. Returns
/// the number of averages.
fn merge(job: &SlmJob, seed: u64, source: &Source<'_>, format: FloatFormat, file: &Path) -> Result<usize, Ending> {
    let names: HashSet<String> = adapters(job).into_iter().map(|decl| decl.name).collect();
    let mut trained = BTreeMap::new();
    let averaged = source.each(job, &|name| names.contains(name), &mut |name, array| {
        trained.insert(name.to_owned(), array);
        Ok(())
    })?;
    let states = job.weights().all();
    let mut file = ModelFile::create(file, &states, format).map_err(of_file)?;
    for decl in &states {
        let value = merged(job, decl, seed, &trained).map_err(|error| Ending::InvalidPlan(error.to_string()))?;
        file.write(&decl.name, &value).map_err(of_file)?;
    }
    file.finish().map_err(of_file)?;
    Ok(averaged)
}

/// Writes the adapters alone.
fn adapter(job: &SlmJob, source: &Source<'_>, options: &Options, to: &Path) -> Result<usize, Ending> {
    let config = job.config();
    let refused = |problem: &str| Err(Ending::InvalidPlan(format!("--adapter: {problem}: leave it out")));
    if config.method == Method::Full {
        return refused("workload.config.method Full trains all weights, and no adapter");
    }
    let Some(base) = &config.weights else {
        return refused("the adapters are beside weights that are drawn from the seed and are in no directory");
    };
    write(&to.join(ADAPTER_CONFIG), &adapter_description(config, base))?;
    stream(job, &adapters(job), source, options.format, &to.join(ADAPTER_WEIGHTS))
}

/// Copies the tokenizer of the text, or else of the initial weights, and what is beside it.
fn companions(config: &Config, to: &Path) -> Result<(), Ending> {
    let tokenizer = config.tokenizer();
    let directory = tokenizer.as_ref().and_then(|file| file.parent().map(PathBuf::from));
    let beside: Vec<PathBuf> = directory.into_iter().chain(config.weights.as_ref().map(PathBuf::from)).collect();
    for name in COMPANIONS {
        let named = tokenizer.clone().filter(|_| name == TOKENIZER);
        let found = beside.iter().map(|directory| directory.join(name)).find(|file| file.exists());
        let Some(file) = named.or(found) else { continue };
        let target = to.join(name);
        pawl_durable::copy(&file, &target)
            .map_err(|error| failed(format!("{}: cannot be copied: {error}", file.display()), &error))?;
    }
    Ok(())
}
