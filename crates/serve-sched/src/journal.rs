//! Why each request was admitted, deferred, preempted, promoted, refused or ended: one entry for
//! each decision, with its numbers.
//!
//! Off, it costs one branch. On, the same inputs give the same lines, byte for byte. Steps are not
//! decisions and are not recorded: the journal of a long generation is as long as that of a short
//! one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serve_core::{CancelReason, Class, FinishReason, Refusal, RequestId, Span, TenantId, Time};

use crate::settings::Change;

/// Takes the entries of a journal. Any `FnMut(&Entry) + Send` is one.
pub trait Sink: Send {
    /// Takes one entry. [`Entry`]'s `Display` is its line.
    fn record(&mut self, entry: &Entry);
}

impl<F: FnMut(&Entry) + Send> Sink for F {
    fn record(&mut self, entry: &Entry) {
        self(entry);
    }
}

/// A sink that keeps the lines in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    text: Arc<Mutex<String>>,
}

impl Lines {
    /// No lines yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every line so far, each ended by a newline.
    pub fn text(&self) -> String {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Sink for Lines {
    fn record(&mut self, entry: &Entry) {
        use fmt::Write as _;
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{entry}");
    }
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Entry {
    /// When it was taken.
    pub at: Time,
    /// About which request; `None` for the scheduler as a whole.
    pub request: Option<RequestId>,
    /// What was decided.
    pub decision: Decision,
}

/// What was decided, and the numbers that decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Decision {
    /// Taken in; it waits.
    Admitted {
        /// Its class.
        class: Class,
        /// Its tenant.
        tenant: TenantId,
        /// Requests waiting, this one included.
        waiting: u32,
    },
    /// Not taken in.
    Refused {
        /// The policy, or `limits` and `gate` for the mechanism's own rules.
        by: &'static str,
        /// Later or never, and why.
        refusal: Refusal,
    },
    /// Gave its place in a full queue up to somebody who goes before it.
    Displaced {
        /// To whom.
        by: RequestId,
        /// What its client is told.
        refusal: Refusal,
    },
    /// Moved in the queue because time has passed.
    Promoted {
        /// How long it has waited.
        waited: Span,
        /// Its lane from now on, the outermost of a composed order.
        lane: u32,
        /// Its key in the lane from now on.
        key: u64,
    },
    /// Left the queue and joined the batch.
    Joined {
        /// How long it has waited.
        waited: Span,
        /// Positions to run before the next token, those cached included.
        positions: u32,
        /// Of those, positions found in the prefix cache.
        cached: u32,
        /// Blocks that it holds now.
        blocks: u32,
        /// Requests running, this one included.
        running: u32,
        /// How often it has been preempted.
        preemptions: u32,
    },
    /// Left the queue and was sent to an engine that is driven one request at a time.
    Sent {
        /// How long it has waited.
        waited: Span,
        /// Requests with the engine, this one included.
        running: u32,
        /// Requests that may be with it.
        slots: u32,
    },
    /// Refused by an engine that is driven one request at a time; it waits again, in its old place.
    PutBack {
        /// The engine's own words.
        cause: Arc<str>,
        /// How often, this time included.
        times: u32,
        /// When it may be sent again.
        until: Time,
    },
    /// At the head of the queue, and cannot join. Recorded when the reason changes.
    Deferred {
        /// What is missing.
        reason: Deferral,
    },
    /// Gave up its place in the batch and waits again.
    Preempted {
        /// For whom.
        cause: PreemptCause,
        /// Positions to run again.
        computed: u32,
        /// Blocks given up.
        blocks: u32,
        /// How often it has been preempted, this time included.
        times: u32,
    },
    /// Ended by itself.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens generated.
        output_tokens: u32,
    },
    /// Cancelled.
    Cancelled {
        /// By whom or what.
        reason: CancelReason,
        /// Tokens generated until then.
        output_tokens: u32,
    },
    /// Failed with its step or its device.
    Failed {
        /// The backend's own words.
        cause: Arc<str>,
        /// Tokens generated until then.
        output_tokens: u32,
    },
    /// From now on nothing is taken in.
    Draining {
        /// Requests waiting.
        waiting: u32,
        /// Requests running.
        running: u32,
    },
    /// Other settings hold from now on.
    Changed {
        /// Which ones; the same change made again at the same time has the same effect.
        change: Box<Change>,
    },
    /// The device is gone and so is everything that it held.
    DeviceLost {
        /// The backend's own words.
        cause: Arc<str>,
    },
}

/// What the head of the queue is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Deferral {
    /// A place in the batch.
    Slots {
        /// Requests running.
        running: u32,
        /// Requests that may run.
        max: u32,
    },
    /// The batch policy lets nobody join.
    Batch {
        /// Requests running.
        running: u32,
    },
    /// The batch is waiting to fill.
    Window {
        /// When it starts at the latest.
        until: Time,
    },
    /// Tokens of this step.
    StepTokens,
    /// KV blocks for its whole prompt.
    Blocks {
        /// Blocks that it needs.
        needed: u32,
        /// Blocks that it could be given now.
        available: u32,
    },
}

