//! Budgets: whose prompt gets the tokens of a step, and how long a decode waits for it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;

use examples_support::{l4, request, simulate};
use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend as _, Class, EventKind, Limits, Request, Span, Time};
use serve_sched::budget::{Budget, ClassFirst, FirstCome, InterTokenTarget};
use serve_sched::order::StrictTiers;
use serve_sched::sim::{Arrivals, Row, Simulation};
use serve_sched::{Policies, Scheduler};

use super::load::{arrivals, merged, sweep};
use crate::chart::{Axis, Chart, Role, Series};

type Points = Result<Vec<(f64, f64)>, Box<dyn Error>>;

/// Tokens of a document's prompt, and the most that a step runs.
const LONG: u32 = 8_000;
const STEP_TOKENS: u32 = 2_048;
/// Ids of the requests beside the long prompts.
const OTHERS: u64 = 1_000;

/// The device of the other charts, with room for long prompts and steps of so many tokens.
fn device(step_tokens_max: u32) -> Result<Mock, Box<dyn Error>> {
    let l4 = l4(16)?;
    let limits = Limits {
        sequences_max: 64,
        step_tokens_max,
        context_max: 32_768,
        blocks: 100_000,
        ..l4.config().limits
    };
    Ok(Mock::new(MockConfig {
        limits,
        ..l4.config().clone()
    }))
}

/// Whose prompt joins the batch is by class, and which of those in it run is for the budget to say.
fn policies(budget: Box<dyn Budget>) -> Policies {
    Policies {
        admit: Vec::new(),
        order: Box::new(StrictTiers),
        budget,
        ..Policies::default()
    }
}

/// The worst time to first token of ten short prompts of this class, which come after so many of
/// 20,000 tokens of class 1.
fn behind(many: f64, class: Class, budget: Box<dyn Budget>) -> Result<(f64, f64), Box<dyn Error>> {
    let low = Class::new(1);
    let long = (0..many as u64).map(|id| request(id, Time::ZERO, 20_000, 2).with_class(low));
    let short = (0..10).map(|n| {
        let at = Time::from_millis(100 + 17 * n);
        request(OTHERS + n, at, 20, 2).with_class(class)
    });
    let load = merged(long.chain(short));
    let report = simulate(&device(STEP_TOKENS)?, policies(budget), load)?;
    let short = report.rows.iter().filter(|row| row.request.get() >= OTHERS);
    let worst = short.filter_map(Row::first_token_time).max();
    Ok((many, worst.unwrap_or_default().as_secs_f64()))
}

pub(super) fn class_first() -> Result<Chart, Box<dyn Error>> {
    type Make = fn() -> Box<dyn Budget>;
    let worst = |class, budget: Make| -> Points {
        let counts = sweep(0, 8, 1);
        counts.map(|many| behind(many, class, budget())).collect()
    };
    let (high, low) = (Class::HIGHEST, Class::new(1));
    let class_first: Make = || Box::<ClassFirst>::default();
    let first_come: Make = || Box::new(FirstCome);
    Ok(Chart {
        title: "Class first: nobody waits for a lower class's prompt",
        setting: "ten prompts of 20 tokens behind those of 20,000; steps of up to 2,048, of which one prompt gets 512",
        x: Axis::to(8.0, "long prompts of class 1 that came before"),
        y: Axis::to(12.0, "longest time to first token of the short (s)"),
        series: vec![
            Series::new(
                "class 0, class-first",
                Role::Policy,
                worst(high, class_first)?,
            ),
            Series::new(
                "class 1, class-first",
                Role::PolicyToo,
                worst(low, class_first)?,
            ),
            Series::new("0, first-come", Role::Control, worst(high, first_come)?),
            Series::new("1, first-come", Role::ControlToo, worst(low, first_come)?),
        ],
    })
}

/// The time to first token of eight equal prompts that come together, by their place.
fn equal_prompts(budget: Box<dyn Budget>) -> Points {
    let load = (0..8).map(|id| request(id, Time::ZERO, LONG, 2));
    let mut rows = simulate(&device(STEP_TOKENS)?, policies(budget), load)?.rows;
    rows.sort_by_key(|row| row.request);
    let first = rows.iter().filter_map(Row::first_token_time);
    let places = sweep(1, 8, 1);
    Ok(places.zip(first.map(Span::as_secs_f64)).collect())
}

pub(super) fn first_come() -> Result<Chart, Box<dyn Error>> {
    Ok(Chart {
        title: "First come: no equal prompt is later than side by side, most are earlier",
        setting: "eight prompts of 8,000 tokens that come together; steps of up to 2,048, or 512 for each of four",
        x: Axis {
            min: 1.0,
            ..Axis::to(8.0, "place in the order of arrival")
        },
        y: Axis::to(5.0, "time to first token (s)"),
        series: vec![
            Series::new(
                "first-come",
                Role::Policy,
                equal_prompts(Box::new(FirstCome))?,
            ),
            Series::new(
                "four side by side",
                Role::Control,
                equal_prompts(Box::<ClassFirst>::default())?,
            ),
        ],
    })
}

