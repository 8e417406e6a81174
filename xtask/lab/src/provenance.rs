//! Where, when and of what something was measured.

use std::process::Command;
use std::time::SystemTime;

use serve_bench::store::hardware::Hardware;

use serve_bench::figure::Figure;

use crate::place;

/// Date, commit, seed and machine.
pub(crate) fn provenance(seed: u64) -> Vec<Figure> {
    let hardware = Hardware::of_this_machine(true);
    let cpu = hardware.cpu.unwrap_or_else(|| "unknown".to_owned());
    let mut figures = vec![
        Figure::text(
            "date",
            humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        ),
        Figure::text("commit", commit().unwrap_or_else(|| "unknown".to_owned())),
        Figure::text("cpu", cpu),
    ];
    let cores = hardware.cores.map(|cores| cores as f64);
    figures.extend(cores.map(|cores| Figure::new("cores", cores, "1")));
    figures.push(Figure::new("seed", seed as f64, "1"));
    figures
}

/// The commit of the repository, `-dirty` where the tree differs from it. `None` outside one.
pub(crate) fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12"]);
    let output = git.current_dir(place::repository()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
