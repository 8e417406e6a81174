//! The way into the inference thread: a bounded queue of commands with a bell.
//!
//! Not a channel, because the two kinds of command differ: a submission may be turned away when too
//! many have piled up, a cancellation never may. Cancellations need no bound of their own: each
//! request that got in sends at most one.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serve_core::{CancelReason, Request, RequestId, Time};

/// Something that the inference thread is asked to do.
#[derive(Debug)]
pub(super) enum Command {
    /// Take this request.
    Submit(Request),
    /// Call this request off.
    Cancel {
        id: RequestId,
        reason: CancelReason,
        /// When it was clear that it has to be.
        noticed: Time,
    },
    /// Take no more requests.
    Drain,
    /// Call every request off.
    CancelAll(CancelReason),
}

impl Command {
    /// The request that it brings.
    pub(super) fn submitted(&self) -> Option<RequestId> {
        match self {
            Self::Submit(request) => Some(request.id()),
            _ => None,
        }
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// This many submissions lie here and none has been looked at.
    Full(usize),
    /// The inference thread is gone.
    Closed,
}

#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<Commands>,
    bell: Condvar,
    submissions_max: usize,
}

#[derive(Debug, Default)]
struct Commands {
    queue: VecDeque<Command>,
    submissions: usize,
    closed: bool,
}

impl Inbox {
    pub(super) fn new(submissions_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            bell: Condvar::new(),
            submissions_max,
        }
    }

    pub(super) fn push(&self, command: Command) -> Result<(), Turned> {
        let mut commands = self.lock();
        if commands.closed {
            return Err(Turned::Closed);
        }
        if matches!(command, Command::Submit(_)) {
            if commands.submissions >= self.submissions_max {
                return Err(Turned::Full(commands.submissions));
            }
            commands.submissions += 1;
        }
        commands.queue.push_back(command);
        drop(commands);
        self.bell.notify_one();
        Ok(())
    }

    /// Moves all commands into `taken`, waiting for one if `patience` says so: not at all, for a
    /// while, or (`None`) until there is one. Returns `false` when the inbox is closed and empty.
    pub(super) fn take(&self, taken: &mut Vec<Command>, patience: Option<Duration>) -> bool {
        let idle = |commands: &mut Commands| commands.queue.is_empty() && !commands.closed;
        let commands = self.lock();
        let mut commands = match patience {
            Some(Duration::ZERO) => commands,
            Some(patience) => {
                self.bell
                    .wait_timeout_while(commands, patience, idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => self
                .bell
                .wait_while(commands, idle)
                .unwrap_or_else(PoisonError::into_inner),
        };
        commands.submissions = 0;
        taken.extend(commands.queue.drain(..));
        !(commands.closed && taken.is_empty())
    }

    /// Submissions that nobody has taken.
    pub(super) fn submissions(&self) -> usize {
        self.lock().submissions
    }

    /// Takes no more commands; those that lie here can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Commands> {
        // Nothing here panics half-way through a change, so a poisoned state is a sound one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serve_core::TokenId;

    use super::*;

    fn submission(id: u64) -> Command {
        let prompt = vec![TokenId::new(1)];
        Command::Submit(Request::new(RequestId::new(id), Time::ZERO, prompt, 1).unwrap())
    }

    fn cancellation(id: u64) -> Command {
        Command::Cancel {
            id: RequestId::new(id),
            reason: CancelReason::Client,
            noticed: Time::ZERO,
        }
    }

    #[test]
    fn submissions_are_bounded_and_cancellations_always_get_in() {
        let inbox = Inbox::new(2);
        assert_eq!(inbox.push(submission(1)), Ok(()));
        assert_eq!(inbox.push(submission(2)), Ok(()));
        assert_eq!(inbox.push(submission(3)), Err(Turned::Full(2)));
        assert_eq!(inbox.push(cancellation(1)), Ok(()));
        let mut taken = Vec::new();
        assert!(inbox.take(&mut taken, Some(Duration::ZERO)));
        assert_eq!(taken.len(), 3);
        assert_eq!(inbox.push(submission(3)), Ok(()));
    }

    #[test]
    fn a_closed_inbox_is_emptied_and_then_over() {
        let inbox = Inbox::new(2);
        inbox.push(cancellation(1)).unwrap();
        inbox.close();
        assert_eq!(inbox.push(cancellation(2)), Err(Turned::Closed));
        let mut taken = Vec::new();
        assert!(inbox.take(&mut taken, None));
        taken.clear();
        assert!(!inbox.take(&mut taken, None));
    }
}