/// For whom a request gives up its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum PreemptCause {
    /// A running request needs a block and none is left.
    KvPressure {
        /// Who needs it.
        by: RequestId,
    },
    /// A waiting request of a higher class finds no room.
    HigherClass {
        /// Who waits.
        by: RequestId,
        /// Its class.
        class: Class,
    },
}

/// Where entries go: to a sink, or nowhere.
#[derive(Default)]
pub(crate) struct Journal {
    sink: Option<Box<dyn Sink>>,
}

impl Journal {
    pub(crate) fn set(&mut self, sink: Option<Box<dyn Sink>>) {
        self.sink = sink;
    }

    pub(crate) fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Records a decision that is only put together if somebody reads it.
    pub(crate) fn write(
        &mut self,
        at: Time,
        request: impl Into<Option<RequestId>>,
        decision: impl FnOnce() -> Decision,
    ) {
        if let Some(sink) = &mut self.sink {
            let (request, decision) = (request.into(), decision());
            sink.record(&Entry {
                at,
                request,
                decision,
            });
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.request {
            Some(request) => write!(f, "{} {request} {}", self.at, self.decision),
            None => write!(f, "{} {}", self.at, self.decision),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted {
                class,
                tenant,
                waiting,
            } => write!(f, "admitted: {class} {tenant}, {waiting} waiting"),
            Self::Refused { by, refusal } => {
                write!(f, "{refusal} ({by}: {}", refusal.code().name)?;
                again(f, refusal)
            }
            Self::Displaced { by, refusal } => {
                write!(f, "{refusal} (displaced by {by}")?;
                again(f, refusal)
            }
            Self::Promoted { waited, lane, key } => {
                write!(f, "promoted: waited {waited}, lane {lane}, key {key}")
            }
            Self::Joined {
                waited,
                positions,
                cached,
                blocks,
                running,
                preemptions,
            } => {
                write!(
                    f,
                    "joined: waited {waited}, {positions} positions, {cached} cached, \
                     {blocks} blocks, {running} running"
                )?;
                match preemptions {
                    0 => Ok(()),
                    times => write!(f, ", preempted {times} times"),
                }
            }
            Self::Sent {
                waited,
                running,
                slots,
            } => write!(f, "sent: waited {waited}, {running} of {slots} slots"),
            Self::PutBack {
                cause,
                times,
                until,
            } => write!(f, "put back: {cause}, {times} times, not before {until}"),
            Self::Deferred { reason } => write!(f, "deferred: {reason}"),
            Self::Preempted {
                cause,
                computed,
                blocks,
                times,
            } => write!(
                f,
                "preempted: {cause}, {computed} positions lost, {blocks} blocks, {times} times"
            ),
            Self::Finished {
                reason,
                output_tokens,
            } => write!(f, "finished: {}, {output_tokens} tokens", finish(*reason)),
            Self::Cancelled {
                reason,
                output_tokens,
            } => write!(
                f,
                "cancelled: {}, {output_tokens} tokens",
                reason.code().name
            ),
            Self::Failed {
                cause,
                output_tokens,
            } => write!(f, "failed: {cause}, {output_tokens} tokens"),
            Self::Draining { waiting, running } => {
                write!(f, "draining: {waiting} waiting, {running} running")
            }
            Self::Changed { change } => write!(f, "changed: {change}"),
            Self::DeviceLost { cause } => write!(f, "device lost: {cause}"),
        }
    }
}

impl fmt::Display for Deferral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots { running, max } => write!(f, "{running} of {max} slots are taken"),
            Self::Batch { running } => write!(f, "nobody may join the {running} running"),
            Self::Window { until } => write!(f, "the batch may fill until {until}"),
            Self::StepTokens => f.write_str("the step has no tokens left"),
            Self::Blocks { needed, available } => {
                write!(f, "needs {needed} blocks of {available} available")
            }
        }
    }
}

impl fmt::Display for PreemptCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KvPressure { by } => write!(f, "{by} needs a block"),
            Self::HigherClass { by, class } => write!(f, "{by} of {class} waits"),
        }
    }
}

/// When a refused request may come again, and the end of the brackets.
fn again(f: &mut fmt::Formatter<'_>, refusal: &Refusal) -> fmt::Result {
    match refusal.retry_after() {
        Some(after) => write!(f, ", again in {after})"),
        None => f.write_str(")"),
    }
}

fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
