//! The command line that all examples share, and how they print.

use std::error::Error;
use std::io::{self, Write as _};

use clap::{Args, Command, FromArgMatches as _};

use crate::Table;

/// What every example takes.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Other arrivals and lengths, where the example draws any; 0 has the numbers of the README
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Seeds: beside each number the least and the most that it came to over so many, from --seed on
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
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

    /// Makes the tables of each seed, and has those of the first tell the least and the most of all.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn over_seeds(
        &self,
        make: impl Fn(u64) -> Result<Vec<(String, Table)>, Box<dyn Error>>,
    ) -> Result<Vec<(String, Table)>, Box<dyn Error>> {
        let mut tables = make(self.seed())?;
        for more in 1..u64::from(self.seeds) {
            let others = make((u64::from(self.seed) + more) * 1_000)?;
            for ((_, table), (_, other)) in tables.iter_mut().zip(&others) {
                table.widen(other);
            }
        }
        Ok(tables)
    }

    /// Prints the table of the first seed, with the least and the most of all.
    ///
    /// # Errors
    ///
    /// Those of `make` and of the standard output.
    pub fn show_over_seeds(
        &self,
        title: &str,
        make: impl Fn(u64) -> Result<Table, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        for (title, table) in self.over_seeds(|seed| Ok(vec![(title.to_owned(), make(seed)?)]))? {
            self.show(&title, &table)?;
        }
        Ok(())
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
    fn a_number_has_the_least_and_the_most_of_all_seeds_beside_it() {
        let make = |seed| {
            let mut table = Table::new(["policy", "wait", "fixed", "answered"]);
            let wait = format!("{:.1} s", [2.0, 1.5, 3.0][seed as usize / 1_000]);
            let cells = [
                "fifo".to_owned(),
                wait,
                "7".to_owned(),
                format!("{} of 9", 5 + seed / 1_000),
            ];
            table.row(cells);
            Ok(vec![("t".to_owned(), table)])
        };
        let shown = |line| {
            let tables = read(line).unwrap().over_seeds(make).unwrap();
            tables[0].1.clone()
        };
        let last = |table: &Table| table.to_string().lines().last().unwrap().to_owned();
        assert_eq!(last(&shown("--seeds 1")), "fifo    2.0 s      7    5 of 9");
        let all = shown("--seeds 3");
        assert_eq!(last(&all), "fifo    2.0 s (1.5..3.0)      7  5 of 9 (5..7)");
        let row = &all.json("t")["rows"][0];
        assert_eq!(row["wait (s)"], 2.0);
        assert_eq!(row["wait (s), least"], 1.5);
        assert_eq!(row["wait (s), most"], 3.0);
        assert_eq!(row["fixed"], 7.0);
        assert!(row.get("fixed, least").is_none());
    }

    #[test]
    fn help_says_what_the_example_is_about_and_what_it_takes() {
        let help = command("Shows it").render_help().to_string();
        assert!(help.starts_with("Shows it\n"), "{help}");
        for option in ["--seed <N>", "--seeds <N>", "--json", "--help"] {
            assert!(help.contains(option), "{help}");
        }
    }
}
