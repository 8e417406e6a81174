//! When requests begin.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Lengths, Positive, Wrong};

/// An arrival process. All but the closed loop are open: they send when it is time, however many are
/// under way.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Evenly spaced: arrival `i` at `i / rate_per_s`.
    Constant {
        /// Arrivals a second.
        rate_per_s: Positive,
    },
    /// Independent, exponentially distributed gaps.
    Poisson {
        /// Arrivals a second, on average.
        rate_per_s: Positive,
    },
    /// Independent gaps with a gamma distribution: burstier than Poisson with a CV above 1, smoother
    /// below.
    Gamma {
        /// Arrivals a second, on average.
        rate_per_s: Positive,
        /// The gaps' coefficient of variation, standard deviation / mean.
        cv: Positive,
    },
    /// Poisson arrivals whose rate is higher at the start of every period.
    Bursts {
        /// Arrivals a second between bursts; may be 0.
        rate_per_s: f64,
        /// Arrivals a second in a burst.
        burst_rate_per_s: Positive,
        /// How long a burst lasts.
        burst_s: Positive,
        /// From the start of one burst to the start of the next.
        every_s: Positive,
    },
    /// Poisson arrivals whose rate changes linearly, and stays at its end.
    Ramp {
        /// Arrivals a second at the start; may be 0.
        from_per_s: f64,
        /// Arrivals a second at the end.
        to_per_s: Positive,
        /// How long the change takes.
        over_s: Positive,
    },
    /// So many at once, again and again.
    Waves {
        /// Arrivals in a wave.
        size: NonZeroU32,
        /// From one wave to the next.
        every_s: Positive,
    },
    /// Clients that each wait for their answer, think, and ask again.
    Closed {
        /// How many clients there are.
        clients: NonZeroU32,
        /// Milliseconds that a client thinks after an answer. Absent: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        think_ms: Option<Lengths>,
    },
    /// A trace in the format of the Azure LLM inference traces: a CSV file with the columns
    /// `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`.
    Azure(Replay),
    /// A trace in the format of Mooncake: JSONL with `timestamp` (ms), `input_length`,
    /// `output_length` and `hash_ids` (one for each 512 prompt tokens).
    Mooncake(Replay),
    /// The log of a `serve` with `log_format = "json"`, and with `log_prompt_blocks` if prompts are to have in
    /// common what they had. Requests without an answer are left out.
    ServeLog(Replay),
}

/// How a trace is replayed. It brings its own lengths; prompts are words, or token ids, of that length.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// The file, from the folder of the specification.
    pub file: PathBuf,
    /// How many times as fast as it was recorded.
    #[serde(default = "Positive::one", skip_serializing_if = "Positive::is_one")]
    pub speed: Positive,
    /// The resolution of its clock. Arrivals on one tick are spread over it at random: a trace that
    /// counts in steps of 3 s did not have its requests all at once. Absent: the smallest step between
    /// two of its times. 0: no spreading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_ms: Option<f64>,
    /// Requests with a longer prompt are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_max: Option<NonZeroU32>,
    /// Longer answers are cut to this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<NonZeroU32>,
}

/// The formats of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// CSV.
    Azure,
    /// JSONL.
    Mooncake,
    /// JSONL.
    ServeLog,
}

impl Arrivals {
    /// The trace that is replayed, if one is.
    pub fn replay(&self) -> Option<(Trace, &Replay)> {
        match self {
            Self::Azure(replay) => Some((Trace::Azure, replay)),
            Self::Mooncake(replay) => Some((Trace::Mooncake, replay)),
            Self::ServeLog(replay) => Some((Trace::ServeLog, replay)),
            _ => None,
        }
    }

    /// The number of clients, if the loop is closed.
    pub fn clients(&self) -> Option<NonZeroU32> {
        match self {
            Self::Closed { clients, .. } => Some(*clients),
            _ => None,
        }
    }

    pub(super) fn wrong(&self) -> Option<Wrong> {
        let not_negative = |key: &str, rate: f64| {
            let wrong = !(rate >= 0.0 && rate.is_finite());
            wrong.then(|| Wrong::new(key, format!("{rate} is no rate; accepted is 0 or more")))
        };
        match self {
            Self::Bursts {
                rate_per_s,
                burst_s,
                every_s,
                ..
            } => {
                let longer = (burst_s > every_s).then(|| {
                    let cause = "a burst cannot be longer than every_s, from one to the next";
                    Wrong::new("arrivals.bursts.burst_s", cause)
                });
                longer.or_else(|| not_negative("arrivals.bursts.rate_per_s", *rate_per_s))
            }
            Self::Ramp { from_per_s, .. } => not_negative("arrivals.ramp.from_per_s", *from_per_s),
            Self::Closed { think_ms, .. } => think_ms
                .as_ref()
                .and_then(|think| think.wrong("arrivals.closed.think_ms", 0)),
            Self::Azure(replay) => {
                not_negative("arrivals.azure.tick_ms", replay.tick_ms.unwrap_or(0.0))
            }
            Self::Mooncake(replay) => {
                not_negative("arrivals.mooncake.tick_ms", replay.tick_ms.unwrap_or(0.0))
            }
            Self::ServeLog(replay) => {
                not_negative("arrivals.serve_log.tick_ms", replay.tick_ms.unwrap_or(0.0))
            }
            Self::Constant { .. }
            | Self::Poisson { .. }
            | Self::Gamma { .. }
            | Self::Waves { .. } => None,
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant { rate_per_s } => {
                write!(f, "open loop, {}/s evenly spaced", rate_per_s.get())
            }
            Self::Poisson { rate_per_s } => write!(f, "open loop, {}/s Poisson", rate_per_s.get()),
            Self::Gamma { rate_per_s, cv } => {
                write!(
                    f,
                    "open loop, {}/s gamma with CV {}",
                    rate_per_s.get(),
                    cv.get()
                )
            }
            Self::Bursts {
                rate_per_s,
                burst_rate_per_s,
                burst_s,
                every_s,
            } => write!(
                f,
                "open loop, {rate_per_s}/s Poisson with {}/s for {} s every {} s",
                burst_rate_per_s.get(),
                burst_s.get(),
                every_s.get()
            ),
            Self::Ramp {
                from_per_s,
                to_per_s,
                over_s,
            } => write!(
                f,
                "open loop, Poisson from {from_per_s}/s to {}/s over {} s",
                to_per_s.get(),
                over_s.get()
            ),
            Self::Waves { size, every_s } => {
                write!(f, "open loop, waves of {size} every {} s", every_s.get())
            }
            Self::Closed { clients, .. } if clients.get() == 1 => {
                f.write_str("closed loop, 1 client")
            }
            Self::Closed { clients, .. } => write!(f, "closed loop, {clients} clients"),
            Self::Azure(replay) | Self::Mooncake(replay) | Self::ServeLog(replay) => {
                write!(
                    f,
                    "open loop, replay of {} at speed {}",
                    replay.file.display(),
                    replay.speed.get()
                )
            }
        }
    }
}
