//! The requests that are there when something about an order changes.

use serve_core::Request;

use crate::order::Waiting;

/// The requests that an order knows of: those that wait, and those that have begun.
#[derive(Clone, Debug, Default)]
pub struct InFlight<'a> {
    /// Those that wait, in the order in which they began to.
    pub waiting: Vec<Waiting<'a>>,
    /// Those that have been taken and have not ended; one that waits again after a preemption is among
    /// those that wait too.
    pub begun: Vec<&'a Request>,
}

impl InFlight<'_> {
    /// Those of which `which` says so.
    #[must_use]
    pub fn only(&self, which: impl Fn(&Request) -> bool) -> Self {
        let waiting = self.waiting.iter().copied();
        let begun = self.begun.iter().copied();
        Self {
            waiting: waiting.filter(|it| which(it.request)).collect(),
            begun: begun.filter(|it| which(it)).collect(),
        }
    }
}
