//! Events that wait to be taken, in the order in which they happened.
//!
//! Nearly all of them are tokens without log-probabilities, so those are kept small: an [`Event`] is
//! made of them when it is taken. A token counts its index from the request's last event on.

use std::collections::VecDeque;

use serve_core::{Event, EventKind, RequestId, Time, TokenId};

/// Events in order. A reusable buffer.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Queued>,
    /// The events that are no plain tokens, in order.
    others: VecDeque<Event>,
    /// When the last plain token that was queued, or taken, has happened.
    queued_at: Time,
    taken_at: Time,
}

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
        self.queue.push_back(Queued::Other);
        self.others.push_back(event);
    }

    /// A token without log-probabilities.
    pub(super) fn push_token(&mut self, at: Time, request: RequestId, token: TokenId, index: u32) {
        if at != self.queued_at {
            self.queued_at = at;
            self.queue.push_back(Queued::At(at));
        }
        self.queue.push_back(Queued::Token {
            request,
            token,
            index,
        });
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        loop {
            match self.queue.pop_front()? {
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
    }

    fn turns() -> impl Strategy<Value = Vec<Turn>> {
        let turn = prop_oneof![
            4 => (0_u64..3, 0_u32..9, any::<bool>()).prop_map(|(at, token, asked)| Turn::Token(at, token, asked)),
            1 => (0_u64..3).prop_map(Turn::Started),
            3 => Just(Turn::Take),
        ];
        proptest::collection::vec(turn, 0..60)
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
