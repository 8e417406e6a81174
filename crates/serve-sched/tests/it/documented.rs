//! The table of settings in docs/operations.md, held to the one in the code.

use std::fs;
use std::path::PathBuf;

use serve_sched::table::{Entry, Needs, table};

/// One row of the document.
fn row(entry: &Entry) -> String {
    let row = entry.row;
    let needs = match &entry.needs {
        None => String::new(),
        Some(Needs::Switch(switch)) => format!("`{}`", switch.name),
        Some(Needs::Policy { family, names }) => {
            let names = names
                .iter()
                .map(|name| format!("`{} = \"{name}\"`", family.name));
            names.collect::<Vec<_>>().join(" or ")
        }
    };
    let usual = match row.usual.to_string() {
        words if words.contains(' ') => words,
        empty if empty.is_empty() => empty,
        value => format!("`{value}`"),
    };
    let (name, accepted, help) = (row.name, row.kind.accepted(), row.help);
    format!("| `{name}` | {accepted} | {usual} | {needs} | {help} |")
}

#[test]
fn operations_has_a_row_for_each_setting_as_the_table_has_it() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    // Not there in a copy of this crate alone.
    let Ok(text) = fs::read_to_string(page) else {
        return;
    };
    let section = text
        .split("### Settings of the scheduler\n")
        .nth(1)
        .unwrap();
    let section = section.split("\n#").next().unwrap();
    let documented: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let rows: Vec<String> = table().iter().map(row).collect();
    let whole = rows.join("\n");
    assert_eq!(
        documented, rows,
        "the rows of docs/operations.md should be\n{whole}\n"
    );
}
