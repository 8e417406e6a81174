//! At most so many requests wait.
//!
//! Rule: refuse when `queued >= max`, or when `queued >= max of the class`; a lower class is given a
//! smaller depth, so that it is refused while there is still room for a higher one. Depth is the
//! whole queue's, as what a newcomer waits for is everything ahead of it, and counts those beyond
//! the free slots: a burst that comes to an idle engine all at once fills the slots first.
//!
//! A total of 0 turns the policy off for every class, also for one with a depth of its own, so that
//! the control condition of an experiment is one setting.

use serve_core::{Class, Limit, Refusal, Request, Time};

use super::{Admission, Admit, Load, check_classes};
use crate::settings::{Setting, Settings};

/// As its family lists it.
pub(super) const POLICY: Admission = Admission {
    name: "queue-cap",
    settings: &[&QUEUE_CAP.row, &CLASS_QUEUE_CAP.row],
    reads_tenants: false,
    build: |settings| match settings.get(&QUEUE_CAP) {
        0 => Vec::new(),
        _ => vec![Box::new(QueueCap::of(settings))],
    },
    by_default: || Box::new(QueueCap::default()),
};

/// Requests that may wait.
pub const QUEUE_CAP: Setting<u32> = Setting::count(
    "queue_cap",
    "Requests that may wait beside those that run; more are refused; 0 lets any number of any class wait",
    256,
);

const CLASS_QUEUE_CAP: Setting<Vec<(String, u32)>> = Setting::by_class(
    "class_queue_cap",
    "Queue depths from which single classes are refused, such as `free=64`; 0 is no limit of its own; \
     none counts where --queue-cap is 0",
)
.checked(|settings| check_classes(settings, &CLASS_QUEUE_CAP));

/// At most so many requests wait, in all and as seen by each class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCap {
    waiting_max: u32,
    class_max: Vec<(Class, u32)>,
}

impl QueueCap {
    /// At most `waiting_max` requests wait; 0 is no limit, for any class.
    pub const fn new(waiting_max: u32) -> Self {
        Self {
            waiting_max,
            class_max: Vec::new(),
        }
    }

    /// With the depths of the settings.
    fn of(settings: &Settings) -> Self {
        let classes = settings.get(&CLASS_QUEUE_CAP).into_iter();
        let classes = classes.filter_map(|(name, depth)| Some((settings.class(&name)?, depth)));
        let total = Self::new(settings.get(&QUEUE_CAP));
        classes.fold(total, |cap, (class, depth)| cap.with_class(class, depth))
    }

    /// Refuses `class` from a queue of `waiting_max` on, 0 being no limit of its own. A class that
    /// is not named has none.
    #[must_use]
    pub fn with_class(mut self, class: Class, waiting_max: u32) -> Self {
        self.class_max.retain(|&(named, _)| named != class);
        self.class_max.push((class, waiting_max));
        self
    }
}

impl Default for QueueCap {
    /// As the setting `queue_cap` is by default.
    fn default() -> Self {
        Self::new(QUEUE_CAP.usual())
    }
}

impl Admit for QueueCap {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn change(&mut self, settings: &Settings, _now: Time) {
        *self = Self::of(settings);
    }

    fn admit(&mut self, request: &Request, load: &Load<'_>) -> Result<(), Refusal> {
        let (waiting, max, class) = (load.queued(), self.waiting_max, request.class());
        if max == 0 {
            return Ok(());
        }
        if waiting >= max {
            return refuse(Limit::QueueDepth { waiting, max }, waiting - max, load);
        }
        let of_class = self.class_max.iter().find(|(named, _)| *named == class);
        let max = of_class.map_or(0, |&(_, max)| max);
        if max > 0 && waiting >= max {
            let limit = Limit::ClassQueueDepth {
                class,
                waiting,
                max,
            };
            return refuse(limit, waiting - max, load);
        }
        Ok(())
    }
}

/// Refuses until the queue, which is `excess` too long, is one shorter than its limit, and those refused
/// before have come back.
fn refuse(limit: Limit, excess: u32, load: &Load<'_>) -> Result<(), Refusal> {
    Err(Refusal::Later {
        limit,
        retry_after: load.retry_after(load.time_to_drain(excess.saturating_add(1))),
    })
}

#[cfg(test)]
mod tests {
    use serve_core::{RequestId, Span, Time, TokenId};

    use super::*;
    use crate::Pace;
    use crate::settings::CLASSES;

    /// What a class is told by a queue of `waiting` behind a busy slot.
    fn refusal(cap: &mut QueueCap, class: u8, waiting: u32, pace: &Pace) -> Option<Refusal> {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let load = Load {
            waiting,
            running: 1,
            ..Load::idle(1, pace)
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
    fn depths_are_those_of_the_settings_with_classes_by_their_rank() {
        let settings = Settings::default().with(&QUEUE_CAP, 9);
        let of_class = |name: &str, depth| vec![(name.to_owned(), depth)];
        let settings = settings.with(&CLASS_QUEUE_CAP, of_class("free", 4));
        let free = QueueCap::new(9).with_class(Class::new(1), 4);
        assert_eq!(QueueCap::of(&settings), free);
        let settings = settings.with(&CLASSES, vec!["free".to_owned()]);
        let only = QueueCap::new(9).with_class(Class::new(0), 4);
        assert_eq!(QueueCap::of(&settings), only);
    }

    #[test]
    fn off_is_off_for_every_class() {
        let mut cap = QueueCap::new(0).with_class(Class::new(1), 4);
        let pace = Pace::default();
        for class in 0..3 {
            assert_eq!(refusal(&mut cap, class, 1_000_000, &pace), None);
        }
        let mut cap = QueueCap::new(10).with_class(Class::new(1), 0);
        assert_eq!(refusal(&mut cap, 1, 9, &pace), None);
    }

    #[test]
    fn a_burst_to_an_idle_engine_fills_the_slots_first() {
        let mut cap = QueueCap::new(16);
        let pace = Pace::default();
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1).unwrap();
        let admitted = (0..64).filter(|&waiting| {
            let load = Load {
                waiting,
                ..Load::idle(8, &pace)
            };
            cap.admit(&request, &load).is_ok()
        });
        assert_eq!(admitted.count(), 8 + 16);
    }

    #[test]
    fn it_says_when_the_excess_will_have_drained() {
        let mut pace = Pace::default();
        pace.finished(2, Span::from_secs(1));
        let refusal = refusal(&mut QueueCap::new(2), 0, 5, &pace).unwrap();
        assert_eq!(refusal.retry_after(), Some(Span::from_secs(2)));
    }
}
