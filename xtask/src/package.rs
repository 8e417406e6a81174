//! `cargo xtask package`: what others depend on, as they get it.
//!
//! serve-core and serve-sched are packaged, and each package has nothing in it but its sources, its words and what cargo
//! adds. A crate outside of the workspace then follows `docs/embedding.md`: it depends on what the page says to add, with
//! the packages in place of crates.io's, and the page's blocks are its tests. Versions are those that the workspace is
//! locked to, so nothing is fetched.
//!
//! The other crates are left out: serve-model builds on a stand-in for one of its dependencies, which no package can
//! bring along.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cargo_metadata::{Metadata, MetadataCommand};
use thiserror::Error;

use crate::cargo::{self, TaskResult};

/// What others depend on, from the bottom.
const PACKAGED: [&str; 2] = ["serve-core", "serve-sched"];
/// What a newcomer reads and follows.
const PAGE: &str = "docs/embedding.md";
/// What a package is made of. The last four are cargo's.
const BELONGS: [&str; 8] = [
    "src/",
    "README.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Cargo.toml",
    "Cargo.toml.orig",
    "Cargo.lock",
    ".cargo_vcs_info.json",
];
/// What of [`BELONGS`] a package cannot do without, as its page on crates.io is made of it.
const NEEDED: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Why the packages are not what others can use.
#[derive(Debug, Error)]
enum Unusable {
    #[error(
        "{crate_name} packages {path}, which nobody who depends on it needs: see `include` in its Cargo.toml"
    )]
    Surplus { crate_name: String, path: String },
    #[error("{crate_name} packages no {path}")]
    Missing {
        crate_name: String,
        path: &'static str,
    },
    #[error("docs/embedding.md says nowhere `cargo add` of what is packaged, or has no code")]
    NothingToFollow,
    #[error("`{0}` failed")]
    Failed(String),
}

/// A package that is unpacked, and its folder.
struct Unpacked {
    name: String,
    folder: PathBuf,
}

pub(crate) fn run() -> TaskResult {
    let metadata = MetadataCommand::new().exec()?;
    let here = metadata.target_directory.as_std_path().join("package");
    let packages = package(&metadata, &here)?;
    for package in &packages {
        judge(&package.name, &files(&package.folder)?)?;
    }
    let outside = here.join("outside/follows-the-page");
    follow(&metadata, &packages, &outside)?;
    println!(
        "package: {} are what others need, and a crate outside of the workspace that follows {PAGE} passes its tests",
        PACKAGED.join(" and ")
    );
    Ok(ExitCode::SUCCESS)
}

/// Packages the crates and unpacks them below `here`, outside of the workspace's folders.
fn package(metadata: &Metadata, here: &Path) -> Result<Vec<Unpacked>, Box<dyn std::error::Error>> {
    let mut package = cargo::command(&["package", "--quiet", "--offline", "--no-verify"]);
    // A check says what will be, before it is committed.
    package.arg("--allow-dirty");
    package.args(PACKAGED.iter().flat_map(|name| ["--package", name]));
    done(&mut package)?;
    let outside = here.join("outside");
    match fs::remove_dir_all(&outside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(&outside)?,
    }
    let mut unpacked = Vec::new();
    for name in PACKAGED {
        let named = format!("{name}-{}", version(metadata, name).unwrap_or_default());
        let archive = here.join(format!("{named}.crate"));
        let mut tar = Command::new("tar");
        // In a package every file is of the same day for ever, and cargo would take what has changed for what it has built.
        done(tar.arg("-xzmf").arg(archive).arg("-C").arg(&outside))?;
        unpacked.push(Unpacked {
            name: name.to_owned(),
            folder: outside.join(named),
        });
    }
    Ok(unpacked)
}

/// The version of a crate that the workspace is locked to; the newest, if there are several.
fn version(metadata: &Metadata, name: &str) -> Option<String> {
    let packages = metadata.packages.iter();
    let versions = packages.filter(|package| package.name.as_str() == name);
    let newest = versions.map(|package| &package.version).max();
    newest.map(ToString::to_string)
}

