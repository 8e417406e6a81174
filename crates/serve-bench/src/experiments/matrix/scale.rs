//! How fast the server is, and the loads that follow from it.

use std::num::{NonZeroU32, NonZeroU64};

use serde::Serialize;
use serve_core::Span;

use super::seen::Seen;
use super::{Bench, MatrixError};
use crate::analysis::definitions::Metric;
use crate::experiments::servers::ServerSettings;
use crate::workload::spec::{
    Arrivals, Endpoint, Lengths, Positive, PromptSet, RequestShape, Spec, Vocabulary,
};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effort {
    /// A minute or two: enough to see that everything works.
    Smoke,
    /// Enough for numbers.
    Full,
}

impl Effort {
    /// Numbers of clients of closed loops.
    pub(crate) fn clients(self) -> &'static [u32] {
        match self {
            Self::Smoke => &[1, 4, 16],
            Self::Full => &[1, 2, 4, 8, 16, 32, 64],
        }
    }

    /// Requests of a closed loop.
    pub(super) fn requests(self, clients: u32) -> u32 {
        match self {
            Self::Smoke => clients.max(4),
            Self::Full => (2 * clients).max(24),
        }
    }

    /// How long an open loop sends, in answers of one request alone.
    pub(super) fn answers_long(self) -> f64 {
        match self {
            Self::Smoke => 10.0,
            Self::Full => 25.0,
        }
    }
}

/// Tokens of an ordinary prompt of the matrix.
pub(super) const PROMPT: u32 = 32;
/// Tokens of an ordinary answer.
pub(super) const ANSWER: u32 = 64;
/// Sequences in a step at most, where a section says nothing else.
pub(super) const BATCH: u32 = 16;
/// Token ids of prompts: in the vocabulary of every model, and words rather than bytes.
const IDS: Vocabulary = Vocabulary {
    min: 256,
    max: 1_000,
};

/// What the server can do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Scale {
    /// The first token of a request alone, p50, in seconds.
    pub first_token_s: f64,
    /// The whole answer of a request alone, p50, in seconds.
    pub answer_s: f64,
    /// Answers a second with all places taken.
    pub capacity_per_s: f64,
    /// From the server's start to its being ready, in seconds, when it was started just now.
    pub ready_s: Option<f64>,
}

impl Bench<'_> {
    /// Settings that hold in every point of the matrix unless a section says otherwise: nothing is
    /// refused, nothing is found in a cache.
    pub(super) fn usual() -> ServerSettings {
        ServerSettings::default()
            .with("max_batch", BATCH.to_string())
            .with("queue_cap", "0")
            .with("prefix_cache", "false")
    }

    pub(super) async fn measure_scale(&mut self) -> Result<Scale, MatrixError> {
        let usual = Self::usual();
        let alone = self
            .point("scale-alone", &usual, self.closed("scale-alone", 1, 6))
            .await?;
        let ready_s = self.series.ready_after().map(|ready| ready.as_secs_f64());
        let clients = 2 * BATCH;
        let requests = 3 * clients;
        let full = self.closed("scale-full", clients, requests);
        let full = self.point("scale-full", &usual, full).await?;
        let (alone, full) = (Seen::of(&alone), Seen::of(&full));
        let secs = |metric| alone.ms(metric, 0.5).unwrap_or(0.0) / 1e3;
        let scale = Scale {
            first_token_s: secs(Metric::Ttft),
            answer_s: secs(Metric::E2e),
            capacity_per_s: full.answers_per_s(),
            ready_s,
        };
        if scale.answer_s > 0.0 && scale.capacity_per_s > 0.0 {
            return Ok(scale);
        }
        Err(MatrixError::Load(
            "the server gave no whole answer to a request alone".to_owned(),
        ))
    }

    /// A closed loop of ordinary requests.
    pub(super) fn closed(&self, name: &str, clients: u32, requests: u32) -> Spec {
        let clients = NonZeroU32::new(clients).unwrap_or(NonZeroU32::MIN);
        let mut spec = self.spec(
            name,
            Arrivals::Closed {
                clients,
                think_ms: None,
            },
        );
        spec.requests = NonZeroU64::new(u64::from(requests));
        spec
    }

    /// A closed loop with the requests that the effort asks for.
    pub(super) fn closed_of(&self, name: &str, clients: u32) -> Spec {
        self.closed(name, clients, self.plan.effort.requests(clients))
    }

    /// An open loop of ordinary requests at a multiple of the capacity.
    pub(super) fn open(&self, name: &str, load: f64) -> Result<Spec, MatrixError> {
        let seconds = self.plan.effort.answers_long() * self.scale.answer_s;
        let rate_per_s = positive(load * self.scale.capacity_per_s)?;
        let mut spec = self.spec(name, Arrivals::Poisson { rate_per_s });
        // At least a few, or a percentile means nothing.
        let requests = (load * self.scale.capacity_per_s * seconds).max(12.0) as u64;
        spec.requests = NonZeroU64::new(requests);
        Ok(spec)
    }

    /// Ordinary requests that arrive in this way.
    pub(super) fn spec(&self, name: &str, arrivals: Arrivals) -> Spec {
        let mut spec = Spec::new(arrivals);
        spec.name = name.to_owned();
        spec.seed = 1;
        spec.request = RequestShape {
            endpoint: Endpoint::TokenIds,
            vocabulary: Some(IDS),
            ignore_eos: true,
            ..RequestShape::default()
        };
        spec.prompts = vec![set("ordinary", 1.0, PROMPT, ANSWER)];
        spec.measure.warmup_requests = 1;
        spec
    }

    /// So many seconds as answers of one request alone take.
    pub(super) fn answers_s(&self, answers: f64) -> f64 {
        // To the millisecond, so that settings read back as they were asked.
        (answers * self.scale.answer_s * 1e3).ceil() / 1e3
    }
}

/// A prompt set of fixed lengths.
pub(super) fn set(name: &str, share: f64, prompt: u32, answer: u32) -> PromptSet {
    let mut set = PromptSet::builtin().swap_remove(0);
    set.name = name.to_owned();
    // Shares are constants of this matrix, and above zero.
    set.share = Positive::try_from(share).unwrap_or(set.share);
    set.tokens = Some(Lengths::Fixed(prompt));
    set.output_tokens = Lengths::Fixed(answer);
    set
}

/// A positive number, or an error that says which was not.
pub(super) fn positive(number: f64) -> Result<Positive, MatrixError> {
    // Rates to four digits: the same scale gives the same workload when the matrix goes on.
    Positive::try_from(number).map_err(MatrixError::Load)
}

/// A span of so many seconds.
pub(super) fn span_s(seconds: f64) -> Span {
    Span::from_secs_f64(seconds)
}
