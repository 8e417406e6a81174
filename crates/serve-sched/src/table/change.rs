//! Where two readings of the settings differ.

use super::table;
use crate::settings::{Change, Row, SettingError, Settings};

impl Change {
    /// From the settings `from`, which hold now, to the settings `to`. A setting that is absent is as the
    /// table says, and a tenant or group that is absent as if nobody had named it.
    ///
    /// # Errors
    ///
    /// What [`Settings::check`] says of `to`.
    pub fn between(from: &Settings, to: &Settings) -> Result<Self, SettingError> {
        to.check()?;
        let value = |settings: &Settings, row: &Row| {
            let given = settings.given.get(row.name).cloned();
            given.or_else(|| row.usual.value())
        };
        let entries = table().into_iter();
        let values = entries.filter_map(|entry| {
            let (before, after) = (value(from, entry.row), value(to, entry.row));
            (before != after).then_some((entry.row.name, after))
        });
        Ok(Self {
            values: values.collect(),
            tenants: from.tenants != to.tenants || from.groups != to.groups,
            to: to.clone(),
        })
    }

    /// The settings that differ.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static Row> {
        let rows = table().into_iter().map(|entry| entry.row);
        rows.filter(|row| self.concerns(row))
    }
}
