//! By how much waits turn out longer than predicted, apart for those who overtake each other in different ways: each
//! class, and each group of tenants that the order is fair to.
//!
//! One factor for all would have a group pay for what happens in another: where many tenants of one group overtake
//! each other, waits there are longer than predicted, and a group in which nobody does so would be let in less than
//! is its part.

use std::collections::BTreeMap;

use serve_core::Class;

use super::ratios::Ratios;

/// Whom a request waits with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Queued {
    class: u8,
    group: u8,
}

/// Classes beyond these have no waits of their own.
const CLASSES_MAX: u8 = 8;

/// So many groups have; of more, two share theirs, but none shares that of lane 0, where all tenants are that
/// nobody has named: a flood from there is to change no other's. Whatever tenants come and go, it is no more than a megabyte.
const GROUPS_MAX: u32 = 64;

/// A wait that is predicted from steps is taken to be so much longer before that is known: it makes few late, and a
/// queue that is a little too short at first costs nothing.
const FIRST: f64 = 1.3;

impl Queued {
    /// In a class, and in a lane of the outermost level of the order that is fair.
    pub(crate) fn new(class: Class, group: u32) -> Self {
        Self {
            class: class.rank().min(CLASSES_MAX - 1),
            group: match group.checked_sub(1) {
                None => 0,
                Some(named) => (1 + named % (GROUPS_MAX - 1)) as u8,
            },
        }
    }
}

/// What was seen of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Waits(BTreeMap<Queued, Ratios>);

impl Waits {
    pub(super) fn factor(&self, queued: Queued, knows_steps: bool) -> f64 {
        let seen = self.0.get(&queued);
        seen.map_or(first(knows_steps), Ratios::factor)
    }

    pub(super) fn add(&mut self, queued: Queued, ratio: f64, knows_steps: bool) {
        let first = || Ratios::new(first(knows_steps));
        self.0.entry(queued).or_insert_with(first).add(ratio);
    }
}

fn first(knows_steps: bool) -> f64 {
    match knows_steps {
        true => FIRST,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_sees_says_nothing_of_another() {
        let mut waits = Waits::default();
        let queued = |class, group| Queued::new(Class::new(class), group);
        for _ in 0..1_000 {
            waits.add(queued(0, 1), 3.0, true);
            waits.add(queued(0, 2), 1.0, true);
            waits.add(queued(1, 2), 2.0, true);
        }
        let factor = |class, group| waits.factor(queued(class, group), true);
        let factors = [factor(0, 1), factor(0, 2), factor(1, 2), factor(1, 1)];
        assert_eq!(factors, [3.0, 1.02, 2.0, FIRST]);
    }

    #[test]
    fn the_unnamed_share_with_no_group_that_is_named() {
        let unnamed = Queued::new(Class::HIGHEST, 0);
        for group in (1..1_000).chain([u32::MAX]) {
            assert_ne!(Queued::new(Class::HIGHEST, group), unnamed, "{group}");
        }
    }

    #[test]
    fn groups_without_end_take_bounded_memory() {
        let mut waits = Waits::default();
        for group in 0..200_000 {
            waits.add(Queued::new(Class::new(group as u8), group), 1.0, true);
        }
        let most = usize::from(CLASSES_MAX) * GROUPS_MAX as usize;
        assert!(waits.0.len() <= most, "{}", waits.0.len());
    }
}
