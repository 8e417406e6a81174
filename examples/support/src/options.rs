//! The command line that all examples share, and how they print.

use std::io::{self, Write as _};

use clap::{Args, Command, FromArgMatches as _};

use crate::Table;

/// What every example takes.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Options {
    /// Other arrivals and lengths, where the example draws any; 0 has the numbers of the README
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Print each table as a line of JSON: its title, and its rows by their headings
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Reads the command line. `--help`, and what is not understood, end the program with an explanation.
    pub fn of_command_line(about: &'static str) -> Self {
        let matches = command(about).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// What to add to each fixed seed, so that no two runs have a stream in common.
    pub fn seed(&self) -> u64 {
        u64::from(self.seed) * 1_000
    }

    /// Prints a table under its title. A reader who has seen enough, such as `head`, is no error.
    ///
    /// # Errors
    ///
    /// Those of the standard output.
    pub fn show(&self, title: &str, table: &Table) -> io::Result<()> {
        let text = match self.json {
            true => table.json(title).to_string(),
            false => format!("{title}\n\n{table}"),
        };
        match writeln!(io::stdout(), "{text}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written,
        }
    }
}

/// The command line of an example; its name is that of its program.
fn command(about: &'static str) -> Command {
    // After the options, which would put their own words there.
    Options::augment_args(Command::new("example")).about(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, clap::Error> {
        let command = command("Shows it").no_binary_name(true);
        let words = line.split_whitespace();
        Options::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    #[test]
    fn another_seed_shares_no_stream_with_the_first() {
        assert_eq!(read("").unwrap().seed(), 0);
        assert_eq!(read("--seed 3 --json").unwrap().seed(), 3_000);
        let largest = read(&format!("--seed {}", u32::MAX)).unwrap().seed();
        assert!(largest.checked_add(1_000).is_some());
        for wrong in [
            "--seed",
            "--seed x",
            "--seed 4294967296",
            "--sed 1",
            "somewhere",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn help_says_what_the_example_is_about_and_what_it_takes() {
        let help = command("Shows it").render_help().to_string();
        assert!(help.starts_with("Shows it\n"), "{help}");
        for option in ["--seed <N>", "--json", "--help"] {
            assert!(help.contains(option), "{help}");
        }
    }
}
