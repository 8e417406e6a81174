//! `cargo xtask attack`: what takes servers down, tried on the real one over loopback, beside what is promised.
//!
//! Each attack has a server of its own, so that none sees what another one has left. One fault is enough for
//! exit code 1.

mod host;
mod soak;
mod target;
mod wire;
mod work;

use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::TaskResult;
use crate::cli;
use crate::place;
use target::Serve;

/// What was measured, by name with the unit.
type Figures = Map<String, Value>;

/// One way to harm a server.
struct Attack {
    name: &'static str,
    /// What holds all the same.
    promise: &'static str,
    run: fn(&Serve) -> Result<Figures, String>,
}

/// Tries them all, or those that are asked for.
pub(crate) fn run(options: &cli::Attack) -> TaskResult {
    let serve = Serve(match &options.serve {
        Some(path) => path.clone(),
        None => place::beside("serve")?,
    });
    if let Some(seconds) = options.soak {
        return soak::run(&serve, seconds, options.json);
    }
    let all = || {
        [work::ATTACKS, wire::ATTACKS, host::ATTACKS]
            .into_iter()
            .flatten()
    };
    let unknown = options
        .only
        .iter()
        .find(|asked| all().all(|it| it.name != **asked));
    if let Some(asked) = unknown {
        let known: Vec<_> = all().map(|it| it.name).collect();
        return Err(format!(
            "there is no attack {asked:?}; known are {}",
            known.join(", ")
        )
        .into());
    }
    let mut faults = 0;
    for attack in all() {
        if !options.only.is_empty() && options.only.iter().all(|asked| asked != attack.name) {
            continue;
        }
        let start = Instant::now();
        let done = (attack.run)(&serve);
        faults += u32::from(done.is_err());
        tell(attack, &done, start.elapsed().as_secs_f64(), options.json);
    }
    if !options.json {
        println!("{faults} faults");
    }
    Ok(match faults {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn tell(attack: &Attack, done: &Result<Figures, String>, seconds: f64, as_json: bool) {
    let Attack { name, promise, .. } = attack;
    let nothing = Figures::new();
    let figures = done.as_ref().unwrap_or(&nothing);
    if as_json {
        let fault = done.as_ref().err();
        let seconds = (seconds * 10.0).round() / 10.0;
        let line = json!({
            "attack": name, "promise": promise, "held": done.is_ok(), "fault": fault,
            "figures": figures, "seconds": seconds,
        });
        println!("{line}");
        return;
    }
    let held = if done.is_ok() { "held " } else { "FAULT" };
    println!("{held} {name} ({seconds:.1} s): {promise}");
    for (figure, value) in figures {
        println!("        {figure} {value}");
    }
    if let Err(fault) = done {
        println!("        {fault}");
    }
}

/// Figures in one line.
fn figures<const N: usize>(all: [(&str, f64); N]) -> Figures {
    let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
    all.into_iter()
        .map(|(name, value)| (name.to_owned(), rounded(value).into()))
        .collect()
}

/// A fault unless `holds`.
fn promise(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(fault()),
    }
}