/// Chats beside documents that all wait: the longest time between two tokens of a chat in
/// milliseconds, and thousands of the documents' tokens that are run in a second.
fn beside_chats(
    budget: Box<dyn Budget>,
    step_tokens_max: u32,
) -> Result<(f64, f64), Box<dyn Error>> {
    const DOCUMENTS: u32 = 200;
    let device = device(step_tokens_max)?;
    let scheduler = Scheduler::new(device.limits(), policies(budget))?;
    let longest = Rc::new(RefCell::new(Span::ZERO));
    let ended = Rc::new(RefCell::new(Time::ZERO));
    let (sink, end) = (Rc::clone(&longest), Rc::clone(&ended));
    let mut last = BTreeMap::new();
    let simulation = Simulation::new(scheduler, device).with_observer(move |event| {
        if !matches!(event.kind, EventKind::Token { .. }) {
            return;
        }
        if event.request.get() < OTHERS {
            *end.borrow_mut() = event.at;
        } else if let Some(before) = last.insert(event.request, event.at) {
            let mut longest = sink.borrow_mut();
            *longest = (*longest).max(event.at.since(before));
        }
    });
    let document = |id| request(id, Time::ZERO, LONG, 1).with_class(Class::new(1));
    let documents = (0..u64::from(DOCUMENTS)).map(document);
    let chats = arrivals(1, 0.3, 600).map(|(id, at)| request(OTHERS + id, at, 30, 64));
    let load: Vec<Request> = merged(documents.chain(chats));
    simulation.run(&mut Arrivals::new(load));
    let tokens = f64::from(DOCUMENTS * LONG) / 1_000.0;
    let rate = tokens / ended.borrow().as_secs_f64();
    let longest = longest.borrow().as_millis_f64();
    Ok((longest, rate))
}

pub(super) fn inter_token_target() -> Result<Chart, Box<dyn Error>> {
    let targets = [
        20, 25, 30, 35, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140,
    ];
    let by_target: Points = targets
        .into_iter()
        .map(|target| {
            let target = InterTokenTarget::new(Span::from_millis(target), 32);
            beside_chats(Box::new(target), STEP_TOKENS)
        })
        .collect();
    let by_step: Points = [80, 128, 192, 256, 384, 512, 768, 1_024, 1_536, STEP_TOKENS]
        .into_iter()
        .map(|tokens| beside_chats(Box::new(ClassFirst::new(None)), tokens))
        .collect();
    Ok(Chart {
        title: "A target for steady tokens costs prompts only while somebody reads",
        setting: "prompts of 8,000 tokens always wait; chats of class 0, one in 3 s; seed 1",
        x: Axis::to(150.0, "longest time between two tokens of a chat (ms)"),
        y: Axis::to(16.0, "prompt tokens of class 1 a second (thousands)"),
        series: vec![
            Series::new("target of 20 to 140 ms", Role::Policy, by_target?),
            Series::new(
                "steps of at most 80 to 2,048 tokens",
                Role::Control,
                by_step?,
            ),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_equal_prompt_is_later_first_come_than_side_by_side() {
        let first_come = equal_prompts(Box::new(FirstCome)).unwrap();
        let beside = equal_prompts(Box::<ClassFirst>::default()).unwrap();
        assert_eq!(first_come.len(), 8);
        for ((place, first_come), (_, beside)) in first_come.into_iter().zip(beside) {
            assert!(first_come <= beside, "{place}: {first_come}, {beside}");
        }
    }

    #[test]
    fn class_0_waits_for_two_steps_however_many_long_prompts_there_are() {
        // A full step takes 139 ms at most: the one that runs, and its own.
        for many in [1.0, 8.0] {
            let (_, worst) = behind(many, Class::HIGHEST, Box::<ClassFirst>::default()).unwrap();
            assert!(worst < 0.28, "{many}: {worst}");
        }
    }

    #[test]
    fn at_the_same_longest_time_between_tokens_a_target_runs_more_of_the_prompts() {
        let target = InterTokenTarget::new(Span::from_millis(47), 32);
        let (with, rate) = beside_chats(Box::new(target), STEP_TOKENS).unwrap();
        let (fixed, fixed_rate) = beside_chats(Box::new(ClassFirst::new(None)), 512).unwrap();
        assert!(with <= fixed, "{with}, {fixed}");
        assert!(rate > 1.05 * fixed_rate, "{rate}, {fixed_rate}");
    }
}
