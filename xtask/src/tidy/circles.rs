//! No circles among the modules of a crate: two files that need each other are one concept, or have a
//! third between them.
//!
//! Modules are compared where they stand side by side: of `a/x.rs` and `b/y.rs` it is the folders `a` and
//! `b`. A module and what is inside of it may name each other, as a parent gathers what its children offer.
//! What stands inside of a macro's arguments is not read.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Meta, UseTree, Visibility};

use super::{File, Finding};

/// The path of a module or of an item from the root of its crate.
type ItemPath = Vec<String>;

/// A file of a crate, by what it names.
#[derive(Debug, Default)]
struct Module {
    /// What it names of its own crate, as it is written there, and on which line.
    names: Vec<(ItemPath, usize)>,
    /// Names that others find here though they stand elsewhere.
    exports: BTreeMap<String, ItemPath>,
    /// The index of its file.
    file: usize,
}

/// The modules of one crate or program, by their paths.
type Modules = BTreeMap<ItemPath, Module>;

/// A module that names another beside it: where.
type Arrows = BTreeMap<ItemPath, BTreeMap<ItemPath, (usize, usize)>>;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut crates = BTreeMap::<String, Modules>::new();
    for (index, file) in files.iter().enumerate() {
        let Some((root, path)) = place(file, files) else {
            continue;
        };
        // What does not parse is the compiler's to say.
        if let Ok(syntax) = syn::parse_file(&file.text) {
            let mut reader = Reader {
                path: &path,
                module: Module {
                    file: index,
                    ..Module::default()
                },
            };
            reader.visit_file(&syntax);
            let module = reader.module;
            crates.entry(root).or_default().insert(path, module);
        }
    }
    crates
        .values()
        .flat_map(|modules| circles(files, modules))
        .collect()
}

/// The root of the program or library that a file is part of, and its module's path in there.
pub(super) fn place(file: &File, files: &[File]) -> Option<(String, ItemPath)> {
    let (krate, inside) = file.path.split_once("/src/")?;
    if !file.is_rust() || file.is_test() {
        return None;
    }
    let mut parts = inside
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect::<Vec<_>>();
    let mut root = format!("{krate}/src");
    if parts[0] == "bin" {
        root = format!("{root}/bin/{}", parts[1]);
        parts.drain(..2);
    } else if inside == "main.rs" {
        let has_library = files
            .iter()
            .any(|file| file.path == format!("{root}/lib.rs"));
        root.push_str(if has_library { "/main" } else { "" });
    }
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "main" | "lib")
    ) {
        parts.pop();
    }
    Some((root, parts))
}

/// Reads what one file names, its tests left out.
struct Reader<'a> {
    path: &'a [String],
    module: Module,
}

impl Reader<'_> {
    /// A path from the root of the crate, if it is one within it.
    fn absolute(&self, written: &[String]) -> Option<ItemPath> {
        let mut base = self.path.to_vec();
        let mut rest = written;
        match rest.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            _ => return None,
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    fn used(&mut self, written: &[String], known_as: Option<&str>, line: usize) {
        let inside = self.absolute(written);
        if let Some(path) = &inside {
            self.module.names.push((path.clone(), line));
        }
        if let Some(name) = known_as {
            let beside = [self.path, written].concat();
            let path = inside.unwrap_or(beside);
            self.module.exports.insert(name.to_owned(), path);
        }
    }

    fn tree(&mut self, tree: &UseTree, before: &mut ItemPath, exported: bool, line: usize) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before, exported, line);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before, exported, line);
                }
            }
            UseTree::Name(name) => {
                let own = name.ident.to_string();
                if own != "self" {
                    before.push(own.clone());
                }
                self.used(before, exported.then_some(own.as_str()), line);
                if own != "self" {
                    before.pop();
                }
            }
            UseTree::Rename(name) => {
                before.push(name.ident.to_string());
                let known_as = name.rename.to_string();
                self.used(before, exported.then_some(known_as.as_str()), line);
                before.pop();
            }
            UseTree::Glob(_) => self.used(before, None, line),
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            let exported = !matches!(item.vis, Visibility::Inherited);
            let line = item.use_token.span.start().line;
            self.tree(&item.tree, &mut Vec::new(), exported, line);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let written = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect::<Vec<_>>();
        let line = path
            .segments
            .first()
            .map_or(0, |first| first.ident.span().start().line);
        self.used(&written, None, line);
        visit::visit_path(self, path);
    }
}

pub(super) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        // `any(test, ..)` is of the product too.
        Meta::List(list) if list.path.is_ident("cfg") => {
            let when = list.tokens.to_string();
            when == "test" || when.starts_with("all (test ,") || when == "doctest"
        }
        _ => false,
    })
}

/// The module in which a name stands, through what other modules export.
fn home(modules: &Modules, path: &[String]) -> ItemPath {
    let mut at = ItemPath::new();
    let mut rest = path.to_vec();
    // An export of an export of an export; a circle of them does not compile.
    for _ in 0..16 {
        while let Some(next) = rest.first() {
            let inside = [at.as_slice(), std::slice::from_ref(next)].concat();
            if !modules.contains_key(&inside) {
                break;
            }
            at = inside;
            rest.remove(0);
        }
        let Some(name) = rest.first() else { break };
        let Some(elsewhere) = modules.get(&at).and_then(|module| module.exports.get(name)) else {
            break;
        };
        rest.splice(..1, elsewhere.iter().cloned());
        at.clear();
    }
    at
}