/// The files below a folder by their paths in it, with forward slashes.
fn files(folder: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let inside = path.strip_prefix(folder).unwrap_or(&path);
                found.push(inside.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a package has what it needs and nothing else.
fn judge(crate_name: &str, files: &[String]) -> Result<(), Unusable> {
    let crate_name = || crate_name.to_owned();
    for path in files {
        let belongs = |of: &&str| path == *of || of.ends_with('/') && path.starts_with(*of);
        if !BELONGS.iter().any(belongs) {
            let (crate_name, path) = (crate_name(), path.clone());
            return Err(Unusable::Surplus { crate_name, path });
        }
    }
    match NEEDED
        .iter()
        .find(|path| !files.iter().any(|it| it == *path))
    {
        Some(path) => Err(Unusable::Missing {
            crate_name: crate_name(),
            path,
        }),
        None => Ok(()),
    }
}

/// Makes a crate as the page says, and runs its tests.
fn follow(
    metadata: &Metadata,
    packages: &[Unpacked],
    at: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = metadata.workspace_root.as_std_path();
    let page = fs::read_to_string(root.join(PAGE))?;
    let additions = additions(&page);
    let adds_ours = additions
        .iter()
        .flatten()
        .any(|word| PACKAGED.contains(&&**word));
    if !adds_ours || !page.contains("\n```rust\n") {
        return Err(Unusable::NothingToFollow.into());
    }
    fs::create_dir_all(at.join("src"))?;
    let others = additions.iter().flat_map(|words| names(words));
    let others = others.filter(|name| !PACKAGED.contains(&name.as_str()));
    let locked = others.filter_map(|name| Some((name, version(metadata, name)?)));
    fs::write(at.join("Cargo.toml"), manifest(packages, &locked.collect()))?;
    fs::write(
        at.join("src/lib.rs"),
        "#![doc = include_str!(\"page.md\")]\n",
    )?;
    fs::write(at.join("src/page.md"), page)?;
    for words in &additions {
        let mut add = cargo::command(&["add", "--quiet", "--offline"]);
        add.args(locally(words, packages));
        done(add.current_dir(at))?;
    }
    // After the additions, as each of them forgets what it has no use for.
    fs::copy(root.join("Cargo.lock"), at.join("Cargo.lock"))?;
    let mut test = cargo::command(&["test", "--quiet", "--offline", "--doc", "--target-dir"]);
    done(test.arg(&metadata.target_directory).current_dir(at))?;
    Ok(())
}

/// The manifest of a crate to which a package is what crates.io would have, and that asks for what will be added in the
/// versions that the workspace is locked to.
fn manifest(packages: &[Unpacked], locked: &BTreeMap<&String, String>) -> String {
    let patches = packages.iter().map(|Unpacked { name, folder }| {
        let folder = folder.display();
        format!("{name} = {{ path = '{folder}' }}\n")
    });
    let dependencies = locked
        .iter()
        .map(|(name, version)| format!("{name} = \"{version}\"\n"));
    let (patches, dependencies) = (
        patches.collect::<String>(),
        dependencies.collect::<String>(),
    );
    format!(
        "[package]\nname = \"follows-the-page\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{dependencies}\n[patch.crates-io]\n{patches}"
    )
}

/// What follows `cargo add` in each such line of a page's shell blocks, word by word.
fn additions(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("\n```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.lines().take_while(|line| *line != "```"));
    let added = lines.filter_map(|line| line.strip_prefix("cargo add "));
    added
        .map(|words| words.split_whitespace().map(ToOwned::to_owned).collect())
        .collect()
}

/// The crates that are added, without what else is said of them.
fn names(words: &[String]) -> impl Iterator<Item = &String> {
    let before = std::iter::once(None).chain(words.iter().map(Some));
    let is_option = |word: &String| word.starts_with("--");
    let words = words.iter().zip(before);
    words.filter_map(move |(word, before)| {
        let is_value = before.is_some_and(is_option);
        (!is_value && !is_option(word)).then_some(word)
    })
}

/// The same words, and where a package is that is not on crates.io.
fn locally(words: &[String], packages: &[Unpacked]) -> Vec<String> {
    let added = packages
        .iter()
        .find(|package| words.contains(&package.name));
    let folder = added.map(|package| ["--path".to_owned(), package.folder.display().to_string()]);
    words
        .iter()
        .cloned()
        .chain(folder.into_iter().flatten())
        .collect()
}

/// Runs a command to its end; it has said why, if it fails.
fn done(command: &mut Command) -> Result<(), Box<dyn std::error::Error>> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            let words = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>();
            Err(Unusable::Failed(words.join(" ")).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn additions_are_those_of_shell_blocks_and_of_nothing_else() {
        let page = "Type `cargo add nothing`.\n\n```sh\ncargo add ours --features a\ncargo build\ncargo add x y  --features x/z\n\
                    ```\ncargo add prose\n\n```rust\ncargo add code\n```\n\n```sh\ncargo add last\n```\n";
        let expected = ["ours --features a", "x y --features x/z", "last"].map(words);
        assert_eq!(additions(page), expected);
        assert!(additions("```text\ncargo add x\n```\n").is_empty());
    }

    #[test]
    fn the_page_adds_what_is_packaged_and_what_its_blocks_use() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let added = additions(&page).concat();
        for name in ["serve-sched", "axum", "tokio"] {
            assert!(added.iter().any(|word| word == name), "{name}: {added:?}");
        }
    }

    #[test]
    fn a_package_is_added_from_its_folder_and_others_in_the_version_at_hand() {
        let named = |line| names(&words(line)).cloned().collect::<Vec<_>>();
        assert_eq!(named("x y --features x/z"), ["x", "y"]);
        assert_eq!(named("--features a ours --quiet"), ["ours"]);
        let packages = [Unpacked {
            name: "ours".to_owned(),
            folder: PathBuf::from("/here/ours-1"),
        }];
        let locally = |line| locally(&words(line), &packages).join(" ");
        assert_eq!(
            locally("ours --features x"),
            "ours --features x --path /here/ours-1"
        );
        assert_eq!(locally("x y --features x/z"), "x y --features x/z");
        let x = "x".to_owned();
        let manifest = manifest(&packages, &BTreeMap::from([(&x, "1.2.3".to_owned())]));
        assert!(
            manifest.contains("[dependencies]\nx = \"1.2.3\"\n"),
            "{manifest}"
        );
        assert!(
            manifest.ends_with("[patch.crates-io]\nours = { path = '/here/ours-1' }\n"),
            "{manifest}"
        );
    }

    #[test]
    fn a_package_has_what_it_needs_and_nothing_else() {
        let files = |more: &[&str]| {
            let usual = [
                "Cargo.toml",
                "LICENSE-APACHE",
                "LICENSE-MIT",
                "README.md",
                "src/lib.rs",
            ];
            let all = usual.iter().chain(more);
            all.map(|path| (*path).to_owned()).collect::<Vec<_>>()
        };
        assert!(judge("c", &files(&["src/deep/in/x.rs", "Cargo.lock"])).is_ok());
        for surplus in [
            "tests/it.rs",
            "clippy.toml",
            "README.md.bak",
            "srcs/x.rs",
            "benches/b.rs",
        ] {
            let error = judge("c", &files(&[surplus])).unwrap_err().to_string();
            assert!(error.contains(&format!("c packages {surplus},")), "{error}");
        }
        for missing in NEEDED {
            let mut files = files(&[]);
            files.retain(|path| path != missing);
            let error = judge("c", &files).unwrap_err().to_string();
            assert_eq!(error, format!("c packages no {missing}"));
        }
    }
}
