//! Whether an upstream is to be left alone because it fails: ejection, probation, and back.
//!
//! ```text
//! ejected after  bad_in_a_row ends in a row that failed or took four times as long as the others would have taken
//! for            ejection x 2^(ejections before), at most ejection_max
//! then           one request is a probe: answered, it serves again; failed, it is ejected again
//! ```
//!
//! As in Envoy's outlier detection (consecutive failures, a share that may be ejected, a time that grows). What an upstream
//! refuses for want of capacity is no failure.

use serve_core::{Span, Time};

use super::told::RouterSettings;

/// What is known of an upstream's health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    bad: u32,
    ejections: u32,
    ejected: Option<Time>,
    probing: bool,
}

impl Health {
    pub(super) fn serves(&self) -> bool {
        self.ejected.is_none()
    }

    /// Until when it is ejected, if it is.
    pub(super) fn ejected_until(&self) -> Option<Time> {
        self.ejected
    }

    /// Whether the next request should show that it works again.
    pub(super) fn wants_probe(&self, now: Time) -> bool {
        !self.probing && self.ejected.is_some_and(|until| until <= now)
    }

    pub(super) fn probe(&mut self) {
        self.probing = true;
    }

    /// A request has ended: well, badly, or (`None`) without a word on the upstream. `may_eject` says whether there may be one
    /// ejected more.
    pub(super) fn ended(
        &mut self,
        now: Time,
        good: Option<bool>,
        is_probe: bool,
        may_eject: bool,
        settings: &RouterSettings,
    ) {
        // The probe of before it joined anew is none any more.
        let is_probe = is_probe && self.probing;
        self.probing &= !is_probe;
        // Of an upstream that is ejected, only the probe says what it is like now.
        if self.ejected.is_some() && !is_probe {
            return;
        }
        match good {
            None => {}
            Some(true) => {
                self.ejections -= u32::from(self.ejections > 0 && self.ejected.is_none());
                (self.bad, self.ejected) = (0, None);
            }
            Some(false) => {
                self.bad = self.bad.saturating_add(1);
                if is_probe || (self.bad >= settings.bad_in_a_row && may_eject) {
                    self.eject(now, settings);
                }
            }
        }
    }

    fn eject(&mut self, now: Time, settings: &RouterSettings) {
        let doubled = settings.ejection * (1 << self.ejections.min(20));
        let span: Span = doubled.min(settings.ejection_max);
        self.ejected = Some(now + span);
        self.ejections = self.ejections.saturating_add(1);
        self.bad = 0;
    }
}
