//! Rules about how the crates are set up: lints, purity, and the one place where the model and the
//! edge meet.

use super::{File, Finding};

/// Every rule of this file.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = lints(files);
    findings.extend(purity(files));
    findings.extend(edge_library(files));
    findings.extend(drivers_alone(files));
    findings
}

/// Crates that hold a file in which `unsafe` is allowed. The workspace forbids it, and what is
/// forbidden cannot be allowed in one file.
const DENY_INSTEAD: [&str; 1] = ["crates/serve-model/Cargo.toml"];

/// Every crate has the workspace's lints, inherited, or in full where it has to deny what the
/// workspace forbids. A crate inside a test folder is no member of the workspace: it plays a user. Nor
/// is a stand-in for somebody else's crate.
fn lints(files: &[File]) -> Vec<Finding> {
    let root = files.iter().find(|file| file.path == "Cargo.toml");
    let workspace = root.and_then(|root| root.text.split_once("[workspace.lints"));
    let own = workspace.map(|(_, lints)| {
        let lints = format!("[lints{lints}").replace("[workspace.lints", "[lints");
        lints.replace("= \"forbid\"", "= \"deny\"")
    });
    let is_member = |file: &&File| {
        let stand_in = file.path.contains("/stand-ins/");
        file.path.ends_with("/Cargo.toml") && !file.is_test() && !stand_in
    };
    let manifests = files.iter().filter(is_member);
    let missing = manifests.filter(|file| {
        let mut lines = file.text.lines().map(str::trim);
        let inherits = lines.any(|line| line == "[lints]")
            && lines
                .take_while(|line| !line.starts_with('['))
                .any(|line| line == "workspace = true");
        let in_full = DENY_INSTEAD.contains(&file.path.as_str())
            && own.as_ref().is_some_and(|own| file.text.ends_with(own));
        !inherits && !in_full
    });
    let remedy = "inherit the workspace's lints: `[lints]`, `workspace = true`";
    missing.map(|file| Finding::new(file, 1, remedy)).collect()
}

/// The two pure crates forbid the same things.
fn purity(files: &[File]) -> Vec<Finding> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let (core, sched) = (
        "crates/serve-core/clippy.toml",
        "crates/serve-sched/clippy.toml",
    );
    let (core_file, sched_file) = match (find(core), find(sched)) {
        (Some(core), Some(sched)) => (core, sched),
        (found, _) => {
            let missing = if found.is_some() { sched } else { core };
            let file = File {
                path: missing.to_owned(),
                text: String::new(),
            };
            return vec![Finding::new(
                &file,
                1,
                "the purity list is missing; restore it",
            )];
        }
    };
    if core_file.text == sched_file.text {
        return Vec::new();
    }
    let same = core_file
        .text
        .lines()
        .zip(sched_file.text.lines())
        .take_while(|(a, b)| a == b);
    let line = same.count() + 1;
    vec![Finding::new(
        sched_file,
        line,
        format!("differs from {core}; make them the same"),
    )]
}

/// The library of serve-http works with any backend; only its binaries know the model.
fn edge_library(files: &[File]) -> Vec<Finding> {
    let is_library = |path: &str| {
        path.starts_with("crates/serve-http/src/")
            && !path.starts_with("crates/serve-http/src/bin/")
    };
    let library = files.iter().filter(|file| is_library(&file.path));
    let found = library.flat_map(|file| {
        let naming = file.lines().filter(|(_, line)| names_the_model(line));
        naming.map(move |(number, _)| {
            let remedy = "only src/bin may name serve_model; take what is needed through a trait";
            Finding::new(file, number, remedy)
        })
    });
    found.collect()
}

/// Crates that serve-sched has with its feature `async` only.
const ASYNC_ONLY: [&str; 7] = [
    "bytes::",
    "http::",
    "http_body::",
    "pin_project::",
    "tokio::",
    "tower_layer::",
    "tower_service::",
];

/// What drives decisions, in serve-sched: a folder, its feature, and what it alone may name.
const DRIVERS: [(&str, &str, &[&str]); 2] = [
    ("adapter", "\"async\"", &ASYNC_ONLY),
    ("driver", "\"thread\"", &["std::thread", "Condvar"]),
];

/// Of serve-sched, the adapter alone knows of a runtime and of HTTP, the driver alone of threads, and
/// nothing but lib.rs of either, and one sink of the journal of `tracing`: what decides is the same with the
/// features and without them.
fn drivers_alone(files: &[File]) -> Vec<Finding> {
    const SOURCES: &str = "crates/serve-sched/src/";

    let mut found = Vec::new();
    for (folder, feature, own) in DRIVERS {
        let (inside, path) = (format!("{SOURCES}{folder}/"), format!("crate::{folder}::"));
        let outside =
            |file: &&File| file.path.starts_with(SOURCES) && !file.path.starts_with(&inside);
        for file in files.iter().filter(outside) {
            let is_lib = file.path.strip_prefix(SOURCES) == Some("lib.rs");
            let naming = file.lines().filter(|(_, line)| {
                let code = code(line);
                let names_own = own.iter().any(|name| has_path(code, name));
                names_own || !is_lib && (has_path(code, &path) || code.contains(feature))
            });
            let remedy = format!("only src/{folder} may know of that; decisions are told the time");
            found.extend(naming.map(|(number, _)| Finding::new(file, number, remedy.as_str())));
        }
    }
    let names_tracing =
        |file: &&File| file.path.starts_with(SOURCES) && !file.path.ends_with("/tracing_sink.rs");
    for file in files.iter().filter(names_tracing) {
        let naming = file
            .lines()
            .filter(|(_, line)| has_path(code(line), "tracing::"));
        let remedy = "only src/tracing_sink.rs may write to tracing; others are told a sink";
        found.extend(naming.map(|(number, _)| Finding::new(file, number, remedy)));
    }
    found
}

