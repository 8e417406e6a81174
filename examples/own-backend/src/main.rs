//! A backend and a serving loop of one's own, with the scheduler alone. The model is as small as a
//! model can be: it continues a text in the way in which its corpus goes on after the longest piece
//! that both have in common. Its KV cache is real: every byte that it reads, it finds in the blocks
//! that the scheduler has given it, so a wrong block would be a wrong answer.

mod corpus;
mod model;

use std::collections::BTreeMap;
use std::error::Error;

use examples_support::{Options, Table, ms};
use serve_core::{
    Backend, EventKind, InvalidRequest, Request, RequestId, Span, StepOutcome, StepPlan, Time,
    TokenId,
};
use serve_sched::batch::{Batch, Continuous, OneAtATime};
use serve_sched::{Policies, Scheduler};

use model::Parrot;

const PROMPTS: [&str; 4] = [
    "It is a truth",
    "a single man in possession of ",
    "My dear Mr.",
    "\"What is his name",
];

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::of_command_line(env!("CARGO_PKG_DESCRIPTION"));
    let [alone, together] = run()?;
    options.show(
        "Four prompts, 60 bytes each, at 10 ms a step",
        &table(&[&alone, &together]),
    )?;
    options.show("What the model says", &answers(&together))?;
    Ok(())
}

struct Served {
    name: &'static str,
    texts: Vec<String>,
    steps: u32,
    took: Span,
}

/// The control, one request at a time, and continuous batching.
fn run() -> Result<[Served; 2], Box<dyn Error>> {
    Ok([
        serve(Box::new(OneAtATime))?,
        serve(Box::new(Continuous::default()))?,
    ])
}

/// The loop of a server, in virtual time: plan, execute, complete, hand out events.
fn serve(batch: Box<dyn Batch>) -> Result<Served, Box<dyn Error>> {
    let name = batch.name();
    let mut model = Parrot::new(corpus::TEXT);
    let policies = Policies {
        batch,
        ..Policies::default()
    };
    let mut scheduler = Scheduler::new(model.limits(), policies)?;
    let mut now = Time::ZERO;
    for (id, prompt) in (0..).zip(PROMPTS) {
        scheduler.submit(now, ask(id, prompt)?)?;
    }

    let (mut plan, mut outcome) = (StepPlan::new(), StepOutcome::new());
    let mut texts = BTreeMap::<RequestId, Vec<u8>>::new();
    let mut steps = 0;
    while scheduler.plan_into(now, &mut plan) {
        model.execute(&plan, &mut outcome)?;
        steps += u32::from(!plan.segments().is_empty());
        now += outcome.elapsed;
        scheduler.complete(now, &outcome);
        while let Some(event) = scheduler.poll_event() {
            if let EventKind::Token { token, .. } = event.kind {
                texts
                    .entry(event.request)
                    .or_default()
                    .push(token.get() as u8);
            }
        }
    }
    let texts = texts.into_values();
    Ok(Served {
        name,
        texts: texts
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect(),
        steps,
        took: now.since(Time::ZERO),
    })
}

fn ask(id: u64, prompt: &str) -> Result<Request, InvalidRequest> {
    let prompt: Vec<TokenId> = prompt
        .bytes()
        .map(|byte| TokenId::new(byte.into()))
        .collect();
    Request::new(RequestId::new(id), Time::ZERO, prompt, 60)
}

fn table(served: &[&Served]) -> Table {
    let mut table = Table::new(["batch", "steps", "virtual time"]);
    for served in served {
        table.row([
            served.name.to_owned(),
            served.steps.to_string(),
            ms(served.took),
        ]);
    }
    table
}

fn answers(served: &Served) -> Table {
    let mut table = Table::new(["prompt | answer"]);
    for (prompt, text) in PROMPTS.iter().zip(&served.texts) {
        table.row([format!("{prompt} |{text}")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serve_core::conformance::{self, Suite};

    use super::*;

    #[test]
    fn the_model_keeps_the_contract_of_a_backend() {
        let suite = Suite {
            vocabulary: 256,
            seed: 1,
        };
        conformance::check(|| Parrot::new(corpus::TEXT), suite).unwrap();
    }

    #[test]
    fn a_batch_says_the_same_in_a_quarter_of_the_steps() {
        let [alone, together] = run().unwrap();
        assert_eq!(alone.texts, together.texts);
        assert_eq!(alone.steps, 4 * 60);
        assert_eq!(together.steps, 60);
    }

    #[test]
    fn it_goes_on_as_its_corpus_does() {
        let [_, together] = run().unwrap();
        assert!(together.texts[0].starts_with(" universally acknowledged, that a single man"));
    }
}
