//! A crate outside the workspace that depends on serve-sched alone compiles and runs.

use std::path::Path;
use std::process::Command;

#[test]
fn a_crate_that_depends_on_serve_sched_alone_compiles_and_runs() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside/Cargo.toml");
    let run = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&run.stdout);
    // 20 positions of prompt and one decode each, the last to arrive first.
    assert_eq!(printed, "21ms r3 2\n42ms r2 2\n63ms r1 2\n");
}
