//! `cargo run --release --bin policy -- NAME` shows a policy beside its control under the load that it is for: what it gives,
//! to whom, and what that costs whom. Virtual time, the device of the other examples.
//!
//! The names are those of the pages in `docs/policies`.

mod cases;
mod limited;
mod retried;
mod routed;
mod scene;
mod simulated;

use std::error::Error;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use examples_support::{Options, Table};

use cases::CASES;
use limited::LIMITS;
use routed::ROUTED;

/// Shows a policy beside its control: what it gives to whom, and what that costs whom.
#[derive(Debug, Parser)]
struct Cli {
    /// The policy, by the name of its page in docs/policies
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    name: String,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Cli { name, options } = Cli::parse();
    for (title, table) in options.over_seeds(|seed| tables(&name, seed))? {
        options.show(&title, &table)?;
    }
    Ok(())
}

/// Every policy that has a page.
fn names() -> Vec<&'static str> {
    let names = CASES.iter().map(|case| case.name);
    let limits = LIMITS.iter().map(|limited| limited.name);
    let names = names.chain(limits).chain(ROUTED.map(|routed| routed.name));
    names.chain(["retry-budget"]).collect()
}

/// The tables of a policy under their titles.
fn tables(name: &str, seed: u64) -> Result<Vec<(String, Table)>, Box<dyn Error>> {
    if let Some(case) = CASES.iter().find(|case| case.name == name) {
        let scene = (case.scene)(seed);
        let runs = simulated::run(case, &scene)?;
        return Ok(vec![
            (scene.title.to_owned(), simulated::table(&scene, &runs)),
            ("The device".to_owned(), simulated::device_table(&runs)),
        ]);
    }
    if let Some(limited) = LIMITS.iter().find(|limited| limited.name == name) {
        return Ok(vec![(limited.title.to_owned(), limited.table(seed))]);
    }
    if let Some(routed) = ROUTED.iter().find(|routed| routed.name == name) {
        return Ok(vec![(routed.title.to_owned(), routed.table(seed)?)]);
    }
    Ok(vec![(retried::TITLE.to_owned(), retried::table(seed))])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_page_of_a_policy_has_its_tables_and_nothing_else_has() {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies");
        let files = std::fs::read_dir(pages).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let pages = files.filter_map(|file| file.strip_suffix(".md").map(ToOwned::to_owned));
        let pages: BTreeSet<String> = pages.filter(|page| page != "README").collect();
        let named: Vec<String> = names().into_iter().map(ToOwned::to_owned).collect();
        assert_eq!(named.len(), pages.len());
        assert_eq!(BTreeSet::from_iter(named), pages);
    }

    #[test]
    fn the_tables_of_the_same_seed_are_the_same_and_of_another_are_not() {
        for name in ["queue-cap", "aimd", "least-loaded", "retry-budget"] {
            let shown = |seed| {
                let tables = tables(name, seed).unwrap().into_iter();
                tables
                    .map(|(_, table)| table.to_string())
                    .collect::<String>()
            };
            assert_eq!(shown(0), shown(0), "{name}");
            assert_ne!(shown(0), shown(1_000), "{name}");
        }
    }
}
