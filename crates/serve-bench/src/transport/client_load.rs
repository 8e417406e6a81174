//! How busy the client itself is while it measures: a busy client notes late what came on time.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::store::manifest::ClientLoad;

/// How often it looks at the clock.
const EVERY: Duration = Duration::from_millis(10);

/// Watches the runtime that it was started on, until it is asked.
#[derive(Debug)]
pub(crate) struct Watch {
    task: JoinHandle<()>,
    lags: std::sync::Arc<std::sync::Mutex<Vec<Duration>>>,
    started: Instant,
    cpu: Option<Duration>,
}

impl Watch {
    /// Starts; must be called within a tokio runtime.
    pub(crate) fn start() -> Self {
        let lags = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = std::sync::Arc::clone(&lags);
        let task = tokio::spawn(async move {
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let due = ticks.tick().await;
                let mut lags = noted
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                lags.push(Instant::now().saturating_duration_since(due));
            }
        });
        Self {
            task,
            lags,
            started: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// What it has seen.
    pub(crate) fn stop(self) -> ClientLoad {
        self.task.abort();
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let cpu = self
            .cpu
            .zip(cpu_time())
            .map(|(before, now)| now.saturating_sub(before));
        let mut lags = self
            .lags
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        lags.sort_unstable();
        let rank = (lags.len() * 99).div_ceil(100).max(1);
        ClientLoad {
            cpu_cores: cpu.map_or(0.0, |cpu| cpu.as_secs_f64() / elapsed_s.max(1e-9)),
            wake_lag_p99_ms: lags
                .get(rank - 1)
                .map_or(0.0, |lag| lag.as_secs_f64() * 1e3),
        }
    }
}

/// Processor time of this process, where the system has /proc.
fn cpu_time() -> Option<Duration> {
    parse_stat(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Fields 14 and 15 of `/proc/self/stat`, in hundredths of a second on every Linux there is (proc(5)).
fn parse_stat(stat: &str) -> Option<Duration> {
    // The second field is the program's name in parentheses and may hold spaces.
    let after_name = stat.rsplit_once(") ")?.1;
    let mut ticks = after_name
        .split(' ')
        .skip(11)
        .map_while(|field| field.parse::<u64>().ok());
    let ticks = ticks.next()? + ticks.next()?;
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_never_late_has_no_lag() {
        let watch = Watch::start();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(watch.stop().wake_lag_p99_ms, 0.0);
    }
}
