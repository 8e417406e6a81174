//! Configurations and policies under which a scheduler would stand still or crawl: refused when it is
//! made, with the parameter and what it may be, or held off by the mechanism.

use serve_core::mock::{CostModel, Mock, MockConfig};
use serve_core::{Backend, Class, Limits, Span, Time};
use serve_sched::batch::{Batch, BatchView, Continuous, Join};
use serve_sched::budget::{Budget, ClassFirst, InterTokenTarget, Part, Prompt, StepView};
use serve_sched::kv::KvSettings;
use serve_sched::order::{Aging, Fifo, LEVELS_MAX, Order, StrictTiers};
use serve_sched::sim::{Arrivals, Simulation};
use serve_sched::victim::Preemption;
use serve_sched::{ConfigError, Policies, Scheduler, Settings};

use crate::support::{LIMITS, request};

fn error(limits: Limits, policies: Policies) -> Option<ConfigError> {
    Scheduler::new(limits, policies).err()
}

fn with_watermark(blocks: u32) -> KvSettings {
    KvSettings {
        watermark_blocks: Some(blocks),
        ..KvSettings::default()
    }
}

#[test]
fn a_watermark_that_leaves_no_block_is_refused() {
    let usable = LIMITS.usable_blocks();
    for blocks in [usable, usable + 1, u32::MAX] {
        let policies = Policies {
            kv: with_watermark(blocks),
            ..Policies::default()
        };
        let refused = error(LIMITS, policies).unwrap();
        assert_eq!(refused, ConfigError::Watermark { blocks, usable });
        let text = refused.to_string();
        assert!(text.contains("watermark_blocks"), "{text}");
        assert!(text.contains(&format!("at most {}", usable - 1)), "{text}");
    }
    for blocks in 0..usable {
        let policies = Policies {
            kv: with_watermark(blocks),
            ..Policies::default()
        };
        assert_eq!(error(LIMITS, policies), None);
    }
}

#[test]
fn settings_fall_into_the_same_traps() {
    let mut settings = Settings::default();
    let blocks = LIMITS.usable_blocks().to_string();
    settings.set_text("watermark_blocks", &blocks).unwrap();
    let refused = error(LIMITS, settings.policies().unwrap());
    assert!(matches!(refused, Some(ConfigError::Watermark { .. })));
    let narrow = Limits {
        sequences_max: 16,
        step_tokens_max: 16,
        ..LIMITS
    };
    let refused = error(narrow, Settings::default().policies().unwrap());
    assert!(matches!(refused, Some(ConfigError::StepTokens { .. })));
}

#[test]
fn an_order_of_more_levels_than_are_kept_is_refused() {
    for levels in [1, 2, LEVELS_MAX, LEVELS_MAX + 1, 40] {
        let fifo: Box<dyn Order> = Box::new(Fifo);
        let order = (1..levels).fold(fifo, |inner, _| {
            Box::new(Aging::over(inner, Span::from_secs(1)))
        });
        let policies = Policies {
            order,
            ..Policies::default()
        };
        let expected = (levels > LEVELS_MAX).then_some(ConfigError::OrderLevels { levels });
        assert_eq!(error(LIMITS, policies), expected);
    }
    let mut settings = Settings::default();
    settings
        .set_text("order", &("aging/".repeat(100_000) + "fifo"))
        .unwrap();
    let refused = settings.policies().err().unwrap().to_string();
    assert!(refused.starts_with("--order: "), "{refused}");
    assert!(
        refused.contains("at most 6 levels") && refused.len() < 200,
        "{refused}"
    );
}

#[test]
fn a_step_in_which_a_prompt_gets_one_token_is_refused() {
    let continuous = |step_tokens_max, sequences_max| Policies {
        batch: Box::new(Continuous {
            step_tokens_max,
            sequences_max,
        }),
        ..Policies::default()
    };
    for (step_tokens, sequences) in [(64, 64), (63, 64), (2, 64), (2, 2), (1, 2)] {
        let limits = Limits {
            sequences_max: sequences,
            step_tokens_max: step_tokens,
            ..LIMITS
        };
        let refused = ConfigError::StepTokens {
            step_tokens_max: step_tokens,
            sequences_max: sequences,
        };
        assert_eq!(error(limits, Policies::default()), Some(refused));
        let text = refused.to_string();
        assert!(text.contains("step_tokens_max"), "{text}");
        assert!(
            text.contains(&format!("at least {}", sequences + 1)),
            "{text}"
        );
        // The same from the policy, and not if it takes fewer sequences than the device holds.
        let roomy = Limits {
            sequences_max: 64,
            step_tokens_max: 512,
            ..LIMITS
        };
        let policies = continuous(Some(step_tokens), Some(sequences));
        assert_eq!(error(roomy, policies), Some(refused));
        let policies = continuous(Some(step_tokens), Some(1));
        assert_eq!(error(roomy, policies), None);
    }
    let limits = Limits {
        sequences_max: 64,
        step_tokens_max: 65,
        ..LIMITS
    };
    assert_eq!(error(limits, Policies::default()), None);
}

