//! Golden outputs of the reference implementations: of models, and of tokenizers and chat templates.

mod checker;
mod golden;
pub(crate) mod model;
pub(crate) mod tokenizer;

use std::error::Error;
use std::process::ExitCode;

/// Prints how each case went and how many did; all must have passed, and at least one.
fn verdict(cases: impl Iterator<Item = (String, Result<String, Box<dyn Error>>)>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    for (label, found) in cases {
        match found {
            Ok(what) => {
                passed += 1;
                println!(
                    "ok      {}",
                    [label, what].join(": ").trim_end_matches([':', ' '])
                );
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  {label}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    match (passed, failed) {
        (1.., 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
