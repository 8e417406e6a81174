//! Events that wait to be taken, in the order in which they happened.
//!
//! Nearly all of them are tokens without log-probabilities, so those are kept small: an [`Event`] is
//! made of one when it is taken.

use std::collections::VecDeque;

use serve_core::{Event, EventKind, RequestId, Time, TokenId};

/// Events in order. A reusable buffer.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: Vec<Queued>,
    /// The first of the queue that has not been taken.
    next: usize,
    /// The events that are no plain tokens, in order.
    others: VecDeque<Event>,
    /// When the last plain token that was queued, or taken, has happened.
    queued_at: Time,
    taken_at: Time,
}

/// As many taken ones may stay in the queue, or as many as have not been taken.
const TAKEN_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug)]
enum Queued {
    /// The plain tokens after it happened at this time.
    At(Time),
    Token {
        request: RequestId,
        token: TokenId,
        index: u32,
    },
    Other,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push(Queued::Other);
        self.others.push_back(event);
    }

    /// A token without log-probabilities.
    #[inline]
    pub(super) fn push_token(&mut self, at: Time, request: RequestId, token: TokenId, index: u32) {
        if at != self.queued_at {
            self.queued_at = at;
            self.queue.push(Queued::At(at));
        }
        self.queue.push(Queued::Token {
            request,
            token,
            index,
        });
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        // A driver may never take all that there is.
        if self.next >= TAKEN_MAX && self.next * 2 >= self.queue.len() {
            self.drop_taken();
        }
        loop {
            let Some(&queued) = self.queue.get(self.next) else {
                self.drop_taken();
                return None;
            };
            self.next += 1;
            match queued {
                Queued::At(at) => self.taken_at = at,
                Queued::Token {
                    request,
                    token,
                    index,
                } => {
                    let kind = EventKind::Token {
                        token,
                        index,
                        logprobs: None,
                    };
                    let at = self.taken_at;
                    return Some(Event { request, at, kind });
                }
                Queued::Other => return self.others.pop_front(),
            }
        }
    }

    /// Appends all that there are to `taken`.
    pub(super) fn take_all(&mut self, taken: &mut Vec<Event>) {
        let left = self.queue.get(self.next..).unwrap_or_default();
        taken.reserve(left.len());
        for queued in left {
            match *queued {
                Queued::At(at) => self.taken_at = at,
                Queued::Token {
                    request,
                    token,
                    index,
                } => taken.push(Event {
                    request,
                    at: self.taken_at,
                    kind: EventKind::Token {
                        token,
                        index,
                        logprobs: None,
                    },
                }),
                Queued::Other => taken.extend(self.others.pop_front()),
            }
        }
        self.queue.clear();
        self.next = 0;
    }

    #[inline(never)]
    fn drop_taken(&mut self) {
        self.queue.drain(..self.next);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serve_core::TokenLogprob;

    use super::*;

    /// Events that come at times and are taken at others: the same ones, in the same order.
    #[derive(Clone, Debug)]
    enum Turn {
        Token(u64, u32, bool),
        Started(u64),
        Take,
        TakeAll,
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let turn = prop_oneof![
            4 => (0_u64..3, 0_u32..9, any::<bool>()).prop_map(|(at, token, asked)| Turn::Token(at, token, asked)),
            1 => (0_u64..3).prop_map(Turn::Started),
            3 => Just(Turn::Take),
            1 => Just(Turn::TakeAll),
        ];
        proptest::collection::vec(turn, 0..60)
    }

    #[test]
    fn what_has_been_taken_is_dropped() {
        let mut events = Events::default();
        let id = RequestId::new(1);
        for index in 0..100_000 {
            events.push_token(Time::ZERO, id, TokenId::new(index), index);
            if index > 10 {
                let taken = events.pop().unwrap();
                let expected = TokenId::new(index - 11);
                assert!(matches!(taken.kind, EventKind::Token { token, .. } if token == expected));
            }
        }
        assert!(events.queue.capacity() <= 4 * TAKEN_MAX);
    }

    proptest! {
        #[test]
        fn events_come_out_as_they_went_in(turns in turns()) {
            let (mut events, mut expected) = (Events::default(), VecDeque::new());
            let mut now = Time::ZERO;
            for (turn, request) in turns.into_iter().zip((0..).map(RequestId::new)) {
                let (kind, after) = match turn {
                    Turn::Take => {
                        prop_assert_eq!(events.pop(), expected.pop_front());
                        continue;
                    }
                    Turn::TakeAll => {
                        let mut taken = Vec::new();
                        events.take_all(&mut taken);
                        prop_assert_eq!(taken, Vec::from(std::mem::take(&mut expected)));
                        continue;
                    }
                    Turn::Started(after) => (EventKind::Started, after),
                    Turn::Token(after, token, asked) => {
                        let token = TokenId::new(token);
                        let certain = TokenLogprob { token, logprob: 0.0 };
                        let logprobs = asked.then(|| Arc::from([certain]));
                        (EventKind::Token { token, index: token.get() + 1, logprobs }, after)
                    }
                };
                now += serve_core::Span::from_millis(after);
                expected.push_back(Event { request, at: now, kind: kind.clone() });
                match kind {
                    EventKind::Token { token, index, logprobs: None } => {
                        events.push_token(now, request, token, index);
                    }
                    kind => events.push(Event { request, at: now, kind }),
                }
            }
            while let Some(event) = expected.pop_front() {
                prop_assert_eq!(events.pop(), Some(event));
            }
            prop_assert_eq!(events.pop(), None);
        }
    }
}
