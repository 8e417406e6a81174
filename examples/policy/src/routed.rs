//! Routing policies in front of four replicas with prefix caches.

use examples_support::{Table, route, routed_cells};
use serve_core::Span;
use serve_core::mock::MockConfig;
use serve_sched::ConfigError;
use serve_sched::route::{LeastLoaded, PredictedEnd, Route};
use serve_sched::sim::{ConversationSettings, Conversations};

type Make = fn() -> Box<dyn Route>;

/// A routing policy and what it is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Routed {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    choices: [(&'static str, Make); 2],
    settings: ConversationSettings,
}

const PREDICTED: (&str, Make) = ("predicted-end", || Box::new(PredictedEnd));
const COUNTED: (&str, Make) = ("least-loaded", || Box::new(LeastLoaded));

const CONVERSATIONS: ConversationSettings = ConversationSettings {
    seed: 1,
    starts_per_s: 5.0,
    lasts: Span::from_secs(60),
    systems: 4,
    system_tokens: 512,
    turns_max: 9,
    turn_tokens: 160,
    long_percent: 10,
    output_tokens: 60,
    think: Span::from_secs(6),
};

pub(crate) const ROUTED: [Routed; 2] = [
    Routed {
        name: "predicted-end",
        title: "5 conversations/s of one to nine turns for 1 min, four replicas",
        choices: [PREDICTED, COUNTED],
        settings: CONVERSATIONS,
    },
    Routed {
        name: "least-loaded",
        title: "20 requests/s of equal length that share nothing for 1 min, four replicas",
        choices: [COUNTED, PREDICTED],
        settings: ConversationSettings {
            starts_per_s: 20.0,
            systems: u64::MAX,
            turns_max: 1,
            long_percent: 0,
            ..CONVERSATIONS
        },
    },
];

impl Routed {
    pub(crate) fn table(&self, seed: u64) -> Result<Table, ConfigError> {
        let device = MockConfig::default().with_room(16, 2_048, Some(20_000), Some(65_536));
        let mut table = Table::new([
            "policy, then its control",
            "first token p50",
            "first token p99",
            "cached",
        ]);
        for (name, policy) in self.choices {
            let settings = ConversationSettings {
                seed: self.settings.seed + seed,
                ..self.settings
            };
            let rows = route(policy(), &device, 4, 16, Conversations::new(settings))?;
            let [p50, p99, cached] = routed_cells(&rows);
            table.row([name.to_owned(), p50, p99, cached]);
        }
        Ok(table)
    }
}
