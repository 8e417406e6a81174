//! Rules about what the documents name: links, commands and policy pages exist.

use super::{File, Finding};

/// The folders of serve-sched that hold one policy in each file.
const FAMILIES: [&str; 7] = [
    "admit", "order", "batch", "budget", "victim", "limit", "route",
];

/// Every rule of this file. `exists` is asked about paths from the root of the workspace.
pub(super) fn check(
    files: &[File],
    cli: &clap::Command,
    binaries: &[&str],
    exists: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let documents = || files.iter().filter(|file| file.is_markdown());
    let mut findings = policy_pages(files);
    findings.extend(documents().flat_map(|file| links(file, files, &exists)));
    findings.extend(documents().flat_map(|file| tasks(file, cli)));
    findings.extend(documents().flat_map(|file| programs(file, binaries)));
    findings
}

/// Every policy has its page, under the name of its file with dashes.
fn policy_pages(files: &[File]) -> Vec<Finding> {
    let missing = files.iter().filter_map(|file| {
        let rest = file.path.strip_prefix("crates/serve-sched/src/")?;
        let (family, name) = rest.split_once('/')?;
        let name = name.strip_suffix(".rs")?;
        let is_policy = FAMILIES.contains(&family) && !name.contains('/');
        if !is_policy || matches!(name, "mod" | "tests") {
            return None;
        }
        let page = format!("docs/policies/{}.md", name.replace('_', "-"));
        let missing = !files.iter().any(|file| file.path == page);
        missing.then(|| {
            Finding::new(
                file,
                1,
                format!("write {page}: rule, formula, when it hurts"),
            )
        })
    });
    missing.collect()
}

/// Every relative link leads to a file and, if it names a heading of a document, to that heading.
fn links(file: &File, files: &[File], exists: &impl Fn(&str) -> bool) -> Vec<Finding> {
    let targets = prose(&file.text).flat_map(|(number, line)| {
        let targets = link_targets(line).into_iter();
        targets.map(move |target| (number, target))
    });
    let broken = targets.filter_map(|(number, target)| {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() {
            file.path.clone()
        } else {
            resolve(&file.path, path)
        };
        if !exists(&path) {
            return Some(Finding::new(
                file,
                number,
                format!("{target} leads nowhere; mend the link"),
            ));
        }
        let document = files
            .iter()
            .find(|file| file.path == path && file.is_markdown())?;
        let found = anchor.is_empty() || headings(&document.text).any(|slug| slug == anchor);
        let remedy = || format!("{target}: {path} has no such heading; mend the link");
        (!found).then(|| Finding::new(file, number, remedy()))
    });
    broken.collect()
}

/// Every `cargo xtask ..` that a document names is a task, and has the options named.
fn tasks(file: &File, cli: &clap::Command) -> Vec<Finding> {
    let found = mentions(file, "cargo xtask ").filter_map(|(number, words)| {
        let unknown = unknown_task(cli, words)?;
        let remedy = format!("there is no `cargo xtask {unknown}`; name one from its --help");
        Some(Finding::new(file, number, remedy))
    });
    found.collect()
}

/// Every `--bin ..` that a document names is a binary of the workspace.
fn programs(file: &File, binaries: &[&str]) -> Vec<Finding> {
    let found = mentions(file, "--bin ").filter_map(|(number, words)| {
        let name = word(words.split_whitespace().next()?);
        let placeholder = !name.starts_with(|c: char| c.is_ascii_lowercase());
        if placeholder || binaries.contains(&name) {
            return None;
        }
        let known = binaries.join(", ");
        Some(Finding::new(
            file,
            number,
            format!("there is no binary {name}; there are {known}"),
        ))
    });
    found.collect()
}

/// What follows each mention of `command` on a line, in prose and in code alike.
fn mentions<'a>(file: &'a File, command: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    file.lines().flat_map(move |(number, line)| {
        let found = line.match_indices(command);
        found.map(move |(at, _)| (number, &line[at + command.len()..]))
    })
}

/// The first part of `words` that names no (sub)task and no option of one: `spede`, `speed decod`, `ci
/// --fast`. `a|b` names both, and ends the path.
fn unknown_task(cli: &clap::Command, words: &str) -> Option<String> {
    let mut here = cli;
    let mut path = String::new();
    let mut words = words.split_whitespace();
    while here.has_subcommands() {
        let raw = words.next()?;
        let names = word(raw);
        if !names.starts_with(|c: char| c.is_ascii_lowercase()) {
            return None; // a placeholder
        }
        if let Some(name) = names
            .split('|')
            .find(|name| here.find_subcommand(name).is_none())
        {
            return Some(format!("{path}{name}"));
        }
        here = here.find_subcommand(names)?;
        path = format!("{path}{names} ");
        if raw != names {
            return None; // punctuation ends the command
        }
    }
    for raw in words {
        let name = word(raw);
        match name.strip_prefix("--") {
            Some("") => return None, // what follows is for another program
            Some(option) if !has_option(here, option) => return Some(format!("{path}{name}")),
            _ => {}
        }
        if raw != name {
            return None;
        }
    }
    None
}

