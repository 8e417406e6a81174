//! Says from which commit the binary is built, for the manifest of each run.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src");
    // Moves with every commit and every checkout; absent outside a repository.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return;
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
    let suffix = if changed { "-dirty" } else { "" };
    println!("cargo:rustc-env=SERVE_BENCH_COMMIT={commit}{suffix}");
}

/// What git says, if it says anything.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
