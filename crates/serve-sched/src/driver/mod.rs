//! An engine on a thread, with the feature `thread`: a scheduler and any
//! [`Backend`](serve_core::Backend) under a real clock, for programs with and without a runtime.
//!
//! ```
//! use serve_core::{Backend, EventKind, Request, Span, TokenId, mock::Mock};
//! use serve_sched::driver::EngineThread;
//! use serve_sched::{Policies, Scheduler};
//!
//! let backend = Mock::default(); // or a device of one's own
//! let scheduler = Scheduler::new(backend.limits(), Policies::default())?;
//! let engine = EngineThread::start(scheduler, backend)?;
//!
//! let prompt = vec![TokenId::new(7); 40];
//! let request = Request::new(engine.next_id(), engine.now(), prompt, 3)?;
//! let mut tokens = 0;
//! for event in engine.submit(request)? {
//!     tokens += u32::from(matches!(event?.kind, EventKind::Token { .. }));
//! }
//! assert_eq!(tokens, 3);
//! engine.drain(Span::from_secs(10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`EngineThread`] is the handle. A [`Ticket`] is a request as its events, one by one; dropping it cancels
//!   the request. [`submit_to`](EngineThread::submit_to) has a function called instead.
//! - [`Hooks`] are what an owner adds: figures of each step, another engine after a panic.
//! - [`Runner`] is the loop, and [`SharedScheduler`] what it shares with those who ask, for a program that
//!   has a way of its own for events ([`Outlet`]) or waits in its own way ([`Clock`], [`Turn`]).
//!
//! Each request that is taken ends once, with a terminal event or with [`Stopped`], whatever happens to
//! the device; and at every instant arrived = finished + refused + cancelled + failed + waiting + running in
//! [`stats`](SharedScheduler::stats), over all engines that there have been. A thread with nothing to do is parked.

mod clock;
mod past;
mod runner;
mod shared;
mod thread;
mod tickets;

pub use clock::{Clock, RealClock, ThreadClock};
pub use runner::{Hooks, Outlet, Runner, Stopped, Turn};
pub use shared::{NotTaken, SharedScheduler};
pub use thread::EngineThread;
pub use tickets::{Guard, Ticket, TicketOutlet, Word};
