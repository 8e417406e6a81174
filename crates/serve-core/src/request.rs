//! What a client asks for, once the edge has parsed and tokenised it.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use thiserror::Error;

use crate::{ALTERNATIVES_MAX, Data, RequestId, Sampling, TenantId, Time, TokenId};

/// A priority class: a rank, 0 the highest. Names such as *paid* and *free* belong to the edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Class(u8);

impl Class {
    /// The class that is served before all others.
    pub const HIGHEST: Self = Self(0);

    /// The class of the given rank.
    pub const fn new(rank: u8) -> Self {
        Self(rank)
    }

    /// The rank, 0 the highest.
    pub const fn rank(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}", self.0)
    }
}

/// One generation request, valid by construction: the prompt holds at least one token (known, or
/// [only counted](Self::of_lengths)), at least one token may be generated, and positions fit in 32 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    id: RequestId,
    arrival: Time,
    /// Empty if only its length is known.
    prompt: Arc<[TokenId]>,
    prompt_tokens: NonZeroU32,
    output_tokens_max: NonZeroU32,
    tenant: TenantId,
    class: Class,
    deadline: Option<Time>,
    start_by: Option<Time>,
    committed: bool,
    sampling: Sampling,
    logprobs: Option<u8>,
    stop_tokens: Arc<[TokenId]>,
    data: Data,
}

/// A request that cannot mean anything.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// There is no position to compute.
    #[error("the prompt is empty; it must hold at least one token")]
    EmptyPrompt,
    /// Nothing may be generated.
    #[error("the output limit is 0; at least one token must be allowed")]
    NoOutput,
    /// Prompt and output together do not fit in 32-bit positions.
    #[error("prompt ({prompt}) and output limit ({output}) exceed 2^32 - 1 positions")]
    TooLong {
        /// Prompt tokens.
        prompt: u64,
        /// Output limit.
        output: u64,
    },
    /// More alternatives than are given.
    #[error(
        "{asked} alternatives are asked for with each token; 0 to {ALTERNATIVES_MAX} are given"
    )]
    Alternatives {
        /// The number asked for.
        asked: u8,
    },
}

impl Request {
    /// A greedy request of the anonymous tenant in the highest class, without a deadline.
    ///
    /// `arrival` is when the edge saw the request; waiting is counted from it.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] when the prompt is empty, `output_tokens_max` is zero, or both together
    /// exceed 32-bit positions.
    pub fn new(
        id: RequestId,
        arrival: Time,
        prompt: impl Into<Arc<[TokenId]>>,
        output_tokens_max: u32,
    ) -> Result<Self, InvalidRequest> {
        let prompt = prompt.into();
        Self::build(id, arrival, prompt.len() as u64, output_tokens_max)
            .map(|lengths| Self { prompt, ..lengths })
    }

    /// As [`new`](Self::new), where the prompt's tokens are not known or of no interest and only
    /// their number counts: in front of a service that does the work itself. It allocates nothing.
    ///
    /// Such a request [has no tokens](Self::has_tokens). A dispatcher takes it; a scheduler, whose
    /// backend could not run it, refuses it.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] when one of the lengths is zero, or both together exceed 32-bit positions.
    pub fn of_lengths(
        id: RequestId,
        arrival: Time,
        prompt_tokens: u32,
        output_tokens_max: u32,
    ) -> Result<Self, InvalidRequest> {
        Self::build(id, arrival, u64::from(prompt_tokens), output_tokens_max)
    }

    fn build(
        id: RequestId,
        arrival: Time,
        prompt: u64,
        output_tokens_max: u32,
    ) -> Result<Self, InvalidRequest> {
        let output = u64::from(output_tokens_max);
        let too_long = InvalidRequest::TooLong { prompt, output };
        let prompt_tokens = match u32::try_from(prompt) {
            Ok(tokens) => NonZeroU32::new(tokens).ok_or(InvalidRequest::EmptyPrompt)?,
            Err(_) => return Err(too_long),
        };
        let output_tokens_max =
            NonZeroU32::new(output_tokens_max).ok_or(InvalidRequest::NoOutput)?;
        if prompt + output > u64::from(u32::MAX) {
            return Err(too_long);
        }
        Ok(Self {
            id,
            arrival,
            prompt: Arc::default(),
            prompt_tokens,
            output_tokens_max,
            tenant: TenantId::default(),
            class: Class::HIGHEST,
            deadline: None,
            start_by: None,
            committed: false,
            sampling: Sampling::GREEDY,
            logprobs: None,
            stop_tokens: Arc::default(),
            data: Data::NONE,
        })
    }

