//! SIGHUP: keys, what their tenants are due, rates, and what is logged are read again while the server runs; all
//! of it holds, or none of it and the reason is told.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

use serve_http::Service;
use serve_sched::admit::QUEUE_CAP;
use serve_sched::settings::{CLASSES, Change, QUEUE_TIMEOUT, REQUEST_TIMEOUT};
use serve_sched::table::table;

use crate::assemble::Current;
use crate::console::Console;
use crate::failure::Failure;
use crate::log::Log;
use crate::settings::{self, Cli, Tenants};
use crate::signals::Told;

/// What of the settings is not the scheduler's and can be read again.
const OWN: [&str; 2] = ["keys", "log"];

const RESTART: &str = "it cannot change while the server runs; a restart can change it";

/// What can be read again, as it is now.
pub(crate) struct Reload {
    pub(crate) cli: Cli,
    pub(crate) tenants: Tenants,
    pub(crate) current: Current,
    pub(crate) service: Arc<Service>,
    pub(crate) log: Log,
    pub(crate) console: Console,
}

impl Reload {
    /// Does what signals tell: reads the settings again, or leaves. Blocks for as long as the process lives: a file can take any
    /// time to read.
    pub(crate) fn run(mut self, signals: &mpsc::Receiver<Told>) {
        while let Ok(told) = signals.recv() {
            match told {
                Told::Leave => {
                    self.service.leave();
                }
                Told::Reload => self.reload(),
            }
        }
    }

    fn reload(&mut self) {
        match self.again() {
            Ok(told) => self.console.line(&format!("SIGHUP: {told}")),
            Err(failure) => {
                let told = format!("SIGHUP: the settings stay as they were: {failure}");
                self.console.error(&told);
            }
        }
    }

    fn again(&mut self) -> Result<String, Failure> {
        let Some(path) = &self.cli.config else {
            return Ok("there is no settings file to read again".to_owned());
        };
        let path = path.display().to_string();
        let mut cli = settings::read(std::env::args_os().collect(), |path| {
            std::fs::read_to_string(path)
        })?;
        // What the start has made of it.
        cli.network = self.cli.network.clone();
        self.check(&cli)?;
        let tenants = self.tenants.again(&cli)?;
        let next = tenants.settings(&cli);
        let change = Change::between(&self.current.get(), &next)?;
        let shown = cli.shown()?;
        let log = cli.log != self.cli.log;
        self.service
            .reload(&change, tenants.keys.clone(), shown)
            .map_err(Failure::Reload)?;
        if log {
            // It has been read without a fault already.
            self.log.change(&cli.log)?;
        }
        self.current.set(next);
        let keys = cli.keys.len();
        (self.cli, self.tenants) = (cli, tenants);
        let change = match change.is_empty() {
            true => "nothing else".to_owned(),
            false => change.to_string(),
        };
        Ok(format!(
            "{path} is read again: {keys} keys, log {}, {change}",
            self.cli.log
        ))
    }

    /// Refuses what only a restart can change.
    fn check(&self, cli: &Cli) -> Result<(), Failure> {
        let fixed = |setting: &str, cause: &str| Failure::Usage {
            setting: setting.to_owned(),
            cause: cause.to_owned(),
        };
        if cli.keys.is_empty() && !self.cli.keys.is_empty() {
            return Err(fixed(
                "keys",
                "none would be left, and everybody be let in; a restart can do that",
            ));
        }
        if cli.upstream.upstream_api_key != self.cli.upstream.upstream_api_key {
            return Err(fixed("upstream_api_key", RESTART));
        }
        // The edge has these as well.
        let edge = [
            QUEUE_CAP.row.name,
            REQUEST_TIMEOUT.row.name,
            QUEUE_TIMEOUT.row.name,
            CLASSES.row.name,
        ];
        let rows = table().into_iter().map(|entry| entry.row.name);
        let can: BTreeSet<&str> = rows
            .filter(|name| !edge.contains(name))
            .chain(OWN)
            .collect();
        let values =
            |cli: &Cli| serde_json::to_value(cli).map_err(|error| Failure::Runtime(error.into()));
        let (before, after) = (values(&self.cli)?, values(cli)?);
        let names = before.as_object().into_iter().flat_map(|map| map.keys());
        let mut names = names.filter(|name| !can.contains(name.as_str()));
        match names.find(|name| before.get(name.as_str()) != after.get(name.as_str())) {
            Some(name) => Err(fixed(name, RESTART)),
            None => Ok(()),
        }
    }
}
