//! `cargo xtask gpu-emulate`: serve-model's tests of the CUDA path, on a GPU that is emulated on this processor.
//!
//! The emulator proves itself first, on faults made on purpose. Then the tests run as they would on a GPU: CubeCL writes
//! CUDA C++, which g++ compiles and fibers run, access by access looked at.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;

use super::gaps;
use super::programs::Programs;
use super::stand_in::StandIn;
use crate::cargo::TaskResult;

/// What no run here can show.
const LIMITS: &str = "\
Not shown, as no processor can stand in for it: kernels for tensor cores and TMA (the device poses as one without), the
order in which a GPU's memory makes writes of one block visible to another, copies that are still under way when a call
returns, streams beside each other, real registers and shared memory, and every time.
A buffer that lives for one step only is a part of a larger allocation: an access that leaves it and stays within that
is not seen as one out of bounds.";

pub(crate) const EXIT_CODES: &str = "It needs g++ on an x86-64 Linux. The first run builds the decoder for CUDA, which takes \
                                     a quarter of an hour on two cores. Exit code 0: every test passed; 1: one failed, \
                                     was skipped, or did what a kernel must not.";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Orders in which the threads of a block run between barriers: that of their numbers, and others at random
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    orders: u32,
    /// Only tests whose names hold this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Builds, lets the emulator prove itself, and runs the tests in each order of threads.
pub(crate) fn run(options: &Options) -> TaskResult {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let target = metadata.target_directory.as_std_path();
    let home = target.join("gpu-emulate");
    let emulator = StandIn::emulator(metadata.workspace_root.as_std_path(), home)?;
    println!("=== the emulator, on faults made on purpose ===");
    let selftest = emulator.selftest()?;
    if !emulator.command(&selftest).status()?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let programs = match Programs::build(&target.join("cuda"))? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
    };
    let begin = Instant::now();
    let mut all = Tests::default();
    for order in 0..options.orders {
        for (program, filters) in programs.of_cuda() {
            let only = options.only.as_deref().unwrap_or_default();
            let names = names(program, filters, only)?;
            if names.is_empty() {
                continue;
            }
            println!("\n=== order {order}: {} ===", filters.join(" "));
            let mut tests = command(&emulator, program, order);
            all.add(run_tests(tests.args(&names))?);
        }
    }
    if options.only.is_none() {
        println!("\n=== machines that lack something ===");
        all.failed += gaps::check(&emulator, &programs.it)?;
    }
    println!("\n{LIMITS}");
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    let Tests {
        passed,
        skipped,
        failed,
    } = all;
    println!(
        "\nemulated GPU: {passed} passed, {failed} failed, {skipped} skipped, in {} orders of threads, {minutes:.1} min",
        options.orders
    );
    Ok(match all.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A test program on the emulator. One test at a time: there is one device.
fn command(emulator: &StandIn, program: &Path, order: u32) -> Command {
    let mut command = emulator.command(program);
    command.args(["--test-threads", "1", "--nocapture", "--exact"]);
    if order > 0 {
        command.env("CUDA_STAND_IN_SEED", order.to_string());
    }
    command
}

/// The tests of a program that hold one of `filters` in their names, and `only`.
fn names(program: &Path, filters: &[&str], only: &str) -> Result<Vec<String>, std::io::Error> {
    let mut list = Command::new(program);
    let listed = list.arg("--list").args(filters).output()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let names = names.filter(|name| name.contains(only));
    Ok(names.map(str::to_owned).collect())
}

/// How tests went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tests {
    passed: u32,
    skipped: u32,
    failed: u32,
}

impl Tests {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.skipped += other.skipped;
        self.failed += other.failed;
    }

    /// A test that finds no GPU says that it is skipped, and passes; here it must find one.
    fn is_good(&self) -> bool {
        self.passed > 0 && self.skipped == 0 && self.failed == 0
    }
}

/// Runs a test program and shows what it prints.
fn run_tests(command: &mut Command) -> Result<Tests, std::io::Error> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut tests = Tests::default();
    for line in child
        .stdout
        .take()
        .into_iter()
        .flat_map(|out| BufReader::new(out).lines())
    {
        let line = line?;
        println!("{line}");
        tests.add(read(&line));
    }
    // A fault ends the process before it can count its failures.
    let failed = !child.wait()?.success();
    tests.failed = tests.failed.max(u32::from(failed));
    Ok(tests)
}

/// What a line of a test program says.
fn read(line: &str) -> Tests {
    let mut tests = Tests::default();
    // With output shown as it comes, the test's name and its own words share a line.
    if line.contains("skipped: ") {
        tests.skipped = 1;
    }
    if let Some(result) = line.strip_prefix("test result: ") {
        let count = |what: &str| {
            let before = result.split(what).next()?;
            before
                .rsplit([' ', '.'])
                .find(|word| !word.is_empty())?
                .parse()
                .ok()
        };
        tests.passed = count(" passed").unwrap_or_default();
        tests.failed = count(" failed").unwrap_or_default();
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_programs_own_words_are_counted() {
        let text = "running 3 tests\n\
            test devices::cuda_agrees ... ok\n\
            test devices::cuda_conforms ... skipped: no NVIDIA GPU was found\nok\n\
            test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 40 filtered out; finished in 0.1s\n";
        let mut all = Tests::default();
        text.lines().for_each(|line| all.add(read(line)));
        let expected = Tests {
            passed: 2,
            skipped: 1,
            failed: 1,
        };
        assert_eq!(all, expected);
        assert!(!all.is_good());
    }

    #[test]
    fn no_test_at_all_and_one_that_is_skipped_are_no_proof() {
        let of = |passed, skipped| Tests {
            passed,
            skipped,
            failed: 0,
        };
        assert!(of(1, 0).is_good());
        assert!(!of(0, 0).is_good());
        assert!(!of(4, 1).is_good());
    }

    #[test]
    fn a_process_that_a_fault_ended_has_failed() {
        let tests = run_tests(Command::new("sh").args(["-c", "echo 'test a ... '; exit 86"]));
        assert_eq!(tests.unwrap().failed, 1);
    }
}
