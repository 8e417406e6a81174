//! A turn of a conversation as a request to a scheduler, without a server's edge in between.
//!
//! There is no tokenizer: a word is a token whose id is a hash of its letters, so that prompts which
//! begin alike share their prefix, and a prompt has exactly as many tokens as the workload planned.

use std::num::NonZeroU32;

use serve_core::{
    Class, InvalidRequest, InvalidSampling, Request, RequestId, Sampling, Span, TenantId, Time,
    TokenId,
};
use thiserror::Error;

use crate::workload::spec::Spec;
use crate::workload::{Conversation, Prompt};

/// What an engine's owner knows of those who ask, as a server's edge would.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The names of the classes, the highest first. A request that names none is of the highest.
    pub classes: Vec<String>,
    /// How long a request may take in all, if there is a limit of its own.
    pub request_timeout: Option<Span>,
    /// How long a request may wait for its first step, if there is a limit of its own.
    pub queue_timeout: Option<Span>,
    /// Token ids are smaller than this.
    pub vocabulary: NonZeroU32,
    /// Tokens that end an answer, unless the workload ignores them (`ignore_eos`).
    pub stop_tokens: Vec<TokenId>,
}

impl Default for Terms {
    /// One class without a name, no limits, any token id, no token that ends an answer.
    fn default() -> Self {
        Self {
            classes: Vec::new(),
            request_timeout: None,
            queue_timeout: None,
            vocabulary: NonZeroU32::MAX,
            stop_tokens: Vec::new(),
        }
    }
}

impl Terms {
    /// The class of this name.
    pub(crate) fn class(&self, name: &str) -> Option<Class> {
        let rank = self.classes.iter().position(|class| class == name)?;
        Some(Class::new(u8::try_from(rank).unwrap_or(u8::MAX)))
    }
}

/// A workload that an engine without a server cannot be asked.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CannotAsk {
    /// There is no such class.
    #[error("classes: the engine has no class {name:?}; it has {known:?}")]
    Class {
        /// The class.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Something that only a server reads.
    #[error("{0}: only a server reads what stands in a body; leave it out, or measure over HTTP")]
    Extra(String),
    /// Ids beyond the vocabulary.
    #[error("request.vocabulary: the engine's token ids are smaller than {0}")]
    Vocabulary(NonZeroU32),
    /// A temperature that cannot be.
    #[error("request.temperature: {0}")]
    Sampling(#[from] InvalidSampling),
}

/// Makes the requests of one workload.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    terms: Terms,
    /// Of each class of the workload, the engine's.
    classes: Vec<Class>,
    sampling: Sampling,
}

impl Asker {
    pub(crate) fn new(spec: &Spec, terms: Terms) -> Result<Self, CannotAsk> {
        let shape = &spec.request;
        let classes = spec.classes.iter().map(|class| {
            terms.class(&class.name).ok_or_else(|| CannotAsk::Class {
                name: class.name.clone(),
                known: terms.classes.clone(),
            })
        });
        let classes = classes.collect::<Result<_, _>>()?;
        let of_classes = spec.classes.iter().zip(0..);
        let of_classes =
            of_classes.map(|(class, at)| (format!("classes[{at}].extra"), &class.extra));
        let mut extras = of_classes.chain([("request.extra".to_owned(), &shape.extra)]);
        if let Some((key, _)) = extras.find(|(_, extra)| !extra.is_empty()) {
            return Err(CannotAsk::Extra(key));
        }
        if shape
            .vocabulary
            .is_some_and(|ids| ids.max >= terms.vocabulary.get())
        {
            return Err(CannotAsk::Vocabulary(terms.vocabulary));
        }
        let stop_tokens = match shape.ignore_eos {
            true => Vec::new(),
            false => terms.stop_tokens,
        };
        let temperature = shape.temperature.unwrap_or_default() as f32;
        Ok(Self {
            classes,
            sampling: Sampling::GREEDY.with_temperature(temperature)?,
            terms: Terms {
                stop_tokens,
                ..terms
            },
        })
    }

    /// A request that arrives at `at`, with a prompt that [`prompt`](Self::prompt) has made.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] when it is longer than positions can be counted.
    pub(crate) fn request(
        &self,
        (id, at): (RequestId, Time),
        conversation: &Conversation,
        turn: usize,
        prompt: Vec<TokenId>,
        deadline: Option<Time>,
    ) -> Result<Request, InvalidRequest> {
        let planned = &conversation.turns[turn];
        let class = conversation.class.map(|class| self.classes[class]);
        let tenant = conversation.tenant.map_or(0, |tenant| tenant as u32 + 1);
        let own = self.terms.request_timeout.map(|limit| at + limit);
        let deadline = [deadline, own].into_iter().flatten().min();
        let start_by = self.terms.queue_timeout.map(|limit| at + limit);
        let request = Request::new(id, at, prompt, planned.output_tokens_max.max(1))?;
        Ok(request
            .with_class(class.unwrap_or_default())
            .with_tenant(TenantId::new(tenant))
            .with_deadline(deadline)
            .with_start_by(start_by)
            .with_stop_tokens(self.terms.stop_tokens.clone())
            .with_sampling(self.sampling.with_seed(planned.seed)))
    }

    /// The tokens of a turn's whole prompt, as many as were planned. `answer` are those of the answer
    /// to an earlier turn whose answer is not scripted.
    pub(crate) fn prompt(
        &self,
        conversation: &Conversation,
        turn: usize,
        answer: impl Fn(usize) -> Vec<TokenId>,
    ) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        if let Some(shared) = &conversation.shared {
            self.push(shared, &mut tokens);
        }
        for (before, at) in conversation.turns[..turn].iter().zip(0..) {
            self.push(&before.prompt, &mut tokens);
            match &before.scripted_answer {
                Some(text) => self.push(&Prompt::Text(text.clone()), &mut tokens),
                None => tokens.extend(answer(at)),
            }
        }
        let own = &conversation.turns[turn];
        self.push(&own.prompt, &mut tokens);
        let planned = own.prompt_tokens.max(1) as usize;
        let missing = tokens.len()..planned;
        tokens.extend(missing.map(|at| self.token(&[own.index, at as u64])));
        tokens.truncate(planned);
        tokens
    }

    /// A token that is fixed by some numbers.
    fn token(&self, parts: &[u64]) -> TokenId {
        let mix = |mixed, part: &u64| serve_core::rng::mix2(mixed, *part);
        let hash = parts.iter().fold(0, mix) >> 32;
        TokenId::new(((hash * u64::from(self.terms.vocabulary.get())) >> 32) as u32)
    }

    fn push(&self, prompt: &Prompt, tokens: &mut Vec<TokenId>) {
        match prompt {
            Prompt::Ids(ids) => tokens.extend(ids.iter().map(|id| TokenId::new(*id))),
            Prompt::Text(text) => tokens.extend(text.split_whitespace().map(|word| {
                let letters = word.bytes().map(u64::from).collect::<Vec<_>>();
                self.token(&letters)
            })),
        }
    }
}
