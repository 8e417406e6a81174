//! The settings of the scheduler, its device and its requests: arguments made from the table that
//! serve-sched has of them, and what the table makes of what was given.
//!
//! Nothing here knows a single setting. What is said of one, its default and what it needs stand with
//! its policy.

use clap::builder::{BoolishValueParser, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde::{Serialize, Serializer};
use serde_json::json;
use serve_sched::admit::ADMISSIONS;
use serve_sched::batch::{BATCH, BATCHES};
use serve_sched::budget::{BUDGET, BUDGETS};
use serve_sched::order::ORDER;
use serve_sched::settings::{Kind, Row, Usual, Value};
use serve_sched::table::{Entry, Needs, table};
use serve_sched::victim::{VICTIM, VICTIMS};
use serve_sched::{Named, Settings};

/// What was given of the settings in the table of serve-sched.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulerSettings(pub(crate) Settings);

impl Args for SchedulerSettings {
    fn augment_args(command: Command) -> Command {
        command.args(table().iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SchedulerSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for Entry { row, .. } in table() {
            let source = matches.value_source(row.name);
            if !matches!(
                source,
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            ) {
                continue;
            }
            let items = matches.get_raw(row.name).into_iter().flatten();
            let items = items.map(|item| item.to_string_lossy());
            let text = items.collect::<Vec<_>>().join(",");
            let set = self.0.set_text(row.name, &text);
            set.map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
        }
        Ok(())
    }
}

/// A setting as a flag and an environment variable.
fn argument(entry: &Entry) -> Arg {
    let row = entry.row;
    let argument = Arg::new(row.name)
        .long(row.name.replace('_', "-"))
        .env(format!("SERVE_{}", row.name.to_uppercase()))
        .value_name(row.kind.placeholder())
        .help(help(entry))
        .help_heading(row.group);
    let argument = match row.usual.value().filter(|_| entry.needs.is_none()) {
        Some(usual) => argument.default_value(usual.to_string()),
        None => argument,
    };
    match row.kind {
        Kind::Name(known) => argument.value_parser(PossibleValuesParser::new(known())),
        Kind::Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(BoolishValueParser::new()),
        kind => {
            let parser = move |text: &str| kind.parse(text).map(|_| text.to_owned());
            let argument = argument.value_parser(parser);
            match kind.is_list() {
                true => argument.action(ArgAction::Append).value_delimiter(','),
                false => argument,
            }
        }
    }
}

/// What is said of a setting: what it is, what it needs, and the default where clap does not know one.
fn help(entry: &Entry) -> String {
    let mut help = entry.row.help.to_owned();
    if let Some(needs) = &entry.needs {
        help += &format!("; for {}", needs.flags());
    }
    let is_told = entry.needs.is_none() && !matches!(entry.row.usual, Usual::Else(_));
    match entry.row.usual.to_string() {
        usual if !is_told && !usual.is_empty() => help + &format!(" [default: {usual}]"),
        _ => help,
    }
}

impl Serialize for SchedulerSettings {
    /// What holds, by name; null for what would change nothing.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(table().iter().map(|entry| {
            let shown = match self.0.effective(entry) {
                Some(value) => shown(value),
                None if entry.row.kind.is_list() => json!([]),
                None => json!(null),
            };
            (entry.row.name, shown)
        }))
    }
}

fn shown(value: Value) -> serde_json::Value {
    match value {
        Value::Seconds(span) => json!(span.as_secs_f64()),
        Value::Number(number) => json!(number),
        Value::Whole(number) => json!(number),
        Value::Switch(on) => json!(on),
        Value::Name(name) => json!(name),
        Value::Path(path) => json!(path),
        Value::Classes(names) => json!(names),
        Value::ByClass(pairs) => {
            let pairs = pairs.into_iter();
            pairs
                .map(|(class, max)| json!({"class": class, "max": max}))
                .collect()
        }
        Value::StepTimes(pairs) => {
            let pairs = pairs.into_iter();
            pairs
                .map(|(batch, us)| json!({"batch": batch, "us": us}))
                .collect()
        }
    }
}

