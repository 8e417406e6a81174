//! One answer being made: tokens in, text out, in the request's own task.

use std::mem;
use std::sync::Arc;

use serve_core::{EventKind, FinishReason};

use crate::access::Access;
use crate::api::{Counted, ScoredToken, Timings};
use crate::error::Problem;
use crate::metrics::{Arrived, Finish};
use crate::names::Named;
use crate::scores::Scores;
use crate::stop::StopMatcher;
use crate::telemetry::RequestLog;
use crate::text::{Detokenize, Text};
use crate::worker::{Ticket, Update};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text. Empty only at the end, where there are tokens without text.
    Text {
        /// The text.
        text: String,
        /// The tokens that begin in it, if the client asks for log-probabilities.
        tokens: Vec<ScoredToken>,
    },
    /// The answer is complete. The last piece.
    End {
        /// Why it ended.
        finish: FinishReason,
        /// What it used.
        usage: Counted,
        /// Where its time went.
        timings: Timings,
    },
}

/// An answer that is being made. Dropping it cancels the request, wherever it is.
pub struct Generation {
    /// Gone when nothing more is wanted from the engine.
    ticket: Option<Ticket>,
    _named: Named,
    detokenizer: Box<dyn Detokenize>,
    stops: StopMatcher,
    /// For a client that asks for log-probabilities.
    scores: Option<Scores>,
    /// The end, while the text before it is on its way out.
    end: Option<Piece>,
    prompt_tokens: u32,
    /// Where the next text is written: most tokens have a text of their own, and not each needs memory of its own.
    spare: String,
    log: RequestLog,
    /// The request that is in flight until this answer has ended; none where the client that waits for the
    /// answer sees to that.
    arrived: Option<Arrived>,
}

/// What an update means for the answer.
enum Turn {
    GoOn,
    End(Piece),
    Fail(Problem),
}

impl Generation {
    pub(crate) fn new(
        ticket: Ticket,
        named: Named,
        detokenizer: Box<dyn Detokenize>,
        stops: StopMatcher,
        prompt_tokens: u32,
        log: RequestLog,
    ) -> Self {
        Self {
            ticket: Some(ticket),
            _named: named,
            detokenizer,
            stops,
            scores: None,
            end: None,
            prompt_tokens,
            spare: String::new(),
            log,
            arrived: None,
        }
    }

    /// Has the access log tell what became of this answer.
    #[must_use]
    pub(crate) fn logged(mut self, access: Option<Access>) -> Self {
        self.log.access = access;
        self
    }

    /// Has the end of this answer count as the end of the request that has `arrived`.
    pub(crate) fn answers(&mut self, arrived: Arrived) {
        self.arrived = Some(arrived);
    }

    /// Has each text come with the log-probabilities of its tokens, of the vocabulary of `text`.
    pub(crate) fn tell_logprobs(&mut self, text: Arc<dyn Text>) {
        self.scores = Some(Scores::new(text));
    }

    /// Whether texts come with log-probabilities.
    pub fn tells_logprobs(&self) -> bool {
        self.scores.is_some()
    }

    /// Waits until the engine has begun with the request: as long as it waits, it can still be refused
    /// like one that has just come.
    ///
    /// # Errors
    ///
    /// The [`Problem`] that ended it first.
    pub async fn begun(&mut self) -> Result<(), Problem> {
        let update = self.update().await;
        // No text comes before the start has been told.
        match self.turn(update, &mut String::new()) {
            Turn::Fail(problem) => Err(self.failed(problem)),
            Turn::GoOn | Turn::End(_) => Ok(()),
        }
    }

