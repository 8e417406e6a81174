//! The pages in docs/policies, held to the code: the numbers that they quote are measured by the
//! tests in virtual time, which gives the same everywhere, and the names are those of the tables.

use std::fs;
use std::path::PathBuf;

use serve_sched::admit::ADMISSIONS;
use serve_sched::batch::BATCHES;
use serve_sched::budget::BUDGETS;
use serve_sched::limit::LIMITS;
use serve_sched::order::ORDERS;
use serve_sched::route::ROUTES;
use serve_sched::victim::VICTIMS;

/// The folder of the pages; none in a copy of this crate alone.
fn pages() -> Option<PathBuf> {
    let pages = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies");
    pages.exists().then_some(pages)
}

/// Prints what was measured, seen with `--nocapture`, and checks that the policy's page says it in
/// these words, however its lines are broken.
///
/// Where the pages are not at hand, it only prints.
#[expect(
    clippy::print_stdout,
    reason = "one who doubts a number reads it in the output"
)]
pub(crate) fn quoted(page: &str, measured: &str) {
    println!("docs/policies/{page}.md: {measured}");
    let Some(pages) = pages() else { return };
    let text = fs::read_to_string(pages.join(format!("{page}.md"))).unwrap();
    let text: Vec<&str> = text.split_whitespace().collect();
    assert!(
        text.join(" ").contains(measured),
        "docs/policies/{page}.md does not say: {measured}"
    );
}

/// A count with its thousands apart.
pub(crate) fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let (thousands, rest) = digits.split_at(digits.len().saturating_sub(3));
    match thousands {
        "" => rest.to_owned(),
        _ => format!("{thousands},{rest}"),
    }
}

#[test]
fn every_policy_is_in_the_index_under_its_name_with_the_title_of_its_page() {
    let Some(pages) = pages() else { return };
    let index = fs::read_to_string(pages.join("README.md")).unwrap();
    let names = ADMISSIONS.iter().map(|policy| policy.name);
    let names = names.chain(ORDERS.iter().map(|policy| policy.name));
    let names = names.chain(BATCHES.iter().map(|policy| policy.name));
    let names = names.chain(BUDGETS.iter().map(|policy| policy.name));
    let names = names.chain(VICTIMS.iter().map(|policy| policy.name));
    let names = names.chain(LIMITS.iter().map(|policy| policy.name));
    let names = names.chain(ROUTES.iter().map(|policy| policy.name));
    for name in names {
        let row = index.lines().find_map(|line| {
            let row = line.strip_prefix(&format!("| [{name}]("))?;
            row.strip_suffix(" |")?.split_once(") | ")
        });
        let (file, rule) = row.unwrap_or_else(|| panic!("{name} is not in the index"));
        let page = fs::read_to_string(pages.join(file)).unwrap();
        assert_eq!(page.lines().next(), Some(&*format!("# {name}: {rule}")));
    }
}
