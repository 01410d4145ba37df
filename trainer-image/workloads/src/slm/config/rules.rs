//! Validation rules of a configuration beyond its types.

use super::{Config, Layout, Source};
use crate::rules::{Validated, dropout, wrong};
use crate::slm::architecture::{Architecture, Method, Projection, RopeScaling};
use crate::slm::family::Family;
use crate::slm::vocabulary::{END_OF_DOCUMENT, LEAST_DIALOGUE_VOCABULARY};

impl Config {
    /// Validates what the types cannot express: compatible sizes, ranges, options that depend on each other.
    ///
    /// # Errors
    /// Names the field, the value and the remedy.
    pub(super) fn validate(&self) -> Validated {
        self.positive()?;
        decoder(&self.architecture)?;
        self.extras_of_gemma3()?;
        self.adapters()?;
        self.tokens()?;
        self.options_of_source()?;
        self.required_by_source()
    }

    fn positive(&self) -> Validated {
        let of = &self.architecture;
        let positive = [
            ("sequence", self.sequence),
            ("architecture.vocabulary", of.vocabulary),
            ("architecture.width", of.width),
            ("architecture.layers", of.layers),
            ("architecture.heads", of.heads),
            ("architecture.kvHeads", of.kv_heads),
            ("architecture.headSize", of.head_size),
            ("architecture.feedForward", of.feed_forward),
            ("lora.rank", self.lora.rank),
            ("evaluation.windows", self.evaluation.windows),
        ];
        match positive.into_iter().find(|&(_, value)| value == 0 || value > 1 << 24) {
            Some((field, value)) => wrong(field, &value, "must be between 1 and 16777216"),
            None => Ok(()),
        }
    }

    fn extras_of_gemma3(&self) -> Validated {
        let of = &self.architecture;
        let only = |field: &str| {
            wrong(field, &format!("{:?}", of.family), "is the family, and this field is for Gemma3 only: remove it")
        };
        match (&of.local, of.query_scalar) {
            (Some(_), _) if of.family != Family::Gemma3 => only("architecture.local"),
            (_, Some(_)) if of.family != Family::Gemma3 => only("architecture.queryScalar"),
            (_, Some(0)) => wrong("architecture.queryScalar", &0, "must be above 0"),
            (Some(local), _) if !(local.rope_base > 1.0 && local.rope_base.is_finite()) => {
                wrong("architecture.local.ropeBase", &local.rope_base, "must be above 1")
            }
            (Some(local), _) if local.period < 2 => wrong(
                "architecture.local.period",
                &local.period,
                "must be at least 2: every first block would see all tokens",
            ),
            (Some(local), _) if self.sequence > local.window => {
                let remedy = format!(
                    "must be at most {}, the window of local attention (architecture.local.window): shorter windows of it are not supported",
                    local.window
                );
                wrong("sequence", &self.sequence, &remedy)
            }
            _ => Ok(()),
        }
    }

    fn adapters(&self) -> Validated {
        let lora = &self.lora;
        if !(lora.alpha > 0.0 && lora.alpha.is_finite()) {
            return wrong("lora.alpha", &lora.alpha, "must be above 0");
        }
        dropout("lora.dropout", lora.dropout)?;
        if self.method == Method::Lora && lora.targets.is_empty() {
            return wrong("lora.targets", &"[]", "must name at least one of q, k, v, o, gate, up, down");
        }
        let twice = |(i, projection): (usize, &Projection)| lora.targets[..i].contains(projection);
        if lora.targets.iter().enumerate().any(twice) {
            return wrong("lora.targets", &format!("{:?}", lora.targets), "must name each matrix once");
        }
        Ok(())
    }

    /// Both splits contain at least one window and the token after it, and the validation split is a twentieth.
    fn tokens(&self) -> Validated {
        let least = 40 * (self.sequence + 1);
        if self.data.tokens < least || self.data.tokens > 1 << 31 {
            let remedy = format!("must be between 40 windows ({least}) and 2147483648");
            return wrong("data.tokens", &self.data.tokens, &remedy);
        }
        Ok(())
    }

    /// Refuses options that the source of the tokens does not support.
    fn options_of_source(&self) -> Validated {
        let source = self.data.source;
        if self.data.layout == Layout::Padded && !matches!(source, Source::Text | Source::Dialogues) {
            let remedy = format!(
                "puts a document into each item, and `source: {source:?}` has no documents: choose Text or Dialogues, or remove it"
            );
            return wrong("data.layout", &"Padded", &remedy);
        }
        if self.data.mask_prompt && source != Source::Dialogues {
            let remedy = format!(
                "masks prompts in the loss, and documents of `source: {source:?}` have none: choose Dialogues, or remove it"
            );
            return wrong("data.maskPrompt", &true, &remedy);
        }
        match (source, &self.data.directory, &self.data.tokenizer) {
            (Source::Markov | Source::Dialogues, Some(directory), _) => wrong(
                "data.directory",
                directory,
                &format!("is not used with `source: {source:?}`: choose Text or Tokens, or remove it"),
            ),
            (Source::Text | Source::Tokens, None, _) => wrong(
                "data.directory",
                &"null",
                "must name the directory to read for `source: Text` or `source: Tokens`",
            ),
            (Source::Markov | Source::Tokens | Source::Dialogues, _, Some(tokenizer)) => {
                wrong("data.tokenizer", tokenizer, "is only used with `source: Text`: choose that, or remove it")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the tokens of the source fit into the vocabulary and the window.
    fn required_by_source(&self) -> Validated {
        let vocabulary = self.architecture.vocabulary;
        match self.data.source {
            Source::Text if self.tokenizer().is_none() && vocabulary <= usize::from(END_OF_DOCUMENT) => wrong(
                "architecture.vocabulary",
                &vocabulary,
                "must be at least 257 for `source: Text`: bytes, and the end of a document",
            ),
            Source::Dialogues if vocabulary < LEAST_DIALOGUE_VOCABULARY => wrong(
                "architecture.vocabulary",
                &vocabulary,
                &format!(
                    "must be at least {LEAST_DIALOGUE_VOCABULARY} for `source: Dialogues`: codes, symptoms and words"
                ),
            ),
            Source::Dialogues if self.sequence < 2 => wrong(
                "sequence",
                &self.sequence,
                "must be at least 2 for `source: Dialogues`: a code and the end of its document",
            ),
            _ => Ok(()),
        }
    }
}

fn decoder(of: &Architecture) -> Validated {
    if !of.heads.is_multiple_of(of.kv_heads) {
        let remedy = format!("must divide architecture.heads ({})", of.heads);
        return wrong("architecture.kvHeads", &of.kv_heads, &remedy);
    }
    if !of.head_size.is_multiple_of(2) {
        return wrong("architecture.headSize", &of.head_size, "must be even: positions rotate pairs");
    }
    if !(of.rope_base > 1.0 && of.rope_base.is_finite()) {
        return wrong("architecture.ropeBase", &of.rope_base, "must be above 1");
    }
    if !(of.norm_epsilon > 0.0 && of.norm_epsilon < 1.0) {
        return wrong("architecture.normEpsilon", &of.norm_epsilon, "must be above 0 and below 1");
    }
    if let Some(RopeScaling { factor, low_frequency, high_frequency, original_length }) = &of.rope_scaling
        && !(*factor >= 1.0 && *low_frequency > 0.0 && high_frequency > low_frequency && *original_length > 0)
    {
        let remedy = "needs factor >= 1, 0 < lowFrequency < highFrequency and originalLength >= 1";
        return wrong("architecture.ropeScaling", &format!("{factor}"), remedy);
    }
    Ok(())
}