/// Where modules beside each other name each other.
fn arrows(modules: &Modules) -> Arrows {
    let mut arrows = Arrows::new();
    for (from, module) in modules {
        for (name, line) in &module.names {
            let to = home(modules, name);
            let shared = from
                .iter()
                .zip(&to)
                .take_while(|(one, other)| one == other)
                .count();
            if shared < from.len() && shared < to.len() {
                arrows
                    .entry(from[..=shared].to_vec())
                    .or_default()
                    .entry(to[..=shared].to_vec())
                    .or_insert((module.file, *line));
            }
        }
    }
    arrows
}

/// One finding for each set of modules that need each other: its shortest way around.
fn circles(files: &[File], modules: &Modules) -> Vec<Finding> {
    let arrows = arrows(modules);
    let mut told = BTreeSet::new();
    let mut findings = Vec::new();
    for start in arrows.keys() {
        let Some(way) = way_back(&arrows, start) else {
            continue;
        };
        let mut members = way.clone();
        members.sort();
        if !told.insert(members) {
            continue;
        }
        let (file, line) = arrows[&way[0]][&way[1 % way.len()]];
        let names = way.iter().chain([&way[0]]);
        let names = names.map(|path| path.join("::")).collect::<Vec<_>>();
        findings.push(Finding::new(
            &files[file],
            line,
            format!(
                "modules in a circle: {}; move what they share into one of them, or below both",
                names.join(" -> ")
            ),
        ));
    }
    findings
}

/// The shortest way from a module back to itself.
fn way_back(arrows: &Arrows, start: &ItemPath) -> Option<Vec<ItemPath>> {
    let mut ways = vec![vec![start.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let next = way.last().and_then(|last| arrows.get(last));
            for to in next.into_iter().flat_map(BTreeMap::keys) {
                if to == start {
                    return Some(way);
                }
                if seen.insert(to.clone()) {
                    longer.push([way.as_slice(), std::slice::from_ref(to)].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn remedies(files: &[File]) -> Vec<String> {
        check(files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_files_that_name_each_other_are_a_circle() {
        let files = [
            file("crates/a/src/lib.rs", "mod x;\nmod y;"),
            file("crates/a/src/x.rs", "\nuse crate::y::{Y, Z};"),
            file("crates/a/src/y.rs", "fn f(x: &super::x::X) {}"),
        ];
        assert_eq!(
            remedies(&files),
            [
                "crates/a/src/x.rs:2: modules in a circle: x -> y -> x; move what they share into one of \
              them, or below both"
            ]
        );
    }

    #[test]
    fn a_name_is_followed_to_where_it_stands_and_folders_are_compared_with_their_neighbours() {
        let exported = "mod one;\nmod two;\npub use one::deep::Thing;";
        let files = [
            file("crates/a/src/lib.rs", exported),
            file("crates/a/src/one/mod.rs", "pub mod deep;"),
            file("crates/a/src/one/deep.rs", "use crate::two::T;"),
            file("crates/a/src/two.rs", "use crate::Thing;"),
        ];
        assert_eq!(remedies(&files).len(), 1);
        assert!(remedies(&files)[0].contains("one -> two -> one"));
    }

    #[test]
    fn what_is_of_the_product_as_well_as_of_its_tests_counts() {
        for when in [
            "any(test, feature = \"gpu\")",
            "feature = \"latest\"",
            "not(test)",
        ] {
            let files = [
                file("crates/a/src/lib.rs", ""),
                file(
                    "crates/a/src/x.rs",
                    &format!("#[cfg({when})]\nuse crate::y::Y;"),
                ),
                file("crates/a/src/y.rs", "use crate::x::X;"),
            ];
            assert_eq!(remedies(&files).len(), 1, "{when}");
        }
        for when in ["test", "all(test, feature = \"gpu\")"] {
            let files = [
                file("crates/a/src/lib.rs", ""),
                file(
                    "crates/a/src/x.rs",
                    &format!("#[cfg({when})]\nuse crate::y::Y;"),
                ),
                file("crates/a/src/y.rs", "use crate::x::X;"),
            ];
            assert!(remedies(&files).is_empty(), "{when}");
        }
    }

    #[test]
    fn longer_ways_around_are_found() {
        let files = [
            file("crates/a/src/main.rs", ""),
            file("crates/a/src/x.rs", "use crate::y::Y;"),
            file("crates/a/src/y.rs", "use super::z;"),
            file("crates/a/src/z.rs", "use crate::x::X as Other;"),
        ];
        assert!(remedies(&files)[0].contains("x -> y -> z -> x"));
        assert_eq!(remedies(&files).len(), 1);
    }

    #[test]
    fn parents_children_tests_and_other_programs_are_no_circle() {
        let files = [
            file("crates/a/src/lib.rs", "mod x;\npub use x::X;\nfn f() {}"),
            file("crates/a/src/x/mod.rs", "mod y;\nuse y::Y;\npub struct X;"),
            file(
                "crates/a/src/x/y.rs",
                "use super::X;\nuse crate::f;\npub struct Y;",
            ),
            file("crates/a/src/z.rs", "use crate::x::X;"),
            file(
                "crates/a/src/x/w.rs",
                "#[cfg(test)]\nmod tests { use crate::z::Z; }",
            ),
            file("crates/a/src/bin/b/main.rs", "mod x;"),
            file("crates/a/src/bin/b/x.rs", "use crate::z::Z;"),
        ];
        assert_eq!(remedies(&files), [""; 0]);
    }
}
