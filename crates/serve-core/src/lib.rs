//! The vocabulary that every part of a serving system shares: ids, time, requests, the step plan,
//! the [`Backend`] contract, events and refusals, and a deterministic [`mock`] of a device.
//!
//! Nothing here decides anything (that is `serve-sched`) and nothing here reads a clock, a file, a
//! socket, the environment or the operating system's randomness. [`Time`] is an integer that a
//! driver passes in, so a test, a simulation and a server can run the same code.
//!
//! The one idea to take away is the [`Segment`]: *run positions `a..b` of a request, and perhaps
//! sample afterwards*. Prefill, one chunk of a prefill, one decode step, a prefix-cache hit and the
//! recomputation after a preemption are all segments with different ranges.

#![warn(missing_debug_implementations)]

mod backend;
mod backend_error;
mod code;
pub mod conformance;
mod data;
mod event;
mod id;
mod limits;
mod logprobs;
pub mod mock;
mod refusal;
mod request;
pub mod rng;
mod sampling;
mod step;
mod time;
mod told;

pub use backend::Backend;
pub use backend_error::BackendError;
pub use data::Data;
pub use event::{CancelReason, Event, EventKind, FinishReason, Usage};
pub use id::{BlockId, RequestId, StepId, TenantId, TokenId};
pub use limits::{InvalidLimits, Limits};
pub use logprobs::{ALTERNATIVES_MAX, Logprobs, TokenLogprob};
pub use refusal::{Limit, Reason, Refusal};
pub use request::{Class, InvalidRequest, Request};
pub use sampling::{InvalidSampling, Sampling};
pub use step::{Sampled, Segment, StepLoad, StepOutcome, StepPlan};
pub use time::{Span, Time};
pub use told::{Blame, Code};