    /// Accounts the request to `tenant`.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// Puts the request into `class`.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// After this point the answer is of no use: waiting, the request is answered as expired;
    /// running, it is cancelled.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Option<Time>) -> Self {
        self.deadline = deadline;
        self
    }

    /// A request that has not started by then expires without running. One that has started
    /// is not concerned, a request that waits again after a preemption included.
    #[must_use]
    pub fn with_start_by(mut self, start_by: Option<Time>) -> Self {
        self.start_by = start_by;
        self
    }

    /// Says that its client has been told that it is accepted, so that it is not
    /// [displaced](crate::EventKind::Displaced) from a full queue.
    #[must_use]
    pub fn with_committed(mut self, committed: bool) -> Self {
        self.committed = committed;
        self
    }

    /// Chooses tokens by `sampling`.
    #[must_use]
    pub fn with_sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Asks for the log-probability of each token and of so many most likely ones beside it; `None`
    /// asks for nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::Alternatives`] for more than [`ALTERNATIVES_MAX`].
    pub fn with_logprobs(mut self, alternatives: Option<u8>) -> Result<Self, InvalidRequest> {
        if let Some(asked) = alternatives.filter(|&asked| asked > ALTERNATIVES_MAX) {
            return Err(InvalidRequest::Alternatives { asked });
        }
        self.logprobs = alternatives;
        Ok(self)
    }

    /// Ends the generation when one of these is sampled (end of text, end of turn).
    #[must_use]
    pub fn with_stop_tokens(mut self, stop_tokens: impl Into<Arc<[TokenId]>>) -> Self {
        self.stop_tokens = stop_tokens.into();
        self
    }

    /// Attaches what a policy of one's own is to know besides: an adapter, a session, a region.
    ///
    /// ```
    /// use serve_core::{Data, Request, RequestId, Time};
    ///
    /// struct Region(&'static str);
    ///
    /// let request = Request::of_lengths(RequestId::new(1), Time::ZERO, 40, 5)?;
    /// let request = request.with_data(Data::new(Region("eu")));
    /// assert_eq!(request.data::<Region>().map(|region| region.0), Some("eu"));
    /// # Ok::<(), serve_core::InvalidRequest>(())
    /// ```
    #[must_use]
    pub fn with_data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// The id, unique for the lifetime of a scheduler.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// When the edge saw the request.
    pub fn arrival(&self) -> Time {
        self.arrival
    }

    /// The prompt; empty if the request [has no tokens](Self::has_tokens), and only then.
    pub fn prompt(&self) -> &Arc<[TokenId]> {
        &self.prompt
    }

    /// Whether the prompt's tokens are known, and not their number alone.
    pub fn has_tokens(&self) -> bool {
        !self.prompt.is_empty()
    }

    /// How many tokens the prompt holds.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens.get()
    }

    /// How many tokens may be generated at most.
    pub fn output_tokens_max(&self) -> u32 {
        self.output_tokens_max.get()
    }

    /// How many positions the request can come to hold in the KV cache: prompt and all outputs but
    /// the last, which is sampled and never run.
    pub fn positions_max(&self) -> u32 {
        self.prompt_tokens() + self.output_tokens_max.get() - 1
    }

    /// Whom the request is accounted to.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The priority class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// After this the answer is of no use.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Who has not started by this point is not to be run.
    pub fn start_by(&self) -> Option<Time> {
        self.start_by
    }

    /// Whether its client has been told that it is accepted.
    pub fn is_committed(&self) -> bool {
        self.committed
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// How many alternatives are to be told with each token's log-probability; `None` if neither is.
    pub fn logprobs(&self) -> Option<u8> {
        self.logprobs
    }

    /// Tokens that end the generation.
    pub fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    /// What its service has attached to it, if that is a `T`.
    pub fn data<T: Any>(&self) -> Option<&T> {
        self.data.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: usize, output: u32) -> Result<Request, InvalidRequest> {
        let prompt = vec![TokenId::new(1); prompt];
        Request::new(RequestId::new(1), Time::ZERO, prompt, output)
    }

    #[test]
    fn a_request_that_means_nothing_cannot_be_built() {
        assert_eq!(request(0, 1), Err(InvalidRequest::EmptyPrompt));
        assert_eq!(request(1, 0), Err(InvalidRequest::NoOutput));
        assert!(matches!(
            request(2, u32::MAX - 1),
            Err(InvalidRequest::TooLong { .. })
        ));
        assert!(request(1, u32::MAX - 1).is_ok());
        let asking = |alternatives| request(1, 1).unwrap().with_logprobs(alternatives);
        assert_eq!(
            asking(Some(21)),
            Err(InvalidRequest::Alternatives { asked: 21 })
        );
        assert_eq!(asking(Some(20)).unwrap().logprobs(), Some(20));
    }

    #[test]
    fn a_request_of_lengths_counts_like_one_of_tokens_and_has_none() {
        for (prompt, output) in [
            (1, 1),
            (5, 3),
            (7, u32::MAX - 7),
            (0, 1),
            (1, 0),
            (2, u32::MAX),
        ] {
            let lengths = Request::of_lengths(RequestId::new(1), Time::ZERO, prompt, output);
            let tokens = request(prompt as usize, output);
            let counts = |it: Result<Request, InvalidRequest>| {
                it.map(|it| {
                    (
                        it.prompt_tokens(),
                        it.output_tokens_max(),
                        it.positions_max(),
                    )
                })
            };
            if let Ok(lengths) = &lengths {
                assert!(!lengths.has_tokens() && lengths.prompt().is_empty());
                assert!(tokens.as_ref().unwrap().has_tokens());
            }
            assert_eq!(counts(lengths), counts(tokens));
        }
    }

    #[test]
    fn the_last_sampled_token_needs_no_position() {
        assert_eq!(request(5, 1).unwrap().positions_max(), 5);
        assert_eq!(request(5, 3).unwrap().positions_max(), 7);
    }
}
