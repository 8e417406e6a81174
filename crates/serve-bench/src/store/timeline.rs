//! What the server's own counters say while a load runs: one sample for each poll of `GET /metrics`.
//!
//! Every field is optional: other servers show none of them, and absent is not zero. Counters count
//! from the start of the server, not of the run.

use std::future::Future;
use std::io::{self, BufRead, Write};
use std::time::Duration;

use reqwest::Client;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::store::metrics::Scrape;

/// The server's counters at one moment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Sample {
    /// When it was asked for, in nanoseconds since the start of the run.
    pub at_ns: u64,
    /// Requests that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    /// Requests in the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<f64>,
    /// Requests that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<f64>,
    /// KV blocks that hold nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_free: Option<f64>,
    /// KV blocks of live requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_held: Option<f64>,
    /// KV blocks kept for later prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cached: Option<f64>,
    /// Preemptions so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<f64>,
    /// Requests that were refused, so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<f64>,
    /// Steps so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
    /// Seconds that these steps took on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Sequences in these steps, added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_sequences: Option<f64>,
    /// Prompt tokens run so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<f64>,
    /// Output tokens sampled so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<f64>,
}

impl Sample {
    /// The counters of a scrape.
    pub fn of(at_ns: u64, scrape: &Scrape) -> Self {
        Self {
            at_ns,
            waiting: scrape.sum("serve_requests_waiting"),
            running: scrape.sum("serve_requests_running"),
            in_flight: scrape.sum("serve_requests_in_flight"),
            kv_free: scrape.labelled("serve_kv_blocks", "state", "free"),
            kv_held: scrape.labelled("serve_kv_blocks", "state", "held"),
            kv_cached: scrape.labelled("serve_kv_blocks", "state", "cached"),
            preemptions: scrape.sum("serve_preemptions_total"),
            refused: scrape.sum("serve_refusals_total"),
            steps: scrape.get("serve_steps_total"),
            step_seconds: scrape.get("serve_step_seconds_sum"),
            step_sequences: scrape.get("serve_step_sequences_sum"),
            prompt_tokens: scrape.labelled("serve_tokens_total", "kind", "prompt"),
            output_tokens: scrape.labelled("serve_tokens_total", "kind", "output"),
        }
    }

    /// Whether the server showed any of the counters.
    pub fn is_empty(&self) -> bool {
        let empty = Self {
            at_ns: self.at_ns,
            ..Self::default()
        };
        *self == empty
    }
}

/// Asks a server for its counters now. `None` if it has none of them.
pub async fn sample(client: &Client, url: &str, origin: Instant) -> Option<Sample> {
    let asked = async {
        let answer = client.get(format!("{url}/metrics")).send().await?;
        answer.error_for_status()?.text().await
    };
    let at_ns = nanos_since(origin);
    // A scrape that takes longer says nothing of the moment that it was asked for.
    let text = timeout(Duration::from_secs(2), asked).await.ok()?.ok()?;
    let sample = Sample::of(at_ns, &Scrape::parse(&text));
    (!sample.is_empty()).then_some(sample)
}

/// Nanoseconds since the start of the run.
pub(crate) fn nanos_since(origin: Instant) -> u64 {
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Reads counters again and again until it is stopped.
#[derive(Debug)]
pub struct Poller {
    task: JoinHandle<Vec<Sample>>,
    stop: watch::Sender<bool>,
}

impl Poller {
    /// Reads at once and then every so often.
    pub fn start<F>(every: Duration, read: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Option<Sample>> + Send,
    {
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut samples = Vec::new();
            loop {
                let last = tokio::select! {
                    biased;
                    _ = stopped.wait_for(|stop| *stop) => true,
                    _ = ticks.tick() => false,
                };
                samples.extend(read().await);
                if last {
                    return samples;
                }
            }
        });
        Self { task, stop }
    }

    /// Reads once more and returns all samples in order; none from a server without such counters.
    pub async fn stop(self) -> Vec<Sample> {
        // The task only ends when it is told to.
        let _ = self.stop.send(true);
        self.task.await.unwrap_or_default()
    }
}

/// Writes samples, one JSON object a line.
///
/// # Errors
///
/// What the writer says.
pub fn write(samples: &[Sample], out: &mut impl Write) -> io::Result<()> {
    for sample in samples {
        serde_json::to_writer(&mut *out, sample)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads samples until the end.
///
/// # Errors
///
/// What the reader says, or a line that is no sample.
pub fn read(input: impl BufRead) -> io::Result<Vec<Sample>> {
    let lines = input.lines();
    lines
        .map(|line| serde_json::from_str(&line?).map_err(io::Error::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_not_show_is_absent_in_the_file_too() {
        let scrape =
            Scrape::parse("serve_requests_waiting 3\nserve_refusals_total{code=\"a\"} 1\n");
        let sample = Sample::of(5, &scrape);
        assert_eq!((sample.waiting, sample.refused), (Some(3.0), Some(1.0)));
        assert!(sample.preemptions.is_none() && !sample.is_empty());
        let mut file = Vec::new();
        write(std::slice::from_ref(&sample), &mut file).unwrap();
        assert_eq!(
            String::from_utf8(file.clone()).unwrap(),
            "{\"at_ns\":5,\"waiting\":3.0,\"refused\":1.0}\n"
        );
        assert_eq!(read(file.as_slice()).unwrap(), [sample]);
        assert!(Sample::of(5, &Scrape::parse("other 1\n")).is_empty());
    }
}
