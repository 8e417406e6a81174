//! What the limit is told of each request that leaves the engine, once for each sending, and for how
//! long an engine is left alone that has refused one.

use serve_core::{RequestId, Span, Time};

use super::{Dispatcher, Sent};
use crate::limit::{Departure, Signal};

impl Dispatcher {
    /// A request leaves the engine, and is counted among those in flight for the last time.
    pub(super) fn hear(&mut self, id: RequestId, output_tokens: u32, signal: Signal) {
        let (now, in_flight) = (self.now, self.in_flight());
        let Some(sent) = self.sent.get(&id) else {
            return;
        };
        self.unanswered = match signal {
            Signal::Answered => 0,
            _ => self.unanswered.saturating_add(1),
        };
        let departure = Departure {
            took: now.since(sent.at),
            first_token: sent.first_token.map(|at| at.since(sent.at)),
            prompt_tokens: sent.taken.request.prompt_tokens(),
            output_tokens,
            in_flight,
            signal,
        };
        self.limit.left(now, &departure);
        let slots = self.limit();
        self.gate.set_slots(slots);
    }

    /// A deadline has passed while the request was with the engine.
    pub(super) fn hear_deadline(&mut self, id: RequestId) {
        if let Some(sent) = self.sent.get(&id) {
            let (output_tokens, signal) = (sent.output_tokens, self.signal_of_deadline(sent));
            self.hear(id, output_tokens, signal);
        }
    }

    /// That the engine is overloaded; unless the request had been with it for a shorter time than
    /// answers take, as one that was sent when most of its time was over, and answers do come.
    fn signal_of_deadline(&self, sent: &Sent) -> Signal {
        let usual = self.pace().service_time().unwrap_or(Span::ZERO);
        let hurried = self.now.since(sent.at) < usual;
        match hurried && self.unanswered < self.limit() {
            true => Signal::Ignored,
            false => Signal::Overloaded,
        }
    }

    /// Sends nothing for a while, or goes on: whenever a request has left an engine in any other way
    /// than being refused, there is room for another.
    pub(super) fn pause(&mut self, pause: Option<Span>) {
        self.paused_until = pause.map(|pause| self.now + pause);
    }

    pub(super) fn is_paused(&self, now: Time) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}