#[test]
fn a_budget_that_gives_nothing_is_refused() {
    let budgets: [Box<dyn Budget>; 4] = [
        Box::new(ClassFirst::new(Some(0))),
        Box::new(InterTokenTarget::new(Span::ZERO, 32)),
        Box::new(InterTokenTarget::new(Span::from_millis(50), 0)),
        Box::new(InterTokenTarget::default().with_prompts(ClassFirst::new(Some(0)))),
    ];
    for budget in budgets {
        let policies = Policies {
            budget,
            ..Policies::default()
        };
        let refused = error(LIMITS, policies);
        assert!(matches!(refused, Some(ConfigError::Zero { .. })));
    }
}

/// Gives prompts nothing.
struct Nothing;

impl Budget for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn part(&self, _prompt: &Prompt<'_>) -> Part {
        Part {
            rank: [0, 0],
            tokens_max: 0,
        }
    }

    fn prompt_tokens(&self, _step: &StepView) -> u32 {
        0
    }
}

#[test]
fn a_budget_policy_cannot_starve_every_prompt() {
    let mock = Mock::new(MockConfig {
        limits: LIMITS,
        ..MockConfig::default()
    });
    let policies = Policies {
        budget: Box::new(Nothing),
        ..Policies::default()
    };
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let requests = (0..12).map(|id| request(id, 6, 5));
    let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests));
    assert_eq!(report.stats.counters.finished, 12);
}

/// Runs some requests under a batch policy; everybody must be served, without waiting for more
/// inputs.
fn run_out(batch: impl Batch + 'static, preemption: Preemption) -> Time {
    let policies = Policies {
        batch: Box::new(batch),
        order: Box::new(StrictTiers),
        preemption,
        ..Policies::default()
    };
    let cost = CostModel::new(vec![(1, Span::from_millis(10))], Span::ZERO, Span::ZERO);
    let mock = Mock::new(MockConfig {
        limits: LIMITS,
        cost: cost.unwrap(),
        ..MockConfig::default()
    });
    let scheduler = Scheduler::new(mock.limits(), policies).unwrap();
    let requests = (0..12).map(|id| request(id, 6, 5).with_class(Class::new((id % 2) as u8)));
    let report = Simulation::new(scheduler, mock).run(&mut Arrivals::new(requests));
    assert_eq!(report.stats.counters.finished, 12, "the driver sleeps");
    report.end
}

/// Answers one thing for ever.
struct Always(fn(&BatchView) -> Join);

impl Batch for Always {
    fn name(&self) -> &'static str {
        "always"
    }

    fn join(&mut self, view: &BatchView) -> Join {
        (self.0)(view)
    }
}

#[test]
fn a_batch_policy_cannot_put_the_driver_to_sleep() {
    let answers: [fn(&BatchView) -> Join; 6] = [
        |view| Join::Hold { until: view.now },
        |_| Join::Hold { until: Time::ZERO },
        |view| Join::Hold {
            until: view.oldest_since,
        },
        |_| Join::UpTo(0),
        |_| Join::Batch(0),
        |view| Join::UpTo(view.running),
    ];
    for answer in answers {
        for by_class in [false, true] {
            let preemption = Preemption {
                by_class,
                ..Preemption::default()
            };
            let end = run_out(Always(answer), preemption);
            assert!(end <= Time::from_millis(12 * 5 * 10 + 10), "{end}");
        }
    }
}

#[test]
fn a_hold_with_a_time_to_come_holds_until_then() {
    let end = run_out(
        Always(|view| match view.now < Time::from_millis(500) {
            true => Join::Hold {
                until: Time::from_millis(500),
            },
            false => Join::UpTo(u32::MAX),
        }),
        Preemption::default(),
    );
    assert!(end > Time::from_millis(500), "{end}");
}
