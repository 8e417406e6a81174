//! The wings of serve-model: each names those before it and none after it, so that there is an order in
//! which to read them, and no circle.

use super::{File, Finding};

const SOURCES: &str = "crates/serve-model/src/";

/// The modules at the root of the crate, from the one that knows no other to the one that may know all.
const WINGS: [&str; 11] = [
    "numbers", "config", "weights", "text", "hub", "decode", "cpu", "flex", "gpu", "load",
    "measure",
];

/// Every finding in these files.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let Some(path) = file.path.strip_prefix(SOURCES) else {
        return Vec::new();
    };
    let wing = path.split(['/', '.']).next().unwrap_or(path);
    if matches!(wing, "lib" | "bin") {
        return Vec::new();
    }
    let Some(place) = rank(wing) else {
        let remedy = format!("give {wing} its place in WINGS of xtask/src/tidy/wings.rs");
        return vec![Finding::new(file, 1, remedy)];
    };
    let code = file
        .lines()
        .filter(|(_, line)| !line.trim_start().starts_with("//"));
    let later = code.flat_map(|(number, line)| {
        let named = line.split("crate::").skip(1);
        let named = named.filter_map(|rest| WINGS.iter().copied().find(|wing| names(rest, wing)));
        let later = named.filter(move |named| rank(named) > Some(place));
        later.map(move |later| (number, later))
    });
    later
        .map(|(number, later)| {
            let remedy =
                format!("{wing} comes before {later} and cannot name it; move what both need");
            Finding::new(file, number, remedy)
        })
        .collect()
}

fn rank(wing: &str) -> Option<usize> {
    WINGS.iter().position(|known| *known == wing)
}

/// Whether what follows `crate::` begins with a wing's whole name.
fn names(rest: &str, wing: &str) -> bool {
    rest.strip_prefix(wing)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = File {
            path: format!("{SOURCES}{path}"),
            text: text.to_owned(),
        };
        let findings = check(&[file]).into_iter();
        findings
            .map(|finding| (finding.line, finding.remedy))
            .collect()
    }

    #[test]
    fn a_wing_names_those_before_it_alone() {
        let text =
            "//! Not crate::load.\nuse crate::config::ModelConfig;\nuse crate::load::Model;\n";
        assert_eq!(found("load/files.rs", text), []);
        assert_eq!(found("lib.rs", text), []);
        let findings = found("cpu/kernels/team.rs", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].0, 3);
        assert!(
            findings[0].1.contains("cpu comes before load"),
            "{findings:?}"
        );
        assert_eq!(found("numbers.rs", text).len(), 2);
        assert_eq!(found("cpu/device.rs", "use crate::loader::Model;\n"), []);
    }

    #[test]
    fn a_new_wing_is_given_its_place() {
        let findings = found("training/mod.rs", "//! Gradients.\n");
        assert!(
            findings[0].1.contains("give training its place"),
            "{findings:?}"
        );
    }
}