impl SchedulerSettings {
    /// Who is admitted and what decides after that, as the banner shows them.
    pub(crate) fn lines(&self) -> [(&'static str, String); 2] {
        let chosen = [
            self.order(),
            self.chosen(BATCHES, &BATCH.row, self.0.get(&BATCH)),
            self.chosen(BUDGETS, &BUDGET.row, self.0.get(&BUDGET)),
            self.chosen(VICTIMS, &VICTIM.row, self.0.get(&VICTIM)),
        ];
        // What is no policy of a family is told if somebody has given it.
        let is_owned = |name: &str| {
            let families = [&ORDER.row, &BATCH.row, &BUDGET.row, &VICTIM.row];
            let admissions = ADMISSIONS.iter().flat_map(|policy| policy.settings);
            let mut rows = admissions.copied().chain(families);
            rows.any(|row| row.name == name)
        };
        let others = table().into_iter().filter(|entry| {
            let is_told = entry.row.group == ORDER.row.group && self.0.is_given(entry.row.name);
            is_told && entry.needs.is_none() && !is_owned(entry.row.name)
        });
        let others = others.filter_map(|entry| self.told(entry.row));
        let policies: Vec<String> = chosen.into_iter().chain(others).collect();
        [self.admission(), ("policies", policies.join(", "))]
    }

    /// The same of a gate alone.
    pub(crate) fn gate_lines(&self) -> [(&'static str, String); 2] {
        [self.admission(), ("policies", self.order())]
    }

    fn admission(&self) -> (&'static str, String) {
        let on = ADMISSIONS
            .iter()
            .filter(|policy| !(policy.build)(&self.0).is_empty());
        let on: Vec<String> = on
            .map(|policy| self.named(policy.name, policy.settings))
            .collect();
        let admission = match on.is_empty() {
            true => "any number waits".to_owned(),
            false => on.join(", "),
        };
        ("admission", admission)
    }

    /// `order aging/fair-tenants (age_after 2, input_weight 1, output_weight 2)`.
    fn order(&self) -> String {
        let name = self.0.get(&ORDER);
        let is_of_order = |entry: &Entry| match &entry.needs {
            Some(Needs::Policy { family, .. }) => family.name == ORDER.row.name,
            _ => false,
        };
        let of_order = table().into_iter().filter(is_of_order);
        let rows: Vec<_> = of_order.map(|entry| entry.row).collect();
        format!("order {}", self.named(&name, &rows))
    }

    /// `batch static (batch_wait 2)`.
    fn chosen<T: ?Sized>(&self, family: &[Named<T>], row: &Row, name: &str) -> String {
        let policy = family.iter().find(|policy| policy.name == name);
        let rows = policy.map_or(&[][..], |policy| policy.settings);
        format!("{} {}", row.name, self.named(name, rows))
    }

    /// A policy with those of its settings that are not off; switches only turn it on.
    fn named(&self, name: &str, rows: &[&'static Row]) -> String {
        let rows = rows.iter().filter(|row| !matches!(row.kind, Kind::Switch));
        let told: Vec<String> = rows.filter_map(|row| self.told(row)).collect();
        match told.is_empty() {
            true => name.to_owned(),
            false => format!("{name} ({})", told.join(", ")),
        }
    }

    /// Name and value of a setting, unless it turns something off by being 0 or empty.
    fn told(&self, row: &Row) -> Option<String> {
        let entry = table()
            .into_iter()
            .find(|entry| entry.row.name == row.name)?;
        let value = self.0.effective(&entry)?;
        let is_told = !value.is_off() || matches!(value, Value::Switch(_));
        is_told.then(|| format!("{} {value}", row.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_read_by_a_flag_as_by_the_table() {
        use clap::builder::TypedValueParser as _;
        let command = Command::new("serve");
        for text in [
            "y", "YES", "t", "true", "on", "1", "n", "no", "f", "false", "Off", "0", "2", "",
        ] {
            let own = Kind::Switch.parse(text).ok();
            let flag = BoolishValueParser::new().parse_ref(&command, None, text.as_ref());
            assert_eq!(own, flag.ok().map(Value::Switch), "{text:?}");
        }
    }

    #[test]
    fn the_banner_tells_what_is_on() {
        let mut settings = SchedulerSettings::default();
        let [(_, admission), (_, policies)] = settings.lines();
        assert_eq!(admission, "queue-cap (queue_cap 256)");
        let usual =
            "order fifo, batch continuous, budget first-come, victim newest-of-lowest-class";
        assert_eq!(policies, usual);
        for (name, text) in [
            ("queue_cap", "0"),
            ("concurrency_limit", "true"),
            ("order", "aging-tiers"),
            ("prefix_cache", "false"),
        ] {
            settings.0.set_text(name, text).unwrap();
        }
        let [(_, admission), (_, policies)] = settings.lines();
        assert_eq!(admission, "concurrency-limit");
        assert!(
            policies.starts_with("order aging-tiers (age_after 2), "),
            "{policies}"
        );
        assert!(policies.ends_with(", prefix_cache false"), "{policies}");
    }
}
