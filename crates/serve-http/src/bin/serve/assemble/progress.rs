//! How far a download or the reading of weights has come.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::console::Console;

/// How far something has come: a bar on a terminal, else a line every quarter.
pub(crate) struct Meter {
    console: Console,
    /// What is shown now.
    what: String,
    bar: Option<ProgressBar>,
    quarters: u64,
}

impl Meter {
    pub(crate) fn new(console: Console) -> Self {
        Self {
            console,
            what: String::new(),
            bar: None,
            quarters: 0,
        }
    }

    /// Bytes.
    pub(crate) fn show(&mut self, what: &str, done: u64, total: u64) {
        let counter = "{bytes}/{total_bytes} {bytes_per_sec}";
        self.advance(what, counter, mib, done, total);
    }

    /// Things that are counted.
    pub(crate) fn count(&mut self, what: &str, done: usize, total: usize) {
        let words = |count: u64| count.to_string();
        self.advance(what, "{pos}/{len}", words, done as u64, total as u64);
    }

    fn advance(
        &mut self,
        what: &str,
        counter: &str,
        words: impl Fn(u64) -> String,
        done: u64,
        total: u64,
    ) {
        if self.what != what {
            self.finish();
            self.what = what.to_owned();
            if stderr().is_terminal() {
                let bar = ProgressBar::new(total).with_message(self.what.clone());
                let template = format!("serve: {{msg}} {{wide_bar}} {counter}");
                if let Ok(style) = ProgressStyle::with_template(&template) {
                    bar.set_style(style);
                }
                self.bar = Some(bar);
            }
        }
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None => {
                let quarters = (done * 4).checked_div(total).unwrap_or(4);
                if quarters > self.quarters {
                    self.quarters = quarters;
                    let percent = quarters * 25;
                    self.console
                        .line(&format!("{what}: {percent}% of {}", words(total)));
                }
            }
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.what.clear();
        self.quarters = 0;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.finish();
    }
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
