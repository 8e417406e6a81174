//! Four replicas with prefix caches in virtual time, under conversations: the tables of docs/policies/predicted-end.md.

use serve_core::Backend as _;
use serve_core::mock::{Mock, MockConfig};
use serve_sched::route::{LeastLoaded, PredictedEnd, Route};
use serve_sched::sim::{ConversationSettings, Conversations, Fleet, RoutedRow, SteppedEngine};
use serve_sched::{Policies, Scheduler};

use super::*;
use crate::policies::percentile;
use crate::quoted::quoted;

/// A device of the measured times with a KV cache of 65,536 tokens.
fn replica() -> SteppedEngine<Mock> {
    let config = MockConfig::default().with_room(16, 2_048, Some(20_000), Some(65_536));
    let mock = Mock::new(config);
    let policies = Policies {
        admit: Vec::new(),
        ..Policies::default()
    };
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    SteppedEngine::new(scheduler, mock)
}

fn load(starts_per_s: f64) -> Conversations {
    Conversations::new(ConversationSettings {
        starts_per_s,
        lasts: Span::from_secs(60),
        ..ConversationSettings::default()
    })
}

/// How a fleet is set up.
#[derive(Clone, Copy)]
struct Setup {
    routers: u64,
    views: Option<Span>,
    /// A conversation always goes to the same router.
    by_session: bool,
    /// When the fourth replica joins.
    fourth: Time,
    starts_per_s: f64,
}

const ONE: Setup = Setup {
    routers: 1,
    views: None,
    by_session: false,
    fourth: Time::ZERO,
    starts_per_s: 5.0,
};

struct Measured {
    rows: Vec<RoutedRow>,
}

impl Measured {
    fn first_token(&self, p: f64) -> f64 {
        percentile(self.rows.iter().filter_map(RoutedRow::first_token_time), p)
    }

    fn cached(&self) -> f64 {
        let used = self.rows.iter().filter_map(|row| row.usage);
        let (cached, prompts) = used.fold((0_u64, 0_u64), |(cached, prompts), usage| {
            let (more_cached, more) = (usage.cached_tokens, usage.prompt_tokens);
            (cached + u64::from(more_cached), prompts + u64::from(more))
        });
        cached as f64 / prompts as f64
    }

    fn cells(&self) -> String {
        format!(
            "{:.2} s | {:.2} s | {:.0}%",
            self.first_token(50.0),
            self.first_token(99.0),
            100.0 * self.cached()
        )
    }
}

fn run(predicted: bool, setup: Setup) -> Measured {
    let routers = (0..setup.routers).map(|seed| {
        let policy: Box<dyn Route> = match predicted {
            true => Box::new(PredictedEnd),
            false => Box::new(LeastLoaded),
        };
        let settings = RouterSettings {
            seed,
            ..RouterSettings::default()
        };
        Router::new(policy, settings)
    });
    let terms = Terms {
        cache_blocks: 4_096,
        ..Terms::default()
    };
    let engines = (0..4).map(|_| replica()).collect();
    let mut fleet = Fleet::new(routers.collect(), engines, terms).joining(3, setup.fourth, terms);
    if setup.by_session {
        fleet = fleet.by_session();
    }
    if let Some(every) = setup.views {
        fleet = fleet.with_views(every);
    }
    let mut rows = Vec::new();
    fleet.run(load(setup.starts_per_s), |row| rows.push(*row));
    let count = load(setup.starts_per_s).count();
    assert_eq!(rows.len(), count, "everybody is answered once");
    assert!(rows.iter().all(|row| row.usage.is_some()));
    Measured { rows }
}

#[test]
fn each_policy_in_front_of_four_replicas() {
    let views = |millis| Some(Span::from_millis(millis));
    let setups = [
        ("one router", ONE),
        (
            "one router, 3 conversations/s",
            Setup {
                starts_per_s: 3.0,
                ..ONE
            },
        ),
        (
            "one router, views 0.2 s old",
            Setup {
                views: views(200),
                ..ONE
            },
        ),
        (
            "one router, views 5 s old",
            Setup {
                views: views(5_000),
                ..ONE
            },
        ),
        ("four routers, no views", Setup { routers: 4, ..ONE }),
        (
            "four routers, views 0.2 s old",
            Setup {
                routers: 4,
                views: views(200),
                ..ONE
            },
        ),
        (
            "four routers, views 5 s old",
            Setup {
                routers: 4,
                views: views(5_000),
                ..ONE
            },
        ),
        (
            "four routers by conversation, views 0.2 s old",
            Setup {
                routers: 4,
                views: views(200),
                by_session: true,
                ..ONE
            },
        ),
        (
            "the fourth joins cold after 30 s",
            Setup {
                fourth: at(30_000),
                starts_per_s: 4.0,
                ..ONE
            },
        ),
    ];
    let mut table = vec![
        "| | least-loaded p50 | p99 | cached | predicted-end p50 | p99 | cached |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for (name, setup) in setups {
        let (counted, predicted) = (run(false, setup), run(true, setup));
        let (predicted_p99, counted_p99) = (predicted.first_token(99.0), counted.first_token(99.0));
        assert!(predicted_p99 < counted_p99, "{name}");
        // Several routers each know a part of what is cached where.
        if setup.routers == 1 {
            assert!(predicted_p99 < 0.75 * counted_p99, "{name}");
        }
        table.push(format!(
            "| {name} | {} | {} |",
            counted.cells(),
            predicted.cells()
        ));
    }
    quoted("predicted-end", &table.join(" "));
}
