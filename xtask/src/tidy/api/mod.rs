//! What others can name of the crates that they depend on, as text that is kept beside each: a change of it is a
//! difference that a reviewer sees.
//!
//! First the paths under which something can be named, then what it is: every `pub` item, as rustc's lint
//! `unreachable_pub` lets none stand that nobody outside can reach. Bodies, values, docs and private fields are left out,
//! and items are sorted by name wherever they stand, so only a change of the interface changes the text. What a macro makes
//! stands there as the macro and its calls. What follows from private fields is not seen: `Send`, `Sync` and the like.

mod strip;

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, ItemImpl, ItemMacro, UseTree};

use self::strip::{
    attributes, conditions, is_public, is_told, makes_items, strip, told_of, type_name,
    without_docs,
};
use super::circles::{is_test, place};
use super::{File, Finding};

/// The crates that others depend on.
pub(super) const CRATES: [&str; 2] = ["serve-core", "serve-sched"];

/// Where the text of a crate is kept.
pub(super) fn path(krate: &str) -> String {
    format!("crates/{krate}/public-api.txt")
}

/// One finding for each crate whose text is not what `kept` has of it.
pub(super) fn check(files: &[File], kept: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let stale = CRATES.iter().filter_map(|krate| {
        let path = path(krate);
        let (kept, now) = (kept(&path).unwrap_or_default(), listing(files, krate));
        let same = kept.lines().zip(now.lines()).take_while(|(a, b)| a == b).count();
        (kept != now).then(|| Finding {
            path,
            line: same + 1,
            remedy: "the public interface is another; `cargo xtask api` writes it, and review shows the difference"
                .to_owned(),
        })
    });
    stale.collect()
}

/// The text of a crate.
pub(super) fn listing(files: &[File], krate: &str) -> String {
    let root = format!("crates/{krate}/src");
    let mut crate_items = Crate::default();
    for file in files {
        let Some((_, path)) = place(file, files).filter(|(of, _)| *of == root) else {
            continue;
        };
        // What does not parse is the compiler's to say.
        if let Ok(syntax) = syn::parse_file(&file.text) {
            crate_items.gather(syntax.items, &path);
        }
    }
    crate_items.text(&krate.replace('-', "_"))
}

/// What was found in a crate.
#[derive(Default)]
struct Crate {
    /// Modules that their parents declare `pub`, and with which features.
    modules: BTreeMap<Vec<String>, String>,
    /// What is `pub` or re-exported in which module, and with which features it is.
    names: BTreeSet<(Vec<String>, String, String)>,
    /// By the name of each, or of the type that it is about.
    items: Vec<(String, Item)>,
    impls: Vec<ItemImpl>,
    macros: Vec<ItemMacro>,
    /// Types and traits that are not `pub`.
    private: BTreeSet<String>,
}

impl Crate {
    fn gather(&mut self, items: Vec<Item>, module: &[String]) {
        for mut item in items {
            let Some(attributes) = attributes(&mut item) else {
                continue;
            };
            if is_test(attributes) {
                continue;
            }
            attributes.retain(is_told);
            match item {
                Item::Mod(inner) => {
                    let path = [module, &[inner.ident.to_string()]].concat();
                    if is_public(&inner.vis) {
                        self.modules.insert(path.clone(), conditions(&inner.attrs));
                    }
                    let inside = inner.content.map(|(_, items)| items);
                    self.gather(inside.unwrap_or_default(), &path);
                }
                Item::Use(used) if is_public(&used.vis) => {
                    self.exported(&used.tree, module, &conditions(&used.attrs));
                }
                Item::Impl(block) => self.impls.push(block),
                Item::Macro(makes) => self.macros.push(makes),
                item => self.item(item, module),
            }
        }
    }

    fn item(&mut self, mut item: Item, module: &[String]) {
        let Some((is_public, name)) = strip(&mut item) else {
            return;
        };
        if is_public {
            self.names
                .insert((module.to_vec(), name.clone(), String::new()));
            self.items.push((name, item));
        } else {
            self.private.insert(name);
        }
    }

