//! Who is measured, and what came out.

use std::collections::BTreeMap;
use std::fmt::Display;

use serve_bench::analysis::median;
use serve_bench::figure::Figure;

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Engine {
    /// The decoder of this workspace.
    Serve,
    /// The same with factors of products rounded to bf16, as llama.cpp rounds its own.
    ServeBf16,
    /// The same with inputs of quantised weights as they are, which it rounds otherwise, as llama.cpp.
    ServeF32,
    /// llama.cpp, through llama-cpp-python.
    LlamaCpp,
    /// candle's own models.
    Candle,
}

impl Engine {
    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::ServeBf16 => "serve --precision bf16",
            Self::ServeF32 => "serve --precision f32",
            Self::LlamaCpp => "llama.cpp",
            Self::Candle => "candle",
        }
    }

    /// Whether it is the decoder of this workspace.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Serve | Self::ServeBf16 | Self::ServeF32)
    }

    /// What factors of products are rounded to, if that is asked for.
    pub(super) fn precision(self) -> Option<&'static str> {
        match self {
            Self::ServeBf16 => Some("bf16"),
            Self::ServeF32 => Some("f32"),
            Self::Serve | Self::LlamaCpp | Self::Candle => None,
        }
    }
}

/// An engine with its weights in some type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entrant {
    /// Which of the tables it is in: the type that the weights are in for [`Engine::Serve`].
    pub(super) group: &'static str,
    pub(super) engine: Engine,
    /// The type that the weights are in.
    pub(super) weights: &'static str,
}

/// All, in the order of the table. candle multiplies matrices in f32 only: its bf16 weights are widened
/// for each product, its f32 weights when they are loaded.
pub(super) const ENTRANTS: [Entrant; 13] = [
    entrant("bf16", Engine::Serve, "bf16"),
    entrant("bf16", Engine::ServeBf16, "bf16"),
    entrant("bf16", Engine::LlamaCpp, "bf16"),
    entrant("bf16", Engine::Candle, "bf16"),
    entrant("bf16", Engine::Candle, "f32"),
    entrant("q8", Engine::Serve, "q8"),
    entrant("q8", Engine::ServeF32, "q8"),
    entrant("q8", Engine::LlamaCpp, "q8"),
    entrant("q8", Engine::Candle, "q8"),
    entrant("q4", Engine::Serve, "q4"),
    entrant("q4", Engine::ServeF32, "q4"),
    entrant("q4", Engine::LlamaCpp, "q4"),
    entrant("q4", Engine::Candle, "q4"),
];

const fn entrant(group: &'static str, engine: Engine, weights: &'static str) -> Entrant {
    Entrant {
        group,
        engine,
        weights,
    }
}

/// What was measured, over all rounds.
#[derive(Debug, Default)]
pub(super) struct Results {
    rows: BTreeMap<Entrant, Vec<Figure>>,
    /// Whom, and why not.
    pub(super) failures: Vec<(Engine, &'static str, String)>,
}

impl Results {
    pub(super) fn add(&mut self, entrant: &Entrant, rows: Vec<Figure>) {
        self.rows.entry(*entrant).or_default().extend(rows);
    }

    pub(super) fn fail(&mut self, engine: Engine, weights: &'static str, why: &impl Display) {
        self.failures.push((engine, weights, why.to_string()));
    }

    /// Whether it is of no use to try again.
    pub(super) fn has_failed(&self, entrant: &Entrant) -> bool {
        let mut failures = self.failures.iter();
        failures
            .any(|(engine, weights, _)| (*engine, *weights) == (entrant.engine, entrant.weights))
    }

    /// The rows of this name of all rounds.
    pub(super) fn rows<'a>(
        &'a self,
        entrant: &Entrant,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Figure> {
        let rows = self.rows.get(entrant).into_iter().flatten();
        rows.filter(move |row| row.name == name)
    }

    /// The median time of a step of this name, in milliseconds.
    pub(super) fn step_ms(&self, entrant: &Entrant, name: &str) -> Option<f64> {
        let times = self.rows(entrant, name);
        median(times.filter_map(|row| row.more.get("step_ms")?.as_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_begins_with_what_it_is_compared_to() {
        for entrant in ENTRANTS {
            let mut group = ENTRANTS.iter().filter(|other| other.group == entrant.group);
            let first = group.next().map(|first| (first.engine, first.weights));
            assert_eq!(first, Some((Engine::Serve, entrant.group)));
        }
    }

    #[test]
    fn a_time_is_the_median_of_the_rounds() {
        let mut results = Results::default();
        for step_ms in [30.0, 10.0, 20.0] {
            let row = format!(
                "{{\"name\":\"decode_1\",\"value\":1,\"unit\":\"tokens/s\",\"step_ms\":{step_ms}}}"
            );
            results.add(&ENTRANTS[0], Figure::parse(&row));
        }
        assert_eq!(results.step_ms(&ENTRANTS[0], "decode_1"), Some(20.0));
        assert_eq!(results.step_ms(&ENTRANTS[0], "decode_4"), None);
        assert_eq!(results.step_ms(&ENTRANTS[2], "decode_1"), None);
    }
}
