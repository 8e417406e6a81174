//! What the clients of two tiers saw of a service, side by side with its control.

use serve_core::{Class, Span};

use crate::{Table, ms, percentile};

/// The clients of one tier.
#[derive(Clone, Debug, Default)]
pub struct Tier {
    /// How many asked.
    pub asked: usize,
    /// How long each whole answer took.
    pub answered: Vec<Span>,
}

/// One service.
#[derive(Clone, Debug)]
pub struct Tiers {
    /// Its name in the table.
    pub name: &'static str,
    /// Those who pay.
    pub paid: Tier,
    /// The others.
    pub free: Tier,
    /// Requests that were refused.
    pub refused: usize,
    /// The most requests that were inside at once.
    pub most_inside: u32,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A whole answer.
    Answer,
    /// That it is refused.
    Refusal,
    /// Nothing, or a part of an answer.
    Nothing,
}

impl Tiers {
    /// What clients saw of a service: each one's class, of which the highest pays, what it was told, and when.
    pub fn of(name: &'static str, most_inside: u32, seen: &[(Class, Told, Span)]) -> Self {
        let tier = |pays: bool| {
            let of_it = seen
                .iter()
                .filter(move |one| (one.0 == Class::HIGHEST) == pays);
            let answered = of_it.clone().filter(|one| one.1 == Told::Answer);
            Tier {
                asked: of_it.count(),
                answered: answered.map(|one| one.2).collect(),
            }
        };
        let refused = seen.iter().filter(|one| one.1 == Told::Refusal);
        Self {
            name,
            paid: tier(true),
            free: tier(false),
            refused: refused.count(),
            most_inside,
        }
    }
}

/// A row for each service, in the words of the example: what it is, what a refusal is called, and what requests are inside of.
pub fn tiers_table([what, refusal, inside]: [&str; 3], services: &[Tiers]) -> Table {
    let mut table = Table::new([
        what,
        "paid answered",
        "paid p95",
        "free answered",
        "free p95",
        refusal,
        inside,
    ]);
    for service in services {
        let answered = |tier: &Tier| format!("{} of {}", tier.answered.len(), tier.asked);
        let p95 = |tier: &Tier| ms(percentile(95, tier.answered.iter().copied()));
        table.row([
            service.name.to_owned(),
            answered(&service.paid),
            p95(&service.paid),
            answered(&service.free),
            p95(&service.free),
            service.refused.to_string(),
            service.most_inside.to_string(),
        ]);
    }
    table
}
