//! The settings file: TOML whose keys are the names of the settings, for whatever no flag and no
//! environment variable sets, and the list of API keys.
//!
//! `--max-batch`, `SERVE_MAX_BATCH` and the key `max_batch` are one setting with one definition: what
//! the file says becomes a flag where none was given, so there is one parser and one set of messages.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use super::Cli;
use super::keys::{KeySettings, Tenants};
use super::variables::{Variables, wrong_value};
use crate::failure::Failure;
use crate::nearest::nearest;

/// Settings that belong to the command line alone.
const NOT_IN_A_FILE: [&str; 4] = ["config", "help", "version", "model_first"];

/// Reads the settings: flags, then environment variables, then the file that they name, which
/// `read_file` turns into text.
///
/// # Errors
///
/// [`Failure::Message`] with clap's own words, [`Failure::File`] for a file that cannot be read, or
/// [`Failure::Usage`] for a wrong value, which names the flag, the variable or the line of the file that
/// it came from, for variables that mean nothing and for settings that contradict each other.
pub(crate) fn read(
    arguments: Vec<OsString>,
    read_file: impl Fn(&Path) -> io::Result<String>,
) -> Result<Cli, Failure> {
    let variables = Variables::of_process();
    let command = variables.command();
    let given = command
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(|error| variables.named(error, &arguments))?;
    // Help, the version and hashes of keys are given whatever the environment says.
    if given.subcommand().is_none() {
        variables.check()?;
    }
    let (mut cli, text) = match given.get_one::<PathBuf>("config") {
        None => (Cli::from_arg_matches(&given)?, None),
        Some(path) => {
            let text = read_file(path).map_err(|cause| file(path, cause.to_string()))?;
            let cli =
                with_file(command, arguments, &given, &text).map_err(|cause| match cause {
                    FileError::Own(failure) => failure,
                    FileError::Said(cause) => file(path, cause),
                })?;
            (cli, Some((path, text)))
        }
    };
    if let Some(model) = cli.model_first.take() {
        if given.value_source("model") == Some(ValueSource::CommandLine) {
            return Err(Failure::Usage {
                setting: "--model".to_owned(),
                cause: format!("the model is {model} already"),
            });
        }
        cli.model = Some(model);
    }
    let checked = cli.validate().and_then(|()| Tenants::of(&cli).map(drop));
    // A contradiction is told of the flag of a setting, wherever the setting was given.
    checked.map_err(|failure| {
        let told = failure.to_string();
        let Some((flag, cause)) = told
            .split_once(": ")
            .filter(|(flag, _)| flag.starts_with("--"))
        else {
            return failure;
        };
        let name = flag.trim_start_matches("--").replace('-', "_");
        let cause = cause.to_owned();
        match (given.value_source(&name), &text) {
            (Some(ValueSource::EnvVariable), _) => Failure::Usage {
                setting: super::variables::variable(&name),
                cause,
            },
            (Some(ValueSource::CommandLine), _) => failure,
            (_, Some((path, text))) => match line_of(text, &name) {
                Some(line) => file(path, format!("line {line}: {name}: {cause}")),
                None => failure,
            },
            _ => failure,
        }
    })?;
    Ok(cli)
}

fn file(path: &Path, cause: String) -> Failure {
    Failure::File {
        path: path.to_owned(),
        cause,
    }
}

/// The line of a file in which a setting is given, counted from 1.
fn line_of(text: &str, name: &str) -> Option<usize> {
    let gives = |line: &str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        line.contains('=') && key.trim_matches(['"', '\'']) == name
    };
    text.lines().position(gives).map(|index| index + 1)
}

enum FileError {
    /// Not the file's fault.
    Own(Failure),
    /// What is wrong with the file.
    Said(String),
}