    fn exported(&mut self, tree: &UseTree, module: &[String], when: &str) {
        let name = match tree {
            UseTree::Path(path) => return self.exported(&path.tree, module, when),
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.exported(tree, module, when));
            }
            UseTree::Name(name) => name.ident.to_string(),
            UseTree::Rename(name) => name.rename.to_string(),
            UseTree::Glob(_) => "*".to_owned(),
        };
        self.names.insert((module.to_vec(), name, when.to_owned()));
    }

    /// A line for each path under which something can be named from outside.
    fn paths(&self, krate: &str) -> impl Iterator<Item = String> {
        self.names.iter().filter_map(move |(module, name, when)| {
            let above =
                (1..=module.len()).map(|end| self.modules.get(&module[..end]).map(String::as_str));
            let above = above.collect::<Option<String>>()?;
            let path = [krate].into_iter().chain(module.iter().map(String::as_str));
            let path = path.chain([&**name]).collect::<Vec<_>>().join("::");
            Some(format!("{path}{above}{when}\n"))
        })
    }

    fn text(mut self, krate: &str) -> String {
        let mut text = format!(
            "// What others can name of {krate}: `cargo xtask api` writes it, `cargo xtask tidy` compares.\n\n"
        );
        text.extend(self.paths(krate));
        text.push('\n');
        self.add_impls();
        self.add_macros();
        let pretty = |(name, item)| {
            let file = syn::File {
                shebang: None,
                frontmatter: None,
                attrs: Vec::new(),
                items: vec![item],
            };
            (name, prettyplease::unparse(&file))
        };
        let mut named: Vec<(String, String)> = self.items.into_iter().map(pretty).collect();
        // What a type is goes before what it does: `impl` is not sorted by its text alone.
        named
            .sort_by_cached_key(|(name, text)| (name.clone(), text.contains("impl"), text.clone()));
        text.extend(named.into_iter().map(|(_, text)| text));
        text
    }

    /// Blocks of what can be named: what a type can, and of a trait's that it has it.
    fn add_impls(&mut self) {
        for mut block in std::mem::take(&mut self.impls) {
            let of = type_name(&block.self_ty);
            let has = block
                .trait_
                .as_ref()
                .and_then(|(path, _)| path.segments.last());
            let has = has.map(|segment| segment.ident.to_string());
            if self.private.contains(&of) || has.is_some_and(|name| self.private.contains(&name)) {
                continue;
            }
            let is_trait = block.trait_.is_some();
            block.items.retain_mut(|item| told_of(item, is_trait));
            if is_trait || !block.items.is_empty() {
                self.items.push((of, Item::Impl(block)));
            }
        }
    }

    /// Macros that make items, and their calls.
    fn add_macros(&mut self) {
        let macros = std::mem::take(&mut self.macros);
        let makes = |it: &&ItemMacro| it.ident.is_some() && makes_items(it.mac.tokens.clone());
        let makers: BTreeSet<String> = macros
            .iter()
            .filter(makes)
            .filter_map(|it| Some(it.ident.as_ref()?.to_string()))
            .collect();
        for mut makes in macros {
            let name = makes.ident.as_ref().or(makes.mac.path.get_ident());
            let name = name.map(ToString::to_string).unwrap_or_default();
            if makers.contains(&name) {
                makes.mac.tokens = without_docs(makes.mac.tokens);
                self.items.push((name, Item::Macro(makes)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::file;

    fn of(sources: &[(&str, &str)]) -> String {
        let files = sources
            .iter()
            .map(|(path, text)| file(&format!("crates/serve-core/src/{path}"), text));
        listing(&files.collect::<Vec<_>>(), "serve-core")
    }

    fn of_one(text: &str) -> String {
        of(&[("lib.rs", text)])
    }

    const BASE: &str = "mod inner;\npub mod open;\npub use inner::Thing;\n\
                        pub struct Point { pub x: u32, y: u32 }\n\
                        pub trait Does { fn must(&self); fn may(&self) { self.must() } }\n\
                        impl Does for Point { fn must(&self) {} }\n\
                        impl Point { pub fn far(&self) -> u32 { self.x } fn own(&self) {} }\n\
                        pub const SIZE: u32 = 3;";
    const INNER: &str = "#[derive(Debug)]\npub enum Thing { One(u32), Two }";
    const OPEN: &str = "pub fn call<T: Clone>(of: &T) -> T { of.clone() }";

    fn listed(base: &str, inner: &str, open: &str) -> String {
        of(&[("lib.rs", base), ("inner.rs", inner), ("open.rs", open)])
    }

    #[test]
    fn it_reads_as_what_others_can_name_and_what_that_is() {
        let expected = "\
// What others can name of serve_core: `cargo xtask api` writes it, `cargo xtask tidy` compares.

serve_core::Does
serve_core::Point
serve_core::SIZE
serve_core::Thing
serve_core::open::call

pub trait Does {
    fn must(&self);
    fn may(&self) {}
}
pub struct Point {
    pub x: u32,
    private: _,
}
impl Does for Point {}
impl Point {
    pub fn far(&self) -> u32 {}
}
pub const SIZE: u32 = _;
#[derive(Debug)]
pub enum Thing {
    One(u32),
    Two,
}
pub fn call<T: Clone>(of: &T) -> T {}
";
        assert_eq!(listed(BASE, INNER, OPEN), expected);
    }

    #[test]
    fn what_others_see_changes_the_text() {
        let before = listed(BASE, INNER, OPEN);
        let changes = [
            ("pub x: u32", "pub x: u64"),
            ("y: u32 }", "}"),
            (", y: u32", ", pub y: u32"),
            ("fn must(&self);", "fn must(&self) {}"),
            ("fn may(&self) { self.must() }", "fn may(&self);"),
            ("fn may(&self) { self.must() }", ""),
            ("-> u32 { self.x }", "-> u64 { 0 }"),
            ("pub fn far", "pub(crate) fn far"),
            ("impl Does for Point { fn must(&self) {} }", ""),
            ("const SIZE: u32", "const SIZE: u64"),
            ("pub const SIZE", "const SIZE"),
            ("pub use inner::Thing;", ""),
            ("pub use inner::Thing;", "pub use inner::Thing as Other;"),
            ("pub mod open;", "mod open;"),
            ("pub mod open;", "#[cfg(feature = \"x\")] pub mod open;"),
            ("pub use", "#[cfg(feature = \"x\")] pub use"),
            ("pub use inner", "#[cfg(feature = \"x\")] pub use inner"),
            ("Debug", "Debug, Clone"),
            ("#[derive(Debug)]", "#[derive(Debug)] #[non_exhaustive]"),
            ("Two", "Two, Three"),
            ("One(u32)", "One { of: u32 }"),
            ("T: Clone", "T: Copy"),
            ("of: &T", "of: T"),
        ];
        for (from, to) in changes {
            let all = [BASE, INNER, OPEN];
            assert!(all.iter().any(|text| text.contains(from)), "{from}");
            let [base, inner, open] = all.map(|text| text.replace(from, to));
            assert_ne!(listed(&base, &inner, &open), before, "{from} -> {to}");
        }
    }

    #[test]
    fn what_others_do_not_see_does_not() {
        let before = listed(BASE, INNER, OPEN);
        let changes = [
            ("y: u32 }", "y: String, z: u8 }"),
            ("{ self.x }", "{ self.x + self.y }"),
            ("fn own(&self) {}", ""),
            ("= 3", "= 4"),
            ("pub struct", "/// A doc.\npub struct"),
            (
                "mod inner;",
                "mod inner;\nstruct Hidden;\nimpl Does for Hidden { fn must(&self) {} }\nimpl Hidden { pub fn f(&self) {} }",
            ),
            (
                "mod inner;",
                "mod inner;\ntrait Own {}\nimpl Own for Point {}\npub(crate) fn helper() {}",
            ),
            (
                "mod inner;",
                "mod inner;\n#[cfg(test)]\nmod tests { pub fn f() {} }",
            ),
            (
                "mod inner;",
                "mod inner;\nmacro_rules! local { () => { 1 } }\nlocal!();",
            ),
        ];
        for (from, to) in changes {
            assert!(BASE.contains(from), "{from}");
            assert_eq!(
                listed(&BASE.replace(from, to), INNER, OPEN),
                before,
                "{from} -> {to}"
            );
        }
        let moved = of(&[
            (
                "lib.rs",
                &BASE.replace("pub use inner::Thing", "mod deep;\npub use deep::Thing"),
            ),
            ("deep.rs", INNER),
            ("open.rs", OPEN),
        ]);
        assert_eq!(moved, before, "where something stands is nobody's business");
    }

    #[test]
    fn what_a_macro_makes_is_the_macro_and_its_calls() {
        let text = "macro_rules! id { ($name:ident) => { /// A doc.\npub struct $name(u32); } }\nid!(Request);";
        let listed = of_one(text);
        assert!(listed.contains("macro_rules! id"), "{listed}");
        assert!(listed.contains("id!(Request);"), "{listed}");
        assert!(!listed.contains("A doc"), "{listed}");
        assert_ne!(of_one(&text.replace("Request", "Tenant")), listed);
        assert_ne!(of_one(&text.replace("u32", "u64")), listed);
        assert_eq!(of_one(&text.replace("A doc", "Another")), listed);
    }

    #[test]
    fn another_text_than_the_kept_one_is_found_with_its_line_and_no_text_too() {
        let files = [
            file(
                "crates/serve-core/src/lib.rs",
                "pub struct A;\npub struct B;",
            ),
            file("crates/serve-sched/src/lib.rs", ""),
        ];
        let kept = |path: &str| {
            CRATES
                .iter()
                .find(|krate| self::path(krate) == path)
                .map(|krate| listing(&files, krate))
        };
        assert_eq!(check(&files, kept), []);
        let other = |path: &str| kept(path).map(|text| text.replace("::B", "::C"));
        let found = check(&files, other);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&*found[0].path, found[0].line),
            ("crates/serve-core/public-api.txt", 4)
        );
        assert_eq!(check(&files, |_| None).len(), 2);
    }
}
