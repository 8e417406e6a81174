//! SIGTERM, SIGINT, SIGHUP and SIGUSR1, on a plain thread: whatever the asynchronous ones are busy with, a signal is
//! obeyed.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator;
use signal_hook::low_level;
use tokio::sync::oneshot;

use crate::console::Console;
use crate::failure::{SECOND_SIGNAL, STUCK};

/// What the server hears of signals.
pub(crate) struct Signals {
    /// The first SIGTERM or SIGINT.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Each SIGHUP and SIGUSR1.
    pub(crate) told: mpsc::Receiver<Told>,
}

/// What a signal tells a server that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// SIGHUP: to read its settings again.
    Reload,
    /// SIGUSR1: that it is about to be stopped.
    Leave,
}

impl Signals {
    /// Catches them from now on. The first of SIGTERM and SIGINT asks the server to end and ends the
    /// process if it still runs after `patience`; the second ends it at once.
    ///
    /// # Errors
    ///
    /// Where the system refuses handlers or a thread.
    pub(crate) fn listen(console: Console, patience: Duration) -> io::Result<Self> {
        let caught = iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        let (stopper, stop) = oneshot::channel();
        let (teller, told) = mpsc::channel();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || obey(caught, stopper, &teller, &console, patience))?;
        Ok(Self { stop, told })
    }
}

fn obey(
    mut caught: iterator::Signals,
    stopper: oneshot::Sender<()>,
    teller: &mpsc::Sender<Told>,
    console: &Console,
    patience: Duration,
) {
    let mut stopper = Some(stopper);
    for signal in caught.forever() {
        let told = match signal {
            SIGHUP => Some(Told::Reload),
            SIGUSR1 => Some(Told::Leave),
            _ => None,
        };
        if let Some(told) = told {
            // Nobody listens any more when the server has ended.
            let _ = teller.send(told);
            continue;
        }
        let Some(stopper) = stopper.take() else {
            low_level::exit(SECOND_SIGNAL);
        };
        let name = if signal == SIGTERM {
            "SIGTERM"
        } else {
            "SIGINT"
        };
        console.line(&format!(
            "{name}: finishing accepted requests, a second signal ends at once"
        ));
        let console = console.clone();
        let watchdog = move || {
            thread::sleep(patience);
            console.line(&format!(
                "it has not ended after {patience:?} and is ended now"
            ));
            thread::sleep(Duration::from_millis(100));
            low_level::exit(STUCK);
        };
        let watching = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watchdog);
        drop((watching, stopper.send(())));
    }
}