fn with_file(
    command: Command,
    arguments: Vec<OsString>,
    given: &ArgMatches,
    text: &str,
) -> Result<Cli, FileError> {
    let Said { flags, keys } = parse(text).map_err(FileError::Said)?;
    // By itself first, so that a wrong value is found in the file even where a flag hides it.
    let alone = flags.iter().map(|(_, flag)| flag.clone());
    without_environment()
        .try_get_matches_from(std::iter::once("serve".to_owned()).chain(alone))
        .map_err(|error| FileError::Said(of_line(&error, text)))?;
    let is_given = |id: &str| {
        let source = given.value_source(id);
        matches!(
            source,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
    };
    let mut all = arguments;
    let fill = flags.into_iter().filter(|(id, _)| !is_given(id));
    let at = all.len().min(1);
    all.splice(at..at, fill.map(|(_, flag)| OsString::from(flag)));
    let matches = command.try_get_matches_from(all);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let mut cli = cli.map_err(|error| FileError::Own(error.into()))?;
    cli.keys = keys;
    Ok(cli)
}

/// A wrong value by its line and key.
fn of_line(error: &clap::Error, text: &str) -> String {
    let Some((flag, cause)) = wrong_value(error) else {
        return error.to_string();
    };
    let name = flag.trim_start_matches("--").replace('-', "_");
    match line_of(text, &name) {
        Some(line) => format!("line {line}: {name}: {cause}"),
        None => format!("{name}: {cause}"),
    }
}

/// What a file says.
struct Said {
    /// Name and flag of each setting.
    flags: Vec<(String, String)>,
    keys: Vec<KeySettings>,
}

fn parse(text: &str) -> Result<Said, String> {
    let mut table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let keys = match table.remove("keys") {
        None => Vec::new(),
        Some(keys) => serde_path_to_error::deserialize(keys)
            .map_err(|error| format!("keys{}: {}", error.path(), error.inner().message()))?,
    };
    let command = Cli::command();
    let mut flags = Vec::new();
    for (name, value) in table {
        let argument = argument(&command, &name)?;
        let value = flat(&name, &value)?;
        // An empty list of something that is a list without a default is what no flag is.
        if value.is_empty()
            && argument.get_value_delimiter().is_some()
            && argument.get_default_values().is_empty()
        {
            continue;
        }
        let long = argument.get_long().unwrap_or_default();
        flags.push((name, format!("--{long}={value}")));
    }
    Ok(Said { flags, keys })
}

fn argument<'a>(command: &'a Command, name: &str) -> Result<&'a Arg, String> {
    let known = || {
        let arguments = command.get_arguments();
        arguments.filter(|argument| !NOT_IN_A_FILE.contains(&argument.get_id().as_str()))
    };
    let found = known().find(|argument| argument.get_id() == name);
    found.ok_or_else(|| {
        let mut names: Vec<&str> = known().map(|argument| argument.get_id().as_str()).collect();
        names.push("keys");
        names.sort_unstable();
        match nearest(name, names.iter().copied()) {
            Some(near) => format!("{name} is not a setting; did you mean {near}?"),
            None => format!("{name} is not a setting; known are {}", names.join(", ")),
        }
    })
}

/// A value as it stands behind a flag.
fn flat(name: &str, value: &Value) -> Result<String, String> {
    let scalar = |path: &str, value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(value) => Ok(value.to_string()),
        other => Err(format!(
            "{path} must be text, a number or true or false, not {}",
            other.type_str()
        )),
    };
    match value {
        Value::Array(items) => {
            let item = |(index, item)| scalar(&format!("{name}[{index}]"), item);
            let items: Result<Vec<_>, _> = items.iter().enumerate().map(item).collect();
            Ok(items?.join(","))
        }
        Value::Table(pairs) => {
            let pair = |(key, value): (&String, &Value)| {
                Ok(format!(
                    "{key}={}",
                    scalar(&format!("{name}.{key}"), value)?
                ))
            };
            let pairs: Result<Vec<_>, String> = pairs.iter().map(pair).collect();
            Ok(pairs?.join(","))
        }
        value => scalar(name, value),
    }
}