/// Whether a path begins with `krate`, or goes through it.
fn has_path(code: &str, krate: &str) -> bool {
    let mut places = code.match_indices(krate);
    places.any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

/// Whether code, not a comment, names the crate.
fn names_the_model(line: &str) -> bool {
    code(line).contains("serve_model")
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn places(findings: &[Finding]) -> Vec<(&str, usize)> {
        let place = findings
            .iter()
            .map(|finding| (finding.path.as_str(), finding.line));
        place.collect()
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let files = [
            file(
                "crates/a/Cargo.toml",
                "[package]\n\n[lints]\nworkspace = true\n",
            ),
            file("crates/b/Cargo.toml", "[package]\nworkspace = true\n"),
            file("crates/c/Cargo.toml", "[lints]\n[lib]\nworkspace = true\n"),
            file("crates/a/tests/user/Cargo.toml", "[package]\n"),
            file("Cargo.toml", "[workspace]\n"),
        ];
        let expected = [("crates/b/Cargo.toml", 1), ("crates/c/Cargo.toml", 1)];
        assert_eq!(places(&lints(&files)), expected);
    }

    #[test]
    fn a_crate_with_a_file_of_unsafe_code_has_all_other_lints() {
        let root = "[workspace]\n\n[workspace.lints.rust]\na = \"forbid\"\nb = \"warn\"\n";
        let found = |table: &str| {
            let manifest = format!("[package]\n\n{table}");
            let files = [file("Cargo.toml", root), file(DENY_INSTEAD[0], &manifest)];
            lints(&files).len()
        };
        assert_eq!(found("[lints.rust]\na = \"deny\"\nb = \"warn\"\n"), 0);
        assert_eq!(found("[lints.rust]\na = \"allow\"\nb = \"warn\"\n"), 1);
        assert_eq!(found("[lints.rust]\na = \"deny\"\n"), 1);
    }

    #[test]
    fn the_purity_lists_are_compared_line_by_line() {
        let core = file("crates/serve-core/clippy.toml", "a\nb\n");
        let same = file("crates/serve-sched/clippy.toml", "a\nb\n");
        let other = file("crates/serve-sched/clippy.toml", "a\nc\n");
        assert_eq!(purity(&[core.clone(), same]), []);
        let found = purity(&[core.clone(), other]);
        assert_eq!(places(&found), [("crates/serve-sched/clippy.toml", 2)]);
        assert_eq!(
            places(&purity(&[core])),
            [("crates/serve-sched/clippy.toml", 1)]
        );
    }

    #[test]
    fn of_the_scheduler_only_its_drivers_know_of_a_runtime_and_of_threads() {
        let adapter = "crates/serve-sched/src/adapter/clock.rs";
        let driver = "crates/serve-sched/src/driver/clock.rs";
        let order = "crates/serve-sched/src/order/fifo.rs";
        let lib = "crates/serve-sched/src/lib.rs";
        for (path, line, allowed) in [
            (adapter, "use tokio::time::Instant;", true),
            (driver, "use tokio::time::Instant;", false),
            (driver, "use std::thread::sleep;", true),
            (driver, "use std::sync::{Condvar, Mutex};", true),
            (driver, "#[cfg(feature = \"async\")]", false),
            (adapter, "use crate::driver::Clock;", false),
            (adapter, "pub use driver::Driver;", true),
            (adapter, "bell: Condvar,", false),
            (order, "use crate::driver::Clock;", false),
            (order, "std::thread::Builder::new()", false),
            (order, "#[cfg(feature = \"thread\")]", false),
            (lib, "#[cfg(feature = \"thread\")]", true),
            (order, "use tokio::time::Instant;", false),
            (order, "let body: http_body::Frame;", false),
            (order, "use crate::adapter::Clock;", false),
            (order, "#[cfg(feature = \"async\")]", false),
            (order, "// as tokio::time does", true),
            (order, "use mytokio::time;", true),
            (lib, "#[cfg(feature = \"async\")]", true),
            (lib, "pub use tokio::time;", false),
            (order, "tracing::debug!(\"next\");", false),
            (
                "crates/serve-sched/src/tracing_sink.rs",
                "use tracing::debug;",
                true,
            ),
            (
                "crates/serve-sched/tests/adapter/main.rs",
                "use tokio::time;",
                true,
            ),
        ] {
            let found = drivers_alone(&[file(path, line)]);
            assert_eq!(found.is_empty(), allowed, "{path}: {line}");
        }
    }

    #[test]
    fn only_the_binary_joins_the_edge_and_the_model() {
        let naming = "//! Not serve_model.\nuse serve_model::Decoder;\n";
        let files = [
            file("crates/serve-http/src/worker/mod.rs", naming),
            file("crates/serve-http/src/bin/serve/main.rs", naming),
            file("crates/serve-model/src/lib.rs", naming),
        ];
        assert_eq!(
            places(&edge_library(&files)),
            [("crates/serve-http/src/worker/mod.rs", 2)]
        );
    }
}
