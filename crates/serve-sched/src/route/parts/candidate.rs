//! An upstream as a routing policy is shown it.

use super::{Speed, Work};
use crate::route::UpstreamId;

/// An upstream that could be sent a request, at the time of the choice.
///
/// *In flight* is what this router has sent there, at once when it is sent, and what a [view](crate::route::View) says that
/// others have sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Which.
    pub upstream: UpstreamId,
    /// Requests that are in flight there.
    pub in_flight: u32,
    /// Of those, requests that wait for their first token.
    pub waiting: u32,
    /// Prompt tokens of those that wait, what is cached left out.
    pub waiting_tokens: u64,
    /// Seconds until all that wait have their first token.
    pub wait_secs: f64,
    /// Tokens in the KV cache of everything in flight, at its mean.
    pub running_tokens: u64,
    /// Tokens of this request's prompt that are cached there, as far as is known.
    pub cached_tokens: u32,
    /// Seconds that this request takes alone, with nothing cached, at the speed of all upstreams.
    pub whole_secs: f64,
    /// Seconds of work that it has been given, each request at its `whole_secs`; the last thousand requests of the router
    /// count, whenever they came.
    pub given_secs: f64,
    /// The same for the candidate that has been given the least.
    pub given_least_secs: f64,
    /// How fast it has been.
    pub speed: Speed,
}

impl Candidate {
    /// Seconds that the request takes there from its turn to its last token, with so many tokens of its prompt cached.
    pub fn service_secs(&self, work: &Work<'_>, cached_tokens: u32) -> f64 {
        let prompt = work.prompt_tokens.saturating_sub(cached_tokens);
        let running = self.running_tokens.saturating_add(work.held_tokens());
        self.speed.service_secs(prompt, work.output_tokens, running)
    }
}