    /// The next piece; `None` after the last one or after a problem.
    pub async fn next(&mut self) -> Option<Result<Piece, Problem>> {
        if let Some(end) = self.end.take() {
            return Some(Ok(end));
        }
        while self.ticket.is_some() {
            let update = self.update().await;
            let mut text = mem::take(&mut self.spare);
            let turn = self.turn(update, &mut text);
            let mut tokens = Vec::new();
            if let Some(scores) = &mut self.scores {
                tokens = scores.sent(&text);
            }
            match turn {
                Turn::GoOn => {}
                Turn::End(end) => {
                    if let Some(scores) = &mut self.scores {
                        tokens.append(&mut scores.rest());
                    }
                    self.ticket = None;
                    if let Some(arrived) = self.arrived.take() {
                        arrived.finished();
                    }
                    if text.is_empty() && tokens.is_empty() {
                        return Some(Ok(end));
                    }
                    self.end = Some(end);
                }
                Turn::Fail(problem) => return Some(Err(self.failed(problem))),
            }
            if !text.is_empty() || !tokens.is_empty() {
                return Some(Ok(Piece::Text { text, tokens }));
            }
            self.spare = text;
        }
        None
    }

    /// Takes back the memory of a text that has been used.
    pub fn take_back(&mut self, mut text: String) {
        text.clear();
        self.spare = text;
    }

    /// What the answer has used so far.
    pub fn counted(&self) -> Counted {
        Counted {
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.log.output_tokens(),
            cached_tokens: None,
        }
    }

    async fn update(&mut self) -> Update {
        match &mut self.ticket {
            Some(ticket) => ticket.next().await,
            None => Update::EngineStopped,
        }
    }

    /// The answer has ended with a problem.
    fn failed(&mut self, problem: Problem) -> Problem {
        self.ticket = None;
        self.log.outcome = problem.kind().code;
        if let Some(arrived) = self.arrived.take() {
            arrived.failed(&problem);
        }
        problem
    }

    /// Takes in one update; its text goes to `out`.
    fn turn(&mut self, update: Update, out: &mut String) -> Turn {
        let event = match update {
            Update::EngineStopped => return Turn::Fail(Problem::EngineStopped),
            Update::FellBehind(buffered) => return Turn::Fail(Problem::SlowReader { buffered }),
            Update::Happened(event) => event,
        };
        self.log.saw(&event);
        match event.kind {
            EventKind::Started => Turn::GoOn,
            EventKind::Token {
                token, logprobs, ..
            } => {
                if let (Some(scores), Some(told)) = (&mut self.scores, logprobs) {
                    scores.saw(&told);
                }
                match self.decode(|tokens, text| tokens.push(token, text), out) {
                    true => self.stopped_by_text(),
                    false => Turn::GoOn,
                }
            }
            EventKind::Finished { reason, usage } => {
                if self.decode(|tokens, text| tokens.finish(text), out) {
                    return self.stopped_by_text();
                }
                self.stops.finish(out);
                self.log.used = Some(usage);
                self.log.finished(match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                });
                Turn::End(Piece::End {
                    finish: reason,
                    usage: usage.into(),
                    timings: self.log.timings(Some(usage)),
                })
            }
            EventKind::Cancelled { reason, .. } => Turn::Fail(Problem::Cancelled(reason)),
            EventKind::Displaced { refusal } => Turn::Fail(Problem::Refused(refusal)),
            EventKind::Failed { cause, .. } => Turn::Fail(Problem::Backend {
                cause: cause.to_string(),
            }),
        }
    }

    /// Has the detokenizer write text; what may go out goes to `out`. Returns whether a stop string
    /// was completed.
    fn decode(
        &mut self,
        write: impl FnOnce(&mut dyn Detokenize, &mut String),
        out: &mut String,
    ) -> bool {
        let mut held = String::new();
        let text = match self.stops.is_idle() {
            true => &mut *out,
            false => &mut held,
        };
        let start = text.len();
        write(&mut *self.detokenizer, text);
        if let Some(scores) = &mut self.scores {
            scores.decoded(&text[start..]);
        }
        !self.stops.is_idle() && self.stops.push(&held, out)
    }

    fn stopped_by_text(&mut self) -> Turn {
        self.log.finished(Finish::StopText);
        if let Some(scores) = &mut self.scores {
            scores.cut();
        }
        Turn::End(Piece::End {
            finish: FinishReason::Stop,
            usage: self.counted(),
            timings: self.log.timings(None),
        })
    }
}
