//! Where the server is in its life, and who may know: one value, moved forward but for one way back.
//!
//! ```text
//! loading -> warming -> ready -> lame duck -> draining -> stopped
//!                    |    \-> failed (the inference thread is gone)
//!                rebuilding (the engine has panicked and another one is built)
//! ```

use std::fmt;

use tokio::sync::watch;

/// A stage of the server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The model is being read; the port is open and answers that it is not ready.
    Loading,
    /// A first request runs through the whole path.
    Warming,
    /// The engine has panicked and another one is being built.
    Rebuilding,
    /// Requests are taken.
    Ready,
    /// Requests are taken, and what routes them here is told to send them elsewhere.
    LameDuck,
    /// The inference thread has stopped by itself; nothing can be served any more.
    Failed,
    /// Accepted work is finished, new work is refused.
    Draining,
    /// Nothing runs; the process ends.
    Stopped,
}

impl State {
    /// Every stage.
    pub const ALL: [Self; 8] = [
        Self::Loading,
        Self::Warming,
        Self::Rebuilding,
        Self::Ready,
        Self::LameDuck,
        Self::Failed,
        Self::Draining,
        Self::Stopped,
    ];

    /// The name in `/health/ready`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Warming => "warming",
            Self::Rebuilding => "rebuilding",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::LameDuck => "lame_duck",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The present stage, shared.
#[derive(Debug)]
pub struct Lifecycle {
    state: watch::Sender<State>,
}

impl Lifecycle {
    /// A server that has just been started.
    pub fn new() -> Self {
        Self {
            state: watch::Sender::new(State::Loading),
        }
    }

    /// The present stage.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Moves on to `next`. Returns whether it did: a stage that has passed does not come back, so a
    /// model that has finished loading cannot make a draining server ready.
    pub fn advance(&self, next: State) -> bool {
        self.state.send_if_modified(|state| {
            let forward = *state < next;
            if forward {
                *state = next;
            }
            forward
        })
    }

    /// Goes from ready to rebuilding, from where it can become ready again. Returns whether it did.
    pub fn rebuild(&self) -> bool {
        self.state.send_if_modified(|state| {
            let was_ready = *state == State::Ready;
            if was_ready {
                *state = State::Rebuilding;
            }
            was_ready
        })
    }

    /// Waits until the server has reached `stage` or passed it, and says where it is then.
    pub async fn reached(&self, stage: State) -> State {
        let mut changes = self.state.subscribe();
        match changes.wait_for(|state| *state >= stage).await {
            Ok(state) => *state,
            // The sender is `self`, so it outlives this borrow.
            Err(_) => State::Stopped,
        }
    }
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_has_passed_does_not_come_back() {
        let lifecycle = Lifecycle::new();
        assert!(lifecycle.advance(State::Warming));
        assert!(lifecycle.advance(State::Draining));
        assert!(!lifecycle.advance(State::Ready));
        assert!(!lifecycle.advance(State::Failed));
        assert_eq!(lifecycle.state(), State::Draining);
    }
}
