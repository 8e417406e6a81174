//! Other settings while requests wait and are with the engine.

use std::sync::Arc;

use serve_core::{Request, Time};

use super::Dispatcher;
use crate::settings::{Change, ChangeError};

impl Dispatcher {
    /// Goes on with other settings, as [`Scheduler::change`](crate::Scheduler::change) does: of admission
    /// policies, also on and off, of the order, of tenants and groups, and `max_batch` where the limit is
    /// [`Fixed`](crate::limit::Fixed). What is with the engine beyond a lower limit stays there to its end.
    ///
    /// # Errors
    ///
    /// [`ChangeError`] where one of the settings cannot change; then nothing has changed.
    pub fn change(&mut self, now: Time, change: &Change) -> Result<(), ChangeError> {
        let now = self.advance(now);
        let refused = change
            .rows()
            .find(|row| !self.gate.takes(row) && !self.limit.takes(row));
        if let Some(row) = refused {
            return Err(ChangeError::fixed(row));
        }
        if change.is_empty() {
            return Ok(());
        }
        self.limit.change(change);
        let slots = self.limit();
        self.gate.set_slots(slots);
        let sent = self.sent.values();
        let sent: Vec<Arc<Request>> = sent.map(|sent| Arc::clone(&sent.taken.request)).collect();
        self.gate.change(now, change, &sent);
        Ok(())
    }
}
