//! The journal as events of `tracing`. It is a sink like any other, and decides nothing.

use tracing::{debug, error, info, warn};

use crate::journal::{Decision, Entry, Sink};

/// Makes each entry of a journal an event of the target `serve_sched`, with the decision as its message and
/// the fields `at_ns` and, where it is about one, `request`.
///
/// | level | decisions |
/// |---|---|
/// | error | the device is lost |
/// | warn | failed |
/// | info | refused, displaced, draining, changed |
/// | debug | everything else |
///
/// It is called while the scheduler is borrowed, and under the lock of an adapter: a subscriber that blocks
/// keeps everybody waiting.
///
/// ```
/// use serve_sched::limit::Fixed;
/// use serve_sched::order::Fifo;
/// use serve_sched::{Dispatcher, TracingSink};
///
/// let mut dispatcher = Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(8)));
/// dispatcher.set_journal(Some(Box::new(TracingSink)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingSink;

macro_rules! emit {
    ($level:ident, $entry:expr) => {
        $level!(
            target: "serve_sched",
            at_ns = $entry.at.as_nanos(),
            request = $entry.request.map(|request| request.get()),
            "{}",
            $entry.decision
        )
    };
}

impl Sink for TracingSink {
    fn record(&mut self, entry: &Entry) {
        match entry.decision {
            Decision::DeviceLost { .. } => emit!(error, entry),
            Decision::Failed { .. } => emit!(warn, entry),
            Decision::Refused { .. }
            | Decision::Displaced { .. }
            | Decision::Draining { .. }
            | Decision::Changed { .. } => emit!(info, entry),
            Decision::Admitted { .. }
            | Decision::Promoted { .. }
            | Decision::Joined { .. }
            | Decision::Sent { .. }
            | Decision::PutBack { .. }
            | Decision::Deferred { .. }
            | Decision::Preempted { .. }
            | Decision::Finished { .. }
            | Decision::Cancelled { .. } => emit!(debug, entry),
        }
    }
}
