//! At most so many requests wait.
//!
//! Rule: refuse when `waiting >= max`, or when `waiting >= max_of(class)`; a lower class is given a
//! smaller depth, so that it is refused while there is still room for a higher one. Depth is the
//! whole queue's: what a newcomer waits for is everything ahead of it.

use serve_core::{Class, Limit, Refusal, Request};

use super::{Admit, Load};

/// At most so many requests wait, in all and as seen by each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCap {
    waiting_max: u32,
    class_max: Vec<(Class, u32)>,
}

impl QueueCap {
    /// At most `waiting_max` requests wait; 0 lets nobody wait, and so refuses everybody.
    pub const fn new(waiting_max: u32) -> Self {
        Self {
            waiting_max,
            class_max: Vec::new(),
        }
    }

    /// Refuses `class` from a queue of `waiting_max` on. A class that is not named has no depth of
    /// its own.
    #[must_use]
    pub fn with_class(mut self, class: Class, waiting_max: u32) -> Self {
        self.class_max.retain(|&(named, _)| named != class);
        self.class_max.push((class, waiting_max));
        self
    }
}

impl Default for QueueCap {
    /// At most 1,024 wait.
    fn default() -> Self {
        Self::new(1_024)
    }
}

impl Admit for QueueCap {
    fn name(&self) -> &'static str {
        "queue-cap"
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let refuse = |limit, max: u32| {
            // There is room again once the queue is one shorter than the depth.
            let excess = (load.waiting - max).saturating_add(1);
            Err(Refusal::Later {
                limit,
                retry_after: load.time_to_drain(excess),
            })
        };
        let (waiting, max) = (load.waiting, self.waiting_max);
        if waiting >= max {
            return refuse(Limit::QueueDepth { waiting, max }, max);
        }
        let class = request.class();
        match self.class_max.iter().find(|(named, _)| *named == class) {
            Some(&(_, max)) if waiting >= max => {
                let limit = Limit::ClassQueueDepth {
                    class,
                    waiting,
                    max,
                };
                refuse(limit, max)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Span, Time, TokenId};

    use super::*;
    use crate::Pace;

    fn refusal(cap: &mut QueueCap, class: u8, waiting: u32, pace: &Pace) -> Option<Refusal> {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let load = Load {
            now: Time::ZERO,
            waiting,
            waiting_prompt_tokens: 0,
            running: 0,
            slots: 1,
            pace,
            waiting_by_class: &[],
        };
        let request = request.with_class(Class::new(class));
        cap.admit(&request, &load).err()
    }

    #[test]
    fn a_lower_class_is_refused_at_a_shallower_depth() {
        let mut cap = QueueCap::new(10).with_class(Class::new(1), 4);
        let pace = Pace::default();
        assert_eq!(refusal(&mut cap, 1, 3, &pace), None);
        assert_eq!(refusal(&mut cap, 0, 9, &pace), None);
        let later = |limit| {
            Some(Refusal::Later {
                limit,
                retry_after: None,
            })
        };
        let limit = Limit::ClassQueueDepth {
            class: Class::new(1),
            waiting: 4,
            max: 4,
        };
        assert_eq!(refusal(&mut cap, 1, 4, &pace), later(limit));
        let limit = Limit::QueueDepth {
            waiting: 10,
            max: 10,
        };
        assert_eq!(refusal(&mut cap, 0, 10, &pace), later(limit));
    }

    #[test]
    fn it_says_when_the_excess_will_have_drained() {
        let mut pace = Pace::default();
        pace.finished(2, Span::from_secs(1));
        let refusal = refusal(&mut QueueCap::new(2), 0, 5, &pace).unwrap();
        assert_eq!(refusal.retry_after(), Some(Span::from_secs(2)));
    }
}