fn without_environment() -> Command {
    Cli::command().mut_args(|argument| argument.env(None::<&'static str>))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serve_sched::admit::QUEUE_CAP;
    use serve_sched::settings::{CLASSES, MAX_BATCH};
    use serve_sched::table::table;

    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../../docs/serve.toml");

    fn parsed(arguments: &[&str], text: &str) -> Result<Cli, String> {
        let arguments: Vec<OsString> = ["serve"].iter().chain(arguments).map(Into::into).collect();
        let given = without_environment()
            .try_get_matches_from(&arguments)
            .unwrap();
        let cli =
            with_file(without_environment(), arguments, &given, text).map_err(
                |error| match error {
                    FileError::Own(failure) => failure.to_string(),
                    FileError::Said(cause) => cause,
                },
            )?;
        let checked = cli.validate().and_then(|()| Tenants::of(&cli));
        checked.map_err(|failure| failure.to_string())?;
        Ok(cli)
    }

    /// Lines like `# max_batch = 16` in the example state a default.
    fn uncommented(text: &str) -> String {
        let line = |line: &str| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => {
                rest.to_owned()
            }
            _ => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    }

    fn is_key(text: &str) -> bool {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
    }

    #[test]
    fn the_example_states_every_default_and_no_other_value() {
        let defaults = serde_json::to_value(parsed(&[], "").unwrap()).unwrap();
        let as_it_is = serde_json::to_value(parsed(&[], EXAMPLE).unwrap()).unwrap();
        assert_eq!(as_it_is, defaults, "as it is, the example changes nothing");
        let settings = EXAMPLE.split("# [[keys]]").next().unwrap();
        let table: Table = uncommented(settings).parse().unwrap();
        let stated: BTreeSet<&str> = table.keys().map(String::as_str).collect();
        let command = Cli::command();
        let known = command
            .get_arguments()
            .map(|argument| argument.get_id().as_str());
        let known: BTreeSet<&str> = known.filter(|id| !NOT_IN_A_FILE.contains(id)).collect();
        let unset: BTreeSet<&str> = known.difference(&stated).copied().collect();
        for name in unset {
            let mentioned = EXAMPLE.contains(&format!("# {name}: "));
            // The default backend is not the same in a build without the model.
            let is_unset = name == "backend" || defaults[name].is_null();
            assert!(mentioned && is_unset, "{name} is not in the example");
        }
        let stated = serde_json::to_value(parsed(&[], &uncommented(settings)).unwrap()).unwrap();
        assert_eq!(stated, defaults);
    }

    /// What is unset has its default in words, and they are the table's.
    #[test]
    fn the_example_tells_the_defaults_of_what_a_policy_alone_reads() {
        for entry in table().iter().filter(|entry| entry.needs.is_some()) {
            let Some(usual) = entry.row.usual.value() else {
                continue;
            };
            let begins = format!("# {}: ", entry.row.name);
            let line = EXAMPLE
                .lines()
                .find(|line| line.starts_with(&begins))
                .unwrap();
            assert!(line.contains(&format!("{usual} by default")), "{line}");
        }
    }

    #[test]
    fn the_example_of_keys_can_be_read() {
        let (_, keys) = EXAMPLE.split_once("# [[keys]]").unwrap();
        let keys: Vec<&str> = keys
            .lines()
            .map(|line| line.trim_start_matches("# "))
            .collect();
        let text = format!("order = \"fair-tenants\"\n[[keys]]{}", keys.join("\n"));
        // As it is it lets nobody in.
        let message = parsed(&[], &text).unwrap_err();
        assert!(message.contains("keys[0].sha256"), "{message}");
        let hash = "0".repeat(64);
        let text = text.replace("what `serve hash-key --generate` prints", &hash);
        assert!(!parsed(&[], &text).unwrap().keys.is_empty());
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let cli = parsed(&["--max-batch", "2"], "max_batch = 3\nqueue_cap = 7").unwrap();
        let settings = cli.settings();
        let seen = (settings.get(&MAX_BATCH).get(), settings.get(&QUEUE_CAP));
        assert_eq!(seen, (2, 7));
    }

    #[test]
    fn a_list_and_a_table_are_read_like_a_flag_with_commas() {
        let text = "classes = [\"a\", \"b\", \"c\"]\nclass_queue_cap = { b = 4, c = 2 }";
        let cli = parsed(&[], text).unwrap();
        assert_eq!(cli.settings().get(&CLASSES), ["a", "b", "c"]);
        let shown = serde_json::to_value(&cli).unwrap();
        let max = |class, max| serde_json::json!({"class": class, "max": max});
        assert_eq!(
            shown["class_queue_cap"],
            serde_json::json!([max("b", 4), max("c", 2)])
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_key_and_what_is_accepted() {
        let key = "[[keys]]\nname = \"a\"\nsha256 = \"00\"\n";
        let hash = "0".repeat(64);
        let good = format!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\n");
        let table = [
            (
                "queue_capp = 3",
                "queue_capp is not a setting; did you mean queue_cap?",
            ),
            ("zzzz = 3", "zzzz is not a setting; known are "),
            ("[admission]\nx = 1", "admission is not a setting"),
            ("config = \"x\"", "config is not a setting"),
            (
                "\n\nmax_batch = 0",
                "line 3: max_batch: invalid value '0': a whole number from 1 up",
            ),
            (
                "max_batch = \"many\"",
                "line 1: max_batch: invalid value 'many'",
            ),
            ("order = \"lifo\"", "strict-tiers"),
            ("classes = [1979-05-27]", "classes[0] must be text"),
            ("max_batch = 1\nmax_batch = 2", "duplicate key"),
            ("max_batch 1", "line 1"),
            ("age_after = 3", "--age-after: it needs --order aging-tiers"),
            (
                "queue_cap = 8\nclass_queue_cap = { gold = 1 }",
                "paid, free",
            ),
            (key, "keys[0].sha256: it must be the 64 hexadecimal digits"),
            (
                &good.replace("name = \"a\"", "nam = \"a\""),
                "keys[0].nam: unknown field `nam`",
            ),
            (
                &format!("{good}class = \"gold\""),
                "keys[0].class: it must be one of paid, free",
            ),
            (&format!("{good}weight = 0"), "keys[0].weight"),
            (
                &format!("{good}weight = 2"),
                "keys[0].weight: it needs --order fair-tenants",
            ),
            (
                &format!("order = \"fair-groups\"\n{good}group = \"g\"\nweight = 2"),
                "keys[0].weight: it needs --order fair-tenants",
            ),
            (
                &format!("{good}group = \"g\""),
                "keys[0].group: it needs --order fair-tenants",
            ),
            (
                &format!("order = \"fair-groups\"\n{good}group_weight = 2"),
                "keys[0].group_weight: it needs a group",
            ),
            (
                "order = \"aging/aging/aging/aging/aging/fair-tenants\"",
                "--order: an order has at most 6 levels",
            ),
            (
                &format!("upstream = \"http://127.0.0.1:1\"\n{good}kv_tokens = 5"),
                "keys[0].kv_tokens: the engine behind the gate has its own KV cache",
            ),
            (
                "upstream_limit = 3",
                "--upstream-limit: it needs --upstream or --upstream-command",
            ),
            (
                "budget = \"inter-token-target\"\ninter_token_target = 0",
                "--inter-token-target: it must be above 0",
            ),
            (
                &format!("{good}tokens_per_s = -1.0"),
                "keys[0].tokens_per_s: it must be a number",
            ),
            (
                &format!("{good}{good}"),
                "keys[1].name: there is another key of this name",
            ),
            (
                &format!("allow_anonymous = true\n{good}"),
                "--allow-anonymous",
            ),
        ];
        for (text, says) in table {
            let message = parsed(&[], text).unwrap_err();
            assert!(message.contains(says), "{text}\n{message}");
        }
    }

    #[test]
    fn a_wrong_value_in_the_file_is_found_behind_a_flag_as_well() {
        let message = parsed(&["--max-batch", "2"], "max_batch = 0").unwrap_err();
        assert!(message.contains("line 1: max_batch"), "{message}");
    }

    #[test]
    fn a_mangled_file_gets_a_message_and_never_a_panic() {
        let mut rng = serve_core::rng::Rng::new(5);
        let (settings, keys) = EXAMPLE.split_once("# [[keys]]").unwrap();
        let keys = keys
            .replace("\n# ", "\n")
            .replace("what `serve hash-key --generate` prints", &"0".repeat(64));
        let good = format!("{}\n[[keys]]{keys}", uncommented(settings)).into_bytes();
        let mut refused = 0;
        for _ in 0..300 {
            let mut text = good.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(text.len() as u64) as usize;
                match rng.below(4) {
                    0 => text[at] = rng.below(128) as u8,
                    1 => drop(text.remove(at)),
                    2 => text.insert(at, b"{}[]\"=,#-9\n"[rng.below(11) as usize]),
                    _ => text.truncate(at.max(1)),
                }
            }
            refused += u32::from(parsed(&[], &String::from_utf8_lossy(&text)).is_err());
        }
        assert!(refused > 100, "{refused}: most of them make no sense");
    }
}
