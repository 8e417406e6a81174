//! The inner orders of a composed one: one for each outer lane, made when the lane is first used.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use serve_core::{Request, Time};

use super::Factory;
use crate::demand::Demand;
use crate::order::{InFlight, Lanes, Order, Waiting};
use crate::settings::{Change, Row};

/// An order for each lane. There are as many as there are classes or groups named, so none is dropped.
pub(in crate::order) struct Instances {
    make: Factory,
    levels: Vec<Lanes>,
    each: BTreeMap<u32, Box<dyn Order>>,
    /// What has changed since the start, for those that are made later.
    changed: Option<Change>,
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.each).finish()
    }
}

impl Instances {
    pub(in crate::order) fn new(make: Factory) -> Self {
        Self {
            levels: make().levels(),
            make,
            each: BTreeMap::new(),
            changed: None,
        }
    }

    /// The name of an order `outer` over these.
    pub(in crate::order) fn name_under(&self, outer: &str) -> String {
        match (self.make)().name() {
            "fifo" => outer.to_owned(),
            inner => format!("{outer}/{inner}"),
        }
    }

    /// The levels of an order over these, whose own lanes compare like `outer`.
    pub(in crate::order) fn levels_under(&self, outer: Lanes) -> Vec<Lanes> {
        let mut levels = vec![outer];
        levels.extend(&self.levels);
        levels
    }

    /// The order of an outer lane.
    pub(in crate::order) fn get(&mut self, lane: u32) -> &mut dyn Order {
        let (make, changed) = (&self.make, &self.changed);
        let order = self.each.entry(lane).or_insert_with(|| {
            let mut order = make();
            if let Some(change) = changed {
                // It has seen no request yet.
                order.change(change, &InFlight::default(), Time::ZERO);
            }
            order
        });
        &mut **order
    }

    /// Whether the inner orders take another value of a setting.
    pub(in crate::order) fn takes(&self, row: &Row) -> bool {
        (self.make)().takes(row)
    }

    /// Changes the inner orders, each with the requests of its lane.
    pub(in crate::order) fn change(
        &mut self,
        change: &Change,
        in_flight: &InFlight<'_>,
        now: Time,
        lane_of: impl Fn(&Request) -> u32,
    ) {
        for (&lane, order) in &mut self.each {
            let inside = in_flight.only(|request| lane_of(request) == lane);
            order.change(change, &inside, now);
        }
        match &mut self.changed {
            Some(changed) => changed.then(change),
            None => self.changed = Some(change.clone()),
        }
    }

    pub(in crate::order) fn lane_key(&self, path: &[u32], head: &Waiting<'_>, now: Time) -> u64 {
        self.inside(path)
            .map_or(0, |(order, path)| order.lane_key(path, head, now))
    }

    pub(in crate::order) fn lane_counter(&self, path: &[u32]) -> u128 {
        self.inside(path)
            .map_or(0, |(order, path)| order.lane_counter(path))
    }

    pub(in crate::order) fn lane_share(&self, path: &[u32]) -> NonZeroU32 {
        self.inside(path)
            .map_or(NonZeroU32::MIN, |(order, path)| order.lane_share(path))
    }

    pub(in crate::order) fn others_ahead(
        &mut self,
        path: &[u32],
        own: &Demand,
        others: &Demand,
    ) -> Demand {
        match path {
            [lane, path @ ..] => self.get(*lane).others_ahead(path, own, others),
            [] => *others,
        }
    }

    /// The order of the outermost lane of a path, and the path inside of it.
    fn inside<'a>(&self, path: &'a [u32]) -> Option<(&dyn Order, &'a [u32])> {
        let (lane, path) = path.split_first()?;
        let order = self.each.get(lane)?;
        Some((&**order, path))
    }
}
