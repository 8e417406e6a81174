//! Which crate may know which: the dependency edges that must not exist.
//!
//! Only what ends up in the build of somebody who depends on the one crate counts: its normal
//! dependencies on any platform, with its default features: what serve-sched has with `async` is
//! beside the decisions, and `manifests` keeps it there. `cargo metadata` cannot say
//! that, since it joins the features of the whole workspace; `cargo tree` can.

use std::process::Command;

use thiserror::Error;

use super::{File, Finding};
use crate::cargo;

/// Everything that brings a runtime, a device, a wire format, a clock or the system's randomness.
/// A trailing `*` stands for any ending.
const WORLD: &[&str] = &[
    "tokio*",
    "async-std",
    "smol",
    "mio",
    "burn*",
    "cubecl*",
    "serde",
    "serde_*",
    "rand",
    "rand_*",
    "getrandom",
    "fastrand",
    "chrono",
    "time",
    "jiff",
    "instant",
    "web-time",
    "quanta",
    "libc",
];

/// From a crate, what it must not reach.
const FORBIDDEN: [(&str, &[&str]); 5] = [
    ("serve-core", WORLD),
    ("serve-core", &["serve-*"]),
    ("serve-sched", WORLD),
    ("serve-sched", &["serve-model", "serve-http", "serve-bench"]),
    ("serve-model", &["serve-sched", "serve-http", "serve-bench"]),
];

/// The packages below a crate, depth first, each with its depth.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    packages: Vec<(usize, String)>,
}

/// The tree cannot be had from cargo.
#[derive(Debug, Error)]
#[error("`cargo tree -p {krate}` failed: {why}")]
pub(super) struct NoTree {
    krate: String,
    why: String,
}

impl Tree {
    /// Asks cargo for the tree of one crate of the workspace.
    fn of(krate: &str) -> Result<Self, NoTree> {
        let mut tree = cargo::command(&["tree", "--quiet", "--edges", "normal", "--target", "all"]);
        let tree = tree.args(["--prefix", "depth", "--format", " {p}", "--package", krate]);
        let text = output(tree).map_err(|why| NoTree {
            krate: krate.to_owned(),
            why,
        })?;
        Ok(Self::parse(&text))
    }

    /// Lines such as `2 thiserror v2.0.21`.
    fn parse(text: &str) -> Self {
        let packages = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        });
        Self {
            packages: packages.collect(),
        }
    }

    /// The chain of dependencies from the root to the first package that `pattern` means.
    fn path_to(&self, pattern: &str) -> Option<String> {
        let mut chain: Vec<&str> = Vec::new();
        for (depth, name) in &self.packages {
            chain.truncate(*depth);
            chain.push(name);
            if *depth > 0 && matches(pattern, name) {
                return Some(chain.join(" -> "));
            }
        }
        None
    }
}

/// One finding for each forbidden edge that exists.
pub(super) fn check() -> Result<Vec<Finding>, NoTree> {
    let mut findings = Vec::new();
    for (krate, names) in FORBIDDEN {
        findings.extend(broken(krate, names, &Tree::of(krate)?));
    }
    Ok(findings)
}

fn broken(krate: &str, names: &[&str], tree: &Tree) -> Vec<Finding> {
    let manifest = File {
        path: format!("crates/{krate}/Cargo.toml"),
        text: String::new(),
    };
    let broken = names.iter().filter_map(|name| {
        let chain = tree.path_to(name)?;
        let remedy = format!("{krate} must not depend on {name}, and does: {chain}; cut the chain");
        Some(Finding::new(&manifest, 1, remedy))
    });
    broken.collect()
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(krate: &str, names: &[&str], tree: &str) -> Vec<String> {
        let findings = broken(krate, names, &Tree::parse(tree));
        findings.into_iter().map(|finding| finding.remedy).collect()
    }

    #[test]
    fn a_forbidden_crate_is_found_at_any_depth_with_the_chain_that_leads_to_it() {
        let tree = "0 serve-sched v0.1.0 (path)\n1 serve-core v0.1.0\n2 thiserror v2\n\
                    1 queue v1\n2 hash v1\n3 getrandom v0.3.1\n1 getrandom v0.3.1 (*)\n";
        assert_eq!(
            findings("serve-sched", WORLD, tree),
            ["serve-sched must not depend on getrandom, and does: \
              serve-sched -> queue -> hash -> getrandom; cut the chain"]
        );
    }

    #[test]
    fn a_crate_does_not_forbid_itself_or_a_name_that_only_looks_alike() {
        let tree = "0 serve-core v0.1.0\n1 timely v1\n1 serdelike v1\n";
        assert!(findings("serve-core", WORLD, tree).is_empty());
        assert!(findings("serve-core", &["serve-*"], tree).is_empty());
    }

    #[test]
    fn an_ending_stands_for_a_family() {
        let tree = "0 serve-core v0.1.0\n1 burn-tensor v0.22.1\n";
        let found = findings("serve-core", WORLD, tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("burn-tensor"), "{found:?}");
    }

    #[test]
    fn the_pure_crates_may_not_reach_the_world() {
        let rules = FORBIDDEN
            .iter()
            .filter(|(_, names)| names.contains(&"tokio*"));
        let crates = rules.map(|(krate, _)| *krate).collect::<Vec<_>>();
        assert_eq!(crates, ["serve-core", "serve-sched"]);
    }
}
