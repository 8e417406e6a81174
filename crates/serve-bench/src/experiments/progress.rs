//! Live progress for a person: bars with rates and the time left on a terminal, a plain line now and
//! then when standard error is piped, and what Ctrl-C and a used-up budget mean.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

/// Everything of one command that goes to the terminal while it works.
#[derive(Debug)]
pub(crate) struct Live {
    bars: MultiProgress,
    terminal: bool,
}

/// How often a plain line is written.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

impl Live {
    /// Bars if standard error is a terminal, lines otherwise.
    pub(crate) fn new() -> Self {
        let terminal = stderr().is_terminal();
        let target = if terminal {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            bars: MultiProgress::with_draw_target(target),
            terminal,
        }
    }

    /// A line that stays, above any bars.
    pub(crate) fn line(&self, text: &str) {
        if self.terminal {
            // Fails only where the terminal is gone.
            let _ = self.bars.println(text);
        } else {
            plain(text);
        }
    }

    /// Counts requests of a run: how many have ended, at which rate, how many not well.
    pub(crate) fn requests(&self, what: &str, total: u64) -> Bar {
        let template = "{prefix} {bar:24} {pos}/{len} ended, {per_sec}, {msg}about {eta} left";
        self.bar(what, total, template)
    }

    /// Counts the parts of something longer, such as the sections of a matrix.
    pub(crate) fn parts(&self, what: &str, total: u64) -> Bar {
        let template = "{prefix} {bar:24} {pos}/{len}, {elapsed} so far, about {eta} left  {msg}";
        self.bar(what, total, template)
    }

    fn bar(&self, what: &str, total: u64, template: &str) -> Bar {
        let bar = self.bars.add(ProgressBar::new(total));
        // The templates are written above and are right.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        let now = Instant::now();
        Bar {
            bar,
            terminal: self.terminal,
            since: now,
            state: Mutex::new(State {
                wrong: 0,
                said: now,
            }),
        }
    }
}

impl Default for Live {
    fn default() -> Self {
        Self::new()
    }
}

/// One thing that is counted. It can be shared; it goes away when dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    terminal: bool,
    since: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    wrong: u64,
    said: Instant,
}

impl Bar {
    /// One request has ended.
    pub(crate) fn ended(&self, well: bool) {
        self.bar.inc(1);
        let mut state = self.state();
        if !well {
            state.wrong += 1;
            self.bar.set_message(format!("{} not ok, ", state.wrong));
        }
        if !self.terminal && state.said.elapsed() >= PLAIN_EVERY {
            state.said = Instant::now();
            plain(&self.sentence(state.wrong));
        }
    }

    /// So many parts are done, and this one is next.
    pub(crate) fn at(&self, done: u64, next: &str) {
        self.bar.set_position(done);
        self.bar.set_message(next.to_owned());
        if !self.terminal {
            let total = self.bar.length().unwrap_or(0);
            let elapsed_s = self.since.elapsed().as_secs();
            plain(&format!(
                "{} {done}/{total} after {elapsed_s} s: {next}",
                self.bar.prefix()
            ));
        }
    }

    fn sentence(&self, wrong: u64) -> String {
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let elapsed_s = self.since.elapsed().as_secs_f64();
        let rate = done as f64 / elapsed_s.max(1e-9);
        let left_s = total.saturating_sub(done) as f64 / rate.max(1e-9);
        let what = self.bar.prefix();
        format!(
            "{what}: {done}/{total} ended, {rate:.1}/s, {wrong} not ok, about {left_s:.0} s left"
        )
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn plain(text: &str) {
    // A closed pipe is no reason to lose a measurement.
    let _ = writeln!(stderr(), "{text}");
}

/// Turns true at the first Ctrl-C, or when the `budget` is used up: what is under way is cancelled, and
/// what was measured is kept. The next Ctrl-C ends the process at once, with 130.
///
/// Must be called within a tokio runtime.
pub(crate) fn interrupted(budget: Option<Duration>) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        let used_up = async {
            match budget {
                Some(budget) => tokio::time::sleep(budget).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Without a handler for the signal, Ctrl-C ends the process, which is what it is for.
            Ok(()) = tokio::signal::ctrl_c() => {
                plain("stopping; what was measured is kept, a second Ctrl-C ends at once");
            }
            () = used_up => plain("the budget is used up; stopping, what was measured is kept"),
        }
        let _ = sender.send(true);
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
        // Receivers of a closed channel would take it for a stop that never comes.
        std::future::pending::<()>().await;
    });
    receiver
}
