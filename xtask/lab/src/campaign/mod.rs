//! A fault campaign: twice what a server can do, from clients that leave, hurry, stop reading or
//! talk nonsense, on a device that fails in every way, through several lives of the server that each
//! end in a drain under full load. Then nothing may be missing, counted twice or left behind.
//!
//! What it checks, of every life and at the end:
//!
//! - arrived = finished + refused + cancelled + failed, in the scheduler's counts, in `/metrics` and in
//!   the clients' own, and they agree; in every second life no client goes away, and they agree to the last one;
//! - answers hold what was asked for; nobody is served who came after the drain had begun;
//! - no request in flight, no block held, no engine left, no task of the runtime left;
//! - memory is back where it was after the first half of the lives.
//!
//! Requests, conducts and faults are fixed by the seed; how they interleave is not, as the clock,
//! the threads and the sockets are real.

mod ask;
mod attempt;
mod chaos;
mod ledger;
mod life;
mod tally;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use chaos::Faults;
pub use chaos::quiet_panics;
use ledger::Lived;
pub use life::LifeError;
use life::Plan;

use crate::process::resident_mib;
use crate::provenance::provenance;
use crate::{TaskResult, block_on, cli};
use serve_bench::figure::Figure;

/// Lives of the server.
const LIVES: u64 = 4;

/// MiB that the process may hold more after the last life than in the middle.
const GROWTH_MIB_MAX: f64 = 8.0;

/// How long tasks may take to end once their server has.
const PATIENCE: Duration = Duration::from_secs(20);

/// How large, and which.
#[derive(Clone, Copy, Debug)]
pub struct CampaignPlan {
    /// Requests in all.
    pub requests: u64,
    /// Fixes who asks for what, who leaves when, and which steps fail.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Campaigned {
    /// What was counted and measured.
    pub figures: Vec<Figure>,
    /// The invariants that broke, each with what was seen.
    pub broken: Vec<String>,
}

/// Runs a campaign and prints what came of it.
pub(crate) fn run(options: &cli::Campaign) -> TaskResult {
    let cli::Campaign {
        requests,
        seed,
        json,
    } = *options;
    quiet_panics();
    let outcome = block_on(campaign(CampaignPlan { requests, seed }))??;
    let mut out = io::stdout().lock();
    let broken = Figure::new("invariants_broken", outcome.broken.len() as f64, "1");
    let figures = provenance(seed).into_iter().chain(outcome.figures);
    for figure in figures.chain([broken]) {
        writeln!(out, "{}", figure.line(json))?;
    }
    for broken in &outcome.broken {
        writeln!(io::stderr(), "seed {seed} broke: {broken}")?;
    }
    Ok(match outcome.broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs a campaign on the present runtime, which should have nothing else to do.
///
/// # Errors
///
/// [`LifeError`] when a server could not be started or stopped at all.
pub async fn campaign(settings: CampaignPlan) -> Result<Campaigned, LifeError> {
    let runtime = Handle::current().metrics();
    let tasks = runtime.num_alive_tasks();
    let faults = Arc::new(Faults::default());
    let mut outcome = Campaigned {
        figures: Vec::new(),
        broken: Vec::new(),
    };
    let mut resident = Vec::new();
    for life in 1..=LIVES {
        let bound = |life| settings.requests * life / LIVES;
        let plan = Plan {
            seed: settings.seed,
            life,
            requests: bound(life - 1)..bound(life),
            patient: life % 2 == 0,
        };
        let lived = life::live(&plan, &faults).await?;
        outcome.note(life, &lived);
        drop(lived);
        let left = settled(|| runtime.num_alive_tasks() <= tasks).await;
        if !left {
            let now = runtime.num_alive_tasks();
            outcome.broken.push(format!(
                "no task left: {now} after life {life}, {tasks} before"
            ));
        }
        if life == LIVES / 2 || life == LIVES {
            resident.extend(resident_mib());
        }
    }
    // The backend, and the builder of the next one, hold the faults.
    if !settled(|| Arc::strong_count(&faults) == 1).await {
        outcome.broken.push("no engine left".to_owned());
    }
    outcome.note_faults(&faults);
    if let [middle, end] = resident[..] {
        outcome.note_memory(middle, end);
    }
    Ok(outcome)
}

impl Campaigned {
    fn note(&mut self, life: u64, lived: &Lived) {
        const WARM_UPS: u64 = 1;

        let ledger = &lived.ledger;
        let audit = ledger.audit(lived, WARM_UPS);
        let audit = audit
            .into_iter()
            .map(|broken| format!("life {life}: {broken}"));
        self.broken.extend(audit);
        let counted = [
            ("requests", ledger.requests),
            ("finished", ledger.finished),
            ("finished_by_stop_string", ledger.stopped),
            ("refused", ledger.refused),
            ("cancelled", ledger.cancelled),
            ("failed", ledger.failed),
            ("left", ledger.left),
            ("unreached", ledger.unreached),
            ("after_drain", lived.after_drain),
            ("preempted", lived.stats.counters.preempted),
        ];
        let reasons = ledger.reasons.iter();
        let reasons = reasons.map(|(reason, count)| (reason.as_str(), *count));
        for (name, count) in counted.into_iter().chain(reasons) {
            self.count(format!("life_{life}_{name}"), count);
        }
        let secs = lived.took.as_secs_f64();
        let rate = ledger.requests as f64 / secs;
        self.figures
            .push(Figure::new(format!("life_{life}_rate"), rate, "requests/s"));
    }

    fn note_faults(&mut self, faults: &Faults) {
        let counted = [
            ("panics", &faults.panics),
            ("devices_lost", &faults.losses),
            ("steps_failed", &faults.errors),
            ("builds_failed", &faults.failed_builds),
        ];
        for (name, count) in counted {
            let count: &AtomicU64 = count;
            self.count(name.to_owned(), count.load(Ordering::Relaxed));
        }
    }

    fn note_memory(&mut self, middle: f64, end: f64) {
        self.figures.extend([
            Figure::new("resident_in_the_middle", middle, "MiB"),
            Figure::new("resident_at_the_end", end, "MiB"),
        ]);
        if end > middle + GROWTH_MIB_MAX {
            self.broken.push(format!(
                "memory back to its level: {middle:.1} MiB in the middle, {end:.1} at the end"
            ));
        }
    }

    fn count(&mut self, name: String, count: u64) {
        self.figures.push(Figure::new(name, count as f64, "1"));
    }
}

/// Waits for `is_so`. Returns whether it came.
async fn settled(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}
