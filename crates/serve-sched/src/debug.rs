//! What `{:?}` shows of policies, which are traits, and of the three types that hold them: names and
//! figures, not the thousand requests inside.

use std::fmt;

use crate::admit::{Admission, Admit};
use crate::batch::Batch;
use crate::budget::Budget;
use crate::dispatcher::Dispatcher;
use crate::gate::Gate;
use crate::lengths::Lengths;
use crate::limit::Concurrency;
use crate::order::Order;
use crate::route::Route;
use crate::scheduler::Scheduler;
use crate::settings::Named;
use crate::victim::Victim;

macro_rules! by_name {
    ($($policy:ident,)*) => {$(
        impl fmt::Debug for dyn $policy + '_ {
            /// Its name.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}

by_name! {
    Admit,
    Batch,
    Budget,
    Concurrency,
    Order,
    Route,
    Victim,
}

impl fmt::Debug for dyn Lengths + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lengths")
    }
}

impl<T: ?Sized> fmt::Debug for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Named").field(&self.name).finish()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Admission").field(&self.name).finish()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (admit, order) = self.policies();
        let mut debug = f.debug_struct("Gate");
        debug.field("admit", &admit).field("order", &order);
        debug.field("waiting", &self.len());
        debug.field("running", &self.running());
        debug.field("draining", &self.is_draining());
        debug.finish_non_exhaustive()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Scheduler");
        debug
            .field("gate", self.gate())
            .field("stats", &self.stats());
        debug.finish_non_exhaustive()
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Dispatcher");
        debug
            .field("gate", self.gate())
            .field("stats", &self.stats());
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Backend, mock::Mock};

    use super::*;
    use crate::limit::Fixed;
    use crate::order::Fifo;
    use crate::{Policies, Settings};

    #[test]
    fn policies_are_shown_by_name() {
        let policies = Policies::default();
        let text = format!("{policies:?}");
        for name in [
            "queue-cap",
            "fifo",
            "continuous",
            "first-come",
            "newest-of-lowest-class",
        ] {
            assert!(text.contains(name), "{text}");
        }
        let scheduler = Scheduler::new(Mock::default().limits(), policies).unwrap();
        let text = format!("{scheduler:?}");
        assert!(
            text.starts_with("Scheduler { gate: Gate { admit: [queue-cap], order: fifo, "),
            "{text}"
        );
        let dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(3)));
        let text = format!("{dispatcher:?}");
        assert!(
            text.contains("order: fifo") && text.contains("limit: 3"),
            "{text}"
        );
        let mut settings = Settings::default();
        settings
            .set_text("order", "fair-groups/strict-tiers")
            .unwrap();
        let order = settings.policies().unwrap().order;
        assert!(format!("{order:?}").contains("fair-groups/strict-tiers"));
    }
}