/// Whether a task has an option.
fn has_option(task: &clap::Command, option: &str) -> bool {
    let own = |argument: &clap::Arg| argument.get_long() == Some(option);
    option == "help" || task.get_arguments().any(own)
}

/// A word up to the punctuation that ends a command in prose.
fn word(raw: &str) -> &str {
    let end = raw.find(|c: char| !c.is_ascii_alphanumeric() && !"-_|.".contains(c));
    raw[..end.unwrap_or(raw.len())].trim_end_matches('.')
}

/// The lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The targets of the inline links and images in a line, code spans left out.
fn link_targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for text in line.split('`').step_by(2) {
        let parts = text.split("](").skip(1);
        targets.extend(parts.filter_map(|part| part.split([')', ' ']).next()));
    }
    targets
}

/// `target`, relative to the folder of `from`, as a path from the root.
fn resolve(from: &str, target: &str) -> String {
    let mut parts = from.split('/').collect::<Vec<_>>();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings: lower case, spaces to dashes, punctuation dropped.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = prose(text).filter(|(_, line)| line.starts_with('#'));
    lines.map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn remedies(findings: Vec<Finding>) -> Vec<String> {
        findings
            .into_iter()
            .map(|finding| finding.to_string())
            .collect()
    }

    #[test]
    fn a_policy_without_its_page_is_found() {
        let files = [
            file("crates/serve-sched/src/order/fifo.rs", ""),
            file("crates/serve-sched/src/order/strict_tiers.rs", ""),
            file("crates/serve-sched/src/order/mod.rs", ""),
            file("crates/serve-sched/src/pool/blocks.rs", ""),
            file("docs/policies/fifo.md", ""),
        ];
        assert_eq!(
            remedies(policy_pages(&files)),
            ["crates/serve-sched/src/order/strict_tiers.rs:1: \
              write docs/policies/strict-tiers.md: rule, formula, when it hurts"]
        );
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let page = file(
            "docs/a.md",
            "# A page: first\n[up](../README.md) [b](b.md) [web](https://x.org)\n\
             [here](#a-page-first) [gone](#gone) `[code](x.md)`\n```\n[fenced](y.md)\n```\n",
        );
        let readme = file("README.md", "");
        let files = [page.clone(), readme];
        let exists = |path: &str| matches!(path, "README.md" | "docs/a.md");
        assert_eq!(
            remedies(links(&page, &files, &exists)),
            [
                "docs/a.md:2: b.md leads nowhere; mend the link",
                "docs/a.md:3: #gone: docs/a.md has no such heading; mend the link",
            ]
        );
    }

    fn cli() -> clap::Command {
        let openai = clap::Arg::new("openai").long("openai");
        let json = clap::Arg::new("json").long("json");
        let speed = clap::Command::new("speed")
            .subcommand(clap::Command::new("decode").arg(json))
            .subcommand(clap::Command::new("sim"));
        clap::Command::new("xtask")
            .subcommand(clap::Command::new("ci").arg(openai))
            .subcommand(speed)
    }

    #[test]
    fn tasks_that_a_document_names_exist() {
        let text = "`cargo xtask ci`, or cargo xtask ci.\n`cargo xtask speed decode DIR --json`\n\
                    `cargo xtask speed sim|decode`\n`cargo xtask NAME`\n\
                    `cargo xtask sim`\n`cargo xtask speed sim|walk`\n";
        let found = tasks(&file("README.md", text), &cli());
        let lines = found.iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines, [5, 6], "{found:?}");
        assert!(
            found[1].remedy.contains("`cargo xtask speed walk`"),
            "{found:?}"
        );
    }

    #[test]
    fn options_that_a_document_names_exist() {
        let text = "`cargo xtask ci --openai`, `cargo xtask ci` --fast\n`cargo xtask ci --fast`\n\
                    cargo xtask ci --openai --fast  # all\n`cargo xtask speed decode DIR --fast`\n\
                    `cargo xtask ci --openai -- --fast`\n";
        let found = tasks(&file("README.md", text), &cli());
        let lines = found.iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines, [2, 3, 4], "{found:?}");
        assert!(found[0].remedy.contains("`cargo xtask ci --fast`"));
    }

    #[test]
    fn binaries_that_a_document_names_exist() {
        let text = "`cargo run --release --bin serve`\n`--bin serv`, `--bin NAME`\n";
        let found = programs(&file("README.md", text), &["serve", "xtask"]);
        assert_eq!(
            remedies(found),
            ["README.md:2: there is no binary serv; there are serve, xtask"]
        );
    }
}
